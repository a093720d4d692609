"""Model inputs of a file of words or texts, and each piece's word. No TensorFlow."""

import functools
import itertools
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import features as feature_settings
from bert_keras.core.settings import finetuning
from bert_keras.data import token_offsets, tokenization
from bert_keras.kinds.tagging import ner, ner_windows
from bert_keras.kinds.text import text
from bert_keras.labelled import dataset, reading, tokenized

FORMS: tuple[str, ...] = typing.get_args(feature_settings.InputForm)
POOLINGS: tuple[str, ...] = typing.get_args(feature_settings.Pooling)

_FORM_OF_SUFFIX = {".txt": "lines", ".tsv": "text", ".csv": "text", ".jsonl": "text"}
# More make longer lists, fewer longer searches for batches of like lengths.
_EXAMPLES_AT_A_TIME = 1000

Example = text.LabelledText | ner.Sentence


@dataclass(frozen=True, kw_only=True)
class AlignedInputs:
    """Model inputs of some examples, and the pieces that have vectors.

    A row is a word or, with pooling `none`, a piece, and gets a vector. The rows of all
    inputs, in order, are the rows of all examples. An example can have several inputs
    (see `ner_windows`); every row belongs to one input.
    """

    inputs: tokenized.TokenizedTexts
    num_rows: np.ndarray
    """`(num_inputs,)` int64."""
    positions: np.ndarray
    """`(num_rows,)` int64: a row's first piece in its input."""
    num_pieces: np.ndarray
    """`(num_rows,)` int64: consecutive pieces whose mean is the row's vector."""
    examples: Sequence[dict[str, Any]]
    """Descriptions of the examples: `line`, the first in the file, from 1; of rows

    - `words`, as written, or `pieces`, as in the vocabulary,
    - of texts `starts` and `ends`, their characters in the text,
    - of pairs of texts `segment_ids`, 0 for the first and 1 for the second text,
    - of pieces `word_ids`, the number of the word in the text or sentence, from 0.
    """
    num_cut: int
    """Number of texts that were too long: their ends have no rows."""

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of each input, `(num_inputs,)` int64."""
        return self.inputs.lengths

    @property
    def num_answers(self) -> int:
        """The number of pieces of all rows, whose outputs `pool` turns into rows."""
        return int(self.num_pieces.sum())

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns some inputs, padded: the dict of `TokenizedTexts.batch` and `pieces`,
        `(num_pieces, 2)` int32, row and position of each piece in the batch."""
        chosen = tokenized.ranges(self._first_rows[rows], self.num_rows[rows])
        num_pieces = self.num_pieces[chosen]
        in_batch = np.repeat(np.arange(len(rows)), self.num_rows[rows])
        places = [
            np.repeat(in_batch, num_pieces),
            tokenized.ranges(self.positions[chosen], num_pieces),
        ]
        pieces = np.stack(places, axis=-1).astype(np.int32)
        return {**self.inputs.batch(rows), "pieces": pieces}

    def places(self, rows: np.ndarray) -> dataset.Places:
        first_pieces = self._piece_ends[self._first_rows]
        counts = self._piece_ends[self._first_rows + self.num_rows] - first_pieces
        ids = tokenized.ranges(first_pieces[rows], counts[rows])
        return dataset.Places(ids, (np.arange(len(ids)),))

    def pool(self, outputs: np.ndarray) -> np.ndarray:
        """Turns vectors of pieces, `(num_answers, ...)`, into `(num_rows, ...)`."""
        if self.num_pieces.max(initial=0) <= 1:
            return outputs
        sums = np.add.reduceat(outputs, self._piece_ends[:-1])
        counts = np.float32(self.num_pieces)
        return sums / counts.reshape(-1, *[1] * (outputs.ndim - 1))

    def parts(self, max_pieces: int) -> Iterator["AlignedInputs"]:
        """Yields consecutive inputs, without `examples`, of at most `max_pieces` pieces
        each, unless a single input has more."""
        row_ends = np.cumsum(self.num_rows)
        ends, begin = self._piece_ends[row_ends], 0
        while begin < len(ends):
            most = max_pieces + (ends[begin - 1] if begin else 0)
            end = max(begin + 1, int(np.searchsorted(ends, most, side="right")))
            rows = slice(self._first_rows[begin], row_ends[end - 1])
            yield AlignedInputs(
                inputs=self.inputs.part(begin, end),
                num_rows=self.num_rows[begin:end],
                positions=self.positions[rows],
                num_pieces=self.num_pieces[rows],
                examples=(),
                num_cut=0,
            )
            begin = end

    @functools.cached_property
    def _first_rows(self) -> np.ndarray:
        return np.cumsum(self.num_rows) - self.num_rows

    @functools.cached_property
    def _piece_ends(self) -> np.ndarray:
        return np.append(0, np.cumsum(self.num_pieces))


def form_of(path: str | Path) -> str:
    """Returns the form of a file by its name; refuses a name that does not tell."""
    suffix = files.path(path).suffix.lower()
    if suffix not in _FORM_OF_SUFFIX:
        raise InputError(
            f"{path}: the name does not tell what is in it ("
            + ", ".join(f"{s}: {form}" for s, form in _FORM_OF_SUFFIX.items())
            + f"): give --form, one of {', '.join(FORMS)}"
        )
    return _FORM_OF_SUFFIX[suffix]


def read(
    path: str | Path, *, form: str, columns: finetuning.TextColumns
) -> Sequence[Example]:
    """Reads all examples of a file; labels and tags are ignored. An empty line of the
    form `lines` is an empty text, but a file without a line is refused."""
    if form == "tagging":
        return ner.read(path, has_tags=False)
    if form == "text":
        return text.read_texts(path, columns, has_label=False)
    lines = reading.read_lines(path)
    if lines == [""]:
        raise InputError(f"{path}: is empty, expected lines of text")
    return [text.LabelledText(x, None, None, n) for n, x in enumerate(lines, start=1)]


def parts(examples: Sequence[Example]) -> Iterator[Sequence[Example]]:
    """Yields lists of examples to encode one by one. Documents stay whole, because they
    are the context of their sentences."""
    part: list[Example] = []
    for _, document in itertools.groupby(
        examples, key=lambda e: e.document if isinstance(e, ner.Sentence) else e.line
    ):
        part += document
        if len(part) >= _EXAMPLES_AT_A_TIME:
            yield part
            part = []
    if part:
        yield part


class Aligner:
    """Makes model inputs of examples, with the tokens of each word. For
    `document_context` see `ner_windows.tokenize`."""

    def __init__(
        self,
        tokenizer: tokenization.Tokenizer,
        *,
        max_seq_length: int,
        pooling: str,
        document_context: bool,
    ):
        self._tokenizer = tokenizer
        self._offset_tokenizer = token_offsets.OffsetTokenizer(tokenizer)
        self._max_seq_length = max_seq_length
        self._pooling = pooling
        self._document_context = document_context

    def __call__(self, examples: Sequence[Example]) -> AlignedInputs:
        if isinstance(examples[0], ner.Sentence):
            return self._encode_sentences(examples)
        return self._encode_texts(examples)

    # Tagged words

    def _encode_sentences(self, sentences: Sequence[ner.Sentence]) -> AlignedInputs:
        words = ner_windows.tokenize(
            sentences,
            self._tokenizer,
            max_seq_length=self._max_seq_length,
            document_context=self._document_context,
        )
        # As in `tokenize`, a word has at least one piece and no more than fit.
        counts = [
            min(max(1, len(self._tokenizer.encode(word))), self._max_seq_length - 2)
            for sentence in sentences
            for word in sentence.words
        ]
        num_pieces, num_rows = np.array(counts, np.int64), words.num_words
        positions = words.positions
        examples = [{"line": s.line, "words": list(s.words)} for s in sentences]
        if self._pooling == "first":
            num_pieces = np.ones_like(num_pieces)
        elif self._pooling == "none":
            places = np.repeat(words.windows.starts, num_rows) + positions
            places = tokenized.ranges(places, num_pieces)
            pieces = self._tokens(words.windows.input_ids[places])
            examples = _pieces_of_sentences(sentences, num_pieces, pieces)
            ends = np.cumsum(np.append(0, num_pieces))[np.cumsum(num_rows)]
            num_rows = np.diff(ends, prepend=0)
            positions = tokenized.ranges(positions, num_pieces)
            num_pieces = np.ones_like(positions)
        return AlignedInputs(
            inputs=words.windows,
            num_rows=num_rows,
            positions=positions,
            num_pieces=num_pieces,
            examples=examples,
            num_cut=0,
        )

    # Texts

    def _encode_texts(self, examples: Sequence[text.LabelledText]) -> AlignedInputs:
        inputs, num_rows, described, num_cut = [], [], [], 0
        positions = [np.empty(0, np.int64)]
        num_pieces = [np.empty(0, np.int64)]
        for example in examples:
            pair = [] if example.text_pair is None else [example.text_pair]
            texts = [example.text, *pair]
            encoded = [self._offset_tokenizer.encode(value) for value in texts]
            packed = tokenization.pack_pair(
                encoded[0].ids.tolist(),
                encoded[1].ids.tolist() if pair else None,
                max_seq_length=self._max_seq_length,
                vocabulary=self._tokenizer.vocabulary,
            )
            inputs.append(packed)
            # Without [CLS] and [SEP]; an empty second text has no [SEP].
            segments = packed[1]
            num_packed = segments.count(0) - 2, max(0, segments.count(1) - 1)
            num_cut += sum(num_packed) < sum(len(offsets.ids) for offsets in encoded)
            rows: list[dict[str, list]] = []
            for segment, offsets in enumerate(encoded):
                # After [CLS], and after the first text and its [SEP].
                begin = 1 + segment * (num_packed[0] + 1)
                places, counts, facts = self._rows(
                    texts[segment], offsets, num_packed[segment]
                )
                positions.append(begin + places)
                num_pieces.append(counts)
                if pair:
                    facts["segment_ids"] = [segment] * len(places)
                rows.append(facts)
            joined = {name: sum((r[name] for r in rows), []) for name in rows[0]}
            described.append({"line": example.line, **joined})
            num_rows.append(len(joined["starts"]))
        return AlignedInputs(
            inputs=tokenized.TokenizedTexts.join(inputs),
            num_rows=np.array(num_rows, np.int64),
            positions=np.concatenate(positions),
            num_pieces=np.concatenate(num_pieces),
            examples=described,
            num_cut=num_cut,
        )

    def _rows(
        self, value: str, offsets: token_offsets.TokenOffsets, num_packed: int
    ) -> tuple[np.ndarray, np.ndarray, dict[str, list]]:
        """Returns a text's rows: first pieces, numbers of pieces, descriptions."""
        begins_word = ~self._is_continuation[offsets.ids]
        if self._pooling == "none":
            places, counts = np.arange(num_packed), np.ones(num_packed, np.int64)
            starts, ends = offsets.starts[:num_packed], offsets.ends[:num_packed]
            facts = {
                "pieces": self._tokens(offsets.ids[:num_packed]),
                "word_ids": (np.cumsum(begins_word[:num_packed]) - 1).tolist(),
            }
        else:
            # A word that is cut is still named whole.
            begins = np.flatnonzero(begins_word)
            last_pieces = np.append(begins[1:], len(offsets.ids)) - 1
            places = begins[begins < num_packed]
            last_pieces = last_pieces[: len(places)]
            starts, ends = offsets.starts[places], offsets.ends[last_pieces]
            counts = np.minimum(last_pieces + 1, num_packed) - places
            if self._pooling == "first":
                counts = np.ones_like(counts)
            cuts = zip(starts, ends, strict=True)
            facts = {"words": [value[start:end] for start, end in cuts]}
        facts |= {"starts": starts.tolist(), "ends": ends.tolist()}
        return places, counts, facts

    @functools.cached_property
    def _is_continuation(self) -> np.ndarray:
        prefix = tokenization.CONTINUATION_PREFIX
        tokens = self._tokenizer.vocabulary.tokens
        return np.array([token.startswith(prefix) for token in tokens])

    def _tokens(self, ids: np.ndarray) -> list[str]:
        tokens = self._tokenizer.vocabulary.tokens
        return [tokens[i] for i in ids]


def _pieces_of_sentences(
    sentences: Sequence[ner.Sentence], counts: np.ndarray, pieces: Sequence[str]
) -> list[dict[str, Any]]:
    """Describes sentences whose rows are pieces; `counts`: pieces of each word."""
    ends = np.cumsum([len(sentence.words) for sentence in sentences])
    examples, all_pieces = [], iter(pieces)
    for sentence, of_words in zip(sentences, np.split(counts, ends[:-1]), strict=True):
        word_ids = np.repeat(np.arange(len(of_words)), of_words).tolist()
        own = list(itertools.islice(all_pieces, len(word_ids)))
        examples.append({"line": sentence.line, "pieces": own, "word_ids": word_ids})
    return examples

"""The words of a file as model inputs, with the pieces of each. No TensorFlow."""

import dataclasses
import functools
import itertools
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import features as feature_settings
from bert_keras.core.settings import finetuning
from bert_keras.data import tokenization
from bert_keras.kinds.tagging import ner, ner_windows
from bert_keras.kinds.text import text
from bert_keras.labelled import dataset, reading, tokenized

_FORM_OF_SUFFIX = {
    ".txt": "lines",
    **dict.fromkeys((".tsv", ".csv", ".jsonl", ".parquet"), "text"),
}
# More make longer lists, fewer longer searches for batches of like lengths.
_SENTENCES_AT_A_TIME = 1000


def form_of(path: str | Path) -> str:
    """Returns the form of a file by its name; refuses a name that does not tell."""
    suffix = files.path(path).suffix.lower()
    if suffix not in _FORM_OF_SUFFIX:
        forms = ", ".join(typing.get_args(feature_settings.InputForm))
        raise InputError(
            f"{path}: the name does not tell what is in it ("
            + ", ".join(f"{s}: {form}" for s, form in _FORM_OF_SUFFIX.items())
            + f"): give --form, one of {forms}"
        )
    return _FORM_OF_SUFFIX[suffix]


def read_sentences(
    path: str | Path, *, form: str, columns: finetuning.TextColumns
) -> list[ner.Sentence]:
    """Reads all texts or sentences of a file; labels and tags are ignored. A text is
    divided into the words that a tagger answers for, and is a document of its own. A
    file without a line is refused."""
    if form == "tagging":
        return ner.read(path, has_tags=False)
    if form == "lines":
        lines = reading.read_plain_texts(path, remedy="give --form text or tagging")
        if lines == [""]:
            raise InputError(f"{path}: is empty, expected lines of text")
        return [ner.of_text(line, n, n) for n, line in enumerate(lines, start=1)]
    rows = text.read_texts(path, columns, has_label=False)
    if any(row.text_pair is not None for row in rows):
        raise InputError(
            f"{path}: has pairs of texts, expected one text a row: leave the column of "
            "the second text out"
        )
    return [ner.of_text(row.text, row.line, row.line) for row in rows]


def parts(sentences: Sequence[ner.Sentence]) -> Iterator[list[ner.Sentence]]:
    """Yields lists of sentences to encode one by one. Documents stay whole, because
    they are the context of their sentences."""
    part: list[ner.Sentence] = []
    for _, document in itertools.groupby(sentences, key=lambda s: s.document):
        part += document
        if len(part) >= _SENTENCES_AT_A_TIME:
            yield part
            part = []
    if part:
        yield part


@dataclass(frozen=True, kw_only=True)
class PooledWords(ner_windows.TokenizedWords):
    """Windows of sentences, and the pieces whose mean is a word's vector.

    The network answers for pieces, and `pool` turns their outputs into words.
    """

    num_pieces: np.ndarray
    """`(num_words,)` int64: consecutive pieces whose mean is the word's vector."""

    @property
    def num_answers(self) -> int:
        return int(self.num_pieces.sum())

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns some windows, padded, as `TokenizedTexts.batch`, with `pieces`,
        `(num_pieces, 2)` int32, row and position of each piece in the batch."""
        words = tokenized.ranges(self._first_words[rows], self.num_words[rows])
        num_pieces = self.num_pieces[words]
        in_batch = np.repeat(np.arange(len(rows)), self.num_words[rows])
        places = [
            np.repeat(in_batch, num_pieces),
            tokenized.ranges(self.positions[words], num_pieces),
        ]
        pieces = np.stack(places, axis=-1).astype(np.int32)
        return {**self.windows.batch(rows), "pieces": pieces}

    def places(self, rows: np.ndarray) -> dataset.Places:
        first_pieces = self._piece_ends[self._first_words]
        counts = self._piece_ends[self._first_words + self.num_words] - first_pieces
        ids = tokenized.ranges(first_pieces[rows], counts[rows])
        return dataset.Places(ids, (np.arange(len(ids)),))

    def pool(self, outputs: np.ndarray) -> np.ndarray:
        """Turns vectors of pieces, `(num_answers, ...)`, into `(num_words, ...)`."""
        sums = np.add.reduceat(outputs, self._piece_ends[:-1])
        counts = np.float32(self.num_pieces)
        return sums / counts.reshape(-1, *[1] * (outputs.ndim - 1))

    def parts(self, max_pieces: int) -> Iterator["PooledWords"]:
        """Yields consecutive windows of at most `max_pieces` pieces together, unless a
        single window has more."""
        word_ends = np.cumsum(self.num_words)
        ends, begin = self._piece_ends[word_ends], 0
        while begin < len(ends):
            most = max_pieces + (ends[begin - 1] if begin else 0)
            end = max(begin + 1, int(np.searchsorted(ends, most, side="right")))
            words = slice(self._first_words[begin], word_ends[end - 1])
            yield dataclasses.replace(
                self,
                windows=self.windows.part(begin, end),
                num_words=self.num_words[begin:end],
                positions=self.positions[words],
                num_pieces=self.num_pieces[words],
            )
            begin = end

    @functools.cached_property
    def _first_words(self) -> np.ndarray:
        return np.cumsum(self.num_words) - self.num_words

    @functools.cached_property
    def _piece_ends(self) -> np.ndarray:
        return np.append(0, np.cumsum(self.num_pieces))


def encode(
    sentences: Sequence[ner.Sentence],
    tokenizer: tokenization.Tokenizer,
    *,
    max_seq_length: int,
    pooling: str,
    document_context: bool,
) -> PooledWords:
    """Makes the windows that taggers have."""
    aligned = ner_windows.tokenize(
        sentences,
        tokenizer,
        max_seq_length=max_seq_length,
        document_context=document_context,
    )
    num_pieces = np.ones_like(aligned.positions)
    if pooling == "mean":
        # As in `tokenize`, a word has at least one piece and no more than fit.
        words = (word for sentence in sentences for word in sentence.words)
        counts = [len(tokenizer.encode(word)) for word in words]
        num_pieces = np.clip(np.array(counts, np.int64), 1, max_seq_length - 2)
    return PooledWords(**vars(aligned), num_pieces=num_pieces)

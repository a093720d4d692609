"""Sentences with their documents around them, as model inputs. No TensorFlow."""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_keras.data import tokenization
from bert_keras.kinds.tagging import ner
from bert_keras.labelled import dataset, tokenized


@dataclass(frozen=True, kw_only=True)
class TokenizedWords:
    """Model inputs of sentences. A window answers for its own words.

    Every word is a window's own exactly once, and the own words of all windows, one
    after the other, are the words of all sentences.
    """

    windows: tokenized.TokenizedTexts
    num_words: np.ndarray
    """`(num_windows,)` int64: each window's own."""
    positions: np.ndarray
    """`(num_words,)` int64: the place of a word's first piece in its window."""
    whole_lengths: np.ndarray
    """`(num_sentences,)` int64: tokens of each sentence alone, in one window."""
    label_ids: np.ndarray | None = None
    """`(num_words,)` int32, from `dataset.label_ids`; `None`: `batch` has none."""
    has_places: bool = False
    """Whether `batch` has `word_positions` and the outputs are of words, see
    `BertTagger`; else they are of tokens."""
    vectors: np.ndarray | None = None
    """`(num_words, num_layers, hidden_size)` float32, with `has_places`: what a frozen
    encoder gives the words, so that no epoch runs it; `None`: `batch` has none."""

    @property
    def lengths(self) -> np.ndarray:
        return self.windows.lengths

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns some windows, padded to the longest, as `(len(rows), longest)` int32.

        The arrays are `input_ids`, `input_mask`, `segment_ids`, with `has_places`
        `word_positions`, and, if there are labels, `label_ids`: the label at the place
        of each own word's output, else -1. Vectors are `word_vectors`, `(len(rows),
        num_words, num_layers, hidden_size)` float32, with as many words as the longest
        sentence of the batch has, and 0 behind shorter ones.
        """
        batch = self.windows.batch(rows)
        ids, index = self.places(rows)
        if self.has_places:
            batch["word_positions"] = np.zeros_like(batch["input_ids"])
            batch["word_positions"][index] = self.positions[ids]
        if self.label_ids is not None:
            batch["label_ids"] = np.full_like(batch["input_ids"], -1)
            batch["label_ids"][index] = self.label_ids[ids]
        if self.vectors is not None:
            shape = (len(rows), int(self.num_words[rows].max()))
            vectors = np.zeros((*shape, *self.vectors.shape[1:]), np.float32)
            vectors[index] = self.vectors[ids]
            batch["word_vectors"] = vectors
        return batch

    @property
    def num_answers(self) -> int:
        """Returns the number of words of all sentences: each has outputs."""
        return len(self.positions)

    def places(self, rows: np.ndarray) -> dataset.Places:
        """Returns places of the outputs for a batch of windows, among all words.

        The index is the row and the position of each own word's first piece; with
        `has_places` the row and the number of the word.
        """
        counts = self.num_words[rows]
        begins = (np.cumsum(self.num_words) - self.num_words)[rows]
        ids = tokenized.ranges(begins, counts)
        in_batch = np.repeat(np.arange(len(counts)), counts)
        columns = self.positions[ids]
        if self.has_places:
            columns = tokenized.ranges(np.zeros_like(counts), counts)
        return dataset.Places(ids, (in_batch, columns))


def tokenize(
    sentences: Sequence[ner.Sentence],
    tokenizer: tokenization.Tokenizer,
    *,
    max_seq_length: int,
    label_ids: np.ndarray | None = None,
    document_context: bool = True,
    has_places: bool = False,
) -> TokenizedWords:
    """Makes a window `[CLS] pieces [SEP]` around each sentence, in their order.

    Words are tokenized one by one. A word of no pieces (control characters) is `[UNK]`,
    one of more than fit a window keeps those that fit. A sentence that does not fit is
    cut into windows of its own words, each at most half a window, so that words at the
    cuts are also seen with their neighbours.

    Args:
        tokenizer: cased for all known results.
        max_seq_length: tokens of a window at most; at least 3.
        label_ids: of all words, as from `dataset.label_ids`; `None`: there are none.
        document_context: fill windows with as many words of the same document on either
            side as fit (section 5.3 of the paper); else only of the same sentence.
    """
    if max_seq_length < 3:
        raise ValueError(f"`max_seq_length` must be at least 3, got {max_seq_length}")
    vocabulary = tokenizer.vocabulary
    inputs, num_words, positions, whole_lengths = [], [], [], []
    # Sentences whose words may be in the same window.
    contexts = [[sentence] for sentence in sentences]
    if document_context:
        documents = itertools.groupby(sentences, key=lambda s: s.document)
        contexts = [list(document) for _, document in documents]
    max_pieces = max_seq_length - 2
    for texts in contexts:
        words = [word for sentence in texts for word in sentence.words]
        unknown = [vocabulary.unk_id]
        pieces = [tokenizer.encode(word)[:max_pieces] or unknown for word in words]
        # First piece of each word, and the end of the last word.
        starts = [0, *itertools.accumulate(map(len, pieces))]
        ids = list(itertools.chain.from_iterable(pieces))
        begin = 0
        for stop in itertools.accumulate(len(sentence.words) for sentence in texts):
            length = starts[stop] - starts[begin]
            whole_lengths.append(length + 2)
            longest = max_pieces // 2 if length > max_pieces else max_pieces
            while begin < stop:
                # The window's own words, and as many as fit around them: half of the
                # room on each side, and room that one side leaves on the other.
                fitting = bisect.bisect_right(starts, starts[begin] + longest) - 1
                end = min(stop, max(begin + 1, fitting))
                room = max_pieces - (starts[end] - starts[begin])
                first = bisect.bisect_left(starts, starts[begin] - room // 2)
                last = bisect.bisect_right(starts, starts[first] + max_pieces) - 1
                first = bisect.bisect_left(starts, starts[last] - max_pieces)
                window = ids[starts[first] : starts[last]]
                inputs.append([vocabulary.cls_id, *window, vocabulary.sep_id])
                num_words.append(end - begin)
                positions += [1 + start - starts[first] for start in starts[begin:end]]
                begin = end
    return TokenizedWords(
        windows=tokenized.TokenizedTexts.join((x, [0] * len(x)) for x in inputs),
        num_words=np.array(num_words, np.int64),
        positions=np.array(positions, np.int64),
        whole_lengths=np.array(whole_lengths, np.int64),
        label_ids=label_ids,
        has_places=has_places,
    )

"""Tokens of many texts, end to end, and batches of them. No TensorFlow."""

import array
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import numpy as np

from bert_keras.core.settings import tasks
from bert_keras.data import features, tokenization
from bert_keras.labelled import dataset


@dataclass(frozen=True, kw_only=True)
class TokenizedTexts:
    """Model inputs of many texts, unpadded and end to end."""

    input_ids: np.ndarray
    """`(num_tokens,)` int32."""
    segment_ids: np.ndarray
    """`(num_tokens,)` integers."""
    lengths: np.ndarray
    """`(num_texts,)` int64: tokens of each text."""
    whole_lengths: np.ndarray
    """`(num_texts,)` int64: `lengths` before anything was cut off."""

    @classmethod
    def join(cls, inputs: Iterable[tuple[list[int], list[int]]]) -> Self:
        """Puts inputs end to end, each given as its `input_ids` and `segment_ids`."""
        # Five bytes a token, where lists have dozens.
        input_ids, segment_ids = array.array("i"), array.array("b")
        lengths = array.array("q")
        for ids, segments in inputs:
            input_ids.extend(ids)
            segment_ids.extend(segments)
            lengths.append(len(ids))
        return cls(
            input_ids=np.asarray(input_ids),
            segment_ids=np.asarray(segment_ids),
            lengths=np.asarray(lengths),
            whole_lengths=np.asarray(lengths),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns some texts padded to the longest of them: `input_ids`, `input_mask`
        and `segment_ids`, int32, each `(len(rows), longest)`."""
        tokens, mask = self.tokens(rows)
        return {
            "input_ids": np.where(mask, self.input_ids[tokens], 0),
            "input_mask": mask.astype(np.int32),
            # One byte each; the int32 zero makes them int32.
            "segment_ids": np.where(mask, self.segment_ids[tokens], np.int32(0)),
        }

    def part(self, begin: int, end: int) -> Self:
        """Returns the texts from `begin` up to `end`."""
        tokens = slice(self.starts[begin], self.starts[end - 1] + self.lengths[end - 1])
        return type(self)(
            input_ids=self.input_ids[tokens],
            segment_ids=self.segment_ids[tokens],
            lengths=self.lengths[begin:end],
            whole_lengths=self.whole_lengths[begin:end],
        )

    def tokens(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns places among all tokens of some texts' tokens, `(len(rows), longest)`
        with 0 for padding, and a bool mask of what is no padding.

        With both, `all_logits[tokens[mask]] = logits_of_batch[mask]`.
        """
        lengths = self.lengths[rows]
        columns = np.arange(lengths.max())
        mask = columns < lengths[:, None]
        return np.where(mask, self.starts[rows][:, None] + columns, 0), mask

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """`(num_texts,)` int64: the place of each text's first token."""
        return np.cumsum(self.lengths) - self.lengths


@dataclass(frozen=True, kw_only=True)
class GroupedTexts:
    """Model inputs of groups of texts; each text of a group is an input of its own."""

    texts: TokenizedTexts
    ids: np.ndarray
    """`(num_groups, group_size)`: the texts of each group by their places."""

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """`(num_groups,)` int64: tokens of each group's longest text."""
        return self.texts.lengths[self.ids].max(axis=1)

    @property
    def whole_lengths(self) -> np.ndarray:
        return self.texts.whole_lengths[self.ids].max(axis=1)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays of `TokenizedTexts.batch` for some groups, `(len(rows),
        group_size, longest)` each."""
        ids = self.ids[rows]
        batch = self.texts.batch(ids.ravel())
        return {name: array.reshape(*ids.shape, -1) for name, array in batch.items()}


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns runs of consecutive numbers end to end, `(sum(lengths),)`, given the
    first number of each run and the count."""
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + within


def window_spans(
    num_tokens: int, window_length: int, stride: int
) -> list[tuple[int, int]]:
    """Returns the first token of each window over a text, and the token after its last.

    A text without tokens has a single empty window; the last window may be shorter than
    others. `stride` counts tokens from the beginning of a window to the beginning of
    the next, at most `window_length`.
    """
    spans = [(0, min(num_tokens, window_length))]
    while spans[-1][1] < num_tokens:
        start = spans[-1][0] + min(window_length, stride)
        spans.append((start, min(num_tokens, start + window_length)))
    return spans


def tokenize(
    pairs: Iterable[tuple[str, str | None]],
    tokenizer: tokenization.Tokenizer,
    *,
    max_seq_length: int,
    keeps_tail: bool = False,
) -> TokenizedTexts:
    """Makes model inputs: `[CLS] text [SEP]` or `[CLS] text [SEP] text_pair [SEP]`. A
    pair has `None` in place of a missing second text; see `tokenization.pack_pair`."""
    whole_lengths = []

    def inputs() -> Iterator[tuple[list[int], list[int]]]:
        for text, pair in pairs:
            first = tokenizer.encode(text)
            second = None if pair is None else tokenizer.encode(pair)
            whole_lengths.append(len(first) + 2 + (len(second) + 1 if second else 0))
            yield tokenization.pack_pair(
                first,
                second,
                max_seq_length=max_seq_length,
                vocabulary=tokenizer.vocabulary,
                keeps_tail=keeps_tail,
            )

    texts = TokenizedTexts.join(inputs())
    return dataclasses.replace(texts, whole_lengths=np.array(whole_lengths, np.int64))


@dataclass(frozen=True, kw_only=True)
class LabelledInputs(dataset.Inputs):
    """Inputs with one row of outputs each."""

    texts: TokenizedTexts | GroupedTexts
    labels: Mapping[str, np.ndarray]
    """Features `(num_inputs, ...)` for the loss; empty if labels were not read."""

    @property
    def lengths(self) -> np.ndarray:
        return self.texts.lengths

    @property
    def whole_lengths(self) -> np.ndarray:
        return self.texts.whole_lengths

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        labels = {name: values[rows] for name, values in self.labels.items()}
        return self.texts.batch(rows) | labels


@dataclass(frozen=True, kw_only=True)
class WindowedInputs(dataset.Inputs):
    """Inputs of texts in windows, text after text; each window has a row of outputs.

    A model learns every window with the label of its text, as Dai & Callan (2019,
    "Deeper Text Understanding for IR with Contextual Neural Language Modeling") train
    passages; a text counts as much as one without windows.
    """

    inputs: TokenizedTexts
    counts: np.ndarray
    """`(num_texts,)` int64, at least 1: windows of each text."""
    whole_lengths: np.ndarray
    """`(num_texts,)` int64: tokens of each text as one input."""
    labels: Mapping[str, np.ndarray]
    """Features `(num_texts, ...)` for the loss; empty if labels were not read."""

    @property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        texts = np.repeat(np.arange(len(self.counts)), self.counts)[rows]
        labels = {name: values[texts] for name, values in self.labels.items()}
        # All windows of a text together weigh as much as any other text, whatever else
        # is in their batches. Weights would not do that, for a mean over a batch
        # divides by weights.
        scales = self.counts.mean() / self.counts[texts]
        labels[features.LOSS_SCALES] = scales.astype(np.float32)
        return self.inputs.batch(rows) | labels

    def pool(self, outputs: np.ndarray, how: tasks.LongTexts) -> np.ndarray:
        """Pools outputs of windows to outputs of texts, `(num_texts, width)`: the mean
        or, for each label, the greatest."""
        # `reduceat` would give a text without windows the numbers of the next text.
        firsts = np.cumsum(self.counts) - self.counts
        if how == "windows_max":
            return np.maximum.reduceat(outputs, firsts)
        return np.add.reduceat(outputs, firsts) / self.counts[:, None].astype("float32")


def cut(
    texts: Iterable[str],
    tokenizer: tokenization.Tokenizer,
    *,
    max_seq_length: int,
    stride: int | None,
    labels: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> WindowedInputs:
    """Makes model inputs, `[CLS] window [SEP]`, of texts that are read once. `stride`
    is from `tasks.window_stride`; `labels` are features of the texts."""
    room = max_seq_length - 2
    step = tasks.window_stride(max_seq_length, stride)
    counts, whole_lengths = array.array("q"), array.array("q")
    cls_id, sep_id = tokenizer.vocabulary.cls_id, tokenizer.vocabulary.sep_id

    def windows() -> Iterator[tuple[list[int], list[int]]]:
        for text in texts:
            ids = tokenizer.encode(text)
            spans = window_spans(len(ids), room, step)
            counts.append(len(spans))
            whole_lengths.append(len(ids) + 2)
            for start, end in spans:
                yield [cls_id, *ids[start:end], sep_id], [0] * (end - start + 2)

    return WindowedInputs(
        inputs=TokenizedTexts.join(windows()),
        counts=np.asarray(counts),
        whole_lengths=np.asarray(whole_lengths),
        labels=labels,
    )

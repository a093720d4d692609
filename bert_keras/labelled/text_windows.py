"""Long texts as windows: each is an input of its own, and a text has one answer.

A model learns every window with the label of its text, as Dai & Callan (2019, "Deeper
Text Understanding for IR with Contextual Neural Language Modeling") train passages; a
text counts as much as one without windows. Its logits are the mean over its windows, or
for each label the greatest. No TensorFlow.
"""

import array
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bert_keras.core.settings import config
from bert_keras.data import features, tokenization
from bert_keras.labelled import dataset, tokenized


@dataclass(frozen=True, kw_only=True)
class TextWindows:
    """Model inputs of windows over texts, text after text."""

    inputs: tokenized.TokenizedTexts
    counts: np.ndarray
    """`(num_texts,)` int64, at least 1: windows of each text."""
    whole_lengths: np.ndarray
    """`(num_texts,)` int64: tokens of each text as one input."""

    @functools.cached_property
    def texts(self) -> np.ndarray:
        """`(num_windows,)` int64: the number of each window's text."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def pool(self, outputs: np.ndarray, how: config.LongTexts) -> np.ndarray:
        """Pools outputs of windows to outputs of texts, `(num_texts, width)`."""
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
) -> TextWindows:
    """Makes model inputs, `[CLS] window [SEP]`, of texts that are read once. `stride`
    is from `config.window_stride`."""
    room = max_seq_length - 2
    step = config.window_stride(max_seq_length, stride)
    counts, whole_lengths = array.array("q"), array.array("q")

    def windows() -> Iterator[list[int]]:
        for text in texts:
            ids = tokenizer.encode(text)
            spans = tokenized.window_spans(len(ids), room, step)
            counts.append(len(spans))
            whole_lengths.append(len(ids) + 2)
            for start, end in spans:
                yield ids[start:end]

    pack = functools.partial(
        tokenization.pack_pair,
        ids_b=None,
        max_seq_length=max_seq_length,
        vocabulary=tokenizer.vocabulary,
    )
    return TextWindows(
        inputs=tokenized.TokenizedTexts.join(map(pack, windows())),
        counts=np.asarray(counts),
        whole_lengths=np.asarray(whole_lengths),
    )


@dataclass(frozen=True, kw_only=True)
class WindowedInputs(dataset.Inputs):
    """Inputs of texts in windows; each window has a row of outputs."""

    windows: TextWindows
    labels: Mapping[str, np.ndarray]
    """Features `(num_texts, ...)` for the loss; empty if labels were not read."""

    @property
    def lengths(self) -> np.ndarray:
        return self.windows.inputs.lengths

    @property
    def whole_lengths(self) -> np.ndarray:
        return self.windows.whole_lengths

    @property
    def num_answers(self) -> int:
        return len(self.windows.inputs)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        batch = self.windows.inputs.batch(rows)
        texts = self.windows.texts[rows]
        labels = {name: values[texts] for name, values in self.labels.items()}
        # All windows of a text together weigh as much as any other text, whatever else
        # is in their batches. Weights would not do that, for a mean over a batch
        # divides by weights.
        counts = self.windows.counts
        scales = counts.mean() / counts[texts]
        return batch | labels | {features.LOSS_SCALES: scales.astype(np.float32)}

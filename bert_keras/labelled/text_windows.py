"""Long texts as windows: each is an input of its own, and a text has one answer.

A model learns every window with the label of its text, as Dai & Callan (2019, "Deeper
Text Understanding for IR with Contextual Neural Language Modeling") train passages; a
text counts as much as one without windows. Its logits are the mean over its windows, or
for each label the greatest. No TensorFlow.
"""

import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from bert_keras.core.settings import tasks
from bert_keras.data import features, tokenization
from bert_keras.labelled import dataset, tokenized


@dataclass(frozen=True, kw_only=True)
class WindowedInputs(dataset.Inputs):
    """Inputs of texts in windows, text after text; each window has a row of outputs."""

    inputs: tokenized.TokenizedTexts
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
            spans = tokenized.window_spans(len(ids), room, step)
            counts.append(len(spans))
            whole_lengths.append(len(ids) + 2)
            for start, end in spans:
                yield [cls_id, *ids[start:end], sep_id], [0] * (end - start + 2)

    return WindowedInputs(
        inputs=tokenized.TokenizedTexts.join(windows()),
        counts=np.asarray(counts),
        whole_lengths=np.asarray(whole_lengths),
        labels=labels,
    )

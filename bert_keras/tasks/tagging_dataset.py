"""Tags of words as a task."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras import config
from bert_keras.data import tokenization
from bert_keras.tasks import dataset, ner, ner_windows


@dataclass(frozen=True, kw_only=True)
class TaggingDataset(dataset.Dataset):
    """Sentences with a tag for each word."""

    path: Path
    sentences: Sequence[ner.Sentence]
    has_labels: bool
    name: str | None = None
    """Of the data set."""

    def __len__(self) -> int:
        return len(self.sentences)

    def describe(self) -> config.Task:
        labels = ner.distinct_labels(self.sentences, path=self.path)
        return config.Task(kind="tagging", name=self.name, labels=labels)

    def encode(
        self,
        task: config.Task,
        tokenizer: tokenization.Tokenizer,
        settings: config.FinetuningConfig,
    ) -> ner_windows.TokenizedWords:
        label_ids = None
        if self.has_labels:
            label_ids = ner.label_ids(self.sentences, task.labels, path=self.path)
        return ner_windows.tokenize(
            self.sentences,
            tokenizer,
            max_seq_length=settings.max_seq_length,
            label_ids=label_ids,
            document_context=settings.document_context,
        )

    def answer(self, outputs, inputs, task, settings) -> "TaggingAnswers":
        return TaggingAnswers(
            sentences=self.sentences, word_logits=outputs, labels=task.labels
        )


@dataclass(frozen=True, kw_only=True)
class TaggingAnswers(dataset.Answers):
    """Tags that a model gave to words."""

    sentences: Sequence[ner.Sentence]
    word_logits: np.ndarray
    """`(num_words, num_labels)` float32, sentence after sentence."""
    labels: tuple[str, ...]

    def tags(self) -> list[tuple[str, ...]]:
        return ner.decode(self.word_logits, self.labels, self.sentences)

    def scores(self, *, threshold: float | None = None) -> dict[str, float]:
        return ner.scores(self.word_logits, self.labels, self.sentences)

    def files(self, *, threshold: float | None = None) -> dict[str, str]:
        return {"predictions.txt": ner.predictions_columns(self.sentences, self.tags())}

    def records(self, *, threshold: float | None = None) -> Iterator[dict[str, Any]]:
        for sentence, tags in zip(self.sentences, self.tags(), strict=True):
            yield {
                "words": list(sentence.words),
                "line": sentence.line,
                "labels": list(sentence.tags),
                "prediction": list(tags),
            }

"""Texts whose vectors are learnt or compared: pairs, or single ones. No TensorFlow.

A file has a column `text` and mostly `text_pair`, a text that belongs to it; `negative`
may be one that does not though it looks so, and `label` a number that says how much the
two are alike. Texts of a row are read one by one, never as one input.
"""

# Labels and second texts are None only in files that are not asked for them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportOptionalOperand=false

import dataclasses
import functools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import features
from bert_keras.kinds.vectors import EmbeddedText
from bert_keras.labelled import answers, dataset, reading, similarity, tables, tokenized

logger = logging.getLogger(__name__)


class Texts(NamedTuple):
    text: str
    text_pair: str | None = None
    negative: str | None = None
    label: float | None = None
    line: int = 0
    """First line in its file, from 1."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Returns all texts that there are."""
        found = (self.text, self.text_pair, self.negative)
        return tuple(part for part in found if part is not None)


def read(
    path: str | Path, columns: finetuning.TextColumns, *, has_labels: bool = True
) -> list[Texts]:
    """Reads all rows of a file; columns with other names are ignored, and columns that
    are not set are read if there. Without `has_labels`, labels and negatives are not
    read, and texts may be empty. For `path` see `text.read_texts`."""
    path = files.path(path)
    # 1. The columns to read, by key of `columns`; one that is not set has the name of
    #    its key, if the first row has it.
    names = {"text": columns.text, "text_pair": columns.text_pair}
    if has_labels:
        label = None if columns.label == "label" else columns.label
        names |= {"negative": columns.negative, "label": label}
    texts = []
    for row in reading.read_rows(path):
        if not texts:
            names = {k: n or k for k, n in names.items() if n or k in row.cells}
        # 2. The cells of each row.
        cells: dict[str, Any] = {}
        for key, name in names.items():
            if key != "label":
                cells[key] = row.string(name, key=key)
                if has_labels and not cells[key].strip():
                    raise row.error(
                        f"{name!r} is empty: expected a text in each of its columns"
                    )
                continue
            value = row.value(name, key=key)
            cells[key] = reading.as_number(value)
            # JSON's `true` would be 1.0.
            if isinstance(value, bool) or not math.isfinite(cells[key]):
                raise row.error(
                    f"{name!r}: expected a number, how much the two texts are alike, "
                    f"got {value!r}; classes are for --task text"
                )
        texts.append(Texts(**cells, line=row.line))
    return reading.at_least_one(path, texts)


@dataclass(frozen=True, kw_only=True)
class EmbeddingDataset(dataset.Dataset):
    """Rows of `Texts` to learn from, to compare or to get vectors of."""

    settings: finetuning.EmbeddingConfig = finetuning.EmbeddingConfig()
    is_training: bool = False

    def keys(self) -> list[str]:
        # All that answers a question is on one side.
        return [row.text for row in self.rows]

    def contents(self) -> dataset.Contents:
        texts = [row.parts for row in self.rows]
        labels = [row.label for row in self.rows]
        numbers = [label for label in labels if label is not None]
        return dataset.Contents(texts, labels, numbers=numbers)

    def for_training(self) -> "EmbeddingDataset":
        rows = self.rows
        if self.settings.pairs == "dropout":
            rows = [Texts(row.text, line=row.line) for row in rows]
        elif rows[0].text_pair is None:
            raise InputError(
                f"{self.path}: no column 'text_pair', and vectors are learnt from "
                "pairs of texts: name it with --set columns.text_pair=NAME; for plain "
                "texts --set embedding.pairs=dropout"
            )
        return dataclasses.replace(self, rows=rows, is_training=True)

    def files(self, answers, *, suffix, decision=tasks.LIKELIEST) -> dict[str, str]:
        rows = (row.cells for row in reading.read_rows(self.path))
        return {"predictions": tables.joined(rows, answers.columns(), suffix=suffix)}

    def describe(self) -> tasks.Task:
        return tasks.Task(
            kind="embedding",
            pooling=self.settings.pooling,
            normalize=self.settings.normalize,
        )

    def encode(self, task, tokenizer, settings) -> tokenized.LabelledInputs:
        # 1. The texts whose vectors are needed.
        if self.is_training:
            parts, what = [row.parts for row in self.rows], "pairs"
            if self.settings.pairs == "dropout":
                parts, what = [(row.text, row.text) for row in self.rows], "texts"
            # Without numbers a pair is unlike the others of its batch.
            least = 0 if self._has_numbers else settings.batch_size
            if least == 1:
                raise InputError(
                    "`batch_size` is 1, but what a pair is unlike are the other "
                    f"{what} of its batch: expected 2 or more, better 32"
                )
            if len(parts) < least:
                raise InputError(
                    f"{self.path}: {len(parts)} {what} to learn from, fewer than a "
                    f"batch of {least}: expected more, or --set batch_size="
                    f"{max(2, len(parts))}"
                )
        elif self.has_labels and self.rows[0].text_pair is None:
            raise InputError(
                f"{self.path}: no column 'text_pair': vectors are scored on pairs of "
                "texts: give such a file with --dev"
            )
        else:
            parts = [row.parts[:2] for row in self.rows]
        # 2. Each distinct one is an input.
        distinct: dict[str, int] = {}
        places = [[distinct.setdefault(p, len(distinct)) for p in row] for row in parts]
        texts = tokenized.tokenize(
            ((one, None) for one in distinct),
            tokenizer,
            max_seq_length=settings.max_seq_length,
            keeps_tail=settings.long_texts == "head_tail",
        )
        ids = np.array(places, np.int32)
        labels = {features.TEXT_IDS: ids}
        # 3. The cosines that pairs should have, if the file says them.
        if self.is_training and self._has_numbers:
            most = self.settings.max_label
            for row in self.rows:
                if not -most <= row.label <= most:
                    raise InputError(
                        f"{self.path}: line {row.line}: label {row.label:g} is not "
                        f"from {-most:g} to {most:g}: say which one means the same, "
                        "--set embedding.max_label=5 for STS-B"
                    )
            numbers = np.array([row.label for row in self.rows], np.float32)
            labels["label_ids"] = numbers / np.float32(most)
        texts = tokenized.GroupedTexts(texts=texts, ids=ids)
        return tokenized.LabelledInputs(texts=texts, labels=labels)

    @property
    def _has_numbers(self) -> bool:
        return self.rows[0].label is not None

    def check_metric(self) -> None:
        """Raises an `InputError` if such a file has no scores of the metric."""
        if self._has_numbers != (self.settings.metric == "spearman"):
            found, right = "no labels", "recall_at_10"
            if self._has_numbers:
                found, right = "labels, to compare cosines with", "spearman"
            raise InputError(
                f"{self.path}: has {found}: --set embedding.metric={right}, or give "
                "another dev file first"
            )

    def answer(self, outputs, inputs, task, settings) -> "EmbeddingAnswers":
        return EmbeddingAnswers(
            rows=self.rows,
            vectors=outputs,
            ids=inputs.texts.ids,
            is_scored=self.has_labels,
        )


@dataclass(frozen=True, kw_only=True)
class EmbeddingAnswers(dataset.Answers):
    rows: Sequence[Texts]
    vectors: np.ndarray
    """`(num_rows, num_texts, size)` float32, of one text or of two."""
    ids: np.ndarray
    """`(num_rows, num_texts)`, equal for equal texts."""
    is_scored: bool
    """Whether the pairs are right ones, or have labels."""

    @functools.cached_property
    def _cosines(self) -> np.ndarray:
        return similarity.cosines(self.vectors[:, 0], self.vectors[:, 1])

    @functools.cached_property
    def _search(self) -> similarity.Search:
        both = *self.vectors.swapaxes(0, 1), *self.ids.T
        found = similarity.search(*both)
        if found.num_candidates <= similarity.RANK:
            logger.warning(
                "%d different second texts to search: `recall_at_%d` is 1 whatever the "
                "vectors are",
                *(found.num_candidates, similarity.RANK),
            )
        return found

    def scores(self, *, decision=tasks.LIKELIEST) -> dict[str, float]:
        if self.rows[0].label is None:
            return similarity.search_scores(self._search.ranks)
        labels = np.array([row.label for row in self.rows], np.float32)
        return similarity.label_scores(self._cosines, labels)

    def columns(self) -> dict[str, tables.Column]:
        if self.vectors.shape[1] == 2:
            return {"similarity": tables.Column(self._cosines, ".6f")}
        # Nine digits: float32.
        vectors = [[float(f"{n:.9g}") for n in row] for row in self.vectors[:, 0]]
        return {"embedding": tables.Column(vectors)}

    def records(self, *, decision=tasks.LIKELIEST) -> Iterator[answers.Record]:
        for number, row in enumerate(self.rows):
            found: dict[str, Any] = {
                "prediction": tuple(self.vectors[number, 0].tolist())
            }
            if self.vectors.shape[1] == 2:
                found["prediction"] = float(self._cosines[number])
            if self.is_scored and row.label is None:
                found["rank"] = int(self._search.ranks[number])
                found["nearest"] = self.rows[self._search.nearest[number]].text_pair
            # A record has no negative.
            yield EmbeddedText(**row._asdict(), **found)

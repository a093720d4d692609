"""Texts whose vectors are learnt or compared: pairs, or single ones. No TensorFlow.

A file has a column `text` and mostly `text_pair`, a text that belongs to it; `negative`
may be one that does not though it looks so, and `label` a number that says how much the
two are alike. Texts of a row are read one by one, never as one input.
"""

# Labels and second texts are None only in files that are not asked for them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false, reportOptionalOperand=false

import dataclasses
import functools
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning
from bert_keras.data import features
from bert_keras.kinds.text import similarity, text
from bert_keras.kinds.vectors.records import EmbeddedText
from bert_keras.labelled import answers, dataset, tables, tokenized

logger = logging.getLogger(__name__)

_NEGATIVE = "negative"


class Texts(NamedTuple):
    text: str
    text_pair: str | None
    negative: str | None
    label: float | None
    line: int
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
    read. For `path` see `text.read_texts`."""
    path = files.path(path)
    wanted: dict[str, str] = {}
    found = []
    for line, row in text.reader(path)(path):
        place = text.Place(path, line)
        wanted = wanted or _wanted_columns(columns, row, has_labels=has_labels)
        cells = {key: _cell(place, row, name, key) for key, name in wanted.items()}
        label = cells.pop("label", None)
        found.append(Texts(**{**_NO_TEXTS, **cells}, label=label, line=line))
    if not found:
        raise InputError(f"{path}: holds no rows, expected at least one")
    return found


_NO_TEXTS: Mapping[str, Any] = {"text_pair": None, "negative": None}


def _wanted_columns(
    columns: finetuning.TextColumns, row: Mapping[str, Any], *, has_labels: bool
) -> dict[str, str]:
    """Returns the names of the columns to read, by key of `columns`."""
    names = {
        "text_pair": (columns.text_pair, text.DEFAULT_TEXT_PAIR_COLUMN),
        "negative": (columns.negative, _NEGATIVE),
        "label": (columns.label if columns.label != "label" else None, "label"),
    }
    wanted = {"text": columns.text}
    for key in names if has_labels else ("text_pair",):
        given, usual = names[key]
        if given is not None or usual in row:
            wanted[key] = given or usual
    return wanted


def _cell(place: text.Place, row: Mapping[str, Any], name: str, key: str) -> Any:
    if key == "label":
        return _number(place, name, place.value(row, name, key=key))
    value = place.string(row, name, key=key)
    if not value.strip():
        raise place.error(f"{name!r} is empty: expected a text in each of its columns")
    return value


def _number(place: text.Place, name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise place.error(
            f"{name!r}: expected a number, how much the two texts are alike, got "
            f"{value!r}; classes are for --task text"
        )
    return number


@dataclass(frozen=True, kw_only=True)
class TextInputs:
    """Model inputs of rows of texts; a row's outputs are a vector for each text."""

    texts: tokenized.TokenizedTexts
    """All different texts."""
    ids: np.ndarray
    """`(num_rows, num_texts)` int32: those of each row, by their places in `texts`."""
    labels: Mapping[str, np.ndarray]
    """Features `(num_rows,)` that the loss reads."""

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Returns the tokens of each row's longest text, `(num_rows,)` int64."""
        return self.texts.lengths[self.ids].max(axis=1)

    @property
    def whole_lengths(self) -> np.ndarray:
        return self.texts.whole_lengths[self.ids].max(axis=1)

    @property
    def num_answers(self) -> int:
        return len(self.ids)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns some rows, padded to their longest text: `input_ids`, `input_mask`
        and `segment_ids`, `(len(rows), num_texts, longest)` int32; `features.TEXT_IDS`;
        `labels`."""
        ids = self.ids[rows]
        batch = {
            name: values.reshape(*ids.shape, -1)
            for name, values in self.texts.batch(ids.ravel()).items()
        }
        labels = {name: values[rows] for name, values in self.labels.items()}
        return {**batch, features.TEXT_IDS: ids, **labels}

    def places(self, rows: np.ndarray) -> dataset.Places:
        return dataset.Places(rows, (np.arange(len(rows)),))


@dataclass(frozen=True, kw_only=True)
class EmbeddingDataset(dataset.Dataset):
    """Rows of texts to learn from, to compare or to get vectors of."""

    path: Path
    rows: Sequence[Texts]
    has_labels: bool
    """Whether they are to be learnt or scored, not only answered."""
    settings: finetuning.EmbeddingConfig = finetuning.EmbeddingConfig()
    is_training: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def keys(self) -> list[str]:
        # All that answers a question is on one side.
        return [row.text for row in self.rows]

    def contents(self) -> dataset.Contents:
        texts = [row.parts for row in self.rows]
        labels = [row.label for row in self.rows]
        numbers = [label for label in labels if label is not None]
        return dataset.Contents(texts, labels, numbers=numbers)

    def subset(self, rows) -> "EmbeddingDataset":
        return dataclasses.replace(self, rows=[self.rows[row] for row in rows])

    def for_training(self) -> "EmbeddingDataset":
        rows = self.rows
        if self.settings.pairs == "dropout":
            rows = [Texts(row.text, None, None, None, row.line) for row in rows]
        elif rows[0].text_pair is None:
            raise InputError(
                f"{self.path}: no column 'text_pair', and vectors are learnt from "
                "pairs of texts: name it with --set columns.text_pair=NAME; for plain "
                "texts --set embedding.pairs=dropout"
            )
        return dataclasses.replace(self, rows=rows, is_training=True)

    def with_columns(self, answers, *, suffix):
        return tables.joined(text.read_rows(self.path), answers, suffix=suffix)

    def describe(self) -> config.Task:
        return config.Task(
            kind="embedding",
            pooling=self.settings.pooling,
            normalize=self.settings.normalize,
        )

    def encode(self, task, tokenizer, settings) -> TextInputs:
        if self.is_training:
            self._check_batches(settings.batch_size)
        elif self.has_labels and self.rows[0].text_pair is None:
            raise InputError(
                f"{self.path}: no column 'text_pair': vectors are scored on pairs of "
                "texts: give such a file with --dev"
            )
        distinct: dict[str, int] = {}
        ids = [
            [distinct.setdefault(part, len(distinct)) for part in self._parts(row)]
            for row in self.rows
        ]
        texts = tokenized.tokenize(
            ((one, None) for one in distinct),
            tokenizer,
            max_seq_length=settings.max_seq_length,
            keeps_tail=settings.long_texts == "head_tail",
        )
        labels = self._labels() if self.is_training else None
        return TextInputs(
            texts=texts,
            ids=np.array(ids, np.int32),
            labels={} if labels is None else {"label_ids": labels},
        )

    def _parts(self, row: Texts) -> tuple[str, ...]:
        """Returns texts of a row whose vectors are needed."""
        if not self.is_training:
            return row.parts[:2]
        if self.settings.pairs == "dropout":
            return row.text, row.text
        return row.parts

    def _check_batches(self, batch_size: int) -> None:
        if self.rows[0].label is not None:
            return
        what = "texts" if self.settings.pairs == "dropout" else "pairs"
        if batch_size < 2:
            raise InputError(
                f"`batch_size` is {batch_size}, but what a pair is unlike are the "
                f"other {what} of its batch: expected 2 or more, better 32"
            )
        if len(self.rows) < batch_size:
            raise InputError(
                f"{self.path}: {len(self.rows)} {what} to learn from, fewer than a "
                f"batch of {batch_size}: expected more, or --set batch_size="
                f"{max(2, len(self.rows))}"
            )

    def _labels(self) -> np.ndarray | None:
        """Returns the cosines that pairs should have, `(num_rows,)` float32."""
        if self.rows[0].label is None:
            return None
        most = self.settings.max_label
        for row in self.rows:
            if not -most <= row.label <= most:
                raise InputError(
                    f"{self.path}: line {row.line}: label {row.label:g} is not from "
                    f"{-most:g} to {most:g}: say which one means the same, --set "
                    "embedding.max_label=5 for STS-B"
                )
        return np.array([row.label for row in self.rows], np.float32) / np.float32(most)

    def check_metric(self) -> None:
        """Raises an `InputError` if such a file has no scores of the metric."""
        has_scores = self.rows[0].label is not None
        if has_scores != (self.settings.metric == "spearman"):
            found, right = "no labels", "recall_at_10"
            if has_scores:
                found, right = "labels, to compare cosines with", "spearman"

            raise InputError(
                f"{self.path}: has {found}: --set embedding.metric={right}, or give "
                "another dev file first"
            )

    def answer(self, outputs, inputs, task, settings) -> "EmbeddingAnswers":
        return EmbeddingAnswers(
            rows=self.rows,
            vectors=outputs,
            ids=inputs.ids,
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

    @property
    def _has_pairs(self) -> bool:
        return self.vectors.shape[1] == 2

    @property
    def _has_scores(self) -> bool:
        return self.rows[0].label is not None

    def scores(self, *, threshold=None) -> dict[str, float]:
        if not self._has_scores:
            return similarity.search_scores(self._search.ranks)
        labels = np.array([row.label for row in self.rows], np.float32)
        return similarity.label_scores(self._cosines, labels)

    def files(self, *, threshold=None) -> dict[str, str]:
        if self._has_pairs:
            header, cells = "similarity", (f"{cosine:.6f}" for cosine in self._cosines)
        else:
            header = "embedding"
            cells = (_json(vector) for vector in self.vectors[:, 0])
        return {"predictions.tsv": text.table([header], ([cell] for cell in cells))}

    def records(self, *, threshold=None) -> Iterator[answers.Record]:
        is_searched = self.is_scored and not self._has_scores
        for number, row in enumerate(self.rows):
            found = {}
            if is_searched:
                nearest = self.rows[int(self._search.nearest[number])]
                found["rank"] = int(self._search.ranks[number])
                found["nearest"] = nearest.text_pair
            if self._has_pairs:
                prediction = float(self._cosines[number])
            else:
                prediction = tuple(self.vectors[number, 0].tolist())
            yield EmbeddedText(
                text=row.text,
                text_pair=row.text_pair,
                line=row.line,
                label=row.label,
                prediction=prediction,
                **found,
            )


def _json(vector: np.ndarray) -> str:
    """Returns a list of numbers; float32 needs nine digits."""
    return json.dumps([float(f"{number:.9g}") for number in vector])

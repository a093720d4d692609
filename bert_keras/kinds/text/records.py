"""A tuned model's answer to a text, or to a pair of texts."""

from typing import Self, cast

import pydantic

from bert_keras.labelled.answers import Computed, Record


class _Text(Record):
    """A text, or two."""

    text: str
    text_pair: str | None = None
    line: int
    """Where it begins in its file; of texts given in Python their number, from 1."""


class ClassifiedText(_Text):
    """A text and its class."""

    label: str | None = None
    prediction: str
    probabilities: dict[str, Computed]
    """By label."""

    @pydantic.model_validator(mode="after")
    def _labels_are_known(self) -> Self:
        for name in (self.label, self.prediction):
            if name is not None and name not in self.probabilities:
                raise ValueError(f"no probability of the label {name!r:.60}")
        return self

    @property
    def confidence(self) -> float:
        return self.probabilities[self.prediction]


class MultiLabelText(_Text):
    """A text and any number of labels."""

    truth_name = "labels"

    labels: tuple[str, ...] | None = None
    """The right ones."""
    prediction: tuple[str, ...]
    probabilities: dict[str, Computed]
    """By label, each by itself."""

    @pydantic.model_validator(mode="after")
    def _labels_are_known(self) -> Self:
        for name in (*(self.labels or ()), *self.prediction):
            if name not in self.probabilities:
                raise ValueError(f"no probability of the label {name!r:.60}")
        return self


class RatedText(_Text):
    """A text and its number."""

    label: float | None = None
    prediction: Computed

    @property
    def error(self) -> float:
        """Returns the answer less the right number."""
        return self.prediction - cast(float, self.label)

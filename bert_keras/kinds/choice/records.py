"""A tuned model's choice among the endings of a text."""

from typing import Self

import pydantic

from bert_keras.labelled.answers import Computed, Record


class ChosenEnding(Record):
    """A text with several endings."""

    text: str
    beginning: str
    """Words that each ending is put after."""
    endings: tuple[str, ...]
    line: int
    label: int | None = None
    """Number of the right ending, from 0."""
    prediction: int
    probabilities: tuple[Computed, ...]
    """One for each ending."""

    @pydantic.model_validator(mode="after")
    def _endings_are_there(self) -> Self:
        count = len(self.endings)
        is_there = 0 <= (self.label or 0) < count and 0 <= self.prediction < count
        if len(self.probabilities) != count or not is_there:
            raise ValueError(
                f"{count} endings, but {len(self.probabilities)} probabilities, label "
                f"{self.label} and prediction {self.prediction}"
            )
        return self

    @property
    def confidence(self) -> float:
        return self.probabilities[self.prediction]

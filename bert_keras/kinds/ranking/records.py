"""A tuned model's ranking of a question's passages."""

from typing import Self

import pydantic

from bert_keras.labelled.answers import Computed, Record


class RankedPassages(Record):
    """A question, its passages and their order."""

    truth_name = "relevances"

    question: str
    passages: tuple[str, ...]
    line: int
    """First line of its first passage."""
    relevances: tuple[float, ...] | None = None
    """One for each passage, above 0 where it is right."""
    prediction: tuple[int, ...]
    """Numbers of the passages from 0, the best first."""
    scores: tuple[Computed, ...]
    """One for each passage."""

    @pydantic.model_validator(mode="after")
    def _has_one_of_each(self) -> Self:
        count = len(self.passages)
        relevances = self.scores if self.relevances is None else self.relevances
        is_ranking = sorted(self.prediction) == list(range(count))
        if not count == len(self.scores) == len(relevances) or not is_ranking:
            raise ValueError(
                f"{count} passages, but {len(self.scores)} scores, {len(relevances)} "
                f"relevances and the ranking {self.prediction}"
            )
        return self

"""The answers of a tuned model to its development file, with what is right.

`finetune` writes them into the run directory when it ends: `dev_answers.jsonl`, an
object a line. There is a kind of record for each kind of task.
"""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import pydantic

from bert_keras import config
from bert_keras.errors import InputError


class Record(pydantic.BaseModel):
    """One example; keys that are not known are passed over."""

    model_config = pydantic.ConfigDict(frozen=True)

    def numbers(self) -> Iterable[float]:
        """What the model has computed."""
        return ()


class ClassifiedText(Record):
    """A text, or two, and its class."""

    text: str
    text_pair: str | None = None
    line: int
    """Of the development file."""
    label: str
    prediction: str
    probabilities: dict[str, float]
    """By label."""

    @pydantic.model_validator(mode="after")
    def _labels_are_known(self) -> Self:
        for name in (self.label, self.prediction):
            if name not in self.probabilities:
                raise ValueError(f"no probability of the label {name!r:.60}")
        return self

    @property
    def confidence(self) -> float:
        """The probability of the answer that was given."""
        return self.probabilities[self.prediction]

    def numbers(self) -> Iterable[float]:
        return self.probabilities.values()


class RatedText(Record):
    """A text, or two, and its number."""

    text: str
    text_pair: str | None = None
    line: int
    label: float
    prediction: float

    @property
    def error(self) -> float:
        """How much too high the answer is."""
        return self.prediction - self.label

    def numbers(self) -> Iterable[float]:
        return (self.prediction,)


class ChosenEnding(Record):
    """A text with several endings."""

    text: str
    beginning: str
    """Of the endings."""
    endings: tuple[str, ...]
    line: int
    label: int
    """Which ending is right, from 0."""
    prediction: int
    probabilities: tuple[float, ...]
    """Of each ending."""

    @pydantic.model_validator(mode="after")
    def _endings_are_there(self) -> Self:
        count = len(self.endings)
        is_there = 0 <= self.label < count and 0 <= self.prediction < count
        if len(self.probabilities) != count or not is_there:
            raise ValueError(
                f"{count} endings, but {len(self.probabilities)} probabilities, label "
                f"{self.label} and prediction {self.prediction}"
            )
        return self

    @property
    def confidence(self) -> float:
        """The probability of the answer that was given."""
        return self.probabilities[self.prediction]

    def numbers(self) -> Iterable[float]:
        return self.probabilities


class TaggedSentence(Record):
    """Words with their tags."""

    words: tuple[str, ...]
    line: int
    labels: tuple[str, ...]
    """The right tag of each word, IOB2."""
    prediction: tuple[str, ...]

    @pydantic.model_validator(mode="after")
    def _tags_are_those_of_words(self) -> Self:
        counts = [len(tags) for tags in (self.words, self.labels, self.prediction)]
        if len(set(counts)) > 1:
            words, labels, predicted = counts
            raise ValueError(
                f"{words} words, but {labels} labels and {predicted} predictions"
            )
        return self


class AnsweredQuestion(Record):
    """A question about a context."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    """The right ones; none if the question cannot be answered."""
    prediction: str
    """Empty: that there is no answer."""
    probability: float
    """Of the prediction."""
    null_odds: float | None = None
    """How much more the model scores that there is no answer than the best answer."""
    best_text: str
    """The best answer that is not empty."""

    def numbers(self) -> Iterable[float]:
        odds = () if self.null_odds is None else (self.null_odds,)
        return (self.probability, *odds)


RECORDS: dict[config.TaskKind, type[Record]] = {
    "classification": ClassifiedText,
    "regression": RatedText,
    "choice": ChosenEnding,
    "tagging": TaggedSentence,
    "span": AnsweredQuestion,
}
"""By the kind of task."""


def read_answers(path: Path, kind: config.TaskKind) -> list[Record]:
    """Reads all records of a file.

    Args:
        path: `dev_answers.jsonl` of a run.
        kind: of its task, one of `RECORDS`.

    Raises:
        InputError: with file and line: unreadable, no record, not such a record.
    """
    records = list(_read_records(path, RECORDS[kind]))
    if not records:
        raise InputError(f"{path}: expected the answers of a {kind} run, found none")
    return records


def _read_records(path: Path, record_type: type[Record]) -> Iterator[Record]:
    try:
        with open(path, "rb") as file:
            # As bytes: a text may hold other line ends than those of the file.
            for number, line in enumerate(file, start=1):
                yield _parse(line, record_type, place=f"{path}: line {number}")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _parse(line: bytes, record_type: type[Record], *, place: str) -> Record:
    try:
        values: Any = json.loads(line)
    except ValueError as error:
        raise InputError(f"{place}: expected JSON: {error}") from None
    try:
        return record_type.model_validate(values)
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        raise InputError(
            f"{place}: expected an answer as `finetune` writes it: "
            + (f"`{key}`: {message}" if key else message)
        ) from None


def are_finite(records: Iterable[Record]) -> bool:
    """Whether the model has computed numbers, not overflowed."""
    return all(math.isfinite(n) for record in records for n in record.numbers())

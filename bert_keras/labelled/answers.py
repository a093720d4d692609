"""A tuned model's answer to one example: a record for each kind of task.

`finetune` writes those to its development file into the run directory when it ends,
with the right answers: `dev_answers.jsonl`, an object a line.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, cast

import pydantic

from bert_keras.core.errors import InputError
from bert_keras.core.settings import config
from bert_keras.labelled import reading

Computed = Annotated[
    float, pydantic.BeforeValidator(lambda value: math.nan if value is None else value)
]
"""A number that a model computed; NaN is null in its file."""


class Record(pydantic.BaseModel):
    """One example and its answer; unknown keys are passed over when it is read."""

    model_config = pydantic.ConfigDict(frozen=True)
    truth_name: ClassVar[str] = "label"
    """The field with the right answer; `None` if nobody has said it."""

    def numbers(self) -> Iterable[float]:
        """Numbers that the model computed."""
        return ()


class ClassifiedText(Record):
    """A text, or two, and its class."""

    text: str
    text_pair: str | None = None
    line: int
    """Where it begins in its file; of texts given in Python their number, from 1."""
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
        """The probability of the answer that was given."""
        return self.probabilities[self.prediction]

    def numbers(self) -> Iterable[float]:
        return self.probabilities.values()


class MultiLabelText(Record):
    """A text, or two, and its labels, of which there may be any number."""

    truth_name = "labels"

    text: str
    text_pair: str | None = None
    line: int
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

    def numbers(self) -> Iterable[float]:
        return self.probabilities.values()


class RatedText(Record):
    """A text, or two, and its number."""

    text: str
    text_pair: str | None = None
    line: int
    label: float | None = None
    prediction: Computed

    @property
    def error(self) -> float:
        """How much too high the answer is."""
        return self.prediction - cast(float, self.label)

    def numbers(self) -> Iterable[float]:
        return (self.prediction,)


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
        """The probability of the answer that was given."""
        return self.probabilities[self.prediction]

    def numbers(self) -> Iterable[float]:
        return self.probabilities


class EmbeddedText(Record):
    """A text, or two, and its vector, or how much they are alike."""

    truth_name = "text_pair"

    text: str
    text_pair: str | None = None
    line: int
    label: float | None = None
    """How much they should be alike, where the file says it."""
    prediction: Computed | tuple[Computed, ...]
    """The cosine of the two vectors, or the vector of a single text."""
    rank: int | None = None
    """Place of the second text among all second texts of the file, from 1; of pairs
    without a label."""
    nearest: str | None = None
    """The wrong one that is nearest, of these."""

    def numbers(self) -> Iterable[float]:
        if isinstance(self.prediction, tuple):
            return self.prediction
        return (self.prediction,)


class TaggedSentence(Record):
    """Words with their tags."""

    truth_name = "labels"

    words: tuple[str, ...]
    line: int
    labels: tuple[str, ...] | None = None
    """The right tag of each word, IOB2."""
    prediction: tuple[str, ...]

    @pydantic.model_validator(mode="after")
    def _tags_are_those_of_words(self) -> Self:
        labels = self.prediction if self.labels is None else self.labels
        counts = [len(tags) for tags in (self.words, labels, self.prediction)]
        if len(set(counts)) > 1:
            words, right, predicted = counts
            raise ValueError(
                f"{words} words, but {right} labels and {predicted} predictions"
            )
        return self


class FoundEntity(pydantic.BaseModel):
    """An entity in a text."""

    start: int
    """Its first character."""
    end: int
    """The character after its last."""
    label: str
    probability: Computed
    """Mean of its words' tags."""


class TaggedText(TaggedSentence):
    """A text, its words with their tags, and the entities that they make."""

    text: str
    entities: tuple[FoundEntity, ...]
    """Predicted, in the order of the text."""

    def numbers(self) -> Iterable[float]:
        return (entity.probability for entity in self.entities)


class AnsweredQuestion(Record):
    """A question about a context."""

    truth_name = "answers"

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    """The right ones; none if the question cannot be answered, or nobody said them."""
    prediction: str
    """Text of the answer; empty: the question has none."""
    probability: Computed
    """Probability of the prediction."""
    null_odds: float | None = None
    """Score of "no answer" less that of the best answer."""
    best_text: str
    """The best answer that is not empty."""

    def numbers(self) -> Iterable[float]:
        odds = () if self.null_odds is None else (self.null_odds,)
        return (self.probability, *odds)


RECORDS: dict[config.TaskKind, type[Record]] = {
    "classification": ClassifiedText,
    "multi_label": MultiLabelText,
    "regression": RatedText,
    "choice": ChosenEnding,
    "embedding": EmbeddedText,
    "tagging": TaggedSentence,
    "span": AnsweredQuestion,
}
"""By the kind of task."""


def read_answers(path: Path, kind: config.TaskKind) -> list[Record]:
    """Reads all records of a file, which must have the right answers.

    Args:
        path: `dev_answers.jsonl` of a run.
        kind: of its task, one of `RECORDS`.

    Raises:
        InputError: with file and line: unreadable, no record, not such a record.
    """
    records = [
        _parse(row, RECORDS[kind], place=f"{path}: line {number}")
        for number, row in reading.read_jsonl(path, expected=_EXPECTED)
    ]
    if not records:
        raise InputError(f"{path}: expected the answers of a {kind} run, found none")
    return records


_EXPECTED = "an answer as `finetune` writes it"


def _parse(
    values: Mapping[str, Any], record_type: type[Record], *, place: str
) -> Record:
    expected = f"{place}: expected {_EXPECTED}: "
    try:
        record = record_type.model_validate(values)
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        raise InputError(
            expected + (f"`{key}`: {message}" if key else message)
        ) from None
    if getattr(record, record.truth_name) is None:
        raise InputError(f"{expected}`{record.truth_name}`: Field required")
    return record


def are_finite(records: Iterable[Record]) -> bool:
    """Whether the model has computed numbers, not overflowed."""
    return all(math.isfinite(n) for record in records for n in record.numbers())

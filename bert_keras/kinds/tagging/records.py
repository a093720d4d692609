"""A tuned model's tags of words, and the entities that they make."""

from typing import Self

import pydantic

from bert_keras.labelled.answers import Computed, Record


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

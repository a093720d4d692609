"""The best of several endings of a text: SWAG and data of that shape."""

from typing import Self

import pydantic

from bert_keras.kinds.kind import LOSS, Labelled, Metric, Names, Usage, classifier_names
from bert_keras.labelled import degenerate, python_examples, score_sums
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


class Choice(Labelled):
    """Answers with the number of the best ending."""

    name = "choice"
    keras_classes = ("BertChooser",)
    record = ChosenEnding
    form = "choice"
    other_names = ("multiple-choice", "multiple_choice")
    suffixes = (".csv", ".tsv")
    names = Names(
        hugging_face="BertForMultipleChoice",
        pipeline="multiple-choice",
        heads=classifier_names(),
    )
    has_text_pair = True
    transfers_head = True
    metrics = (LOSS, Metric("accuracy"))
    resampled = ("accuracy",)
    num_texts = 4
    examples = "questions"
    accepts = frozenset({"teacher"})
    usual = {"max_seq_length": 128}
    example = Usage(
        model="""\
endings = ["sings.", "sleeps.", "runs.", "reads."]
beginnings = ["She opens a book and"] * 4
inputs = tokenizer(beginnings, endings, truncation=True)
inputs = tokenizer.pad(inputs, return_tensors="pt")
logits = model(**{name: values[None] for name, values in inputs.items()}).logits
print(endings[logits.argmax()])""",
        strings="""
    sentence=tf.constant(["She opens a book."]),
    beginning=tf.constant(["She"]),
    endings=tf.constant([["sings.", "sleeps.", "runs.", "reads."]]),
""",
        ids="[[{ids}, {ids}, {ids}, {ids}]]",
    )

    def network(self, bert_config, task, *, head, **shared):
        from bert_keras.kinds.choice import network

        return network.BertChooser(bert_config, **head, **shared)

    def read(self, path, settings, *, has_labels=True, **_):
        from bert_keras.kinds.choice import dataset

        return dataset.ChoiceDataset(
            path=path,
            rows=dataset.read(path, has_label=has_labels),
            has_labels=has_labels,
            name=self.data_set(settings),
        )

    def from_python(self, examples, task):
        from bert_keras.kinds.choice import dataset

        def read(example, number):
            sentence, *beginning, endings = example
            texts = python_examples.strings([sentence, *(beginning or [""])])
            sentence, beginning = texts
            endings = python_examples.strings(endings)
            if len(endings) != dataset.NUM_ENDINGS:
                raise ValueError
            return dataset.Question(sentence, beginning, endings, None, number)

        expected = "a text, the beginning of the endings if any, four endings"
        fields = python_examples.read(examples, read, expected=expected)
        return dataset.ChoiceDataset(**fields)

    def page(self, records, task):
        from bert_keras.kinds.choice import chosen_endings

        return chosen_endings.describe(records)

    def served(self, trained, *, top_k):
        from bert_keras.kinds.choice import served_choices

        return served_choices.Choices(trained)

    def score(self, records, metric, *, labels):
        is_right = [record["label"] == record["prediction"] for record in records]
        return score_sums.ratio(is_right, [1] * len(is_right))

    def sign(self, evaluation, answers):
        return degenerate.guessing(answers)

"""A class, several classes or a number for a text or a pair of texts."""

# Labels are None only of tasks that have none.
# pyright: reportArgumentType=false

from typing import Self, cast

import pydantic

from bert_keras.core.errors import InputError
from bert_keras.kinds.kind import LOSS, Labelled, Metric, Names, classifier_names
from bert_keras.labelled import degenerate, python_examples, score_sums
from bert_keras.labelled.answers import Computed, Record


class _TextRecord(Record):
    """A text, or two."""

    text: str
    text_pair: str | None = None
    line: int
    """Where it begins in its file; of texts given in Python their number, from 1."""


class ClassifiedText(_TextRecord):
    """A text and its class."""

    label: str | None = None
    prediction: str
    """Empty: the model is calibrated, and not sure enough of any label."""
    probabilities: dict[str, Computed]
    """By label."""

    @pydantic.model_validator(mode="after")
    def _labels_are_known(self) -> Self:
        for name in (self.label, self.prediction):
            if name and name not in self.probabilities:
                raise ValueError(f"no probability of the label {name!r:.60}")
        return self

    @property
    def confidence(self) -> float:
        return self.probabilities[self.prediction]


class MultiLabelText(_TextRecord):
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


class RatedText(_TextRecord):
    """A text and its number."""

    label: float | None = None
    prediction: Computed

    @property
    def error(self) -> float:
        """Returns the answer less the right number."""
        return self.prediction - cast(float, self.label)


class RatedInterval(RatedText):
    """A text, its number, and the interval of a calibrated run around the answer."""

    low: Computed
    high: Computed


def _names(*, problem_type: str, activation: str) -> Names:
    return Names(
        hugging_face="BertForSequenceClassification",
        problem_type=problem_type,
        pipeline="text-classification",
        keras_hub=activation,
        heads=classifier_names(model_garden="classifier/out_proj"),
    )


class _Text(Labelled):
    """The common part of the three kinds of answers to texts."""

    form = "text"
    keras_classes = ("BertClassifier", "BertMultiLabelClassifier")
    accepts = frozenset({"long_texts", "windows", "teacher", "calibration_fraction"})
    has_several = False
    """Whether a text may have several labels."""

    def network(self, bert_config, task, *, head, **shared):
        from bert_keras.kinds.text import network

        form = network.BertClassifier
        if self.has_several:
            form = network.BertMultiLabelClassifier
        return form(bert_config, task.num_labels, **head, **shared)

    def read(self, path, settings, *, has_labels=True, has_text_pair=None, **_):
        from bert_keras.kinds.text import glue, text, text_forms

        if (data_set := self.data_set(settings)) is not None:
            rows = glue.read(path.parent.parent, data_set, path.stem)
            has_labels &= path.stem not in glue.TASKS[data_set].submissions
        else:
            rows = text.read_texts(
                *(path, settings.columns),
                has_text_pair=has_text_pair,
                has_label=has_labels,
                has_several_labels=settings.has_several_labels,
            )
        return text_forms.TextDataset(
            path=path,
            rows=rows,
            has_labels=has_labels,
            kind=self.name,
            name=data_set,
            columns=settings.columns,
            positive_label=settings.positive_label,
        )

    def from_python(self, examples, task):
        from bert_keras.kinds.text import text, text_forms

        def read(example, number):
            if task.has_text_pair:
                first, second = python_examples.strings(example)
            else:
                [first], second = python_examples.strings([example]), None
            return text.LabelledText(first, second, None, number)

        expected = "a pair of strings" if task.has_text_pair else "a string"
        fields = python_examples.read(examples, read, expected=expected)
        return text_forms.TextDataset(**fields, kind=self.name)

    def main_metric(self, settings, labels):
        from bert_keras.kinds.text import glue

        if settings.task in glue.TASKS:
            return glue.TASKS[settings.task].metrics[0]
        return self.usual_metric

    def score(self, records, metric, *, labels):
        truth = [record[self.record.truth_name] for record in records]
        answered = [record["prediction"] for record in records]
        if metric in ("pearson", "spearman"):
            by_rank = metric == "spearman"
            return score_sums.correlation(truth, answered, by_rank=by_rank)
        return score_sums.classes(truth, answered, labels, metric)

    def served(self, trained, *, top_k):
        from bert_keras.kinds.text import served_labels

        form = served_labels.SeveralLabels if self.has_several else served_labels.Labels
        return form(trained)

    def page(self, records, task):
        from bert_keras.kinds.text import pages

        return pages.DESCRIBE[self.record](records, task.labels)


class Classification(_Text):
    """Answers with one of several classes."""

    name = "classification"
    other_names = ("classification", "sentiment", "text-classification")
    record = ClassifiedText
    names = _names(problem_type="single_label_classification", activation="linear")
    has_labels = judges_labels = True
    metrics = (
        *(LOSS, Metric("accuracy"), Metric("f1", is_of_label=True)),
        *(Metric("macro_f1"), Metric("matthews")),
    )
    accepts = _Text.accepts | {"class_weights", "label_smoothing"}
    resampled = ("accuracy", "f1", "matthews")

    def check(self, settings, task, bert_config, dev):
        is_own = task.name is None and task.positive_label is None
        if settings.positive_label is not None and is_own and task.labels:
            raise InputError(
                "`positive_label` is for your own texts (--task text) with two labels, "
                f"got {len(task.labels)} labels: leave it out"
            )

    def sign(self, evaluation, answers):
        return degenerate.guessing(answers)


class MultiLabel(_Text):
    """Answers with any number of classes."""

    name = "multi_label"
    record = MultiLabelText
    names = _names(problem_type="multi_label_classification", activation="sigmoid")
    has_labels = has_several = judges_labels = True
    several = "labels"
    metrics = (LOSS, *map(Metric, ("accuracy", "micro_f1", "macro_f1")))
    metrics += (Metric("best_micro_f1"), Metric("best_macro_f1"))
    accepts = Classification.accepts
    resampled = ("best_macro_f1",)
    own_settings = ("columns.label_separator",)
    usual_metric = "best_macro_f1"
    usual = {**_Text.usual, "multi_label": True}

    def label_features(self, task, rows, length):
        return {"label_targets": ((rows, 1, task.num_labels), "float32")}

    def sign(self, evaluation, answers):
        return degenerate.sameness([tuple(a["prediction"]) for a in answers or ()])


class Regression(_Text):
    """Answers with a number."""

    name = "regression"
    record = RatedText
    names = _names(problem_type="regression", activation="linear")
    metrics = (Metric("loss", "squares", "less"), Metric("pearson"), Metric("spearman"))
    resampled = ("pearson", "spearman")
    usual_metric = "pearson"
    usual = {**_Text.usual, "regression": True}

    def label_features(self, task, rows, length):
        return {"label_ids": ((rows,), "float32")}

    def sign(self, evaluation, answers):
        return degenerate.constancy(answers)

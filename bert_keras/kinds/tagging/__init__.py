"""A tag for each word: entities, parts of speech."""

from typing import Self

import pydantic

from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.kinds.kind import LOSS, Labelled, Metric, Names, Usage, classifier_names
from bert_keras.kinds.tagging import tag_schemes
from bert_keras.labelled import degenerate, python_examples, score_sums
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
    """Mean of its words' tags; of a calibrated run the calibrated one."""


class TaggedText(TaggedSentence):
    """A text, its words with their tags, and the entities that they make."""

    text: str
    entities: tuple[FoundEntity, ...]
    """Predicted, in the order of the text."""


class Tagging(Labelled):
    """Answers with a tag for each word, or with the entities of a text."""

    name = "tagging"
    keras_classes = ("BertTagger",)
    record = TaggedSentence
    form = "tagging"
    other_names = ("ner", "pos", "tags", "token-classification")
    suffixes = (".txt", ".jsonl")
    unused = ("encoder/pooler/",)
    names = Names(
        hugging_face="BertForTokenClassification",
        pipeline="token-classification",
        heads=classifier_names(model_garden="classifier"),
    )
    has_labels = judges_labels = True
    always_windows = True
    examples, several = "sentences", "entities"
    metrics = (LOSS, *map(Metric, ("accuracy", "precision", "recall", "f1")))
    resampled = ("f1", "accuracy")
    own_settings = ("feature_layers", "document_context")
    usual = {"max_seq_length": 128}
    example = Usage(text='"Ada Lovelace lived in London."')

    def network(self, bert_config, task, *, head, **shared):
        from bert_keras.kinds.tagging import network

        return network.BertTagger(
            bert_config,
            task.num_labels,
            feature_layers=task.feature_layers,
            **head,
            **shared,
        )

    def read(self, path, settings, *, has_labels=True, reads_text=False, **_):
        from bert_keras.kinds.tagging import dataset, ner

        return dataset.TaggingDataset(
            path=path,
            rows=ner.read(path, has_tags=has_labels, has_lines=reads_text),
            has_labels=has_labels,
            name=self.data_set(settings),
        )

    def from_python(self, examples, task):
        from bert_keras.kinds.tagging import dataset, ner

        def read(example, number):
            if isinstance(example, str):
                return ner.of_text(example, number, number)
            if not (words := python_examples.strings(example)):
                raise ValueError
            return ner.Sentence(words, None, number, number)

        expected = "a string, or a list of words"
        fields = python_examples.read(examples, read, expected=expected)
        return dataset.TaggingDataset(**fields)

    def check(self, settings, task, bert_config, dev):
        if layers := settings.feature_layers:
            tasks.feature_layer_numbers(layers, bert_config.num_hidden_layers)
        is_plain = tag_schemes.scheme_of(task.labels or ()) == "plain"
        if settings.calibration_fraction and is_plain:
            raise InputError(
                "`calibration_fraction` is for answers that `bert-keras calibrate` can "
                "promise, got tags without entities: leave --calibrate out"
            )

    def main_metric(self, settings, labels):
        is_plain = labels and tag_schemes.scheme_of(labels) == "plain"
        return "accuracy" if is_plain else "f1"

    def page(self, records, task):
        from bert_keras.kinds.tagging import tagged_sentences

        return tagged_sentences.describe(records)

    def served(self, trained, *, top_k):
        from bert_keras.kinds.tagging import served_tags

        return served_tags.Tags(trained)

    def label_features(self, task, rows, length):
        return {"label_ids": ((rows, length), "int32")}

    def score(self, records, metric, *, labels):
        pairs = [(record["labels"], record["prediction"]) for record in records]
        if metric == "f1":
            spans = [[{*tag_schemes.entities(tags)} for tags in pair] for pair in pairs]
            return score_sums.f1(*zip(*spans, strict=True))
        num_right = [sum(map(str.__eq__, *pair)) for pair in pairs]
        return score_sums.ratio(num_right, [len(tags) for tags, _ in pairs])

    def sign(self, evaluation, answers):
        if "f1" in evaluation:
            return "no entity is right" if evaluation["f1"] < 0.0005 else None
        tags = [
            {"label": label, "prediction": tag}
            for answer in answers or ()
            for label, tag in zip(answer["labels"], answer["prediction"], strict=True)
        ]
        return degenerate.guessing(tags)

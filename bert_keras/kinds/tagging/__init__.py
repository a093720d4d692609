"""A tag for each word: entities, parts of speech."""

from bert_keras.kinds.kind import LOSS, Labelled, Metric, Names, Usage
from bert_keras.kinds.tagging import records

KERAS_CLASSES = ("BertTagger",)
"""Classes of `network` that a `.keras` file may hold."""


class Tagging(Labelled):
    """Answers with a tag for each word, or with the entities of a text."""

    name = "tagging"
    record = records.TaggedSentence
    form = "tagging"
    other_names = ("ner", "pos", "tags", "token-classification")
    suffixes = (".txt", ".jsonl")
    unused = ("encoder/pooler/",)
    names = Names(
        hugging_face="BertForTokenClassification",
        pipeline="token-classification",
        heads={
            "hugging_face": {"head/classifier": "classifier"},
            "google": {"head/classifier": "output"},
            "model_garden": {"head/classifier": "classifier"},
        },
    )
    has_labels = True
    always_windows = True
    examples = "sentences"
    metrics = (LOSS, *map(Metric, ("accuracy", "precision", "recall", "f1")))
    accepts = frozenset({"teacher"})
    resampled = ("f1", "accuracy")
    own_settings = ("feature_layers", "document_context")

    def usage(self, task):
        return Usage(text='"Ada Lovelace lived in London."')

    def usual_settings(self, task):
        return super().usual_settings(task) | {"max_seq_length": 128}

    def network(self, bert_config, task, *, head, **shared):
        from bert_keras.kinds.tagging import network

        return network.BertTagger(
            bert_config,
            task.num_labels,
            feature_layers=task.feature_layers,
            **head,
            **shared,
        )

    def read(
        self, path, settings, *, data_set=None, has_labels=True, reads_text=False, **_
    ):
        from bert_keras.kinds.tagging import dataset, ner

        return dataset.TaggingDataset(
            path=path,
            rows=ner.read(path, has_tags=has_labels, has_lines=reads_text),
            has_labels=has_labels,
            name=data_set,
        )

    def from_python(self, examples, task):
        from bert_keras.kinds.tagging import dataset, ner
        from bert_keras.labelled import python_examples

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
        from bert_keras.core.settings import tasks

        if settings.feature_layers:
            tasks.feature_layer_numbers(
                settings.feature_layers, bert_config.num_hidden_layers
            )

    def main_metric(self, settings, labels):
        from bert_keras.kinds.tagging import tag_schemes

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
        from bert_keras.kinds.tagging import tag_schemes
        from bert_keras.labelled import score_sums

        pairs = [(record["labels"], record["prediction"]) for record in records]
        if metric == "f1":
            entities = [
                [{*tag_schemes.entities(tags)} for tags in pair] for pair in pairs
            ]
            return score_sums.f1(*zip(*entities, strict=True))
        num_right = [sum(map(str.__eq__, *pair)) for pair in pairs]
        return score_sums.ratio(num_right, [len(tags) for tags, _ in pairs])

    def sign(self, evaluation, answers):
        from bert_keras.labelled import degenerate

        if "f1" in evaluation:
            return "no entity is right" if evaluation["f1"] < 0.0005 else None
        tags = [
            {"label": label, "prediction": tag}
            for answer in answers or ()
            for label, tag in zip(answer["labels"], answer["prediction"], strict=True)
        ]
        return degenerate.guessing(tags)

"""Vectors of texts: an encoder, or a model that is tuned to bring like texts near."""

import numpy as np

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.kinds.kind import Kind, Labelled, Metric, Names, Usage
from bert_keras.labelled import python_examples, score_sums
from bert_keras.labelled.answers import Computed, Record

_NAMES = Names(hugging_face="BertModel", pipeline="sentence-similarity")


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


class Encoder(Kind):
    """An encoder without a head."""

    name = "encoder"
    names = _NAMES
    parts = ("encoder/",)

    def network(self, bert_config, task, *, head, **shared):
        from bert_keras.model import encoder

        return encoder.BertEncoder(bert_config, **shared)

    def served(self, trained, *, top_k):
        raise InputError(
            f"{trained.path}: an encoder without a head, which answers nothing: "
            "--embedding mean exports its vectors"
        )


_NOT_FOR_VECTORS = {
    "gradient_accumulation_steps": "the parts of a batch would not see each other's "
    "texts: `recompute` needs less memory, too",
    "dropout_prob": "vectors have no head; the encoder has `hidden_dropout_prob`",
    "bilstm_units": "vectors have no head",
}
"""Settings that an embedding run refuses, and why."""


class Embedding(Labelled):
    """Answers with a vector, near those of texts that mean the same."""

    name = "embedding"
    record = EmbeddedText
    parts = ("encoder/",)
    unused = ("encoder/pooler/",)
    form = "embedding"
    other_names = ("embeddings", "similarity", "sentence-similarity")
    names = _NAMES
    metrics = tuple(
        map(Metric, ("recall_at_1", "recall_at_10", "mrr", "spearman", "pearson"))
    )
    resampled = ("recall_at_1", "recall_at_10", "mrr", "spearman", "pearson")
    accepts = frozenset({"long_texts"})
    num_texts = 2
    own_settings = ("embedding", "columns.negative")

    def usage(self, task):
        vector = "vector / vector.norm()" if task.normalize else "vector"
        pooled = {"mean": ".mean(0)", "cls": "[0]"}[task.pooling]
        return Usage(
            model=f"""\
inputs = tokenizer("A text.", return_tensors="pt", truncation=True)
vector = model(**inputs).last_hidden_state[0]{pooled}
print({vector})"""
        )

    def label_features(self, task, rows, length):
        return {"text_ids": ((rows, self.num_texts), "int32")}

    def usual_settings(self, task):
        vectors = {"pooling": task.pooling, "normalize": task.normalize}
        return super().usual_settings(task) | {"embedding": vectors}

    def network(self, bert_config, task, *, head, **shared):
        from bert_keras.model import embedder

        pooling = {"pooling": task.pooling, "normalize": task.normalize}
        return embedder.BertEmbedder(bert_config, **pooling, **shared)

    def read(self, path, settings, *, has_labels=True, **_):
        from bert_keras.kinds.vectors import embedding

        return embedding.EmbeddingDataset(
            path=path,
            rows=embedding.read(path, settings.columns, has_labels=has_labels),
            has_labels=has_labels,
            settings=settings.embedding,
        )

    def from_python(self, examples, task):
        from bert_keras.kinds.vectors import embedding

        def read(example, number):
            [text] = python_examples.strings([example])
            return embedding.Texts(text, line=number)

        fields = python_examples.read(examples, read, expected="a string")
        return embedding.EmbeddingDataset(**fields)

    def main_metric(self, settings, labels):
        return settings.embedding.metric

    def score(self, records, metric, *, labels):
        from bert_keras.labelled import similarity

        if metric in ("spearman", "pearson"):
            values = zip(*((r["label"], r["prediction"]) for r in records), strict=True)
            return score_sums.correlation(*values, by_rank=metric == "spearman")
        each = [similarity.search_scores(np.array([r["rank"]])) for r in records]
        return score_sums.ratio([found[metric] for found in each], [1] * len(each))

    def page(self, records, task):
        from bert_keras.kinds.vectors import embedded_texts

        return embedded_texts.describe(records)

    def served(self, trained, *, top_k):
        from bert_keras.kinds.vectors import served_embeddings

        return served_embeddings.TextVectors(trained)

    def check(self, settings, task, bert_config, dev):
        dev.check_metric()
        usual = finetuning.FinetuningConfig()
        for key, reason in _NOT_FOR_VECTORS.items():
            if (value := getattr(settings, key)) != getattr(usual, key):
                raise InputError(
                    f"`{key}` {value} is not for --task embedding: {reason}; leave it "
                    "out"
                )
        shares = [
            getattr(bert_config if getattr(settings, name) is None else settings, name)
            for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")
        ]
        if settings.embedding.pairs == "dropout" and not any(shares):
            raise InputError(
                "`embedding.pairs` dropout: the encoder drops nothing, so a text is "
                "like itself anyway: --set hidden_dropout_prob=0.1"
            )
        is_one_way = bert_config.attention != "bidirectional"
        if settings.embedding.pooling == "cls" and is_one_way:
            raise InputError(
                "`embedding.pooling` cls: the first token of this encoder has not seen "
                "the text, because it attends to the left only: take mean"
            )

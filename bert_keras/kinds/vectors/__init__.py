"""Vectors of texts: an encoder, or a model that is tuned to bring like texts near."""

from bert_keras.core.errors import InputError
from bert_keras.core.settings import config
from bert_keras.kinds.kind import Kind, Labelled, Names, Usage

_NAMES = Names(hugging_face="BertModel", pipeline="sentence-similarity")
_POOLED = {"mean": ".mean(0)", "cls": "[0]"}


class Encoder(Kind):
    """An encoder without a head."""

    name = "encoder"
    names = _NAMES
    parts = ("encoder/",)

    def network(self, bert_config, task, *, head, scale, **shared):
        from bert_keras.model import encoder

        return encoder.BertEncoder(bert_config, **shared)

    def served(self, trained, *, top_k):
        raise InputError(
            f"{trained.path}: an encoder without a head, which answers nothing: "
            "--embedding mean exports its vectors"
        )


class Embedding(Labelled):
    """Answers with a vector, near those of texts that mean the same."""

    name = "embedding"
    parts = ("encoder/",)
    form = "embedding"
    names = _NAMES
    scored = "pairs of texts"

    def usage(self, task):
        vector = "vector / vector.norm()" if task.normalize else "vector"
        return Usage(
            model=f"""\
inputs = tokenizer("A text.", return_tensors="pt", truncation=True)
vector = model(**inputs).last_hidden_state[0]{_POOLED[task.pooling]}
print({vector})"""
        )

    def usual_settings(self, task):
        vectors = {"pooling": task.pooling, "normalize": task.normalize}
        return super().usual_settings(task) | {"embedding": vectors}

    def served_network(self, task):
        return config.Task(kind="encoder")

    def needs(self, weight):
        # No file lacks other weights of an encoder, and no vector is pooled.
        return False

    @property
    def record(self):
        from bert_keras.kinds.vectors import records

        return records.EmbeddedText

    def network(self, bert_config, task, *, head, scale, **shared):
        from bert_keras.model import embedder

        return embedder.BertEmbedder(
            bert_config,
            pooling=task.pooling,
            normalize=task.normalize,
            scale=scale,
            **shared,
        )

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
        from bert_keras.labelled import python_examples

        def read(example, number):
            [text] = python_examples.strings([example])
            return embedding.Texts(text, None, None, None, number)

        rows = python_examples.read(examples, read, expected="a string")
        return embedding.EmbeddingDataset(
            path=python_examples.PATH, rows=rows, has_labels=False
        )

    def main_metric(self, settings, labels):
        return settings.embedding.metric

    def page(self, records, task):
        from bert_keras.kinds.vectors import embedded_texts

        return embedded_texts.describe(records)

    def served(self, trained, *, top_k):
        from bert_keras.kinds.vectors import served_embeddings

        return served_embeddings.as_trained(trained)

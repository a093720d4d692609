"""Passages in the order in which they answer a question: reranking, a cross-encoder."""

import typing

from bert_keras.core.settings import finetuning
from bert_keras.kinds.kind import Labelled, Metric, Names, Usage
from bert_keras.kinds.ranking import records
from bert_keras.labelled import python_examples

KERAS_CLASSES = ("BertRanker",)
"""Classes of `network` that a `.keras` file may hold."""

if typing.TYPE_CHECKING:
    from bert_keras.kinds.ranking import candidates

_EXAMPLE = Usage(
    model="""\
passages = ["Ada wrote the first program.", "It rained all day."]
questions = ["Who wrote the first program?"] * len(passages)
inputs = tokenizer(questions, passages, truncation=True, padding=True)
inputs = inputs.convert_to_tensors("pt")
scores = model(**inputs).logits[:, 0]
print(passages[scores.argmax()])""",
    strings="""
    question=tf.constant(["Who wrote the first program?"]),
    passages=tf.constant([["Ada wrote the first program.", "It rained all day."]]),
""",
    ids="[[{ids}, {ids}]]",
)


class Ranking(Labelled):
    """Answers with a score for each passage; higher is better."""

    name = "ranking"
    record = records.RankedPassages
    form = "ranking"
    other_names = ("rerank", "reranking", "reranker", "text-ranking")
    names = Names(
        hugging_face="BertForSequenceClassification",
        # One output, as `CrossEncoder` of sentence-transformers has it.
        problem_type="regression",
        pipeline="text-ranking",
        heads={
            "hugging_face": {"head/classifier": "classifier"},
            "google": {"head/classifier": "output"},
            "model_garden": {"head/classifier": "classifier/out_proj"},
        },
    )
    metrics = (
        *map(Metric, ("mrr", "mrr_at_10", "ndcg_at_10")),
        Metric("mrr_by_chance", better=None),
    )
    resampled = ("mrr", "mrr_at_10", "ndcg_at_10")
    accepts = frozenset({"long_texts"})
    own_settings = ("ranking",)
    has_text_pair = True
    transfers_head = True
    examples = "pairs"
    num_texts = finetuning.RankingConfig().num_candidates
    """Passages of a question in training, where `ranking.num_candidates` is not set."""

    def usage(self, task):
        return _EXAMPLE

    def network(self, bert_config, task, *, head, **shared):
        from bert_keras.kinds.ranking import network

        return network.BertRanker(bert_config, **head, **shared)

    def label_features(self, task, rows, length):
        numbers = ((rows, self.num_texts), "float32")
        return {"label_ids": numbers, "label_targets": numbers}

    def read(self, path, settings, *, has_labels=True, **_):
        from bert_keras.kinds.ranking import candidates, dataset

        questions = candidates.read_questions(
            path, settings.columns, has_labels=has_labels
        )
        return dataset.RankingDataset(path=path, rows=questions, has_labels=has_labels)

    def from_python(self, examples, task):
        from bert_keras.kinds.ranking import dataset

        expected = "a question, and a list of passages"
        fields = python_examples.read(examples, _question, expected=expected)
        return dataset.RankingDataset(**fields)

    def main_metric(self, settings, labels):
        return "ndcg_at_10"

    def score(self, records, metric, *, labels):
        from bert_keras.kinds.ranking import scores
        from bert_keras.labelled import score_sums

        score = scores.METRICS[metric]
        values = [score(record["relevances"], record["scores"]) for record in records]
        return score_sums.ratio(values, [1] * len(values))

    def page(self, records, task):
        from bert_keras.kinds.ranking import ranked_passages

        return ranked_passages.describe(records)

    def served(self, trained, *, top_k):
        from bert_keras.kinds.ranking import served_ranking

        return served_ranking.Rankings(trained)

    def sign(self, evaluation, answers):
        from bert_keras.labelled import degenerate

        several = [a["scores"] for a in answers or () if len(a["scores"]) > 1]
        spreads = [max(scores) - min(scores) for scores in several]
        num_equal = sum(spread < 1e-3 for spread in spreads)
        if not spreads or num_equal < degenerate.SHARE * len(spreads):
            return None
        return "the passages of a question have the same score"


def _question(example: typing.Any, number: int) -> "candidates.Question":
    from bert_keras.kinds.ranking import candidates

    asked, passages = example
    [asked] = python_examples.strings([asked])
    passages = python_examples.strings(passages)
    if not passages:
        raise ValueError
    return candidates.Question(
        asked,
        [candidates.Candidate(p, None, row, number) for row, p in enumerate(passages)],
    )

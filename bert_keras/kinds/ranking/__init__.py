"""Passages in the order in which they answer a question: reranking, a cross-encoder."""

from typing import Self

import pydantic

from bert_keras.core.settings import finetuning
from bert_keras.kinds.kind import Labelled, Metric, Names, Usage, classifier_names
from bert_keras.labelled import degenerate, python_examples, score_sums
from bert_keras.labelled.answers import Computed, Record


class RankedPassages(Record):
    """A question, its passages and their order."""

    truth_name = "relevances"

    question: str
    passages: tuple[str, ...]
    line: int
    """First line of its first passage."""
    relevances: tuple[float, ...] | None = None
    """One for each passage, above 0 where it is right."""
    prediction: tuple[int, ...]
    """Numbers of the passages from 0, the best first."""
    scores: tuple[Computed, ...]
    """One for each passage."""

    @pydantic.model_validator(mode="after")
    def _has_one_of_each(self) -> Self:
        count = len(self.passages)
        relevances = self.scores if self.relevances is None else self.relevances
        is_ranking = sorted(self.prediction) == list(range(count))
        if not count == len(self.scores) == len(relevances) or not is_ranking:
            raise ValueError(
                f"{count} passages, but {len(self.scores)} scores, {len(relevances)} "
                f"relevances and the ranking {self.prediction}"
            )
        return self


class SureRanking(RankedPassages):
    """The order of a calibrated run, which says whether a passage answers at all."""

    probability: Computed
    """Calibrated probability of the first passage, among these passages."""
    is_sure: bool
    """Whether it reaches the threshold; else none of the passages answers."""


class Ranking(Labelled):
    """Answers with a score for each passage; higher is better."""

    name = "ranking"
    keras_classes = ("BertRanker",)
    record = RankedPassages
    form = "ranking"
    other_names = ("rerank", "reranking", "reranker", "text-ranking")
    names = Names(
        hugging_face="BertForSequenceClassification",
        # One output, as `CrossEncoder` of sentence-transformers has it.
        problem_type="regression",
        pipeline="text-ranking",
        heads=classifier_names(model_garden="classifier/out_proj"),
    )
    metrics = (
        *map(Metric, ("mrr", "mrr_at_10", "ndcg_at_10")),
        Metric("mrr_by_chance", better=None),
    )
    resampled = ("mrr", "mrr_at_10", "ndcg_at_10")
    accepts = frozenset({"long_texts", "calibration_fraction"})
    own_settings = ("ranking",)
    has_text_pair = True
    transfers_head = True
    examples, answered = "pairs", "questions"
    num_texts = finetuning.RankingConfig().num_candidates
    """Passages of a question in training, where `ranking.num_candidates` is not set."""
    usual_metric = "ndcg_at_10"
    example = Usage(
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

    def network(self, bert_config, task, *, head, **shared):
        from bert_keras.kinds.ranking import network

        return network.BertRanker(bert_config, **head, **shared)

    def label_features(self, task, rows, length):
        numbers = ((rows, self.num_texts), "float32")
        return {"label_ids": numbers, "label_targets": numbers}

    def read(self, path, settings, *, has_labels=True, **_):
        from bert_keras.kinds.ranking import dataset

        columns = settings.columns
        questions = dataset.read_questions(path, columns, has_labels=has_labels)
        return dataset.RankingDataset(path=path, rows=questions, has_labels=has_labels)

    def from_python(self, examples, task):
        from bert_keras.kinds.ranking import dataset

        def read(example, number):
            asked, texts = example
            [asked], texts = map(python_examples.strings, ([asked], texts))
            if not texts:
                raise ValueError
            candidates = [
                dataset.Candidate(text, None, row, number)
                for row, text in enumerate(texts)
            ]
            return dataset.Question(asked, candidates)

        expected = "a question, and a list of passages"
        fields = python_examples.read(examples, read, expected=expected)
        return dataset.RankingDataset(**fields)

    def score(self, records, metric, *, labels):
        from bert_keras.kinds.ranking import scores

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
        several = [a["scores"] for a in answers or () if len(a["scores"]) > 1]
        spreads = [max(scores) - min(scores) for scores in several]
        num_equal = sum(spread < 1e-3 for spread in spreads)
        if not spreads or num_equal < degenerate.SHARE * len(spreads):
            return None
        return "the passages of a question have the same score"

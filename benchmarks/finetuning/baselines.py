"""Scores of a task without a model: mostly of always giving the commonest answer.

No TensorFlow.
"""

import collections
import re
from typing import Any

import numpy as np

from bert_keras import config
from bert_keras.tasks import (
    dataset,
    forms,
    ner,
    squad,
    squad_scores,
    text,
    text_forms,
)


def without_model(
    train: dataset.Dataset, dev: dataset.Dataset
) -> tuple[str, dict[str, Any]] | None:
    """A description of the baseline, and its official scores.

    Args:
        train: where answers are counted.
        dev: what is scored, of the same task.

    Returns:
        `None`: nothing simple answers this task (SWAG).
    """
    task = train.describe()
    if isinstance(train, text_forms.TextDataset):
        return _commonest_label(train, dev, task)
    if isinstance(train, forms.TaggingDataset):
        return "each word's commonest tag", _commonest_tags(train, dev, task)
    if isinstance(train, forms.SpanDataset):
        return "the sentence with most words of the question", _sentences(dev)
    return None


def _commonest_label(
    train: text_forms.TextDataset,
    dev: text_forms.TextDataset,
    task: config.Task,
) -> tuple[str, dict[str, float]]:
    known = text.label_ids(train.rows, task.labels, path=train.path)
    if task.labels is None:
        how, answer = "the mean", [known.mean()]
    else:
        label = np.bincount(known).argmax()
        how, answer = f"always {task.labels[label]}", np.eye(len(task.labels))[label]
    answers = text_forms.TextAnswers(
        rows=dev.rows,
        logits=np.tile(np.float32(answer), (len(dev), 1)),
        label_ids=text.label_ids(dev.rows, task.labels, path=dev.path),
        task=task,
    )
    return how, answers.scores()


def _commonest_tags(
    train: forms.TaggingDataset,
    dev: forms.TaggingDataset,
    task: config.Task,
) -> dict[str, float]:
    counts: dict[str, collections.Counter] = collections.defaultdict(
        collections.Counter
    )
    for sentence in train.sentences:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            counts[word][tag] += 1
    unknown = collections.Counter({ner.OUTSIDE: 1})
    places = [
        task.labels.index(counts.get(word, unknown).most_common(1)[0][0])
        for sentence in dev.sentences
        for word in sentence.words
    ]
    logits = np.eye(len(task.labels), dtype=np.float32)[places]
    return ner.scores(logits, task.labels, dev.sentences)


def _sentences(dev: forms.SpanDataset) -> dict[str, float]:
    questions = dev.questions
    return squad_scores.scores(
        questions.gold_answers(),
        {q.id: _nearest_sentence(q) for q in questions.questions},
        has_impossible=questions.has_impossible,
    )


def _nearest_sentence(question: squad.Question) -> str:
    """The first sentence that shares most distinct words with the question."""
    wanted = set(squad_scores.normalize_answer(question.question).split())

    def num_shared(sentence: str) -> int:
        return len(wanted & set(squad_scores.normalize_answer(sentence).split()))

    return max(re.split(r"(?<=[.!?])\s+", question.context), key=num_shared)

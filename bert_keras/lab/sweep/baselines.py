"""Baselines: answers that need no network, from the same labelled examples.

Texts: the commonest answer, and logistic regression (of numbers: ridge regression) on
TF-IDF of words and pairs of words. Tagged words: the commonest tag of all, and of each
word.
"""

# scikit-learn has no types of its own.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import sklearn.feature_extraction.text
import sklearn.linear_model

from bert_keras.core.settings import tasks
from bert_keras.kinds.tagging import dataset as tagging_data
from bert_keras.kinds.text import text_forms
from bert_keras.labelled import dataset

COMMONEST = "commonest answer"
LINEAR = "TF-IDF, linear"
EACH_WORD = "each word's tag"

NAMES: Mapping[tasks.TaskKind, tuple[str, ...]] = {
    **dict.fromkeys(text_forms.KINDS, (COMMONEST, LINEAR)),
    "tagging": (COMMONEST, EACH_WORD),
}
"""Baselines of a kind of task; other kinds have none."""

REGULARISATION = 10.0
"""`C` of logistic regression, the inverse of the strength: of 1 (scikit-learn's
default), 10 and 100 the best on most shares of SST-2, CoLA and MRPC."""

MAX_TERMS = 1_000_000
"""Counted words and pairs of words, the commonest. Each label has a weight for each
term, and their number would grow with the texts."""

DESCRIPTIONS = {
    COMMONEST: (
        "the commonest label or tag (numbers: the mean; several labels: how often each "
        "holds)"
    ),
    LINEAR: (
        "logistic regression (of numbers: ridge regression) by scikit-learn on TF-IDF "
        f"of words and pairs of words (the commonest {MAX_TERMS:,}), "
        f"C = {REGULARISATION:g}"
    ),
    EACH_WORD: "the tag that a word has most often, the commonest for unknown words",
}

_TOKEN = r"(?u)\w+|[^\w\s]"
_LEAST = 1e-6


Predict = Callable[[Any], np.ndarray]
"""From a dataset to logits `(num_answers, width)` float32."""


def learn(name: str, train: dataset.Dataset, task: tasks.Task) -> Predict:
    """Learns a baseline, one of `NAMES`, for all labels of the task."""
    if isinstance(train, tagging_data.TaggingDataset):
        return _learn_tags(train, task, by_word=name == EACH_WORD)
    return _learn_texts(train, task, is_linear=name == LINEAR)


def answer(
    data: dataset.Dataset, logits: np.ndarray, task: tasks.Task
) -> dataset.Answers:
    """Returns a baseline's answers to labelled examples, which score like a model's."""
    if isinstance(data, tagging_data.TaggingDataset):
        return tagging_data.TaggingAnswers(
            sentences=data.rows, word_logits=logits, labels=task.labels
        )
    return data.answers_of(logits, task)


def _learn_texts(
    train: text_forms.TextDataset, task: tasks.Task, *, is_linear: bool
) -> Predict:
    """Learns logits for all texts, and regressions that replace some columns."""
    targets = train.targets(task)
    base = _common_logits(targets, task)
    vectorizers = _fit_vectorizers(train) if is_linear else []
    columns: list[tuple[list[int], Callable[[Any], np.ndarray]]] = []
    if vectorizers:
        features, present = _features(vectorizers, train), np.unique(targets)
        if task.labels is None:
            ridge = sklearn.linear_model.Ridge(alpha=1.0).fit(features, targets)
            columns = [([0], ridge.predict)]
        elif targets.ndim == 2:  # several labels for each text
            columns = [
                ([label_id], _logistic(features, column).decision_function)
                for label_id, column in enumerate(targets.T)
                if 0 < column.sum() < len(column)
            ]
        elif len(present) > 1:
            classifier = _logistic(features, targets)
            columns = [(present.tolist(), classifier.predict_log_proba)]
            base = np.full(len(task.labels), np.log(_LEAST))

    def predict(data: text_forms.TextDataset) -> np.ndarray:
        logits = np.tile(base, (len(data), 1)).astype(float)
        features = _features(vectorizers, data) if columns else None
        for label_ids, answer in columns:
            shape = (len(data), len(label_ids))
            logits[:, label_ids] = answer(features).reshape(shape)
        return logits.astype(np.float32)

    return predict


def _common_logits(targets: np.ndarray, task: tasks.Task) -> np.ndarray:
    if task.labels is None:
        return targets.mean(keepdims=True)
    if targets.ndim == 2:
        shares = np.clip(targets.mean(axis=0), _LEAST, 1 - _LEAST)
        return np.log(shares / (1 - shares))
    shares = np.bincount(targets, minlength=len(task.labels)) / len(targets)
    return np.log(np.maximum(shares, _LEAST))


def _fit_vectorizers(train: text_forms.TextDataset) -> list[Any]:
    """Returns TF-IDF of each part of a pair; none if a part has no word in any text."""
    vectorizers = []
    for part in zip(*train.contents().texts, strict=True):
        vectorizer = sklearn.feature_extraction.text.TfidfVectorizer(
            ngram_range=(1, 2),
            sublinear_tf=True,
            token_pattern=_TOKEN,
            max_features=MAX_TERMS,
        )
        try:
            vectorizers.append(vectorizer.fit(part))
        except ValueError:  # no text has a word
            return []
    return vectorizers


def _features(vectorizers: Sequence, data: text_forms.TextDataset) -> Any:
    parts = zip(*data.contents().texts, strict=True)
    pairs = zip(vectorizers, parts, strict=True)
    return scipy.sparse.hstack([v.transform(p) for v, p in pairs], format="csr")


def _logistic(features: Any, targets: np.ndarray) -> Any:
    regression = sklearn.linear_model.LogisticRegression(
        C=REGULARISATION, max_iter=1000
    )
    return regression.fit(features, targets)


def _learn_tags(
    train: tagging_data.TaggingDataset, task: tasks.Task, *, by_word: bool
) -> Predict:
    label_ids = {label: label_id for label_id, label in enumerate(task.labels)}
    counts: collections.Counter[str] = collections.Counter()
    counts_by_word: dict[str, collections.Counter[str]] = {}
    for sentence in train.rows:
        counts.update(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            counts_by_word.setdefault(word, collections.Counter())[tag] += 1

    def commonest(tags: collections.Counter[str]) -> int:
        return label_ids[tags.most_common(1)[0][0]]

    other, known = commonest(counts), {}
    if by_word:
        known = {word: commonest(tags) for word, tags in counts_by_word.items()}

    def predict(data: tagging_data.TaggingDataset) -> np.ndarray:
        words = [word for sentence in data.rows for word in sentence.words]
        rows = [known.get(word, other) for word in words]
        return np.eye(len(label_ids), dtype=np.float32)[rows] * 10

    return predict

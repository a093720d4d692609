"""Floors: answers that need no network, from the same labelled examples.

Texts: the commonest answer, and logistic regression (of numbers: ridge regression) on
TF-IDF of words and pairs of words. Tagged words: the commonest tag of all, and the
commonest tag of each word. No TensorFlow.
"""

# scikit-learn has no types of its own.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import collections
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import sklearn.feature_extraction.text
import sklearn.linear_model

from bert_keras.core.settings import config
from bert_keras.kinds.tagging import dataset as tagging_data
from bert_keras.kinds.text import text_forms
from bert_keras.labelled import dataset

KINDS: tuple[config.TaskKind, ...] = (*text_forms.KINDS, "tagging")
"""Kinds of tasks that have floors."""

COMMONEST = "commonest answer"
LINEAR = "TF-IDF, linear"
EACH_WORD = "each word's tag"

REGULARISATION = 10.0
"""`C` of logistic regression, the inverse of the strength: of 1 (scikit-learn's
default), 10 and 100 the best on most shares of SST-2, CoLA and MRPC."""

MAX_TERMS = 1_000_000
"""Words and pairs of words that are counted, the commonest: each label has a weight for
each, and texts without end would have terms without end."""

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


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A way to answer, learnt from examples."""

    answer: Callable[[dataset.Dataset], np.ndarray]
    """Logits `(num_answers, width)` for examples."""
    num_bytes: int
    seconds: float
    """Time of learning."""


def names(kind: config.TaskKind) -> tuple[str, ...]:
    """Floors of a kind of task."""
    return (COMMONEST, EACH_WORD if kind == "tagging" else LINEAR)


def learn(name: str, train: dataset.Dataset, task: config.Task) -> Floor:
    """Learns a floor.

    Args:
        name: one of `names`.
        train: labelled examples.
        task: with all labels, also those that are not in these examples.
    """
    start = time.perf_counter()
    if isinstance(train, tagging_data.TaggingDataset):
        learnt = _tags(train, task, by_word=name == EACH_WORD)
    elif name == COMMONEST:
        learnt = _Constant(_common_logits(train, task))
    else:
        learnt = _linear(train, task)
    return Floor(
        answer=learnt,
        num_bytes=len(pickle.dumps(learnt)),
        seconds=time.perf_counter() - start,
    )


def score(
    data: dataset.Dataset, logits: np.ndarray, task: config.Task
) -> dataset.Answers:
    """A floor's answers to labelled examples, which score like a model's."""
    if isinstance(data, tagging_data.TaggingDataset):
        return tagging_data.TaggingAnswers(
            sentences=data.sentences, word_logits=logits, labels=task.labels
        )
    return data.answers_of(logits, task)


@dataclass(frozen=True)
class _Constant:
    logits: np.ndarray
    """`(width,)`."""

    def __call__(self, data: dataset.Dataset) -> np.ndarray:
        return np.tile(self.logits, (len(data), 1)).astype(np.float32)


def _common_logits(train: text_forms.TextDataset, task: config.Task) -> np.ndarray:
    targets = train.targets(task)
    if task.labels is None:
        return targets.mean(keepdims=True)
    if task.kind == "multi_label":
        return _logit(targets.mean(axis=0))
    shares = np.bincount(targets, minlength=len(task.labels)) / len(targets)
    return np.log(np.maximum(shares, _LEAST))


def _logit(shares: np.ndarray) -> np.ndarray:
    shares = np.clip(shares, _LEAST, 1 - _LEAST)
    return np.log(shares / (1 - shares))


@dataclass(frozen=True)
class _Linear:
    """Texts to TF-IDF, each part of a pair with its own words, to logits."""

    vectorizers: Sequence[sklearn.feature_extraction.text.TfidfVectorizer]
    columns: Sequence[tuple[Sequence[int], object]]
    """Columns of the logits, and the regression that gives them."""
    base: np.ndarray
    """`(width,)`: the logits of all other columns."""

    def __call__(self, data: dataset.Dataset) -> np.ndarray:
        found = _features(self.vectorizers, data)
        logits = np.tile(self.base, (len(data), 1)).astype(float)
        for places, regression in self.columns:
            if isinstance(regression, sklearn.linear_model.Ridge):
                values = regression.predict(found)[:, None]
            elif len(places) == 1:
                values = regression.decision_function(found)[:, None]
            else:
                values = regression.predict_log_proba(found)
            logits[:, list(places)] = values
        return logits.astype(np.float32)


def _features(vectorizers: Sequence, data: text_forms.TextDataset) -> Any:
    parts = zip(*data.contents().texts, strict=True)
    pairs = zip(vectorizers, parts, strict=True)
    return scipy.sparse.hstack([v.transform(p) for v, p in pairs], format="csr")


def _linear(train: text_forms.TextDataset, task: config.Task) -> _Linear | _Constant:
    common = _common_logits(train, task)
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
            return _Constant(common)
    found, targets = _features(vectorizers, train), train.targets(task)
    if task.labels is None:
        regression = sklearn.linear_model.Ridge(alpha=1.0).fit(found, targets)
        return _Linear(vectorizers, [((0,), regression)], common)
    if task.kind == "multi_label":
        columns = [
            ((place,), _logistic().fit(found, column))
            for place, column in enumerate(targets.T)
            if 0 < column.sum() < len(column)
        ]
        return _Linear(vectorizers, columns, common)
    present = np.unique(targets)
    if len(present) < 2:
        return _Constant(common)
    columns = [(present.tolist(), _logistic().fit(found, targets))]
    return _Linear(vectorizers, columns, np.full(len(task.labels), np.log(_LEAST)))


def _logistic() -> sklearn.linear_model.LogisticRegression:
    return sklearn.linear_model.LogisticRegression(C=REGULARISATION, max_iter=1000)


@dataclass(frozen=True)
class _Tags:
    by_word: Mapping[str, int]
    other: int
    """Place of the tag of all other words."""
    num_labels: int

    def __call__(self, data: dataset.Dataset) -> np.ndarray:
        places = [
            self.by_word.get(word, self.other)
            for sentence in data.sentences
            for word in sentence.words
        ]
        return np.eye(self.num_labels, dtype=np.float32)[places] * 10


def _tags(
    train: tagging_data.TaggingDataset, task: config.Task, *, by_word: bool
) -> _Tags:
    places = {label: place for place, label in enumerate(task.labels)}
    all_tags: collections.Counter[str] = collections.Counter()
    of_words: dict[str, collections.Counter[str]] = {}
    for sentence in train.sentences:
        all_tags.update(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            of_words.setdefault(word, collections.Counter())[tag] += 1
    chosen = {
        word: places[counts.most_common(1)[0][0]] for word, counts in of_words.items()
    }
    (commonest, _), *_ = all_tags.most_common(1)
    return _Tags(chosen if by_word else {}, places[commonest], len(task.labels))

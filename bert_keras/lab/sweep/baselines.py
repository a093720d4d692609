"""Baselines: answers that need no network, from the same labelled examples.

Texts: the commonest answer, and logistic regression (of numbers: ridge regression) on
TF-IDF of words and pairs of words. Tagged words: the commonest tag of all, and of each
word.
"""

# scikit-learn has no types of its own.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import collections
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

COMMONEST = "commonest answer"
LINEAR = "TF-IDF, linear"
EACH_WORD = "each word's tag"

NAMES: Mapping[config.TaskKind, tuple[str, ...]] = {
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


@dataclass(frozen=True, kw_only=True)
class Baseline:
    predict: Callable[[dataset.Dataset], np.ndarray]
    """Returns logits `(num_answers, width)` for examples."""
    seconds: float


def learn(name: str, train: dataset.Dataset, task: config.Task) -> Baseline:
    """Learns a baseline, one of `NAMES`, for all labels of the task."""
    start = time.perf_counter()
    if isinstance(train, tagging_data.TaggingDataset):
        learnt = _learn_tags(train, task, by_word=name == EACH_WORD)
    elif name == COMMONEST:
        learnt = _Constant(_common_logits(train, task))
    else:
        learnt = _learn_linear(train, task)
    return Baseline(predict=learnt, seconds=time.perf_counter() - start)


def answer(
    data: dataset.Dataset, logits: np.ndarray, task: config.Task
) -> dataset.Answers:
    """Returns a baseline's answers to labelled examples, which score like a model's."""
    if isinstance(data, tagging_data.TaggingDataset):
        return tagging_data.TaggingAnswers(
            sentences=data.sentences, word_logits=logits, labels=task.labels
        )
    return data.answers_of(logits, task)


@dataclass(frozen=True)
class _Constant:
    logits: np.ndarray

    def __call__(self, data: dataset.Dataset) -> np.ndarray:
        return np.tile(self.logits, (len(data), 1)).astype(np.float32)


def _common_logits(train: text_forms.TextDataset, task: config.Task) -> np.ndarray:
    targets = train.targets(task)
    if task.labels is None:
        return targets.mean(keepdims=True)
    if targets.ndim == 2:  # several labels for each text
        return _logit(targets.mean(axis=0))
    shares = np.bincount(targets, minlength=len(task.labels)) / len(targets)
    return np.log(np.maximum(shares, _LEAST))


def _logit(shares: np.ndarray) -> np.ndarray:
    shares = np.clip(shares, _LEAST, 1 - _LEAST)
    return np.log(shares / (1 - shares))


@dataclass(frozen=True)
class _Linear:
    """A map from texts to TF-IDF, each part of a pair with its own words, to logits."""

    vectorizers: Sequence[sklearn.feature_extraction.text.TfidfVectorizer]
    columns: Sequence[tuple[Sequence[int], object]]
    """Columns of the logits, and the regression that gives them."""
    base: np.ndarray
    """The logits of all other columns, `(width,)`."""

    def __call__(self, data: dataset.Dataset) -> np.ndarray:
        features = _features(self.vectorizers, data)
        logits = np.tile(self.base, (len(data), 1)).astype(float)
        for columns, regression in self.columns:
            if isinstance(regression, sklearn.linear_model.Ridge):
                values = regression.predict(features)[:, None]
            elif len(columns) == 1:
                values = regression.decision_function(features)[:, None]
            else:
                values = regression.predict_log_proba(features)
            logits[:, list(columns)] = values
        return logits.astype(np.float32)


def _features(vectorizers: Sequence, data: text_forms.TextDataset) -> Any:
    parts = zip(*data.contents().texts, strict=True)
    pairs = zip(vectorizers, parts, strict=True)
    return scipy.sparse.hstack([v.transform(p) for v, p in pairs], format="csr")


def _learn_linear(
    train: text_forms.TextDataset, task: config.Task
) -> _Linear | _Constant:
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
    features, targets = _features(vectorizers, train), train.targets(task)
    if task.labels is None:
        regression = sklearn.linear_model.Ridge(alpha=1.0).fit(features, targets)
        return _Linear(vectorizers, [((0,), regression)], common)
    if targets.ndim == 2:
        columns = [
            ((label_id,), _logistic().fit(features, column))
            for label_id, column in enumerate(targets.T)
            if 0 < column.sum() < len(column)
        ]
        return _Linear(vectorizers, columns, common)
    present = np.unique(targets)
    if len(present) < 2:
        return _Constant(common)
    columns = [(present.tolist(), _logistic().fit(features, targets))]
    return _Linear(vectorizers, columns, np.full(len(task.labels), np.log(_LEAST)))


def _logistic() -> sklearn.linear_model.LogisticRegression:
    return sklearn.linear_model.LogisticRegression(C=REGULARISATION, max_iter=1000)


@dataclass(frozen=True)
class _Tags:
    by_word: Mapping[str, int]
    other: int
    """Number of the tag of all other words."""
    num_labels: int

    def __call__(self, data: dataset.Dataset) -> np.ndarray:
        label_ids = [
            self.by_word.get(word, self.other)
            for sentence in data.sentences
            for word in sentence.words
        ]
        return np.eye(self.num_labels, dtype=np.float32)[label_ids] * 10


def _learn_tags(
    train: tagging_data.TaggingDataset, task: config.Task, *, by_word: bool
) -> _Tags:
    label_ids = {label: label_id for label_id, label in enumerate(task.labels)}
    all_tags: collections.Counter[str] = collections.Counter()
    of_words: dict[str, collections.Counter[str]] = {}
    for sentence in train.sentences:
        all_tags.update(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            of_words.setdefault(word, collections.Counter())[tag] += 1

    def commonest(tags: collections.Counter[str]) -> int:
        return label_ids[tags.most_common(1)[0][0]]

    by_words = {word: commonest(tags) for word, tags in of_words.items()}
    return _Tags(by_words if by_word else {}, commonest(all_tags), len(task.labels))

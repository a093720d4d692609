"""Baselines: answers that need no network, learnt from the same labelled examples.

For texts they are the most common answer, and logistic regression (for numbers: ridge
regression) on TF-IDF of words and pairs of words; for tagged words the most common tag
of all words, and of each word.
"""

# scikit-learn has no types of its own.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import collections
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import sklearn.feature_extraction.text
import sklearn.linear_model

from bert_keras.checkpoints import run_directory
from bert_keras.core import files, progress
from bert_keras.core.settings import tasks
from bert_keras.kinds import splits
from bert_keras.kinds.tagging import dataset as tagging_data
from bert_keras.kinds.text import text_forms
from bert_keras.lab.sweep import planning, scores
from bert_keras.labelled import dataset

logger = logging.getLogger(__name__)

MOST_COMMON = "most common answer"
LINEAR = "TF-IDF, linear"
EACH_WORD = "each word's tag"

NAMES: Mapping[tasks.TaskKind, tuple[str, ...]] = {
    **dict.fromkeys(text_forms.KINDS, (MOST_COMMON, LINEAR)),
    "tagging": (MOST_COMMON, EACH_WORD),
}
"""Baselines of a kind of task; other kinds have none."""

REGULARISATION = 10.0
"""`C` of logistic regression, the inverse of the strength: of 1 (scikit-learn's
default), 10 and 100 the best on most shares of SST-2, CoLA and MRPC."""

MAX_TERMS = 1_000_000
"""Number of counted terms (words and pairs of words), the most common ones. Each label
has a weight for each term, and their number would grow with the texts."""

DESCRIPTIONS = {
    MOST_COMMON: (
        "the most common label or tag (for numbers the mean, for several labels the "
        "share of each)"
    ),
    LINEAR: (
        "scikit-learn's logistic regression (for numbers ridge regression) on TF-IDF "
        f"of the {MAX_TERMS:,} most common words and pairs of words, with C = "
        f"{REGULARISATION:g}"
    ),
    EACH_WORD: (
        "the tag that a word has most often, for unknown words the most common one"
    ),
}

_TOKEN = r"(?u)\w+|[^\w\s]"
_MIN_SHARE = 1e-6

Predict = Callable[[Any], np.ndarray]
"""From a dataset to logits `(num_answers, width)` float32."""


def make_runs(
    directory: Path,
    model_runs: Iterable[planning.Run],
    data: splits.Files,
    *,
    metric: str,
) -> list[scores.Outcome]:
    """Learns the baselines from each share that models learn from, with each seed.

    Finished ones are read. A run of a baseline has the answers and results of a run of
    `finetune`.
    """
    # 1. The runs, named like those of the models.
    runs: dict[str, planning.Run] = {}
    for run, baseline in itertools.product(model_runs, NAMES[data.task.kind]):
        _, _, rest = run.name.partition(",")
        name = f"{planning.run_name({'baseline': baseline})},{rest}"
        model = planning.Model(name=baseline, init="", is_baseline=True)
        runs[name] = run.model_copy(update={"name": name, "model": model})
    # 2. What each of them learns and answers.
    train, dev = data.data[:2]
    outcomes: dict[str, scores.Outcome] = {}
    with progress.Progress(
        "baselines",
        total=len(runs),
        unit="runs",
        read=lambda: len(outcomes),
        only_if_long=True,
    ):
        for run in runs.values():
            path = scores.run_path(directory, run.name)
            results = run_directory.read_results(path) or {}
            if metric not in results.get("eval", {}):
                seed = run.settings.seed
                share = splits.fraction(train, run.settings.train_fraction, seed=seed)
                start = time.perf_counter()
                predict = learn(str(run.value(planning.MODEL_KEY)), share, data.task)
                seconds = round(time.perf_counter() - start, 3)
                answers = dev.answers_of(predict(dev), data.task)
                records = answers.records(decision=answers.best_decision())
                files.make_directory(path)
                run_directory.write_answers(path, records)
                results = {"seconds": seconds, "eval": answers.scores()}
                results |= {"num_train_examples": len(share)}
                run_directory.write_results(path, results)
            outcomes |= scores.read_outcomes(directory, [run], metric=metric)
    logger.info("%d runs of baselines are done", len(outcomes))
    return list(outcomes.values())


def learn(name: str, train: dataset.Dataset, task: tasks.Task) -> Predict:
    """Learns a baseline, one of `NAMES`, for all labels of the task."""
    if not isinstance(train, tagging_data.TaggingDataset):
        return _learn_texts(train, task, is_linear=name == LINEAR)
    labels, counts = task.labels or (), collections.Counter()
    counts_by_word = collections.defaultdict(collections.Counter)
    for sentence in train.rows:
        counts.update(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            counts_by_word[word][tag] += 1

    def most_common(tags: collections.Counter[str]) -> int:
        return labels.index(tags.most_common(1)[0][0])

    other, known = most_common(counts), {}
    if name == EACH_WORD:
        known = {word: most_common(tags) for word, tags in counts_by_word.items()}

    def predict(data: tagging_data.TaggingDataset) -> np.ndarray:
        words = [word for sentence in data.rows for word in sentence.words]
        rows = [known.get(word, other) for word in words]
        return np.eye(len(labels), dtype=np.float32)[rows] * 10

    return predict


def _learn_texts(
    train: text_forms.TextDataset, task: tasks.Task, *, is_linear: bool
) -> Predict:
    """Learns logits for all texts, and regressions that replace some columns."""
    targets = train.targets(task)
    # 1. The most common answer, as logits.
    if task.labels is None:
        base = targets.mean(keepdims=True)
    elif targets.ndim == 2:  # several labels for each text
        shares = np.clip(targets.mean(axis=0), _MIN_SHARE, 1 - _MIN_SHARE)
        base = np.log(shares / (1 - shares))
    else:
        shares = np.bincount(targets, minlength=len(task.labels)) / len(targets)
        base = np.log(np.maximum(shares, _MIN_SHARE))
    # 2. Regressions for columns of the logits. A label that no text or every text has
    # keeps its column of `base`: scikit-learn refuses a single class.
    vectorizers = _fit_vectorizers(train) if is_linear else []
    columns: list[tuple[list[int], Callable[[Any], np.ndarray]]] = []
    if vectorizers:
        features, present = _features(vectorizers, train), np.unique(targets)

        def logistic(labels: np.ndarray) -> Any:
            regression = sklearn.linear_model.LogisticRegression(
                C=REGULARISATION, max_iter=1000
            )
            return regression.fit(features, labels)

        if task.labels is None:
            ridge = sklearn.linear_model.Ridge(alpha=1.0).fit(features, targets)
            columns = [([0], ridge.predict)]
        elif targets.ndim == 2:
            columns = [
                ([label_id], logistic(column).decision_function)
                for label_id, column in enumerate(targets.T)
                if 0 < column.sum() < len(column)
            ]
        elif len(present) > 1:
            columns = [(present.tolist(), logistic(targets).predict_log_proba)]
            base = np.full(len(task.labels), np.log(_MIN_SHARE))

    def predict(data: text_forms.TextDataset) -> np.ndarray:
        logits = np.tile(base, (len(data), 1)).astype(float)
        features = _features(vectorizers, data) if columns else None
        for label_ids, answer in columns:
            shape = (len(data), len(label_ids))
            logits[:, label_ids] = answer(features).reshape(shape)
        return logits.astype(np.float32)

    return predict


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

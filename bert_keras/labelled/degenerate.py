"""Runs that learnt nothing: they end at the majority class.

On small data that happens with some seeds and not with others (paper, section 4.1).
"""

import collections
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sklearn.metrics

from bert_keras.core.settings import config

SHARE = 0.99
"""Share of equal answers from which on they are suspicious."""


def find_sign(
    kind: config.TaskKind,
    evaluation: Mapping[str, float],
    answers: Sequence[Mapping[str, Any]] | None,
) -> str | None:
    """The sign that a run learnt nothing; `None`: there is none.

    Classes and endings: all or nearly all answers are the same and no more often right
    than the commonest label, or the Matthews correlation is 0; plain tags likewise.
    Numbers: they hardly differ. Spans: F1 below 1 %, or nearly all answers are the
    same. Tags of entities: none is right. Vectors: no sign is known.

    Args:
        kind: of the task.
        evaluation: metrics on dev; for spans in percent.
        answers: to dev, with `label` and `prediction`; `None`: unknown.
    """
    if kind == "tagging" and "f1" in evaluation:
        return "no entity is right" if evaluation["f1"] < 0.0005 else None
    if kind == "span" and evaluation["f1"] < 1:
        return f"F1 is {evaluation['f1']:.2f} %"
    if not answers or kind == "embedding":
        return None
    predictions = [answer["prediction"] for answer in answers]
    if kind == "span":
        return _sameness(predictions)
    if kind == "tagging":
        return _guessing(
            [tag for answer in answers for tag in answer["labels"]],
            [tag for tags in predictions for tag in tags],
        )
    if kind == "multi_label":
        return _sameness([tuple(prediction) for prediction in predictions])
    labels = [answer["label"] for answer in answers]
    if kind == "regression":
        return _constancy(labels, predictions)
    return _guessing(labels, predictions)


def _guessing(labels: Sequence[Any], predictions: Sequence[Any]) -> str | None:
    num_right = sum(a == b for a, b in zip(labels, predictions, strict=True))
    sign = _sameness(predictions)
    # If nearly all labels are the same, so are right answers.
    if sign is not None and num_right <= max(collections.Counter(labels).values()):
        return sign
    # With a single label in dev the correlation is 0, whatever was learnt.
    if len(set(labels)) > 1:
        correlation = sklearn.metrics.matthews_corrcoef(labels, predictions)
        if abs(correlation) < 0.0005:
            return "the Matthews correlation is 0"
    return None


def _sameness(predictions: Sequence[Any]) -> str | None:
    answer, count = collections.Counter(predictions).most_common(1)[0]
    share = count / len(predictions)
    if share < SHARE:
        return None
    shown = json.dumps(answer, ensure_ascii=False)
    return f"always {shown}" if share == 1 else f"{share:.1%} are {shown}"


def _constancy(labels: Sequence[float], predictions: Sequence[float]) -> str | None:
    # Unlike `statistics`, NumPy takes numbers whose squares overflow.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.std(predictions) >= 0.01 * np.std(labels):
            return None
    return f"always about {np.mean(predictions):.3g}"

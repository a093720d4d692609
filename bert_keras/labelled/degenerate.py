"""Runs that learnt nothing: they end at the majority class. On small data that happens
with some seeds (paper, section 4.1)."""

import collections
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_PAIR = operator.itemgetter("label", "prediction")
SHARE = 0.99
"""Share of equal answers from which on the answers are suspicious."""


def guessing(answers: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Returns the sign that answers are not better than one answer for all.

    All or nearly all answers are the same and no more often right than the commonest
    label, or the Matthews correlation is 0. The answers have `label` and `prediction`;
    `None` means unknown.
    """
    if not answers:
        return None
    labels, predictions = zip(*map(_PAIR, answers), strict=True)
    num_right = sum(map(operator.eq, labels, predictions))
    sign = sameness(predictions)
    # If nearly all labels are the same, right answers are too.
    if sign is not None and num_right <= max(collections.Counter(labels).values()):
        return sign
    # With a single label in dev the correlation is 0, whatever was learnt.
    if len(set(labels)) > 1:
        # Only here, because all kinds of tasks import this module.
        import sklearn.metrics

        correlation = sklearn.metrics.matthews_corrcoef(labels, predictions)
        if abs(correlation) < 0.0005:
            return "the Matthews correlation is 0"
    return None


def sameness(predictions: Sequence[Any]) -> str | None:
    """Returns the sign that nearly all answers are the same; see `guessing`."""
    if not predictions:
        return None
    answer, count = collections.Counter(predictions).most_common(1)[0]
    share = count / len(predictions)
    if share < SHARE:
        return None
    shown = json.dumps(answer, ensure_ascii=False)
    return f"always {shown}" if share == 1 else f"{share:.1%} are {shown}"


def constancy(answers: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Returns the sign that numbers hardly differ; see `guessing`."""
    if not answers:
        return None
    labels, predictions = zip(*map(_PAIR, answers), strict=True)
    # Unlike `statistics`, NumPy takes numbers whose squares overflow.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.std(predictions) >= 0.01 * np.std(labels):
            return None
    return f"always about {np.mean(predictions):.3g}"

"""Scores on SQuAD 2.0 by the threshold on the odds of "no answer"."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bert_keras.kinds.span import squad_scores


class Curve(NamedTuple):
    """Scores in percent by threshold, each `(num_thresholds,)` float64."""

    thresholds: np.ndarray
    """Rising: one below all odds, where nothing is answered, then all distinct odds."""
    exact: np.ndarray
    f1: np.ndarray
    has_answer_f1: np.ndarray
    """F1 on questions that have an answer; NaN if there are none."""
    no_answer_f1: np.ndarray
    """F1 on the others."""


def threshold_curve(
    gold: squad_scores.GoldAnswers,
    best_texts: Mapping[str, str],
    null_odds: Mapping[str, float],
) -> Curve:
    """Returns scores at every threshold: questions with greater odds get no answer.
    `best_texts` are the best answers that are not empty."""
    each = squad_scores.score_each(gold, best_texts, has_impossible=True)
    ids = sorted(gold, key=null_odds.__getitem__)
    odds = np.array([null_odds[id] for id in ids])
    has_answer = np.array([bool(gold[id]) for id in ids])
    # Number of questions answered at each threshold.
    thresholds, first = np.unique(odds, return_index=True)
    num_answered = np.append(first, len(odds))

    def curve(scores: list[float], chosen: np.ndarray) -> np.ndarray:
        """Adds up scores; silence is right where there is no answer."""
        silent = ~has_answer
        gains = np.where(chosen, np.array(scores) - silent, 0.0)
        sums = np.append(0.0, np.cumsum(gains))[num_answered]
        with np.errstate(invalid="ignore"):
            return 100 * (sums + (silent & chosen).sum()) / np.int64(chosen.sum())

    everything = np.ones_like(has_answer)
    f1 = [each[id].f1 for id in ids]
    return Curve(
        thresholds=np.append(odds[0] - 1, thresholds),
        exact=curve([each[id].exact for id in ids], everything),
        f1=curve(f1, everything),
        has_answer_f1=curve(f1, has_answer),
        no_answer_f1=curve(f1, ~has_answer),
    )

"""Scores of answers to questions, by the official rules of SQuAD 1.1 and 2.0."""

import collections
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_keras.labelled import score_sums

GoldAnswers = Mapping[str, Sequence[str]]
"""The right answers by question id; none for a question that cannot be answered."""

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(answer: str) -> str:
    """Returns lower case without ASCII punctuation, articles and extra white space."""
    bare = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


class Score(NamedTuple):
    """Score of one answer, from 0 to 1."""

    exact: float
    f1: float


def score_answer(
    prediction: str, answers: Sequence[str], *, has_impossible: bool = False
) -> Score:
    """Returns the best agreement with any of the right `answers`, one or more for 1.1.

    By the rules of 2.0, `has_impossible`, an answer of which normalization leaves
    nothing does not count as one, and a question without answers is right where nothing
    is predicted. By those of 1.1, two answers of which nothing is left are equal, but
    share no word.
    """
    predicted = normalize_answer(prediction)
    right = [normalize_answer(answer) for answer in answers]
    if has_impossible:
        right = [answer for answer in right if answer] or [""]
        if not predicted:
            return Score(*[float("" in right)] * 2)
    best, words = 0.0, predicted.split()
    for answer in map(str.split, right):
        common = collections.Counter(words) & collections.Counter(answer)
        if num_same := sum(common.values()):
            best = max(best, 2 * num_same / (len(words) + len(answer)))
    return Score(exact=float(predicted in right), f1=best)


def score_each(
    gold: GoldAnswers, predictions: Mapping[str, str], *, has_impossible: bool
) -> dict[str, Score]:
    """Returns the score of every question; one without a prediction has 0.

    The official script for 1.1 does so; the one for 2.0 leaves such questions out of
    the mean, which would let a system choose its questions.
    """
    return {
        id: score_answer(predictions[id], answers, has_impossible=has_impossible)
        if id in predictions
        else Score(0.0, 0.0)
        for id, answers in gold.items()
    }


def scores(
    gold: GoldAnswers, predictions: Mapping[str, str], *, has_impossible: bool
) -> dict[str, float]:
    """Returns scores of a whole set, in percent, by the official names.

    1.1: `exact_match`, `f1` and `total`. 2.0: `exact`, `f1` and `total`, and these of
    the questions with and without answers (`HasAns_exact`, ..., `NoAns_total`), where
    there are any. Both: `num_unanswered`, questions without a prediction, and
    `num_unknown`, predictions for questions that are not in the set.
    """
    each = score_each(gold, predictions, has_impossible=has_impossible)
    counts = {
        "num_unanswered": sum(id not in predictions for id in gold),
        "num_unknown": sum(id not in gold for id in predictions),
    }
    if not has_impossible:
        exact, f1, total = mean_score(each.values())
        return {"exact_match": exact, "f1": f1, "total": total, **counts}
    values: dict[str, float] = {}
    for prefix, groups in (("", (True, False)), ("HasAns_", (1,)), ("NoAns_", (0,))):
        chosen = [each[id] for id, answers in gold.items() if bool(answers) in groups]
        if chosen:
            names = (f"{prefix}{name}" for name in ("exact", "f1", "total"))
            values |= zip(names, mean_score(chosen), strict=True)
    return values | counts


def mean_score(each: Iterable[Score]) -> tuple[float, float, int]:
    """Returns exact match and F1 in percent, and the number of questions."""
    exact, f1 = zip(*each, strict=True)
    total = len(exact)
    return 100 * sum(exact) / total, 100 * sum(f1) / total, total


def best_thresholds(
    gold: GoldAnswers, best_texts: Mapping[str, str], null_odds: Mapping[str, float]
) -> dict[str, float]:
    """Returns the thresholds on the odds of "no answer" with the best scores of 2.0.

    An answer is given where the odds are not above the threshold (the paper's tau),
    which is chosen on development data. `best_texts` are the best answers that are not
    empty. The keys have the official names: `best_exact` and `best_f1`, in percent,
    with `best_exact_thresh` and `best_f1_thresh`.
    """
    each = score_each(gold, best_texts, has_impossible=True)
    asked = {id: answers for id, answers in gold.items() if id in best_texts}
    found = {}
    for name in Score._fields:
        gains = {
            # Given up with an answer: the point for saying that there is none.
            id: getattr(each[id], name) if answers else -float(bool(best_texts[id]))
            for id, answers in asked.items()
        }
        thresholds, sums = sums_by_threshold(gains, null_odds)
        best = sums.argmax()
        # Where nothing is answered, questions without an answer are right.
        num_silent = sum(not answers for answers in asked.values())
        found[f"best_{name}"] = float(100 * (sums[best] + num_silent) / len(gold))
        found[f"best_{name}_thresh"] = float(thresholds[best])
    return found


def sums_by_threshold(
    gains: Mapping[str, float], null_odds: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns all thresholds on the odds, rising, and the gain from answering up to
    each. At the first one, the lowest odds less one, nothing is answered."""
    ids = sorted(gains, key=null_odds.__getitem__)
    odds = np.array([null_odds[id] for id in ids])
    # Questions of equal odds are answered together or not at all.
    distinct, first = np.unique(odds, return_index=True)
    sums = np.cumsum([0.0, *(gains[id] for id in ids)])
    return np.append(odds[0] - 1, distinct), sums[np.append(first, len(ids))]


def as_sums(records: Sequence[Mapping[str, Any]], metric: str) -> score_sums.ScoreSums:
    """Returns a score in percent, `f1` or `best_f1`, say, as a function of sums over
    answered questions. With odds of "no answer", the rules are those of 2.0."""
    odds = np.array([record["null_odds"] for record in records])
    has_impossible, is_best = odds[0] is not None, metric.startswith("best_")
    name = "f1" if metric.endswith("f1") else "exact"
    values = np.empty(len(records))
    for number, record in enumerate(records):
        answer = record["best_text" if is_best else "prediction"]
        score = score_answer(answer, record["answers"], has_impossible=has_impossible)
        values[number] = 100 * getattr(score, name)
    if not is_best:
        return score_sums.ratio(list(values), [1] * len(values))
    import scipy.sparse

    # Each resample chooses its threshold again, so the sums are how often it has each
    # question. Answers are gained in the order of their odds, equal ones together.
    silent = np.array([not record["answers"] for record in records])
    gains = np.where(silent, [-100.0 * bool(r["best_text"]) for r in records], values)
    order = np.argsort(odds, kind="stable")
    is_last = np.append(np.diff(odds[order]) > 0, True)

    def best(counts: np.ndarray) -> np.ndarray:
        gained = np.cumsum(counts[..., order] * gains[order], axis=-1)[..., is_last]
        of_silence = 100 * (counts @ silent)
        return (of_silence + gained.max(axis=-1, initial=0)) / counts.sum(axis=-1)

    return score_sums.ScoreSums(rows=scipy.sparse.eye_array(len(odds)), score=best)

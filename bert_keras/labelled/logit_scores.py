"""Scores and tables of answers that are classes or numbers. No TensorFlow."""

# scikit-learn and scipy have no types of their own.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from collections.abc import Sequence

import numpy as np
import scipy.special
import scipy.stats
import sklearn.metrics

from bert_keras.core.settings import tasks
from bert_keras.labelled import tables


def scores(
    logits: np.ndarray, true_label_ids: np.ndarray, *, positive: int = 1
) -> dict[str, float]:
    """Returns scores of logits `(num_examples, num_labels)`; one column: numbers.

    For classes `loss` (mean cross entropy, nats), `accuracy`, `f1` (for two classes
    that of `positive`, for more the mean over those that occur) and `matthews`; for
    numbers `loss` (mean squared error), `pearson` and `spearman`. A correlation with a
    constant counts as 0.
    """
    is_number = logits.shape[1] == 1
    predicted = logits[:, 0].astype(float) if is_number else logits.argmax(axis=-1)
    both = true_label_ids, predicted
    # With a constant a correlation is 0 / 0.
    is_varied = all((values != values[0]).any() for values in both)
    if is_number:
        loss = sklearn.metrics.mean_squared_error(*both)
        values = {"loss": loss, "pearson": 0, "spearman": 0}
        if is_varied:
            pairs = predicted, true_label_ids
            values["pearson"] = scipy.stats.pearsonr(*pairs).statistic
            values["spearman"] = scipy.stats.spearmanr(*pairs).statistic
    else:
        log_probabilities = scipy.special.log_softmax(logits.astype(float), axis=-1)
        values = {
            "loss": -log_probabilities[np.arange(len(logits)), true_label_ids].mean(),
            "accuracy": sklearn.metrics.accuracy_score(*both),
            "f1": sklearn.metrics.f1_score(
                *both,
                pos_label=positive,
                average="binary" if logits.shape[1] == 2 else "macro",
                zero_division=0.0,
            ),
            "matthews": sklearn.metrics.matthews_corrcoef(*both) if is_varied else 0,
        }
    return {name: float(value) for name, value in values.items()}


def decided(
    logits: np.ndarray, labels: Sequence[str], decision: tasks.Decision
) -> tuple[np.ndarray, list[str]]:
    """Returns probabilities, `(num_examples, num_labels)` float64 as the logits are,
    and the label of each example, empty where the decision gives none."""
    probabilities = scipy.special.softmax(
        logits.astype(float) / decision.temperature, axis=-1
    )
    best: list[int] = logits.argmax(axis=-1).tolist()
    least = np.array(decision.thresholds_of(labels))[best]
    is_given = decision.is_given(probabilities.max(axis=-1), least)
    pairs = zip(best, is_given.tolist(), strict=True)
    return probabilities, [labels[place] if given else "" for place, given in pairs]


def prediction_columns(
    logits: np.ndarray,
    labels: Sequence[str] | None,
    *,
    decision: tasks.Decision = tasks.LIKELIEST,
) -> dict[str, tables.Column]:
    """Returns classes or numbers as columns: `prediction`, and with `labels` a
    `p(label)` for each, its probability."""
    if labels is None:
        return {"prediction": tables.Column(logits[:, 0], ".6g")}
    probabilities, predicted = decided(logits, labels, decision)
    columns = probability_columns(probabilities, labels)
    return {"prediction": tables.Column(predicted), **columns}


def probability_columns(
    probabilities: np.ndarray, labels: Sequence[str]
) -> dict[str, tables.Column]:
    by_label = zip(labels, probabilities.T, strict=True)
    return {f"p({label})": tables.Column(column, ".6f") for label, column in by_label}

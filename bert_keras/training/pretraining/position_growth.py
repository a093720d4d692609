"""Positions that no phase has trained yet, continued from those that one has.

Where a run goes on with longer sequences, the rows of the position table beyond the
earlier length are as they were initialised, and attention that has learnt to look at
neighbours finds noise there. Trained rows follow one another nearly by a rotation:
heads that attend to the token before or after need that a row tells the next one in the
same way everywhere. The same rotation gives rows that go on. (A repetition, as in
Beltagy et al., 2020, "Longformer", 5, keeps neighbours, too, but has each position
several times: in Longformer a window tells them apart, here nothing does.)
"""

import logging
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from bert_keras.training.step import replicas

logger = logging.getLogger(__name__)

VARIANCE = 0.95
"""Share of the rows' variance that is rotated; the rest is noise of single rows."""
NUM_ROWS = 8
"""Last rows whose mean, each rotated to the end, is gone on from."""


def extrapolated(table: np.ndarray, *, num_trained: int, num_rows: int) -> np.ndarray:
    """A copy of a table whose rows from `num_trained - 1` to `num_rows - 1` are new.

    They go on from rows 1 to `num_trained - 2` by the rotation that turns each of these
    into the next with the least squared error (Schönemann, 1966), within the principal
    components that hold `VARIANCE`. `[CLS]` is always at the first position of an
    example, and `[SEP]` nearly always at the last trained one, so neither tells the
    others anything.

    Args:
        table: `(max_position_embeddings, hidden_size)`.
        num_trained: rows that have been trained, at least 4.
        num_rows: rows that are needed.
    """
    trained = table[1 : num_trained - 1].astype(np.float64)
    mean = trained.mean(axis=0)
    _, deviations, components = np.linalg.svd(trained - mean, full_matrices=False)
    shares = np.cumsum(deviations**2) / max(np.sum(deviations**2), 1e-30)
    components = components[: np.searchsorted(shares, VARIANCE) + 1]
    rows = (trained - mean) @ components.T
    rotation = _nearest_rotation(rows[:-1].T @ rows[1:])
    last = rows[-NUM_ROWS:]
    row = np.zeros_like(rows[0])
    for earlier in last:
        row = row @ rotation + earlier
    # Rows that do not quite meet have a shorter mean.
    lengths = np.linalg.norm(last, axis=1)
    row *= lengths.mean() / max(np.linalg.norm(row), 1e-30)
    grown = table.copy()
    for number in range(num_trained - 1, num_rows):
        row = row @ rotation
        grown[number] = mean + row @ components
    return grown


def _nearest_rotation(matrix: np.ndarray) -> np.ndarray:
    """The orthogonal factor of a polar decomposition."""
    left, _, right = np.linalg.svd(matrix)
    return left @ right


def grow(
    state: Mapping[str, keras.Variable],
    *,
    strategy: tf.distribute.Strategy,
    num_trained: int,
    num_rows: int,
) -> None:
    """Continues the position table of a training, on all replicas.

    All workers take the first one's rows: other processors round otherwise.

    In the new rows the optimizer's mean of squared gradients becomes the mean of the
    trained ones: an estimate that begins at 0 so late in a run, where no optimizer
    corrects its bias any more, makes the first updates up to six times too long. The
    mean of gradients stays as it is: in rows that never had one, 0.

    Reads and writes different rows, so doing it again before the next step changes
    nothing.

    For the numbers of rows see `extrapolated`.
    """
    new = slice(num_trained - 1, num_rows)
    for name, variable in state.items():
        if name.startswith("weights/") and name.endswith("position_embeddings"):
            table = keras.ops.convert_to_numpy(variable)
            table = extrapolated(table, num_trained=num_trained, num_rows=num_rows)
            variable.assign(replicas.of_first_worker(strategy, table))
        elif name.endswith("position_embeddings_v"):
            squares = np.array(keras.ops.convert_to_numpy(variable))
            squares[new] = squares[1 : num_trained - 1].mean(axis=0)
            variable.assign(replicas.of_first_worker(strategy, squares))
    logger.info(
        "positions %d to %d go on from those before", num_trained - 1, num_rows - 1
    )

"""Continues trained rows of the position table at positions that no phase has trained.

Where a run goes on with longer sequences, the rows beyond the earlier length are as
they were initialised, and attention that has learnt to look at neighbours finds noise
there. Trained rows follow one another nearly by a rotation: heads that attend to the
token before or after need that a row tells the next one in the same way everywhere. The
same rotation gives the rows that follow. (A repetition, as in Beltagy et al., 2020,
"Longformer", 5, keeps neighbours, too, but has each position several times: a window
tells them apart in Longformer, and nothing does here.)
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
"""Last rows that are each rotated to the end; the new rows start from their mean."""


def extrapolated(table: np.ndarray, *, num_trained: int, num_rows: int) -> np.ndarray:
    """Returns a copy of a table with new rows from `num_trained - 1` to `num_rows - 1`.

    The new rows continue rows 1 to `num_trained - 2` by the rotation that turns each of
    these into the next with the least squared error (Schönemann, 1966), within the
    principal components that hold `VARIANCE`. `[CLS]` is always at the first position
    of an example, and `[SEP]` nearly always at the last trained one, so neither tells
    the others anything. The table is `(max_position_embeddings, hidden_size)`, and
    `num_trained` at least 4.
    """
    trained = table[1 : num_trained - 1].astype(np.float64)
    mean = trained.mean(axis=0)
    _, deviations, components = np.linalg.svd(trained - mean, full_matrices=False)
    shares = np.cumsum(deviations**2) / max(np.sum(deviations**2), 1e-30)
    components = components[: np.searchsorted(shares, VARIANCE) + 1]
    rows = (trained - mean) @ components.T
    left, _, right = np.linalg.svd(rows[:-1].T @ rows[1:])
    rotation = left @ right
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


def grow(
    state: Mapping[str, keras.Variable],
    *,
    strategy: tf.distribute.Strategy,
    num_trained: int,
    num_rows: int,
) -> None:
    """Continues the table of positions, if some are trained and not all are.

    See `extrapolated`.

    All workers take the first worker's rows, because other processors round otherwise.
    Doing it again before the next step changes nothing: the rows read are not written.

    In the new rows the optimizer's mean of squared gradients becomes the mean of the
    trained ones: an estimate that begins at 0 so late in a run, where no optimizer
    corrects its bias any more, makes the first updates up to six times too long. The
    mean of gradients stays 0.
    """
    if not 0 < num_trained < num_rows:
        return
    new = slice(num_trained - 1, num_rows)
    for name, variable in state.items():
        if name.endswith("position_embeddings"):
            table = keras.ops.convert_to_numpy(variable)
            table = extrapolated(table, num_trained=num_trained, num_rows=num_rows)
            variable.assign(replicas.take_first_workers(strategy, table))
        elif name.endswith("position_embeddings_v"):
            squares = np.array(keras.ops.convert_to_numpy(variable))
            squares[new] = squares[1 : num_trained - 1].mean(axis=0)
            variable.assign(replicas.take_first_workers(strategy, squares))
    logger.info(
        "positions %d to %d go on from those before", num_trained - 1, num_rows - 1
    )

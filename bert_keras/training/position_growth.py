"""Positions that no phase has trained yet, begun from those that one has.

Where a run goes on with longer sequences, the rows of the position table beyond the
earlier length are as they were initialised, and attention that has learnt to look at
neighbours finds noise there. Beltagy et al. (2020), "Longformer", 5, repeat the trained
rows instead: what a row says of its neighbours is then true of nearly all new ones.
"""

import logging
import re
from collections.abc import Mapping

import keras
import numpy as np

logger = logging.getLogger(__name__)

_TABLE_AND_SQUARES = re.compile(
    r"^weights/.*position_embeddings$|position_embeddings_v$"
)


def repeated(table: np.ndarray, *, num_trained: int, num_rows: int) -> np.ndarray:
    """A copy of a table whose rows `num_trained` to `num_rows - 1` repeat earlier ones.

    They repeat rows 1 to `num_trained - 2`, over and over: `[CLS]` is always at the
    first position of an example, and at the last trained one `[SEP]` nearly always.

    Args:
        table: `(max_position_embeddings, hidden_size)`.
        num_trained: rows that have been trained, at least 3.
        num_rows: rows that are needed.
    """
    rows = np.arange(num_rows)
    sources = np.where(rows < num_trained, rows, 1 + (rows - 1) % (num_trained - 2))
    grown = table.copy()
    grown[:num_rows] = table[sources]
    return grown


def repeat(
    state: Mapping[str, keras.Variable], *, num_trained: int, num_rows: int
) -> None:
    """Repeats the trained rows of a training's position table, on all replicas.

    The optimizer's mean of squared gradients is repeated with them: it is the scale of
    a row's gradients, and an estimate that begins at 0 so late in a run, where no
    optimizer corrects its bias any more, makes the first updates up to six times too
    long. The mean of gradients stays at 0, as it is where there has never been one: a
    direction of the past belongs to the text at the other position.

    Reads trained rows only and writes the others only, so doing it again before the
    next step changes nothing.

    Args:
        state: see `training_state.named_variables`.
        num_trained: see `repeated`.
        num_rows: see `repeated`.
    """
    for name, variable in state.items():
        if _TABLE_AND_SQUARES.search(name):
            table = np.asarray(keras.ops.convert_to_numpy(variable))
            variable.assign(repeated(table, num_trained=num_trained, num_rows=num_rows))
    logger.info(
        "positions %d to %d begin as a repetition of those before",
        num_trained,
        num_rows - 1,
    )

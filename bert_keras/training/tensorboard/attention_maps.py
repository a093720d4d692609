"""Pictures of attention: which token of a sentence looks at which, head by head."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colors, figure

from bert_keras.pages import drawing

HEADS_PER_PICTURE = 4
"""The most heads that TensorBoard's cards (400 to 600 pixels) show with legible
words."""
HEADS_PER_ROW = 2
_GAP = 2
_CELL_INCHES = 0.14


def draw(heads: np.ndarray, tokens: Sequence[str], *, first: int = 0) -> figure.Figure:
    """Draws some heads of a layer, two in a row: dark is much attention.

    `heads` are `(num_heads, num_tokens, num_tokens)`: rows attend to columns.
    """
    num_columns = min(len(heads), HEADS_PER_ROW)
    num_rows = math.ceil(len(heads) / num_columns)
    step = len(tokens) + _GAP
    # One map for all heads: the axes are what takes time.
    cells = np.full((num_rows * step, num_columns * step - _GAP), np.nan)
    picture = figure.Figure(figsize=_CELL_INCHES * np.array(cells.shape[::-1]))
    plot = picture.add_axes((0, 0, 1, 1), frame_on=False)
    for index, probabilities in enumerate(heads):
        row, column = (step * place for place in divmod(index, num_columns))
        # A model whose weights are not finite any more has white maps.
        cells[row : row + len(tokens), column : column + len(tokens)] = np.nan_to_num(
            probabilities
        )
        plot.text(
            column + (len(tokens) - 1) / 2,
            row + len(tokens) + 0.6,
            f"head {first + index}",
            ha="center",
            fontsize=9,
        )
    # The root makes small shares visible.
    plot.imshow(cells, cmap="Blues", norm=colors.PowerNorm(0.5, vmin=0, vmax=1))
    names, places = drawing.drawable(tokens), np.arange(len(tokens))
    for set_ticks, num_maps in (
        (plot.set_yticks, num_rows),
        (plot.set_xticks, num_columns),
    ):
        set_ticks(
            np.concatenate([places + step * k for k in range(num_maps)]),
            names * num_maps,
        )
    plot.tick_params(length=0, labelsize=8.5, bottom=False, labelbottom=False)
    plot.tick_params(axis="x", labeltop=True, labelrotation=90)
    plot.grid(False)
    return picture

"""What measured pre-trainings reached, and what another may expect from that.

Runs of `benchmarks/results/strict_small.md`: ten million English words, a vocabulary of
8,000, a rate that has fallen to 0, models that are as large as their cost allows.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple


class MeasuredRun(NamedTuple):
    petaflop: float
    """Of the matrix products, as `model.flops` counts them."""
    num_tokens: float
    """Trained on, padding left out."""
    loss: float
    """Of held-out tokens, 15 % of them masked, in nats."""
    minimal_pairs: float
    """BLiMP: pairs told right, %."""


RUNS = (
    # 2 x 128, 4 x 256, and 4 x 384 twice.
    MeasuredRun(0.0204, 4.9e6, 5.30, 55.2),
    MeasuredRun(0.109, 4.9e6, 4.71, 57.3),
    MeasuredRun(0.602, 13.1e6, 3.99, 62.1),
    MeasuredRun(2.39, 52.2e6, 3.31, 66.7),
)
"""By cost."""
ENTROPY = 6.84
"""Of the frequencies of their pieces, in nats."""
BELOW, ABOVE = 0.1, 0.1
"""Ends of the band around their losses, in units of the entropy."""


def expected_scores(petaflop: float) -> tuple[float, float] | None:
    """Returns the loss and the score of minimal pairs that a run of a cost may expect:
    between measured runs or, up to eight times the largest, on the line through the
    last two. `None`: nobody knows."""
    if not RUNS[0].petaflop <= petaflop <= 8 * RUNS[-1].petaflop:
        return None
    costs = [run.petaflop for run in RUNS]
    losses, scores = [run.loss for run in RUNS], [run.minimal_pairs for run in RUNS]
    return _on_line(petaflop, costs, losses), _on_line(petaflop, costs, scores)


def usual_losses(num_tokens: float, *, entropy: float) -> tuple[float, float] | None:
    """Returns the ends of the band of losses after so many tokens; `None`: fewer than
    were measured.

    Losses of models from 4 x 256 on depend mostly on the tokens. They are compared in
    units of the entropy of pieces: the loss of a model of their frequencies alone.
    """
    runs = RUNS[1:]
    if num_tokens < runs[0].num_tokens:
        return None
    # Beyond the measured runs those of large models go on to fall.
    num_tokens = min(num_tokens, runs[-1].num_tokens)
    losses = [run.loss / ENTROPY for run in runs]
    usual = _on_line(num_tokens, [run.num_tokens for run in runs], losses)
    return (usual - BELOW) * entropy, (usual + ABOVE) * entropy


def _on_line(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Interpolates over the logarithm of x; beyond the last point the line goes on."""
    after = next((n for n in range(1, len(xs)) if x <= xs[n]), len(xs) - 1)
    share = math.log(x / xs[after - 1]) / math.log(xs[after] / xs[after - 1])
    return ys[after - 1] + share * (ys[after] - ys[after - 1])

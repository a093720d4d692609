"""Scores of measured pre-trainings, and the scores to expect of another one.

`benchmarks/results/strict_small.md` describes the runs, of `strict_small` with ten
million English words and 16,000 pieces; all ended at a learning rate of 0.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple


class MeasuredRun(NamedTuple):
    petaflop: float
    """Matrix products of the training, Muon's included, as `model.flops` counts them
    now; evaluations are left out."""
    num_tokens: float
    """Trained on, padding left out."""
    loss: float
    """Of held-out tokens, 15 % of them masked, in nats, each sentence alone."""
    minimal_pairs: float
    """BLiMP: pairs told right, %."""


RUNS = (
    MeasuredRun(0.0314, 4.8e6, 4.79, 58.6),
    MeasuredRun(0.148, 4.8e6, 4.44, 62.1),
    MeasuredRun(1.79, 63.0e6, 3.45, 70.1),
)
"""By cost: models of 2 x 128, and of 4 x 256 twice."""
OWN_EVALUATION = 0.49
"""Loss of the last run in its last evaluation, which masks 30 % of the tokens, less
its loss with 15 % masked, in nats."""
ENTROPY = 6.94
"""Of the frequencies of their pieces, in nats."""
SPREAD = 0.1
"""Half of the width of the band of usual losses, in units of the entropy."""


def expected_scores(petaflop: float) -> tuple[float, float] | None:
    """Returns the loss in nats and the right minimal pairs in % to expect at a cost.

    Scores lie on lines between the measured runs; above the cost of the last one they
    are its own. `None`: the cost is below that of the first.
    """
    if not petaflop >= RUNS[0].petaflop:
        return None
    # The line does not go on: each further step gives less.
    petaflop = min(petaflop, RUNS[-1].petaflop)
    costs, _, losses, scores = zip(*RUNS, strict=True)
    return _on_line(petaflop, costs, losses), _on_line(petaflop, costs, scores)


def usual_losses(num_tokens: float, *, entropy: float) -> tuple[float, float] | None:
    """Returns the ends of the band of usual losses, in nats; `None`: too few tokens.

    Args:
        num_tokens: tokens that the run was trained on, padding left out.
        entropy: of the frequencies of the text's pieces, in nats. A model that knows
            the frequencies alone has the entropy as its loss, so the band grows with
            the entropy.
    """
    # Not the first run: losses after so many tokens depend on the size.
    runs = RUNS[1:]
    if num_tokens < runs[0].num_tokens:
        return None
    num_tokens = min(num_tokens, runs[-1].num_tokens)
    losses = [run.loss / ENTROPY for run in runs]
    usual = _on_line(num_tokens, [run.num_tokens for run in runs], losses)
    return (usual - SPREAD) * entropy, (usual + SPREAD) * entropy


def _on_line(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Interpolates over the logarithm of an x between the first and the last."""
    after = next(n for n in range(1, len(xs)) if x <= xs[n])
    share = math.log(x / xs[after - 1]) / math.log(xs[after] / xs[after - 1])
    return ys[after - 1] + share * (ys[after] - ys[after - 1])

"""Scores of measured pre-trainings, and the scores to expect of another one.

`benchmarks/results/strict_small.md` describes the runs, of ten million English words;
all ended at a learning rate of 0. The last run read rows of several sentences and
began with random word embeddings, so costs above the fourth run's have scores
between two recipes.
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
    """Of held-out tokens, 15 % of them masked, in nats: of sentences alone; of the last
    run, of rows of several sentences."""
    minimal_pairs: float
    """BLiMP: pairs told right, %."""


RUNS = (
    MeasuredRun(0.0217, 4.8e6, 4.63, 58.4),
    MeasuredRun(0.128, 4.8e6, 4.25, 60.8),
    MeasuredRun(1.98, 80.8e6, 3.09, 69.2),
    MeasuredRun(2.75, 112.5e6, 2.99, 69.4),
    MeasuredRun(7.13, 135.4e6, 2.85, 69.7),
)
"""By cost: models of 2 x 128, of 4 x 256 three times, and of 4 x 384."""
MAX_PETAFLOP = 3 * RUNS[-1].petaflop
OWN_EVALUATION = 0.53
"""Loss of the third run in its last evaluation, which masks 30 % of the tokens, less
its loss with 15 % masked, in nats."""
ENTROPY = 6.84
"""Of the frequencies of their pieces, in nats."""
SPREAD = 0.1
"""Half of the width of the band of usual losses, in units of the entropy."""


def expected_scores(petaflop: float) -> tuple[float, float] | None:
    """Returns the loss in nats and the right minimal pairs in % to expect at a cost.

    Scores lie on lines between the measured runs; the last line goes on up to
    `MAX_PETAFLOP`. `None`: the cost is outside of these limits.
    """
    if not RUNS[0].petaflop <= petaflop <= MAX_PETAFLOP:
        return None
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
    # Not the last run: how far losses fall after so many tokens depends on the size.
    runs = RUNS[1:-1]
    if num_tokens < runs[0].num_tokens:
        return None
    num_tokens = min(num_tokens, runs[-1].num_tokens)
    losses = [run.loss / ENTROPY for run in runs]
    usual = _on_line(num_tokens, [run.num_tokens for run in runs], losses)
    return (usual - SPREAD) * entropy, (usual + SPREAD) * entropy


def _on_line(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Interpolates over the logarithm of x; beyond the last point the line goes on."""
    after = next((n for n in range(1, len(xs)) if x <= xs[n]), len(xs) - 1)
    share = math.log(x / xs[after - 1]) / math.log(xs[after] / xs[after - 1])
    return ys[after - 1] + share * (ys[after] - ys[after - 1])

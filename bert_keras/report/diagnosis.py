"""Names what may be wrong with a pre-training, in its text, settings and curves.

The limits are wide, so that a sound run has no finding. Each finding tells the run's
figure, the usual one, and what to change.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_keras.core.settings import strict
from bert_keras.report import measured_runs, scalar_log

MIN_STEPS = 1000
"""Steps after which a loss says something."""


class TextSample(strict.StrictModel):
    """Figures of some of a run's training examples."""

    num_examples: int
    num_shards: int
    """Of all shards to train on, like `num_records`."""
    num_records: int
    pieces_per_word: float
    unknown_share: float
    """Of pieces: `[UNK]`."""
    repeated_share: float
    """Of runs of 16 pieces: the share that more than `3 * dupe_factor` examples
    contain."""
    padding_share: float
    tokens_per_example: float
    """Padding left out."""
    masked_share: float
    """Of pieces: those to predict."""
    entropy: float
    """Of the frequencies of pieces, in nats: the loss of a model that knows nothing
    else."""


def start_findings(
    settings: Mapping[str, Any], sample: TextSample | None, *, is_further_training: bool
) -> dict[str, str]:
    """Returns what is known before the first step: a sentence or two by cause, a word
    or two. `settings` are by dotted key."""
    findings = {}
    # 1. The settings of the optimizer and of the initial weights.
    steps = settings["num_train_steps"]
    warmup = settings["optimizer.warmup_steps"]
    rate = settings["optimizer.learning_rate"]
    scale = settings["model.initializer_range"]
    if warmup > 0.3 * steps or (warmup == 0 and not is_further_training):
        findings["warm-up"] = (
            f"the learning rate rises for {warmup:,} of {steps:,} steps: set "
            "`optimizer.warmup_steps` to about a tenth of the steps"
        )
    for key, least, greatest, usual in (
        ("model.initializer_range", 0.004, 0.2, "0.02"),
        ("optimizer.max_grad_norm", 1e-2, math.inf, "1"),
        ("optimizer.weight_decay_rate", 0.0, 1.0, "0.01 to 0.1"),
    ):
        value, name = settings[key], key.rpartition(".")[2].replace("_", " ")
        if value is not None and not least <= value <= greatest:
            findings[name] = f"`{key}` is {value:g}, where {usual} is usual"
    # 2. The learning rate. Steps of LAMB are shares of a weight's own size.
    is_lamb = settings["optimizer.name"] == "lamb"
    # A step moves a weight by about its rate at most; trained ones need not move far.
    if rate * steps < 10 * scale and not (is_further_training or is_lamb):
        findings["rate too low"] = (
            f"{steps:,} steps at a rate of up to {rate:g} move a weight by about "
            f"{rate * steps:.2g} at most, and initial weights are of a size of "
            f"{scale:g}: raise `optimizer.learning_rate`, or make more steps"
        )
    if rate > 0.01 and not is_lamb:
        findings["rate too high"] = (
            f"`optimizer.learning_rate` is {rate:g}, where 1e-4 to 3e-3 are usual"
        )
    # 3. The text, and its order.
    if sample is not None:
        findings |= text_findings(sample)
        buffer = settings["shuffle_buffer_size"]
        if sample.num_shards < 4 and buffer < sample.num_records / 4:
            findings["order"] = (
                f"{sample.num_records:,} examples in {sample.num_shards} shards are "
                f"shuffled {buffer:,} at a time, so neighbours in the text come "
                "together: raise `shuffle_buffer_size`, or make the examples with more "
                "--num_shards"
            )
    return findings


def text_findings(sample: TextSample) -> dict[str, str]:
    findings = {}
    if sample.unknown_share > 0.01:
        findings["unknown words"] = (
            f"{sample.unknown_share:.1%} of the pieces are [UNK], where 0.1 % are "
            "usual: the vocabulary does not fit the text; make it of this text, with "
            "the same casing"
        )
    if sample.pieces_per_word > 3:
        findings["vocabulary"] = (
            f"{sample.pieces_per_word:.1f} pieces a word, where 1.2 to 2 are usual: "
            "make the vocabulary of this text, unless no spaces stand between words"
        )
    if sample.repeated_share > 0.2:
        findings["repeated text"] = (
            f"{sample.repeated_share:.0%} of the text comes more than three times, and "
            "is learnt by heart: look at it with `bert-keras inspect`, and leave the "
            "repeated documents or lines out"
        )
    if not 0.03 < sample.masked_share < 0.5:
        findings["masks"] = (
            f"{sample.masked_share:.1%} of the pieces are to be predicted, where 15 to "
            "40 % are usual: too few teach nothing, too many leave nothing to tell "
            "them from; change `masked_lm_prob` or `max_predictions_per_seq`"
        )
    if sample.padding_share > 0.6:
        findings["padding"] = (
            f"{sample.padding_share:.0%} of the positions are padding: make shorter "
            "examples, or pack them (`pack_instances`)"
        )
    return findings


CURVES = ("masked_lm_loss", "gradient_norm", "skipped_steps")
"""Names of the training's curves that `curve_findings` reads."""


def curve_findings(
    settings: Mapping[str, Any],
    train: Mapping[str, scalar_log.Curve | None],
    held_out: scalar_log.Curve | None,
    sample: TextSample | None,
    *,
    first_step: int = 0,
) -> dict[str, str]:
    """Returns what the steps after `first_step` show, at which the phase begins: losses
    of two phases do not compare.

    Args:
        train: the curves of `CURVES` by name; the run need not have all of them.
        held_out: the masked-LM loss of the evaluations.
    """
    findings = {}
    warmup = settings["optimizer.warmup_steps"]
    begin = max(warmup, first_step)
    loss = _after(train.get("masked_lm_loss"), begin)
    if loss is None or loss.steps[-1] < max(MIN_STEPS, 2 * warmup):
        return findings
    step = int(loss.steps[-1])
    # Means of ten stretches.
    ends = np.array([part.mean() for part in np.array_split(loss.values, 10)])
    band = usual_losses(settings, sample, step)
    if ends[-1] > ends.min() + 0.5:
        findings["diverged"] = (
            f"the masked-LM loss rose from {ends.min():.2f} to {ends[-1]:.2f}: lower "
            "`optimizer.learning_rate`, or warm up longer"
        )
    elif sample is not None and ends[-1] > sample.entropy - 0.05:
        findings["stuck"] = (
            f"the masked-LM loss is {ends[-1]:.2f}, no better than the "
            f"{sample.entropy:.2f} of a model that only knows how frequent pieces are"
        )
        is_small = settings["model.hidden_size"] <= 256
        if is_small and settings["model.initializer_range"] <= 0.02:
            findings["stuck"] += (
                "; weights of small models must begin larger, or attention begins "
                "uniform: try `model.initializer_range=0.05`"
            )
    elif not first_step and band is not None and ends[-1] > band[1]:
        findings["behind"] = (
            f"the masked-LM loss is {ends[-1]:.2f}, where {band[0]:.1f} to "
            f"{band[1]:.1f} are usual at this step: compare text, optimizer, rate, "
            "batch and initial scale with those of `bert-keras config pretrain "
            "--config strict_small`"
        )
    norms = _after(train.get("gradient_norm"), begin)
    limit = settings["optimizer.max_grad_norm"] or np.inf
    if norms is not None and np.quantile(norms.values, 0.05) > 10 * limit:
        findings["clipping"] = (
            f"all gradients are clipped, most of {np.median(norms.values):.2g} to "
            f"{limit:g}: raise `optimizer.max_grad_norm`"
        )
    skipped = _after(train.get("skipped_steps"), first_step)
    if skipped is not None and skipped.values[-1] > 0.01 * step:
        findings["skipped steps"] = (
            f"{skipped.values[-1]:,.0f} of {step:,} steps were skipped: loss or "
            "gradients were not finite: lower `optimizer.learning_rate`"
        )
    if held_out is not None and np.isfinite(held_out.values).any():
        best = int(np.nanargmin(held_out.values))
        if held_out.values[-1] > held_out.values[best] + 0.3:
            findings["learnt by heart"] = (
                f"the loss on held-out text rose from {held_out.values[best]:.2f} at "
                f"step {held_out.steps[best]:,} to {held_out.values[-1]:.2f}: the text "
                "is seen too often; make fewer steps, or give more text"
            )
    return findings


def usual_losses(
    settings: Mapping[str, Any], sample: TextSample | None, step: int
) -> tuple[float, float] | None:
    """Returns the ends of the band of usual losses in the first phase, in nats; `None`:
    the band is not known. A left-to-right model has a harder task than masked tokens.
    """
    if sample is None or settings["model.attention"] == "left_to_right":
        return None
    first_phase = settings["phases"][0]
    batch = first_phase["global_batch_size"] or settings["global_batch_size"]
    return measured_runs.usual_losses(
        step * batch * sample.tokens_per_example, entropy=sample.entropy
    )


def _after(curve: scalar_log.Curve | None, step: int) -> scalar_log.Curve | None:
    """Returns finite values after a step, at least 20."""
    if curve is None:
        return None
    chosen = (curve.steps > step) & np.isfinite(curve.values)
    if chosen.sum() < 20:
        return None
    return scalar_log.Curve(curve.steps[chosen], curve.values[chosen])

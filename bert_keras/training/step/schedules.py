"""Learning rates by step: warm-up, perhaps a constant rate, then decay."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="bert_keras")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then polynomial decay, counted from step 0 or at the end only.

    Below `warmup_steps` the rate is `peak * step / warmup_steps`; from there on
    `end + (peak - end) * (1 - step / num_train_steps) ** power`, and `end` after that.

    As in the original the decay does not restart when the warm-up ends, so the rate
    falls there from nearly `peak` to `1 - warmup_steps / num_train_steps` of it (with
    `power` 1 and `end` 0); and the very first update has a rate of 0.

    With `decay_steps` (`None`: the decay is counted from step 0) the rate is `peak`
    between the warm-up and the last `decay_steps` steps, in which it is
    `end + (peak - end) * ((num_train_steps - step) / decay_steps) ** power`: warm-up,
    stable, decay (WSD; Hu et al., 2024, "MiniCPM").
    """

    def __init__(
        self,
        peak: float,
        *,
        warmup_steps: int,
        num_train_steps: int,
        power: float = 1.0,
        end: float = 0.0,
        decay_steps: int | None = None,
    ):
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.num_train_steps = num_train_steps
        self.power = power
        self.end = end
        self.decay_steps = decay_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        warmup = self.peak * step / max(self.warmup_steps, 1)
        if self.decay_steps is None:
            done = ops.minimum(step, self.num_train_steps) / self.num_train_steps
        else:
            into_decay = step - (self.num_train_steps - self.decay_steps)
            done = ops.clip(into_decay / self.decay_steps, 0.0, 1.0)
        remaining = 1.0 - done
        decay = self.end + (self.peak - self.end) * ops.power(remaining, self.power)
        return ops.where(step < self.warmup_steps, warmup, decay)

    def get_config(self) -> dict[str, Any]:
        names = ("peak", "warmup_steps", "num_train_steps", "power", "end")
        return {name: getattr(self, name) for name in (*names, "decay_steps")}

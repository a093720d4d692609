"""BERT's optimizer and learning rate (paper, A.2; the original's optimization.py)."""

import re

import keras
from keras import ops

from bert_keras import replicas
from bert_keras.config import OptimizerConfig

NOT_DECAYED = (r"layer_norm", r"bias$")
"""Weights without decay: layer norms and biases, as in the original."""


class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then linear decay to 0 that is counted from step 0.

    As in the original the decay does not restart when the warm-up ends, so the rate
    there is `1 - warmup_steps / num_train_steps` of its peak, and the very first
    update has a rate of 0.

    Args:
        peak: the learning rate that the warm-up heads for.
        warmup_steps: updates before the decay is used.
        num_train_steps: the step at which the rate reaches 0.
    """

    def __init__(self, peak: float, *, warmup_steps: int, num_train_steps: int):
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.num_train_steps = num_train_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        warmup = self.peak * step / max(self.warmup_steps, 1)
        progress = ops.minimum(step, self.num_train_steps) / self.num_train_steps
        decay = self.peak * (1.0 - progress)
        return ops.where(step < self.warmup_steps, warmup, decay)

    def get_config(self) -> dict:
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "num_train_steps": self.num_train_steps,
        }


class BertAdamW(replicas.SummedGradients, keras.optimizers.Optimizer):
    """Adam without bias correction, with decoupled weight decay.

    `w -= lr * (m / (sqrt(v) + epsilon) + weight_decay_rate * w)`; the decay is left
    out for variables whose path matches one of `not_decayed`. Differs from
    `keras.optimizers.AdamW`, which corrects the bias of `m` and `v`.

    Args:
        learning_rate: a number or a schedule.
        weight_decay_rate: of the decayed variables.
        beta_1: decay of the mean of gradients.
        beta_2: decay of the mean of squared gradients.
        epsilon: added to the root.
        not_decayed: regular expressions, searched in a variable's path.
    """

    def __init__(
        self,
        learning_rate=1e-4,
        *,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        not_decayed: tuple[str, ...] = NOT_DECAYED,
        name: str = "bert_adamw",
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.not_decayed = tuple(not_decayed)

    def build(self, variables):
        """Makes `m` and `v` for each variable."""
        if self.built:
            return
        super().build(variables)
        self._m, self._v = self.add_optimizer_variables(variables, ["m", "v"])
        # update_step is given raw TensorFlow variables, which know no Keras path.
        self._is_decayed = [self.decays(variable.path) for variable in variables]

    def decays(self, path: str) -> bool:
        """Whether the variable of this path is decayed."""
        return not any(re.search(pattern, path) for pattern in self.not_decayed)

    def update_step(self, gradient, variable, learning_rate):
        """One update of one variable."""
        index = self._get_variable_index(variable)
        m, v = self._m[index], self._v[index]
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        new_m = m + (1.0 - self.beta_1) * (gradient - m)
        new_v = v + (1.0 - self.beta_2) * (ops.square(gradient) - v)
        update = new_m / (ops.sqrt(new_v) + self.epsilon)
        if self._is_decayed[index]:
            update = update + self.weight_decay_rate * ops.convert_to_tensor(variable)
        self.assign(m, new_m)
        self.assign(v, new_v)
        self.assign_sub(variable, rate * update)

    def get_config(self) -> dict:
        """Everything that `__init__` takes."""
        config = super().get_config()
        # Keras's own decay is another thing; ours is applied in update_step.
        config.pop("weight_decay", None)
        return config | {
            "weight_decay_rate": self.weight_decay_rate,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "not_decayed": self.not_decayed,
        }


def build_optimizer(config: OptimizerConfig, *, num_train_steps: int) -> BertAdamW:
    """The optimizer of a run of `num_train_steps` updates."""
    schedule = WarmupLinearDecay(
        config.learning_rate,
        warmup_steps=config.warmup_steps,
        num_train_steps=num_train_steps,
    )
    return BertAdamW(
        schedule,
        weight_decay_rate=config.weight_decay_rate,
        beta_1=config.beta_1,
        beta_2=config.beta_2,
        epsilon=config.epsilon,
    )


def clip_by_global_norm(gradients: list, max_norm: float | None) -> tuple[list, object]:
    """Scales gradients down to a global norm of at most `max_norm`.

    Returns:
        The gradients and their global norm before clipping.
    """
    squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients]
    norm = ops.sqrt(sum(squares[1:], squares[0]))
    if max_norm is None:
        return gradients, norm
    scale = max_norm / ops.maximum(norm, max_norm)
    return [g * ops.cast(scale, g.dtype) for g in gradients], norm

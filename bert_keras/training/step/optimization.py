"""BERT's optimizers, learning rates and clipping, for TensorFlow only.

BERT's own Adam is that of the original's optimization.py (paper, A.2); LAMB is
algorithm 2 of You et al. (2020), "Large Batch Optimization for Deep Learning"; Muon is
Jordan et al.'s (2024). All are Keras optimizers that can also be applied within a
replica: see `ReplicaOptimizer.apply_in_replica`.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bert_keras.core.settings.pretraining import OptimizerConfig

NOT_DECAYED = (r"layer_norm", r"bias$")
"""Patterns of weights without decay: layer norms and biases, as in the original."""
HIDDEN = r"(?<!classifier)/kernel$"
"""Pattern of the matrices between layers: neither tables nor the classes of a head."""
MUON_SCALE = 0.2
"""Root mean square of Muon's updates at a rate of 1, about that of Adam's."""


class ReplicaOptimizer(keras.optimizers.Optimizer):
    """Base of optimizers with two moments that can be applied within a replica.

    A subclass writes `updated`, and `update_variable` too if it has a faster way.
    `epsilon` is added to the root; `not_decayed` are regular expressions of paths.
    """

    own = ("weight_decay_rate", "beta_1", "beta_2", "epsilon", "not_decayed")
    """Arguments that Keras's optimizer does not have."""

    def __init__(
        self,
        learning_rate=1e-4,
        *,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        not_decayed: Sequence[str] = NOT_DECAYED,
        **kwargs,
    ):
        # Keras's own `weight_decay` would come on top; given in `kwargs`, it raises.
        super().__init__(learning_rate=learning_rate, weight_decay=None, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.not_decayed = tuple(not_decayed)

    def build(self, variables):
        """Makes the moments `m` and `v` of each variable, named after its path."""
        if self.built:
            return
        super().build(variables)
        self._m, self._v = self._make_moments(variables)

    def _make_moments(self, variables) -> tuple[list, list]:
        return tuple(self.add_optimizer_variables(variables, ["m", "v"]))

    def decays(self, path: str) -> bool:
        return not any(re.search(pattern, path) for pattern in self.not_decayed)

    def apply_in_replica(
        self, gradients: Sequence, *, num_updates, only_if=None
    ) -> None:
        """Updates this replica's copy of each variable; `iterations` stays.

        Every replica must have the same gradients: replicas do not communicate, so the
        call may stand within a `tf.cond`. Other options of Keras's `apply` (clipping,
        averages of weights) have no effect here.

        Args:
            gradients: dense, in the order of `build`; summed over replicas, unscaled
                and clipped.
            num_updates: scalar, number of updates before this one; corrects the bias of
                the moments. The learning rate follows `iterations`, which also counts
                steps without an update.
            only_if: boolean scalar: if it is false, all values stay, though the
                gradients may not be finite. Only the written values depend on it, so
                the device need not tell the host. `None`: true.
        """
        if len(gradients) != len(self._trainable_variables):
            raise ValueError(
                f"{len(gradients)} gradients for {len(self._trainable_variables)} "
                "variables: give those of all variables that `build` was given"
            )
        learning_rate = tf.cast(self.learning_rate, tf.float32)
        num_updates = tf.cast(num_updates, tf.float32)
        for index, gradient in enumerate(gradients):
            if only_if is None:
                self.update_variable(index, gradient, learning_rate, num_updates)
                continue
            new = self.updated(index, gradient, learning_rate, num_updates)
            for variable, value in zip(self._copies(index), new, strict=True):
                old = local_value(variable)
                assign_local(variable, tf.where(only_if, value, old))

    def _copies(self, index: int) -> tuple[keras.Variable, ...]:
        return self._trainable_variables[index], self._m[index], self._v[index]

    def update_step(self, gradient, variable, learning_rate):
        self.update_variable(
            self._get_variable_index(variable),
            # A sparse gradient has a slice for each occurrence of a row; the moments
            # need their sums.
            tf.convert_to_tensor(gradient),
            tf.cast(learning_rate, tf.float32),
            tf.cast(self.iterations, tf.float32),
        )

    def update_variable(self, index: int, gradient, learning_rate, num_updates) -> None:
        new = self.updated(index, gradient, learning_rate, num_updates)
        for variable, value in zip(self._copies(index), new, strict=True):
            assign_local(variable, value)

    def updated(self, index: int, gradient, learning_rate, num_updates) -> tuple:
        """Returns new values of variable `index` and its moments `m` and `v`.

        `num_updates`, the updates before this one, is a float32 scalar.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["weight_decay"]
        return config | {name: getattr(self, name) for name in self.own}


@keras.saving.register_keras_serializable(package="bert_keras")
class BertAdamW(ReplicaOptimizer):
    """Adam with decoupled weight decay, as BERT was trained or as it was published.

    With `mode="google"` the moments' bias is not corrected, as in the original:
    `w -= lr * (m / (sqrt(v) + epsilon) + weight_decay_rate * w)`. With `"corrected"`
    `m` and `v` are divided by `1 - beta ** t` first (Loshchilov and Hutter, 2019).

    tf-models-official's `AdamWeightDecay` is neither: it corrects the bias without
    correcting `epsilon` (the "epsilon hat" of the Adam paper). It equals `"google"`
    once `beta ** t` has vanished, after some ten thousand updates.
    """

    own = (*ReplicaOptimizer.own, "mode")

    def __init__(
        self,
        learning_rate=1e-4,
        *,
        mode: Literal["google", "corrected"] = "google",
        name: str = "bert_adamw",
        **kwargs,
    ):
        super().__init__(learning_rate, name=name, **kwargs)
        if mode not in ("google", "corrected"):
            raise ValueError(f'`mode` must be "google" or "corrected", got {mode!r}')
        self.mode = mode

    def update_variable(self, index: int, gradient, learning_rate, num_updates) -> None:
        variable, m, v = self._copies(index)
        beta_1_power, beta_2_power, epsilon = self._bias_terms(num_updates)
        if self.weight_decay_rate and self.decays(variable.path):
            decay = learning_rate * self.weight_decay_rate * local_value(variable)
            tf.raw_ops.AssignSubVariableOp(resource=_handle(variable), value=decay)
        # One pass over memory; single operations would take one each.
        tf.raw_ops.ResourceApplyAdam(
            var=_handle(variable),
            m=_handle(m),
            v=_handle(v),
            beta1_power=beta_1_power,
            beta2_power=beta_2_power,
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=epsilon,
            grad=gradient,
        )

    def updated(self, index: int, gradient, learning_rate, num_updates) -> tuple:
        # The kernel's own formula, which XLA makes one pass of; it rounds the betas
        # before it subtracts them.
        beta_1, beta_2 = np.float32(self.beta_1), np.float32(self.beta_2)
        variable = self._trainable_variables[index]
        weights, m, v = map(local_value, self._copies(index))
        beta_1_power, beta_2_power, epsilon = self._bias_terms(num_updates)
        if self.weight_decay_rate and self.decays(variable.path):
            weights -= learning_rate * self.weight_decay_rate * weights
        m += (1 - beta_1) * (gradient - m)
        v += (1 - beta_2) * (tf.square(gradient) - v)
        rate = learning_rate * tf.sqrt(1.0 - beta_2_power) / (1.0 - beta_1_power)
        return weights - rate * m / (tf.sqrt(v) + epsilon), m, v

    def _bias_terms(self, num_updates) -> tuple:
        if self.mode == "google":
            return 0.0, 0.0, self.epsilon
        beta_1_power = self.beta_1 ** (num_updates + 1.0)
        beta_2_power = self.beta_2 ** (num_updates + 1.0)
        # Epsilon is added to the root of the uncorrected `v`.
        epsilon = self.epsilon * tf.sqrt(1.0 - beta_2_power)
        return beta_1_power, beta_2_power, epsilon


@keras.saving.register_keras_serializable(package="bert_keras")
class Lamb(ReplicaOptimizer):
    """LAMB: Adam's update of each variable, rescaled to the variable's own norm.

    `r = m_hat / (sqrt(v_hat) + epsilon) + weight_decay_rate * w`, then
    `w -= lr * (norm(w) / norm(r)) * r`: algorithm 2 of the paper with the identity for
    its phi. The ratio is 1 where either norm is 0. As in tf-models-official, variables
    that match `not_decayed` are neither decayed nor rescaled: a bias starts at 0, and
    its own norm would keep it near there.
    """

    def __init__(self, learning_rate=1e-4, *, name: str = "lamb", **kwargs):
        super().__init__(learning_rate, name=name, **kwargs)

    def updated(self, index: int, gradient, learning_rate, num_updates) -> tuple:
        variable = self._trainable_variables[index]
        weights, m, v = map(local_value, self._copies(index))
        m += (1.0 - self.beta_1) * (gradient - m)
        v += (1.0 - self.beta_2) * (tf.square(gradient) - v)
        m_hat = m / _bias(self.beta_1, num_updates)
        v_hat = v / _bias(self.beta_2, num_updates)
        update = m_hat / (tf.sqrt(v_hat) + self.epsilon)
        if self.decays(variable.path):
            update = update + self.weight_decay_rate * weights
            learning_rate = learning_rate * trust_ratio(weights, update)
        return weights - learning_rate * update, m, v


@keras.saving.register_keras_serializable(package="bert_keras")
class Muon(BertAdamW):
    """Muon for the hidden matrices, Adam with its bias corrected for the rest.

    A matrix moves by the momentum of its gradients (Nesterov's) made nearly orthogonal:
    all its singular values become about 1, so rare directions move as fast as common
    ones. After Jordan et al. (2024), "Muon: An optimizer for hidden layers in neural
    networks"; scaled after Liu et al. (2025), "Muon is scalable for LLM training", so
    that the update's root mean square is 0.2, about Adam's, and both share a rate.

    `keras.optimizers.Muon` differs in Adam's epsilon, and in the query, key and value
    kernels, which lie in one matrix here and are three to this optimizer.

    Args:
        momentum: decay of the sum of gradients of hidden matrices.
        hidden: regular expression, found in the paths of the matrices that Muon moves.
        products: number format of the iteration's matrix products. "bfloat16" as in
            Jordan et al.'s code: the iteration forgives rounding, and the products are
            the cost of a step.
    """

    own = (*BertAdamW.own, "momentum", "hidden", "products")

    def __init__(
        self,
        learning_rate=1e-4,
        *,
        momentum: float = 0.95,
        hidden: str = HIDDEN,
        products: Literal["float32", "bfloat16"] = "float32",
        name: str = "muon",
        **kwargs,
    ):
        super().__init__(learning_rate, name=name, **kwargs)
        self.momentum = momentum
        self.hidden = hidden
        self.products = products

    def is_hidden(self, variable: keras.Variable) -> bool:
        return re.search(self.hidden, variable.path) is not None

    def _make_moments(self, variables) -> tuple[list, list]:
        rest = [v for v in variables if not self.is_hidden(v)]
        (second,) = self.add_optimizer_variables(rest, ["v"])
        (first,) = self.add_optimizer_variables(variables, ["m"])
        second = iter(second)
        # A hidden matrix has no mean of squares.
        return first, [None if self.is_hidden(v) else next(second) for v in variables]

    def _copies(self, index: int) -> tuple[keras.Variable, ...]:
        copies = super()._copies(index)
        return copies[:2] if copies[2] is None else copies

    def update_variable(self, index: int, gradient, learning_rate, num_updates) -> None:
        of = ReplicaOptimizer if self._v[index] is None else BertAdamW
        of.update_variable(self, index, gradient, learning_rate, num_updates)

    def updated(self, index: int, gradient, learning_rate, num_updates) -> tuple:
        if self._v[index] is not None:
            return super().updated(index, gradient, learning_rate, num_updates)
        variable = self._trainable_variables[index]
        weights, m = map(local_value, self._copies(index))
        m = self.momentum * m + gradient
        ahead = gradient + self.momentum * m
        num_matrices = 3 if "query_key_value" in variable.path else 1
        parts = [
            orthogonalized(part, self.products)
            for part in tf.split(ahead, num_matrices, axis=1)
        ]
        # Scalars first: each product with a matrix is a pass over memory.
        scale = learning_rate * (MUON_SCALE * math.sqrt(max(parts[0].shape)))
        change = scale * tf.concat(parts, axis=1)
        if self.decays(variable.path):
            change += learning_rate * self.weight_decay_rate * weights
        return weights - change, m


def orthogonalized(matrix, products: str = "float32"):
    """Moves all singular values of a matrix near 1, to between 0.7 and 1.2.

    Five steps of a quintic Newton-Schulz iteration, with Jordan et al.'s coefficients,
    multiply the matrix by polynomials of its Gram matrix. Where one side is over 1.5
    times the other, it takes fewer operations to multiply the polynomials of several
    steps by one another first, since they are as small as the Gram matrix (Zhang et
    al., 2026, "Gram Newton-Schulz").
    """
    is_high = matrix.shape[0] > matrix.shape[1]
    size, length = sorted(matrix.shape)

    def gram_matrix(x):
        return tf.matmul(x, x, transpose_a=is_high, transpose_b=not is_high)

    def multiplied(x, factor):
        return tf.matmul(x, factor) if is_high else tf.matmul(factor, x)

    x = tf.cast(matrix / (tf.norm(matrix) + 1e-7), products)
    if 2 * length <= 3 * size:
        for _ in range(5):
            gram = gram_matrix(x)
            change = -4.7750 * gram + 2.0315 * tf.matmul(gram, gram)
            x = 3.4445 * x + multiplied(x, change)
        return tf.cast(x, matrix.dtype)
    identity = tf.eye(size)
    # Rounding errors grow in a Gram matrix that is computed from an earlier one: five
    # steps at once diverge in bfloat16. The last two begin with the product itself.
    for num_steps in (3, 2):
        gram, factors = gram_matrix(x), None
        for step in range(num_steps):
            # Rounded to bfloat16 once: the sum is nearly a multiple of the identity.
            square = tf.cast(tf.matmul(gram, gram), tf.float32)
            factor = 3.4445 * identity - 4.7750 * tf.cast(gram, tf.float32)
            factor = tf.cast(factor + 2.0315 * square, products)
            factors = factor if factors is None else tf.matmul(factor, factors)
            if step < num_steps - 1:
                gram = tf.matmul(tf.matmul(factor, gram), factor)
        x = multiplied(x, factors)
    return tf.cast(x, matrix.dtype)


def _bias(beta: float, num_updates):
    """Returns `1 - beta ** (num_updates + 1)`, exact in float32 even near 0."""
    if not beta:
        return 1.0
    return -tf.math.expm1((num_updates + 1.0) * math.log(beta))


def trust_ratio(weights, update):
    """Returns `norm(weights) / norm(update)`, 1 where either is 0."""
    weights_norm, update_norm = tf.norm(weights), tf.norm(update)
    both = tf.logical_and(weights_norm > 0, update_norm > 0)
    return tf.where(both, weights_norm / tf.where(both, update_norm, 1.0), 1.0)


@keras.saving.register_keras_serializable(package="bert_keras")
@dataclasses.dataclass(frozen=True)
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

    peak: float
    _: dataclasses.KW_ONLY
    warmup_steps: int
    num_train_steps: int
    power: float = 1.0
    end: float = 0.0
    decay_steps: int | None = None

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
        return dataclasses.asdict(self)


def build_optimizer(
    config: OptimizerConfig, *, num_train_steps: int, precision: str = "float32"
) -> ReplicaOptimizer:
    """Builds a run's optimizer; Muon multiplies in bfloat16 under mixed_bfloat16."""
    schedule = WarmupDecay(
        config.learning_rate,
        warmup_steps=config.warmup_steps,
        num_train_steps=num_train_steps,
        power=config.decay_power,
        end=config.end_learning_rate,
        decay_steps=config.decay_steps,
    )
    names = ("weight_decay_rate", "beta_1", "beta_2", "epsilon")
    settings = {name: getattr(config, name) for name in names}
    if config.name == "lamb":
        return Lamb(schedule, **settings)
    if config.name == "muon":
        products = "bfloat16" if precision == "mixed_bfloat16" else "float32"
        return Muon(schedule, mode="corrected", products=products, **settings)
    return BertAdamW(schedule, mode=config.adamw_mode, **settings)


def clip_by_global_norm(
    gradients: Sequence, max_norm: float | None, *, branches: bool = True
) -> tuple[list, tf.Tensor]:
    """Scales gradients down to a global norm of at most `max_norm`.

    Returns the gradients, dense, and their norm before clipping, a float32 scalar; if
    it is not finite, the gradients are useless. `max_norm` `None`: only computes the
    norm. With `branches` small gradients are left alone: most steps of a long run are
    not clipped, and the product is one more pass over all gradients; but an accelerator
    has to wait for the host to decide.
    """
    halves = [tf.nn.l2_loss(tf.cast(gradient, tf.float32)) for gradient in gradients]
    norm = tf.sqrt(2.0 * tf.add_n(halves))
    if max_norm is None:
        return list(gradients), norm
    if not branches:
        factor = tf.minimum(1.0, max_norm / norm)
        return [g * tf.cast(factor, g.dtype) for g in gradients], norm
    clipped = tf.cond(
        norm <= max_norm,
        lambda: list(gradients),
        lambda: [g * tf.cast(max_norm / norm, g.dtype) for g in gradients],
    )
    return clipped, norm


# Under a strategy a keras.Variable refuses or reduces assignments within a replica; the
# handle is always the local copy's.


def _handle(variable: keras.Variable):
    return variable.value.handle


def local_value(variable: keras.Variable) -> tf.Tensor:
    dtype = tf.as_dtype(variable.dtype)
    return tf.raw_ops.ReadVariableOp(resource=_handle(variable), dtype=dtype)


def assign_local(variable: keras.Variable, value) -> None:
    """Sets a replica's own copy of a variable; all replicas give the same value."""
    tf.raw_ops.AssignVariableOp(resource=_handle(variable), value=value)

"""Our own step -> StableHLO, as one chip of a slice would run it; no TPU needed.

The learner is built and traced under a strategy that says it is a chip of several: the
batch is one chip's share, sums over replicas are XLA's all-reduce over all chips.
Nothing is trained, and only the making of the variables runs on a device.
"""

import dataclasses
import functools
import gc
import math
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.distribute import distribute_lib, one_device_strategy
from tensorflow.python.framework import function_def_to_graph

from bert_keras.kinds import registry
from bert_keras.model import pretrainer, recomputation
from bert_keras.tpu.preflight import hlo, steps
from bert_keras.training.step import learner, optimization


class OneOfManyChips(tf.distribute.Strategy):
    """A strategy of one chip of a data-parallel slice, for tracing only. Its variables
    live on the processor; its devices are called TPUs, so that processors' code stays
    out."""

    def __init__(self, num_chips: int):
        super().__init__(_Extended(self, num_chips))


class _Extended(one_device_strategy.OneDeviceExtended):
    def __init__(self, strategy: tf.distribute.Strategy, num_chips: int):
        super().__init__(strategy, "/cpu:0")
        self._num_chips = num_chips

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return tuple(f"/device:TPU:{chip}" for chip in range(self._num_chips))

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._num_chips

    def _call_for_each_replica(self, fn, args, kwargs):
        with _Replica(self._container_strategy(), replica_id_in_sync_group=0):
            return fn(*args, **kwargs)


class _Replica(distribute_lib.ReplicaContext):
    def all_reduce(self, reduce_op, value, options=None):
        if reduce_op != tf.distribute.ReduceOp.SUM:
            raise NotImplementedError(f"expected sums over chips, got {reduce_op}")
        # (1, chips): one group, of all chips.
        group = tf.range(self.num_replicas_in_sync)[tf.newaxis]
        return tf.nest.map_structure(
            lambda tensor: gen_xla_ops.xla_all_reduce(
                input=tensor,
                group_assignment=group,
                reduce_op="Add",
                mode="CrossReplica",
            ),
            value,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lowered:
    text: str
    """StableHLO. Results that are variables live in their argument's memory."""
    state_bytes: int
    """Of all variables: weights, moments and counters."""


def lower(step: steps.Step) -> Lowered | tuple[steps.Refused, ...]:
    """Builds and traces a step, and lowers it to StableHLO; returns the operations that
    cannot be compiled, if there are some."""
    try:
        with recomputation.custom_gradients_end():
            strategy = OneOfManyChips(step.num_chips)
            trained = _learner(step, strategy)
            if step.purpose == "training":
                compute = trained.train_step
            elif step.task.kind == "pretraining":
                compute = trained.test_step
            else:
                # Scores of tasks are computed from all outputs, on the host.
                compute = functools.partial(trained.network, training=False)
            traced = tf.function(
                lambda batch: strategy.run(compute, (batch,)),
                jit_compile=True,
                autograph=False,
            )
            batch = _zeros(step)
            graph = traced.get_concrete_function(batch).graph
            if refused := tuple(of_unknown_shape(graph)):
                return refused
            text = traced.experimental_get_compiler_ir(batch)(stage="stablehlo")
            variables = [*trained.variables, *trained.optimizer.variables]
            num_values = sum(math.prod(variable.shape) for variable in variables)
            return Lowered(text=text, state_bytes=4 * num_values)
    except (ValueError, tf.errors.OpError) as error:
        if refused := hlo.refused_operations(str(error)):
            return refused
        raise
    finally:
        # Three times as large as the model; its references go in circles.
        gc.collect()


def of_unknown_shape(graph: tf.Graph) -> Iterator[steps.Refused]:
    """Yields operations of unknown shape whose inputs are all known, without their
    followers. Bodies of loops and branches are searched too."""
    bodies = [
        function_def_to_graph.function_def_to_graph(function)
        for function in graph.as_graph_def(add_shapes=True).library.function
    ]
    for operation in (op for g in (graph, *bodies) for op in g.get_operations()):
        known = [tensor.shape.is_fully_defined() for tensor in operation.inputs]
        unknown = [
            tensor.shape
            for tensor in operation.outputs
            if tensor.dtype not in (tf.resource, tf.variant)
            and not tensor.shape.is_fully_defined()
        ]
        if operation.type != "Placeholder" and all(known) and unknown:
            yield steps.Refused(
                operation=operation.type,
                scope=operation.name,
                reason=f"its result has the shape {unknown[0]}, known only when it "
                "runs; a TPU runs programs of fixed shapes",
            )


def _zeros(step: steps.Step) -> dict[str, tf.Tensor]:
    return {name: tf.zeros(*feature) for name, feature in step.batch().items()}


def _learner(step: steps.Step, strategy: tf.distribute.Strategy) -> learner.Learner:
    # The learner of an evaluation, too, is built on a batch with labels.
    training = dataclasses.replace(step, purpose="training")

    def make_network() -> keras.Model:
        options: dict[str, Any] = {"seed": step.seed, "dtype": step.precision}
        if step.task.kind == "pretraining":
            options |= {"next_sentence": step.next_sentence, "name": "bert_pretrainer"}
            return pretrainer.BertPretrainer(step.bert_config, **options)
        options["dropout_prob"] = step.dropout_prob
        return registry.build_network(step.bert_config, step.task, **options)

    return learner.build_learner(
        make_network,
        {name: rows[:1] for name, rows in _zeros(training).items()},
        strategy=strategy,
        optimizer=lambda: optimization.build_optimizer(
            step.optimizer, num_train_steps=step.num_train_steps
        ),
        max_grad_norm=step.optimizer.max_grad_norm,
        num_parts=step.num_parts,
        recompute=step.recompute,
        scales_loss=step.precision == "mixed_float16",
    )

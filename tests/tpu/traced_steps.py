"""Traces steps under a TPUStrategy whose TPU is not there; prints what they hold.

    python traced_steps.py KIND...

The strategy's devices are logical CPUs, so that variables and input exist. A step is
traced as on a TPU (one cluster for `tpu.replicate`, TPU variables, sums over replicas)
and never run. Prints a line of JSON for each kind: the operations inside the cluster,
those beside it, and the functions that XLA would have to compile by themselves.
"""

import collections
import dataclasses
import json
import sys
import types

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import tpu_strategy
from tensorflow.python.distribute.cluster_resolver.tpu import tpu_cluster_resolver
from tensorflow.python.eager import context
from tensorflow.python.tpu import tpu_system_metadata

from bert_keras.core import chips
from bert_keras.core.settings import architecture, pipelines, pretraining
from bert_keras.data import features
from bert_keras.inference import forward
from bert_keras.kinds import registry
from bert_keras.labelled import shapes
from bert_keras.tpu.preflight import steps
from bert_keras.training.finetuning import learning
from bert_keras.training.step import learner, optimization, replicas

NUM_REPLICAS = 2
BATCH_SIZE, LENGTH = 8, 32
HOST = "/job:localhost/replica:0/task:0/device:CPU:0"
SETTINGS = pretraining.PretrainingConfig(
    model=architecture.ModelConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
    )
)
TASKS = {"classification": "text", "regression": "STS-B", "features": "tagging"}
TASKS |= {name: name for name in ("tagging", "span", "choice")}
"""Names of tasks by kind; other kinds are of pre-training."""
LAYERS = {"bilstm_units": 4, "num_bilstm_layers": 2}
LAYERS |= {"feature_layers": "weighted_sum_all"}


class Resolver(tpu_cluster_resolver.TPUClusterResolver):
    """Says that there are TPU cores."""

    def __init__(self):
        self._tpu = "stand-in"

    def get_tpu_system_metadata(self):
        devices = [
            context.LogicalDevice(HOST.replace("CPU:0", f"TPU:{core}"), "TPU")
            for core in range(NUM_REPLICAS)
        ]
        return tpu_system_metadata.TPUSystemMetadata(
            num_cores=NUM_REPLICAS,
            num_hosts=1,
            num_of_cores_per_host=NUM_REPLICAS,
            topology=None,
            devices=devices,
        )


def make_strategy() -> tf.distribute.TPUStrategy:
    """A TPUStrategy on logical CPUs."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * (NUM_REPLICAS + 1),
    )
    tf.config.list_logical_devices()
    strategy = tpu_strategy.TPUStrategyV2(Resolver())
    cores = [HOST.replace("CPU:0", f"CPU:{1 + core}") for core in range(NUM_REPLICAS)]
    extended = strategy.extended
    extended._tpu_devices = np.array([[core] for core in cores], dtype=object)
    extended._host_device = HOST
    extended._device_input_worker_devices = collections.OrderedDict({HOST: cores})
    extended._host_input_worker_devices = collections.OrderedDict(
        {HOST: [HOST] * NUM_REPLICAS}
    )
    strategy._enable_packed_variable_in_eager_mode = False
    return strategy


def make_step(kind: str) -> steps.Step:
    """The planned step of a kind."""
    step, _ = steps.plan(
        SETTINGS,
        chips.parse_device("v5e-1"),
        max_seq_length=LENGTH,
        task=TASKS.get(kind),
        global_batch_size=BATCH_SIZE,
    )
    if kind == "packed":
        num_slots = pipelines.instances_per_row(LENGTH)
        return dataclasses.replace(step, num_slots=num_slots)
    if kind == "features":
        return dataclasses.replace(step, task=step.task.model_copy(update=LAYERS))
    return step


def make_batch(kind: str) -> dict[str, np.ndarray]:
    """Features of a global batch, all of fixed shape."""
    # Batches of labelled examples add these by themselves.
    added = (features.EXAMPLE_WEIGHTS, features.BATCH_LENGTHS)
    specs = make_step(kind).batch().items()
    batch = {name: np.ones(*feature) for name, feature in specs if name not in added}
    if kind == "features":
        batch["word_positions"] = np.ones((BATCH_SIZE, LENGTH), np.int32)
    return batch


def build_learner(
    kind: str, strategy: tf.distribute.Strategy, *, num_parts: int
) -> learner.Learner:
    """What trains the network of a kind."""
    step = make_step(kind)
    return learner.build_learner(
        lambda: registry.build_network(
            step.bert_config, step.task, seed=1, dtype=step.precision
        ),
        {name: tf.constant(rows[:1]) for name, rows in make_batch(kind).items()},
        strategy=strategy,
        max_grad_norm=1.0,
        num_parts=num_parts,
        steps_per_execution=replicas.steps_per_execution(strategy),
        optimizer=lambda: optimization.build_optimizer(
            step.optimizer, num_train_steps=step.num_train_steps
        ),
    )


def tuning_batches(kind: str, strategy: tf.distribute.Strategy) -> tuple:
    """Batches of labelled examples, of unknown shapes, and what they are fixed to."""
    arrays = make_batch(kind)
    del arrays["dropout_seeds"]
    num_rows = BATCH_SIZE // NUM_REPLICAS

    def make(rows):
        return {name: values[rows] for name, values in arrays.items()}

    batches = learning.Batches(
        inputs=types.SimpleNamespace(lengths=np.full(BATCH_SIZE, LENGTH), batch=make),
        batch_size=BATCH_SIZE,
        by_length=True,
        seed=1,
        padded_length=shapes.ladder_length([LENGTH]),
    )

    def of_process(index, num_processes, num_replicas):
        return batches.stream(
            share=shapes.ReplicaShare(
                num_rows=num_rows, num_replicas=NUM_REPLICAS, end=num_replicas
            )
        )

    spec = batches.spec(num_rows=num_rows, length=LENGTH)
    return replicas.distribute(strategy, of_process), spec


def trace_answers(kind: str, strategy: tf.distribute.Strategy) -> tf.compat.v1.GraphDef:
    """The graph of the forward pass that evaluates a tuned network."""
    trained = build_learner(kind, strategy, num_parts=1)
    ask = forward.predictor_for(trained.network, strategy=strategy, ladder=[LENGTH])
    batch = make_batch(kind)
    spec = {
        name: tf.TensorSpec([NUM_REPLICAS, *batch[name].shape], batch[name].dtype)
        for name in forward.INPUT_NAMES
    }
    return graph_of(tf.function(ask._on_replicas), spec)


def trace(kind: str, strategy: tf.distribute.Strategy) -> tf.compat.v1.GraphDef:
    """The graph of an execution of a step."""
    kind, _, purpose = kind.partition("_")
    if purpose == "answers":
        return trace_answers(kind, strategy)
    num_parts = 2 if "accumulated" in (kind, purpose) else 1
    trained = build_learner(kind, strategy, num_parts=num_parts)
    if kind in TASKS:
        batches, spec = tuning_batches(kind, strategy)
    else:
        share = {
            name: rows[: BATCH_SIZE // NUM_REPLICAS]
            for name, rows in make_batch(kind).items()
        }
        data = tf.data.Dataset.from_tensors(share).repeat()
        batches, spec = replicas.distribute(strategy, lambda *place: data), None
    step = trained.test_step if kind == "evaluation" else trained.train_step
    execute, _ = trained._traced_execution(step, spec)
    return graph_of(execute, iter(batches), tf.constant(1))


def graph_of(function, *arguments) -> tf.compat.v1.GraphDef:
    """The graph of a function, with the shapes of all that it computes."""
    graph = function.get_concrete_function(*arguments).graph
    return graph.as_graph_def(add_shapes=True)


def describe(graph: tf.compat.v1.GraphDef) -> dict:
    """Operations of all functions by their place, and what XLA compiles by itself."""
    bodies = {"": graph.node}
    bodies |= {f.signature.name: f.node_def for f in graph.library.function}

    def called_by(nodes) -> set[str]:
        attributes = (value for node in nodes for value in node.attr.values())
        return {value.func.name for value in attributes if value.HasField("func")}

    beside, compiled = set(), []
    for nodes in bodies.values():
        if marked := [node for node in nodes if "_tpu_replicate" in node.attr]:
            compiled += marked
            beside |= {node.op for node in nodes if node not in marked}
    called, reached = called_by(compiled), set()
    while called - reached:
        name = (called - reached).pop()
        reached.add(name)
        compiled += bodies[name]
        called |= called_by(bodies[name])
    unknown = {
        node.op
        for node in compiled
        # Shapes that this one gives are constants to a compiler.
        if node.op != "BroadcastGradientArgs"
        for shape in node.attr["_output_shapes"].list.shape
        if shape.unknown_rank or any(dim.size < 0 for dim in shape.dim)
    }
    return {
        "inside": sorted({node.op for node in compiled}),
        "beside": sorted(beside),
        "of_unknown_shape": sorted(unknown),
        "num_clusters": sum(
            n.op == "TPUReplicateMetadata" for nodes in bodies.values() for n in nodes
        ),
        "compiled_by_themselves": sum(
            f.attr["_XlaMustCompile"].b for f in graph.library.function
        ),
    }


if __name__ == "__main__":
    tpu = make_strategy()
    for kind in sys.argv[1:]:
        print(json.dumps({"kind": kind, **describe(trace(kind, tpu))}), flush=True)

"""The step, however it is shared out, is the step of one device."""

import functools
import gc
import time
import types
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops, multi_device_iterator_ops
from tensorflow.python.framework import func_graph

from bert_keras.core.settings import pretraining
from bert_keras.model import pretrainer
from bert_keras.training.finetuning import learning
from bert_keras.training.step import (
    learner,
    optimization,
    precision,
    replicas,
    self_check,
)
from tests import make

BATCH_SIZE = 16
LENGTH = 16
VOCAB_SIZE = 40
CPU = tf.distribute.OneDeviceStrategy("/cpu:0")
OPTIMIZER = pretraining.OptimizerConfig(learning_rate=1e-3, warmup_steps=1)
BERT_CONFIG = make.small_config(VOCAB_SIZE, max_position_embeddings=LENGTH)


def mirrored(num_replicas):
    return tf.distribute.MirroredStrategy(
        [f"/cpu:{index}" for index in range(num_replicas)],
        # Collectives of one process are of one group size, and tests use several.
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


@pytest.fixture(scope="module")
def batches():
    """24 batches: few ids that repeat, few predictions in the second half of each."""
    random = np.random.default_rng(5)
    rows, predictions = 24 * BATCH_SIZE, 5
    weights = random.random((rows, predictions)) < 0.7
    in_first_half = np.arange(rows)[:, None] % BATCH_SIZE < BATCH_SIZE // 2
    weights &= in_first_half | (np.arange(predictions) < 1)
    lengths = random.integers(4, LENGTH, (rows, 1), endpoint=True)
    mask = np.arange(LENGTH) < lengths
    return {
        "input_ids": np.int32(random.integers(1, 8, (rows, LENGTH)) * mask),
        "input_mask": np.int32(mask),
        "segment_ids": np.int32((np.arange(LENGTH) >= lengths // 2) & mask),
        "masked_lm_positions": np.int32(random.integers(0, 4, (rows, predictions))),
        "masked_lm_ids": np.int32(random.integers(1, 40, (rows, predictions))),
        "masked_lm_weights": np.float32(weights),
        "next_sentence_labels": np.int32(random.integers(0, 2, (rows, 1))),
        "dropout_seeds": np.int32(random.integers(-(2**31), 2**31, rows)),
    }


class Watched(pretrainer.BertPretrainer):
    """Notes whether AutoGraph is to rewrite its source."""

    seen: set = set()

    def loss_terms(self, features, outputs):
        if not tf.executing_eagerly():
            self.seen.add(tf.__internal__.autograph.control_status_ctx().status.name)
        return super().loss_terms(features, outputs)


def build(make_network, batches, strategy, **options):
    return learner.build_learner(
        make_network,
        {name: values[:1] for name, values in batches.items()},
        optimizer=lambda: optimization.build_optimizer(OPTIMIZER, num_train_steps=100),
        strategy=strategy,
        max_grad_norm=0.5,
        **options,
    )


def trained(
    batches,
    strategy,
    *,
    num_steps=20,
    dtype="float32",
    delay=0.0,
    network=Watched,
    watch=None,
    **options,
):
    """A learner after some steps, every gradient clipped."""

    def make_batches(index, num_workers, num_replicas):
        per_replica = BATCH_SIZE // (num_workers * num_replicas)
        dataset = tf.data.Dataset.from_tensor_slices(batches).repeat()
        dataset = dataset.batch(per_replica, drop_remainder=True)
        return slow(dataset, delay) if delay else dataset

    def make_network():
        return network(BERT_CONFIG, seed=3, name="pretrainer", dtype=dtype)

    built = build(make_network, batches, strategy, **options)
    logs = built.make_steps(
        replicas.distribute(strategy, make_batches),
        num_steps,
        **({"after": functools.partial(watch, built)} if watch else {}),
    )
    return built, logs


def slow(dataset, seconds):
    def wait(anything):
        time.sleep(seconds)
        return anything

    def delayed(batch):
        ids = tf.numpy_function(wait, [batch["input_ids"]], tf.int32)
        return {**batch, "input_ids": tf.ensure_shape(ids, batch["input_ids"].shape)}

    return dataset.map(delayed)


def values_of(variables):
    return {v.path: keras.ops.convert_to_numpy(v) for v in variables}


def assert_close(first, second, atol=1e-6):
    first, second = (values_of(x.trainable_variables) for x in (first, second))
    assert first.keys() == second.keys()
    for path in first:
        np.testing.assert_allclose(first[path], second[path], atol=atol, err_msg=path)


@pytest.fixture(scope="module")
def one_device(batches):
    return trained(batches, CPU)


@pytest.mark.slow
@pytest.mark.parametrize(("num_replicas", "num_parts"), [(1, 1), (1, 4), (2, 2)])
def test_an_evaluation_in_parts(batches, one_device, num_replicas, num_parts):
    """The means over all examples; no part is larger than those of a step."""
    largest = []

    class Noting(pretrainer.BertPretrainer):
        def call(self, features, training=None):
            largest.append(features["input_ids"].shape[0])
            return super().call(features, training=training)

    strategy = mirrored(num_replicas) if num_replicas > 1 else CPU
    built, _ = trained(batches, strategy, num_steps=1, network=Noting)
    built.use_parts(num_parts)
    largest.clear()

    def to_evaluate(index, num_workers, num_replicas):
        rows = {name: v for name, v in batches.items() if name != "dropout_seeds"}
        dataset = tf.data.Dataset.from_tensor_slices(rows).repeat()
        return dataset.batch(BATCH_SIZE // num_replicas, drop_remainder=True)

    evaluation = replicas.distribute(strategy, to_evaluate), 24
    found = built.evaluate_round(evaluation)
    assert set(largest) == {BATCH_SIZE // num_replicas // num_parts}
    terms = built.network.loss_terms(batches, built.network(batches))
    means = {name: float(total / weight) for name, (total, weight) in terms.items()}
    means["loss"] = means["masked_lm_loss"] + means["next_sentence_loss"]
    assert found == pytest.approx(means, rel=1e-5)


WAYS = [
    # In the slow tests also whole runs: test_pretrain.py.
    (2, {}),
    *(
        pytest.param(num_replicas, options, marks=pytest.mark.slow)
        for num_replicas, options in (
            (1, {"num_parts": 4}),
            (2, {"num_parts": 2}),
            (1, {"steps_per_execution": 3}),
            (1, {"compile_step": True}),
            # As elsewhere than on a CPU.
            (1, {"compile_step": True, "branches": False}),
            (4, {}),
            (2, {"compile_step": True}),
            (
                2,
                {
                    "num_parts": 4,
                    "compile_step": True,
                    "steps_per_execution": 3,
                    "branches": False,
                    "recompute": "attention",
                },
            ),
        )
    ),
]


def assert_equals(one_device, shared, logs):
    assert_close(one_device[0], shared)
    for log in ("loss", "masked_lm_accuracy", "gradient_norm", "learning_rate"):
        np.testing.assert_allclose(one_device[1][log], logs[log], rtol=1e-4)
    assert replicas.optimizer_step(shared) == 20
    # To have AutoGraph read the source of a step took a third of its tracing.
    assert Watched.seen == {"DISABLED"}


@pytest.mark.parametrize(("num_replicas", "options"), WAYS)
def test_every_way_equals_one_device(batches, one_device, num_replicas, options):
    """Clipped, with dropout, repeated ids, and uneven numbers of predictions."""
    strategy = CPU if num_replicas == 1 else mirrored(num_replicas)
    assert_equals(one_device, *trained(batches, strategy, **options))


def num_graphs():
    keras.backend.clear_session(free_memory=False)
    gc.collect()
    # `type`, for `isinstance` asks torch's deprecated objects for their class.
    return sum(issubclass(type(x), func_graph.FuncGraph) for x in gc.get_objects())


def test_many_ways_together_equal_one_device(batches, one_device):
    """And no graph stays: TensorFlow's list of custom gradients kept them all."""
    before = num_graphs()
    assert_equals(
        one_device,
        *trained(
            batches,
            CPU,
            steps_per_execution=3,
            # A power of two: not a bit of the gradients is lost.
            scales_loss=True,
            recompute="layers",
        ),
    )
    assert num_graphs() == before


@pytest.mark.slow
def test_layers_that_are_computed_again_train_the_same_bits(batches, one_device):
    again, _ = trained(batches, CPU, recompute="layers")
    assert_close(one_device[0], again, atol=0)


def test_dropout_and_clipping_are_at_work(batches, one_device):
    network = one_device[0].network
    batch = {name: values[:BATCH_SIZE] for name, values in batches.items()}
    other = {**batch, "dropout_seeds": batch["dropout_seeds"] + 1}
    logits, others, again = (
        network(features, training=True)["masked_lm_logits"].numpy()
        for features in (batch, other, batch)
    )
    np.testing.assert_array_equal(again, logits)
    assert np.abs(others - logits).max() > 1e-3
    assert one_device[1]["gradient_norm"] > 0.5


@pytest.mark.slow
def test_bfloat16_replicas_stay_near_one_device(batches):
    one, _ = trained(batches, CPU, dtype="mixed_bfloat16", num_steps=5)
    two, _ = trained(batches, mirrored(2), dtype="mixed_bfloat16", num_steps=5)
    assert_close(one, two, atol=2e-3)


class Amplified(pretrainer.BertPretrainer):
    """Multiplies its loss by a float16 number of each batch."""

    def loss_terms(self, features, outputs):
        total, weight = super().loss_terms(features, outputs)["masked_lm_loss"]
        factor = tf.reduce_max(tf.cast(features["loss_scales"], tf.float16))
        terms = super().loss_terms(features, outputs)
        return terms | {"masked_lm_loss": (total * tf.cast(factor, "float32"), weight)}


@pytest.mark.slow
@pytest.mark.parametrize(("replica", "branches"), [(0, True), (1, True), (1, False)])
def test_an_overflow_on_one_replica_is_skipped_on_all(batches, replica, branches):
    factors = np.ones((24 * BATCH_SIZE, 1), np.float32)
    # In the third batch. The largest float16 is 65,504.
    factors[2 * BATCH_SIZE + 8 * replica + 3] = 70_000
    all_logs, weights = [], []

    def watch(built, step, logs):
        local = built.distribute_strategy.experimental_local_results
        copies = [local(variable.value) for variable in built.trainable_variables]
        all_logs.append(logs)
        weights.append([[copy.numpy() for copy in each] for each in copies])

    trained(
        {**batches, "loss_scales": factors},
        mirrored(2),
        num_steps=4,
        dtype="mixed_float16",
        network=Amplified,
        scales_loss=True,
        branches=branches,
        watch=watch,
    )
    scales = [log["loss_scale"] / precision.INITIAL_LOSS_SCALE for log in all_logs]
    assert scales == [1, 1, 1, 0.5]
    assert [log["skipped_steps"] for log in all_logs] == [0, 0, 1, 1]
    first, second, third, fourth = weights
    assert all(len(copies) == 2 for copies in first)
    np.testing.assert_equal(third, second)
    assert all(np.isfinite(copy).all() for copies in fourth for copy in copies)
    with pytest.raises(AssertionError):
        np.testing.assert_equal(fourth, third)


@pytest.fixture(scope="module")
def probed():
    """Batches of the small network of `self_check`, which is traced in a second."""
    random = np.random.default_rng(5)
    return {
        "ids": np.int32(random.integers(0, 50, (24 * BATCH_SIZE, 4))),
        "labels": np.int32(random.integers(0, 5, 24 * BATCH_SIZE)),
    }


def test_parts_of_a_batch_are_the_whole(probed):
    """Whether the graph knows the number of its rows or not."""
    learners = []
    for num_parts, is_static in ((1, True), (4, True), (4, False)):
        built = build(self_check._Probe, probed, CPU, num_parts=num_parts)
        dataset = tf.data.Dataset.from_tensor_slices(probed).repeat()
        dataset = dataset.batch(BATCH_SIZE, drop_remainder=is_static)
        built.make_steps(dataset, 5)
        learners.append(built)
    whole, *others = learners
    for other in others:
        assert_close(whole, other)


@pytest.mark.parametrize(
    ("num_replicas", "options"),
    [
        (2, {"branches": False}),
        (1, {"branches": False, "steps_per_execution": 10}),
        pytest.param(1, {"branches": False}, marks=pytest.mark.slow),
        pytest.param(
            1, {"branches": False, "compile_step": True}, marks=pytest.mark.slow
        ),
        pytest.param(
            2, {"branches": False, "compile_step": True}, marks=pytest.mark.slow
        ),
        pytest.param(2, {"steps_per_execution": 10}, marks=pytest.mark.slow),
    ],
)
def test_a_step_without_its_batch_does_not_count(probed, num_replicas, options):
    """Reading fails within the graph, and training goes on from the step reached."""
    strategy = CPU if num_replicas == 1 else mirrored(num_replicas)
    calls = []

    def learn(failing_read):
        def read(ids):
            calls.append(0)
            if len(calls) == failing_read:
                raise OSError("the store does not answer")
            return ids

        def make_batches(index, num_workers, replicas_here):
            dataset = tf.data.Dataset.from_tensor_slices(probed).repeat()
            dataset = dataset.batch(BATCH_SIZE // replicas_here, drop_remainder=True)
            dataset = dataset.skip(replicas.optimizer_step(built) * replicas_here)
            return replicas.without_autotune(dataset.map(read_batch))

        def read_batch(batch):
            ids = tf.numpy_function(read, [batch["ids"]], tf.int32)
            return batch | {"ids": tf.ensure_shape(ids, batch["ids"].shape)}

        built = build(self_check._Probe, probed, strategy, **options)
        calls.clear()
        num_errors = 0
        while replicas.optimizer_step(built) < 20:
            try:
                built.make_steps(replicas.distribute(strategy, make_batches), 20)
            except tf.errors.OpError:
                num_errors += 1
                # The batches of the steps before were used, and no other one.
                assert replicas.optimizer_step(built) == 12
        return num_errors, built.variables + built.optimizer.variables

    num_errors, interrupted = learn(failing_read=12 * num_replicas + 1)
    _, whole = learn(failing_read=0)
    assert num_errors == 1
    expected = values_of(whole)
    assert len(expected) > 15
    for path, value in values_of(interrupted).items():
        np.testing.assert_array_equal(value, expected[path], err_msg=path)


@pytest.mark.slow
def test_a_slow_input_is_seen(batches, one_device):
    """`input_wait` is the time that a step spent on waiting for its batch."""
    # Not the first step: tracing it took longer than making its batch.
    _, logs = trained(batches, CPU, num_steps=3, delay=1.0)
    assert logs["input_wait"] > one_device[1]["input_wait"]


@pytest.fixture
def iterators(monkeypatch):
    """All iterators over batches that are made: resource and autotuner or none."""
    made = []

    def record(kind, resource):
        create = kind.__init__

        def create_and_record(self, dataset=None, *args, **kwargs):
            create(self, dataset, *args, **kwargs)
            # What Keras counts steps with has no features, and nothing to hold.
            if dataset is not None and isinstance(dataset.element_spec, dict):
                is_tuned = dataset.options().autotune.enabled is not False
                made.append((weakref.ref(getattr(self, resource)), is_tuned))

        monkeypatch.setattr(kind, "__init__", create_and_record)

    record(iterator_ops.OwnedIterator, "_iterator_resource")
    record(
        multi_device_iterator_ops.OwnedMultiDeviceIterator,
        "_multi_device_iterator_resource",
    )
    gc.collect()
    gc.disable()
    yield made
    gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize(("num_replicas", "num_iterators"), [(1, 4), (2, 12)])
def test_fit_ends_its_iterators_itself_and_soon(
    batches, iterators, num_replicas, num_iterators
):
    """An iterator that is left to the garbage collector holds its threads and buffers,
    and one with an autotuner may take a minute to end."""

    def distributed():
        def rows(index, num_workers, num_replicas):
            inputs = types.SimpleNamespace(
                lengths=np.full(64, LENGTH),
                batch=lambda rows: {
                    name: values[rows]
                    for name, values in batches.items()
                    if name != "dropout_seeds"
                },
            )
            return learning.Batches(
                inputs=inputs, batch_size=8, by_length=False, seed=3
            ).stream()

        return replicas.distribute(strategy, rows)

    strategy = mirrored(num_replicas) if num_replicas > 1 else CPU
    built, _ = trained(batches, strategy, num_steps=1)
    iterators.clear()
    stream = replicas.Stream(distributed())
    for last_step in (2, 4, 6):
        built.make_steps(stream, last_step)
        built.evaluate_round((distributed(), 2))
    stream.close()
    # One to train on and one for each evaluation; for two devices, one of each besides.
    found = [(resource(), is_tuned) for resource, is_tuned in iterators]
    assert found == [(None, False)] * num_iterators


def test_where_and_how_it_trains():
    for strategy, dtype, options, expected in (
        (
            *(mirrored(2), "mixed_bfloat16", {"num_parts": 4, "compile_step": True}),
            "2 CPUs (MirroredStrategy), 8 examples each, in 4 parts; mixed_bfloat16, "
            "with XLA",
        ),
        (
            *(CPU, "float32", {}),
            "1 CPU (OneDeviceStrategy), 16 examples each; float32, without XLA",
        ),
    ):
        with strategy.scope():
            network = pretrainer.BertPretrainer(BERT_CONFIG, dtype=dtype)
            made = learner.Learner(network, max_grad_norm=None, **options)
        assert made.describe(16) == f"training on {expected}"

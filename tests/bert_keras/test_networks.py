"""The network of every task; those of tokens, spans and endings in particular."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import config, learner, networks, optimization, replicas
from bert_keras.checkpoints import run_directory, weights

HERE = Path(__file__).parent
CONFIG = config.BertConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=32,
)
TASKS = {
    "tagging": run_directory.Task(kind="tagging", labels=("O", "B", "I")),
    "span": run_directory.Task(kind="span"),
    "choice": run_directory.Task(kind="choice"),
}
NUM_ENDINGS = 2


@pytest.fixture(scope="module")
def built(randomize):
    """The networks of `TASKS` by their kind, with random weights and dropout."""
    made = {}
    for kind, task in TASKS.items():
        made[kind] = networks.build(CONFIG, task, dropout_prob=0.1, seed=1)
        randomize(made[kind])
    return made


@pytest.fixture(scope="module")
def batches(make_batch):
    """Labelled batches by kind of task: 4 examples, of tokens that differ in number."""
    random = np.random.default_rng(3)
    made = {}
    for kind in TASKS:
        lengths = (16, 11, 5, 16)
        if kind == "choice":
            lengths = (*lengths, 7, 16, 9, 8)
        full = make_batch(CONFIG, lengths=lengths)
        made[kind] = {
            name: full[name] for name in ("input_ids", "input_mask", "segment_ids")
        }
        made[kind]["dropout_seeds"] = np.arange(4, dtype="int32")
    mask = made["tagging"]["input_mask"]
    labels = random.integers(0, 3, mask.shape)
    # The third example has no token that counts.
    counted = (random.random(mask.shape) < 0.7) & (np.arange(4) != 2)[:, None]
    made["tagging"]["label_ids"] = np.int32(np.where(mask * counted, labels, -1))
    for name, values in (("start", [1, 4, 0, 9]), ("end", [3, 4, 0, 15])):
        made["span"][f"{name}_positions"] = np.int32(values)
    for name in ("input_ids", "input_mask", "segment_ids"):
        made["choice"][name] = made["choice"][name].reshape(4, NUM_ENDINGS, -1)
    made["choice"]["label_ids"] = np.int32([1, 0, 0, 1])
    return made


@pytest.mark.parametrize(
    "task",
    [
        *TASKS.values(),
        run_directory.Task(kind="pretraining"),
        run_directory.Task(kind="encoder"),
        run_directory.Task(kind="classification", labels=("a", "b", "c", "d")),
        run_directory.Task(kind="regression"),
    ],
    ids=lambda task: task.kind,
)
def test_every_task_has_a_network_with_the_weights_that_are_agreed_on(task):
    arrays = weights.from_network(networks.build(CONFIG, task))
    num_labels = {"tagging": 3, "span": 2, "classification": 4}.get(task.kind, 1)
    heads = {
        "pretraining": ("encoder/", "masked_lm_head/", "next_sentence_head/"),
        "encoder": ("encoder/",),
    }
    expected = {
        name: shape
        for name, shape in weights.all_shapes(CONFIG, num_labels=num_labels).items()
        if name.startswith(heads.get(task.kind, ("encoder/", "head/")))
    }
    assert {name: array.shape for name, array in arrays.items()} == expected


def test_the_seed_alone_decides_the_weights():
    first, same, other = (
        weights.from_network(networks.build(CONFIG, TASKS["choice"], seed=seed))
        for seed in (3, 3, 4)
    )
    name = "head/classifier/kernel"
    np.testing.assert_array_equal(first[name], same[name])
    assert (first[name] != other[name]).all()


# === Equality with implementations that we did not write ===


def hugging_face_network(kind, network):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = HERE / "test_encoder_parity.py"
    spec = importlib.util.spec_from_file_location("encoder_parity", path)
    encoder_parity = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(encoder_parity)
    made, head = {
        "tagging": (transformers.BertForTokenClassification, "classifier"),
        "span": (transformers.BertForQuestionAnswering, "qa_outputs"),
        "choice": (transformers.BertForMultipleChoice, "classifier"),
    }[kind]
    values = CONFIG.model_dump() | {"num_labels": TASKS[kind].num_labels}
    reference = made(transformers.BertConfig(**values)).eval()
    ours = {v.path.partition("/")[2]: v.numpy() for v in network.trainable_variables}
    state = {
        name.replace("head.classifier", head): torch.tensor(value)
        for name, value in encoder_parity.hugging_face_weights(ours).items()
    }
    reference.load_state_dict(state)
    return reference


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TASKS)
def test_outputs_and_loss_equal_hugging_face(kind, built, batches):
    torch = pytest.importorskip("torch")
    network, batch = built[kind], batches[kind]
    reference = hugging_face_network(kind, network)
    labels = {
        "tagging": {"labels": "label_ids"},
        "choice": {"labels": "label_ids"},
        "span": {n: n for n in ("start_positions", "end_positions")},
    }[kind]
    targets = {
        theirs: torch.tensor(np.where(batch[ours] < 0, -100, batch[ours]))
        for theirs, ours in labels.items()
    }
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(batch["input_ids"]).long(),
            attention_mask=torch.tensor(batch["input_mask"]),
            token_type_ids=torch.tensor(batch["segment_ids"]).long(),
            **{name: values.long() for name, values in targets.items()},
        )
    outputs = network(batch)
    assert set(outputs) == {name for name in expected if name.endswith("logits")}
    for name, values in outputs.items():
        assert np.std(values) > 0.1
        np.testing.assert_allclose(values, expected[name], atol=1e-5, err_msg=name)
    total, weight = network.loss_terms(batch, outputs)["loss"]
    assert float(total / weight) == pytest.approx(expected.loss.item(), rel=1e-5)


def gradients_of(network, batch):
    with tf.GradientTape() as tape:
        outputs = network(batch, training=True)
        terms = network.loss_terms(batch, outputs)
        loss = terms["loss"][0] / terms["loss"][1]
    return outputs, terms, tape.gradient(loss, network.trainable_variables)


@pytest.mark.slow
def test_jax_gives_the_same_with_dropout(tmp_path, built, batches):
    pytest.importorskip("jax")
    arrays = {
        "config": np.array(CONFIG.model_dump_json()),
        "tasks": np.array(json.dumps([t.model_dump() for t in TASKS.values()])),
    }
    expected = {}
    for kind, network in built.items():
        named = weights.from_network(network).items()
        arrays |= {f"{kind}/weights/{name}": value for name, value in named}
        arrays |= {f"{kind}/features/{n}": value for n, value in batches[kind].items()}
        outputs, terms, gradients = gradients_of(network, batches[kind])
        expected |= {f"{kind}/{name}": value for name, value in outputs.items()}
        expected |= {f"{kind}/terms/{n}": np.array(pair) for n, pair in terms.items()}
        for variable, gradient in zip(
            network.trainable_variables, gradients, strict=True
        ):
            path = variable.path.partition("/")[2]
            # Keras' optimizers are wrong for another kind: see `operations.take_rows`.
            assert isinstance(gradient, tf.Tensor), path
            expected[f"{kind}/gradients/{path}"] = gradient
    np.savez(tmp_path / "input.npz", **arrays)
    subprocess.run(
        [
            *(sys.executable, HERE / "jax_networks.py"),
            *(tmp_path / "input.npz", tmp_path / "output.npz"),
        ],
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(HERE.parents[1]),
        },
        check=True,
    )
    on_jax = dict(np.load(tmp_path / "output.npz", allow_pickle=False))
    assert on_jax.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            on_jax[name], value, rtol=1e-5, atol=1e-5, err_msg=name
        )


# === What a network promises on its own ===


@pytest.mark.parametrize("kind", TASKS)
def test_an_example_has_its_dropout_wherever_it_stands(kind, built, batches):
    network, batch = built[kind], batches[kind]
    whole = network(batch, training=True)
    plain = network(batch)
    order = np.array([2, 0, 3])
    some = network({n: values[order] for n, values in batch.items()}, training=True)
    for name, values in whole.items():
        values = np.array(values)
        assert np.abs(values - plain[name]).max() > 0.1
        np.testing.assert_allclose(some[name], values[order], atol=1e-5)


@pytest.mark.parametrize("kind", TASKS)
def test_dropout_without_seeds_differs_from_call_to_call(kind, built, batches):
    batch = {n: v for n, v in batches[kind].items() if n != "dropout_seeds"}
    one, another = (built[kind](batch, training=True) for _ in range(2))
    for name, values in one.items():
        assert np.abs(np.array(values) - np.array(another[name])).max() > 0.1


@pytest.mark.parametrize("kind", ["tagging", "span"])
def test_the_unused_pooler_is_not_trained_and_not_decayed(kind, built):
    paths = {v.path.partition("/")[2] for v in built[kind].trainable_variables}
    assert "head/classifier/kernel" in paths
    assert not any(path.startswith("encoder/pooler") for path in paths)


def trained(kind, batch, *, num_replicas, num_steps):
    """A learner after some steps on one batch, traced for batches of any shape."""
    strategy = tf.distribute.MirroredStrategy(
        [f"/cpu:{index}" for index in range(num_replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    settings = config.OptimizerConfig(learning_rate=0.02, warmup_steps=1)
    made = learner.build_learner(
        lambda: networks.build(CONFIG, TASKS[kind], dropout_prob=0.1, seed=1),
        {name: values[:1] for name, values in batch.items()},
        optimizer=lambda: optimization.build_optimizer(settings, num_train_steps=100),
        strategy=strategy,
        max_grad_norm=1.0,
    )
    signature = {
        name: tf.TensorSpec([None] * values.ndim, values.dtype)
        for name, values in batch.items()
    }

    def make_batches(index, num_workers, num_replicas):
        def parts():
            while True:
                for rows in np.split(np.arange(4), num_replicas):
                    yield {name: values[rows] for name, values in batch.items()}

        return tf.data.Dataset.from_generator(parts, output_signature=signature)

    logs = learner.fit(
        made,
        replicas.distribute(strategy, make_batches),
        last_step=num_steps,
        steps_per_epoch=num_steps,
        evaluation=None,
        run_callbacks=[],
    )
    return made.network, logs


@pytest.mark.parametrize("kind", TASKS)
def test_learns_a_batch_by_heart(kind, batches):
    # The same dropout in every step, so that this can be learnt, too.
    _, logs = trained(kind, batches[kind], num_replicas=1, num_steps=40)
    assert logs["loss"] < 0.05
    accuracies = {name: x for name, x in logs.items() if name.endswith("accuracy")}
    assert accuracies and set(accuracies.values()) == {1.0}
    assert logs["skipped_steps"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASKS)
def test_two_replicas_do_as_one(kind, batches):
    # Not the weights: a bias that a softmax does not feel moves with the last bits.
    one, two = (
        trained(kind, batches[kind], num_replicas=n, num_steps=4)[1] for n in (1, 2)
    )
    for name in one.keys() - {"input_wait"}:
        assert two[name] == pytest.approx(one[name], rel=1e-4), name

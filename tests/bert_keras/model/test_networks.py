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

from bert_keras.checkpoints import native, weights
from bert_keras.core.settings import config
from bert_keras.data import features, tokenization
from bert_keras.kinds import registry
from bert_keras.training.step import fit, learner, optimization, replicas
from tests import conftest

HERE = Path(__file__).parent
CONFIG = conftest.TINY
PLAIN_TASKS = {
    "tagging": config.Task(kind="tagging", labels=("O", "B", "I")),
    "span": config.Task(kind="span"),
    "choice": config.Task(kind="choice"),
}
BILSTM_TASKS = {
    "classification bilstm": config.Task(
        kind="classification", labels=("a", "b", "c"), bilstm_units=5
    ),
    **{
        f"{kind} bilstm": task.model_copy(update={"bilstm_units": 5})
        for kind, task in PLAIN_TASKS.items()
    },
}
TASKS = PLAIN_TASKS | BILSTM_TASKS
NUM_ENDINGS = 2


@pytest.fixture(scope="module")
def built(randomize):
    """The networks of `TASKS` by their names, with random weights and dropout."""
    made = {}
    for name, task in TASKS.items():
        made[name] = registry.build_network(CONFIG, task, dropout_prob=0.1, seed=1)
        randomize(made[name])
    return made


@pytest.fixture(scope="module")
def batches(make_batch):
    """Labelled batches by name of task: 4 examples, of tokens that differ in number."""
    random = np.random.default_rng(3)
    made = {}
    for kind in ("classification", *PLAIN_TASKS):
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
    made["classification"]["label_ids"] = np.int32([2, 0, 1, 0])
    return {name: made[task.kind] for name, task in TASKS.items()}


@pytest.mark.parametrize(
    "task",
    [
        *PLAIN_TASKS.values(),
        config.Task(kind="pretraining"),
        config.Task(kind="encoder"),
        config.Task(kind="classification", labels=("a", "b", "c", "d")),
        config.Task(kind="regression"),
    ],
    ids=lambda task: task.kind,
)
def test_every_task_has_a_network_with_the_weights_that_are_agreed_on(task):
    arrays = weights.from_network(registry.build_network(CONFIG, task))
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


@pytest.mark.parametrize("name", BILSTM_TASKS)
def test_a_bilstm_adds_its_weights_to_the_head(name):
    task = BILSTM_TASKS[name]
    arrays = weights.from_network(registry.build_network(CONFIG, task))
    head = {
        key.removeprefix("head/"): array.shape
        for key, array in arrays.items()
        if key.startswith("head/")
    }
    direction = {"kernel": (16, 20), "recurrent_kernel": (5, 20), "bias": (20,)}
    assert head == {
        **{f"bilstm/forward/cell/{key}": shape for key, shape in direction.items()},
        **{f"bilstm/backward/cell/{key}": shape for key, shape in direction.items()},
        "classifier/kernel": (10, task.num_labels),
        "classifier/bias": (task.num_labels,),
    }


def test_a_run_directory_keeps_a_bilstm(tmp_path, built):
    task, network = BILSTM_TASKS["span bilstm"], built["span bilstm"]
    tokens = [*features.SPECIAL_TOKENS, *(f"t{i}" for i in range(35))]
    checkpoint = weights.Checkpoint(
        bert_config=CONFIG,
        task=task,
        arrays=weights.from_network(network),
        vocabulary=tokenization.Vocabulary(tuple(tokens)),
        do_lower_case=True,
    )
    assert native.write(checkpoint, tmp_path) == {}
    found = native.read(tmp_path)
    assert found.task == task
    assert found.arrays.keys() == checkpoint.arrays.keys()
    for name, array in checkpoint.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)


def test_the_seed_alone_decides_the_weights():
    first, same, other = (
        weights.from_network(registry.build_network(CONFIG, TASKS["choice"], seed=seed))
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
@pytest.mark.parametrize("kind", PLAIN_TASKS)
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


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BILSTM_TASKS)
def test_a_bilstm_head_equals_pytorchs_parts(name, built, batches):
    """On our encoder's output, whose equality others show."""
    torch = pytest.importorskip("torch")
    network, batch = built[name], batches[name]
    ids = batch["input_ids"]
    texts = {
        key: batch[key].reshape(-1, ids.shape[-1])
        for key in ("input_ids", "input_mask", "segment_ids")
    }
    encoded = network.encoder(texts)["sequence_output"]
    head = {
        key.removeprefix("head/"): torch.tensor(array)
        for key, array in weights.from_network(network).items()
        if key.startswith("head/")
    }
    lstm = torch.nn.LSTM(16, 5, bidirectional=True, batch_first=True)
    state = {}
    for suffix, direction in (("", "forward"), ("_reverse", "backward")):
        cell = f"bilstm/{direction}/cell"
        state[f"weight_ih_l0{suffix}"] = head[f"{cell}/kernel"].T
        state[f"weight_hh_l0{suffix}"] = head[f"{cell}/recurrent_kernel"].T
        state[f"bias_ih_l0{suffix}"] = head[f"{cell}/bias"]
        state[f"bias_hh_l0{suffix}"] = torch.zeros(20)
    lstm.load_state_dict(state)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.tensor(np.array(encoded)),
        torch.tensor(texts["input_mask"].sum(axis=1)),
        batch_first=True,
        enforce_sorted=False,
    )
    with torch.no_grad():
        packed, (last, _) = lstm(packed)
        read, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
        if TASKS[name].kind in ("classification", "choice"):
            read = torch.cat(list(last), dim=-1)
        logits = read @ head["classifier/kernel"] + head["classifier/bias"]
    logits = logits.numpy()
    outputs = {key: np.array(value) for key, value in network(batch).items()}
    if TASKS[name].kind == "span":
        expected = {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    elif TASKS[name].kind == "choice":
        expected = {"logits": logits.reshape(4, NUM_ENDINGS)}
    else:
        expected = {"logits": logits}
    assert outputs.keys() == expected.keys()
    for key, values in outputs.items():
        if values.shape == ids.shape or values.ndim == 3:
            is_token = batch["input_mask"] > 0
            values, expected[key] = values[is_token], expected[key][is_token]
        assert np.std(values) > 0.05
        np.testing.assert_allclose(values, expected[key], atol=1e-5, err_msg=key)


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
        "tasks": np.array(json.dumps({n: t.model_dump() for n, t in TASKS.items()})),
    }
    expected = {}
    for task, network in built.items():
        named = weights.from_network(network).items()
        arrays |= {f"{task}/weights/{name}": value for name, value in named}
        arrays |= {f"{task}/features/{n}": value for n, value in batches[task].items()}
        outputs, terms, gradients = gradients_of(network, batches[task])
        expected |= {f"{task}/{name}": value for name, value in outputs.items()}
        expected |= {f"{task}/terms/{n}": np.array(pair) for n, pair in terms.items()}
        for variable, gradient in zip(
            network.trainable_variables, gradients, strict=True
        ):
            path = variable.path.partition("/")[2]
            # Keras' optimizers are wrong for another kind: see `operations.take_rows`.
            assert isinstance(gradient, tf.Tensor), path
            expected[f"{task}/gradients/{path}"] = gradient
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
            "PYTHONPATH": str(HERE.parents[2]),
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


@pytest.mark.parametrize("name", TASKS)
def test_an_example_has_its_dropout_wherever_it_stands(name, built, batches):
    network, batch = built[name], batches[name]
    whole = network(batch, training=True)
    plain = network(batch)
    order = np.array([2, 0, 3])
    some = network({n: values[order] for n, values in batch.items()}, training=True)
    for key, values in whole.items():
        values = np.array(values)
        assert np.abs(values - plain[key]).max() > 0.1
        np.testing.assert_allclose(some[key], values[order], atol=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_padding_changes_no_answer(name, built, batches):
    network, batch = built[name], batches[name]
    mask = batch["input_mask"]
    longer = {}
    for key in ("input_ids", "input_mask", "segment_ids"):
        widths = [(0, 0)] * (mask.ndim - 1) + [(0, 5)]
        longer[key] = np.pad(batch[key], widths)
    longer["input_ids"] = np.where(longer["input_mask"] > 0, longer["input_ids"], 9)
    for key, values in network(batch).items():
        values, padded = np.array(values), np.array(network(longer)[key])
        if values.shape != padded.shape:
            values, padded = values[mask > 0], padded[longer["input_mask"] > 0]
        np.testing.assert_allclose(padded, values, atol=1e-5)


@pytest.mark.parametrize("name", BILSTM_TASKS)
def test_a_bilstm_in_mixed_precision_stays_near(name, built, batches):
    mixed = registry.build_network(CONFIG, TASKS[name], dtype="mixed_bfloat16")
    arrays = weights.from_network(built[name])
    # Of the size that weights have, so that attention is not all or nothing.
    for network in (mixed, built[name]):
        weights.assign(network, {key: 0.3 * value for key, value in arrays.items()})
    for key, values in built[name](batches[name]).items():
        found = mixed(batches[name])[key]
        assert found.dtype == "float32"
        np.testing.assert_allclose(found, values, atol=0.02)
    weights.assign(built[name], arrays)


@pytest.mark.parametrize("name", TASKS)
def test_dropout_without_seeds_differs_from_call_to_call(name, built, batches):
    batch = {n: v for n, v in batches[name].items() if n != "dropout_seeds"}
    one, another = (built[name](batch, training=True) for _ in range(2))
    for key, values in one.items():
        assert np.abs(np.array(values) - np.array(another[key])).max() > 0.1


@pytest.mark.parametrize("name", ["tagging", "span", *BILSTM_TASKS])
def test_the_unused_pooler_is_not_trained_and_not_decayed(name, built):
    paths = {v.path.partition("/")[2] for v in built[name].trainable_variables}
    assert "head/classifier/kernel" in paths
    assert not any(path.startswith("encoder/pooler") for path in paths)


def trained(name, batch, *, num_replicas, num_steps):
    """A learner after some steps on one batch, traced for batches of any shape."""
    strategy = tf.distribute.MirroredStrategy(
        [f"/cpu:{index}" for index in range(num_replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    settings = config.OptimizerConfig(learning_rate=0.02, warmup_steps=1)
    made = learner.build_learner(
        lambda: registry.build_network(CONFIG, TASKS[name], dropout_prob=0.1, seed=1),
        {key: values[:1] for key, values in batch.items()},
        optimizer=lambda: optimization.build_optimizer(settings, num_train_steps=100),
        strategy=strategy,
        max_grad_norm=1.0,
    )
    signature = {
        key: tf.TensorSpec([None] * values.ndim, values.dtype)
        for key, values in batch.items()
    }

    def make_batches(index, num_workers, num_replicas):
        def parts():
            while True:
                for rows in np.split(np.arange(4), num_replicas):
                    yield {key: values[rows] for key, values in batch.items()}

        return tf.data.Dataset.from_generator(parts, output_signature=signature)

    logs = fit.fit(
        made,
        replicas.distribute(strategy, make_batches),
        replicas.Schedule(num_steps),
    )
    return made.network, logs


@pytest.mark.parametrize(
    "name",
    [
        # An LSTM's steps, backward too, take a minute to trace and run. Tuning learns
        # the other forms in `training/test_finetune_tasks.py`.
        pytest.param(name, marks=() if name == "tagging" else pytest.mark.slow)
        for name in TASKS
    ],
)
@pytest.mark.slow
def test_learns_a_batch_by_heart(name, batches):
    # The same dropout in every step, so that this can be learnt, too.
    _, logs = trained(name, batches[name], num_replicas=1, num_steps=60)
    assert logs["loss"] < 0.05
    accuracies = {key: x for key, x in logs.items() if key.endswith("accuracy")}
    assert accuracies and set(accuracies.values()) == {1.0}
    assert logs["skipped_steps"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_two_replicas_do_as_one(name, batches):
    # Not the weights: a bias that a softmax does not feel moves with the last bits.
    one, two = (
        trained(name, batches[name], num_replicas=n, num_steps=4)[1] for n in (1, 2)
    )
    for key in one.keys() - {"input_wait"}:
        assert two[key] == pytest.approx(one[key], rel=1e-4), key

"""The network of every task; those of tokens, spans and endings in particular.

`checkpoints/formats/test_hugging_face.py` compares all outputs with transformers.
"""

import functools

import numpy as np
import pytest

from bert_keras.checkpoints import weights
from bert_keras.core.settings import tasks
from bert_keras.kinds import registry
from bert_keras.kinds.text import network as text_network
from bert_keras.model import flops, weight_shapes
from tests import conftest

CONFIG = conftest.TINY
PLAIN_TASKS = {
    "tagging": tasks.Task(kind="tagging", labels=("O", "B", "I")),
    "span": tasks.Task(kind="span"),
    "choice": tasks.Task(kind="choice"),
}
BILSTM = {"bilstm_units": 5}
BILSTM_TASKS = {
    "classification bilstm": tasks.Task(
        kind="classification", labels=("a", "b", "c"), **BILSTM
    ),
    **{f"{k} bilstm": t.model_copy(update=BILSTM) for k, t in PLAIN_TASKS.items()},
}
TASKS = PLAIN_TASKS | BILSTM_TASKS
SLOW = [name for name in BILSTM_TASKS if name != "span bilstm"]
FEW = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in TASKS
]
"""An LSTM's steps take long, outside of graphs too: one kind of them is enough."""
INPUTS = ("input_ids", "input_mask", "segment_ids")
NUM_ENDINGS = 2


@pytest.fixture(scope="module")
def built(randomize):
    """Makes a network of `TASKS` once, with random weights and dropout."""

    @functools.cache
    def build(name):
        network = registry.build_network(CONFIG, TASKS[name], dropout_prob=0.1, seed=1)
        randomize(network)
        return network

    return build


@pytest.fixture(scope="module")
def batches(make_batch):
    """Labelled batches by name of task: 4 examples, of tokens that differ in number."""
    random = np.random.default_rng(3)
    made = {}
    for kind in ("classification", *PLAIN_TASKS):
        lengths = (16, 11, 5, 16, *((7, 16, 9, 8) if kind == "choice" else ()))
        full = make_batch(CONFIG, lengths=lengths)
        made[kind] = {name: full[name] for name in INPUTS}
        made[kind]["dropout_seeds"] = np.arange(4, dtype="int32")
    mask = made["tagging"]["input_mask"]
    labels = random.integers(0, 3, mask.shape)
    # The third example has no token that counts.
    counted = (random.random(mask.shape) < 0.7) & (np.arange(4) != 2)[:, None]
    made["tagging"]["label_ids"] = np.int32(np.where(mask * counted, labels, -1))
    for name, values in (("start", [1, 4, 0, 9]), ("end", [3, 4, 0, 15])):
        made["span"][f"{name}_positions"] = np.int32(values)
    for name in INPUTS:
        made["choice"][name] = made["choice"][name].reshape(4, NUM_ENDINGS, -1)
    made["choice"]["label_ids"] = np.int32([1, 0, 0, 1])
    made["classification"]["label_ids"] = np.int32([2, 0, 1, 0])
    return {name: made[task.kind] for name, task in TASKS.items()}


@pytest.mark.parametrize(
    "task",
    [
        *PLAIN_TASKS.values(),
        tasks.Task(kind="pretraining"),
        tasks.Task(kind="encoder"),
        tasks.Task(kind="classification", labels=("a", "b", "c", "d")),
        tasks.Task(kind="regression"),
        BILSTM_TASKS["span bilstm"],
    ],
    ids=lambda task: task.kind,
)
def test_every_task_has_a_network_with_the_weights_that_are_agreed_on(task):
    arrays = weights.from_network(registry.build_network(CONFIG, task))
    num_labels = {"tagging": 3, "span": 2, "classification": 4}.get(task.kind, 1)
    assert task.num_labels == num_labels
    heads = {
        "pretraining": ("encoder/", "masked_lm_head/", "next_sentence_head/"),
        "encoder": ("encoder/",),
    }
    expected = {
        name: shape
        for name, shape in weight_shapes.all_shapes(CONFIG, task).items()
        if name.startswith(heads.get(task.kind, ("encoder/", "head/")))
    }
    assert {name: array.shape for name, array in arrays.items()} == expected
    if task.kind in ("pretraining", "encoder"):
        num_weights = flops.num_weights(CONFIG, heads=task.kind == "pretraining")
        assert num_weights == sum(array.size for array in arrays.values())


@pytest.mark.parametrize("name", FEW[len(PLAIN_TASKS) :])
def test_a_head_scores_what_its_bilstm_reads(name, built, batches):
    """`test_bilstm.py` compares the BiLSTM with PyTorch's."""
    network, batch = built(name), batches[name]
    texts = {key: batch[key].reshape(-1, batch[key].shape[-1]) for key in INPUTS}
    states = network.encoder(texts)["sequence_output"]
    states = np.array(network.head.bilstms[0](states, texts["input_mask"]))
    kind = TASKS[name].kind
    assert states.ndim == (2 if kind in ("classification", "choice") else 3)
    kernel, bias = network.head.classifier.get_weights()
    logits = states @ kernel + bias
    expected = {"logits": logits}
    if kind == "span":
        expected = {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    elif kind == "choice":
        expected = {"logits": logits.reshape(4, NUM_ENDINGS)}
    outputs = network(batch)
    assert outputs.keys() == expected.keys()
    for key, values in outputs.items():
        np.testing.assert_allclose(values, expected[key], atol=1e-5, err_msg=key)


# === What a network promises on its own ===


@pytest.mark.parametrize("name", FEW)
def test_an_example_has_its_dropout_wherever_it_stands(name, built, batches):
    network, batch = built(name), batches[name]
    whole, plain = network(batch, training=True), network(batch)
    rows = np.array([2, 0, 3])
    some = network({n: values[rows] for n, values in batch.items()}, training=True)
    unseeded = {n: v for n, v in batch.items() if n != "dropout_seeds"}
    other = network(unseeded, training=True)
    for key, values in whole.items():
        values = np.array(values)
        np.testing.assert_allclose(some[key], values[rows], atol=1e-5)
        for changed in (plain[key], other[key]):
            assert np.abs(values - changed).max() > 0.1


@pytest.mark.parametrize("name", FEW)
def test_padding_changes_no_answer(name, built, batches):
    network, batch = built(name), batches[name]
    mask = batch["input_mask"]
    widths = [(0, 0)] * (mask.ndim - 1) + [(0, 5)]
    longer = {key: np.pad(batch[key], widths) for key in INPUTS}
    longer["input_ids"] = np.where(longer["input_mask"] > 0, longer["input_ids"], 9)
    answers, with_padding = network(batch), network(longer)
    for key, values in answers.items():
        values, padded = np.array(values), np.array(with_padding[key])
        if values.shape != padded.shape:
            values, padded = values[mask > 0], padded[longer["input_mask"] > 0]
        np.testing.assert_allclose(padded, values, atol=1e-5)


@pytest.mark.parametrize("name", ["tagging", "span", "classification bilstm"])
def test_the_unused_pooler_is_not_trained_and_not_decayed(name, built):
    paths = {v.path.partition("/")[2] for v in built(name).trainable_variables}
    assert "head/classifier/kernel" in paths
    assert not any(path.startswith("encoder/pooler") for path in paths)


def test_left_to_right_the_last_token_is_read(make_batch, randomize):
    """The first one has seen nothing of the text."""
    left_to_right = CONFIG.model_copy(update={"attention": "left_to_right"})
    model = text_network.BertClassifier(left_to_right, 3, dropout_prob=0.1)
    model.build()
    batch = {name: make_batch(CONFIG)[name] for name in INPUTS}
    randomize(model)
    states = np.array(model.encoder(batch)["sequence_output"])
    lengths = batch["input_mask"].sum(axis=1)
    assert len(set(lengths)) > 1
    last = states[np.arange(len(lengths)), lengths - 1]
    pooled = np.tanh(last @ model.encoder.pooler.kernel + model.encoder.pooler.bias)
    kernel, bias = (w.numpy() for w in model.head.trainable_weights)
    logits = np.array(model(batch)["logits"])
    np.testing.assert_allclose(logits, pooled @ kernel + bias, atol=1e-5)
    changed = batch | {"input_ids": batch["input_ids"].copy()}
    changed["input_ids"][:, 1] = 1 + changed["input_ids"][:, 1] % 30
    assert (np.abs(model(changed)["logits"] - logits).max(axis=1) > 1e-3).all()

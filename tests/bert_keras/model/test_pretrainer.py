import math
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.model import pretrainer
from tests.bert_keras.model import test_dropout

JAX_SCRIPT = Path(__file__).with_name("jax_outputs.py")
REPOSITORY = Path(__file__).resolve().parents[3]


# === The whole model once more, in NumPy and float64, from the paper ===


def normalized(x, weights, name):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt(variance + 1e-12)
    return scaled * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def linear(x, weights, name):
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(x):
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def transformed(x, mask, weights, name, num_heads):
    """One layer, for one sequence: `(length, hidden_size)`, head after head."""
    fused = linear(x, weights, f"{name}/self_attention/query_key_value")
    contexts = []
    for query, key, value in zip(
        *(np.split(part, num_heads, axis=-1) for part in np.split(fused, 3, axis=-1)),
        strict=True,
    ):
        scores = query @ key.T / math.sqrt(query.shape[-1])
        contexts.append(softmax(np.where(mask > 0, scores, -np.inf)) @ value)
    context = np.concatenate(contexts, axis=-1)
    attention = linear(context, weights, f"{name}/self_attention/output_dense")
    x = normalized(x + attention, weights, f"{name}/attention_layer_norm")
    inner = gelu(linear(x, weights, f"{name}/feed_forward/intermediate_dense"))
    output = linear(inner, weights, f"{name}/feed_forward/output_dense")
    return normalized(x + output, weights, f"{name}/output_layer_norm")


def encoded(ids, mask, segments, weights, config):
    tables = [
        weights[f"encoder/embeddings/{kind}_embeddings"]
        for kind in ("word", "position", "type")
    ]
    x = tables[0][ids] + tables[1][: len(ids)] + tables[2][segments]
    x = normalized(x, weights, "encoder/embeddings/layer_norm")
    for index in range(config.num_hidden_layers):
        name = f"encoder/layer_{index}"
        x = transformed(x, mask, weights, name, config.num_attention_heads)
    return x, np.tanh(linear(x[0], weights, "encoder/pooler"))


def numpy_loss_terms(weights, batch, config):
    """The sums and weights of `loss_terms`, example after example."""
    weights = {path: np.float64(value) for path, value in weights.items()}
    table = weights["encoder/embeddings/word_embeddings"]
    sums = dict.fromkeys(
        ("masked_lm_loss", "next_sentence_loss", "masked_lm_accuracy"), 0.0
    )
    sums["next_sentence_accuracy"] = 0.0
    for row in range(len(batch["input_ids"])):
        x, pooled = encoded(
            batch["input_ids"][row],
            batch["input_mask"][row],
            batch["segment_ids"][row],
            weights,
            config,
        )
        sentence = softmax(linear(pooled, weights, "next_sentence_head/classifier"))
        label = batch["next_sentence_labels"][row, 0]
        sums["next_sentence_loss"] -= math.log(sentence[label])
        sums["next_sentence_accuracy"] += sentence.argmax() == label
        for slot in np.flatnonzero(batch["masked_lm_weights"][row]):
            y = x[batch["masked_lm_positions"][row, slot]]
            y = gelu(linear(y, weights, "masked_lm_head/transform"))
            y = normalized(y, weights, "masked_lm_head/layer_norm")
            words = softmax(y @ table.T + weights["masked_lm_head/output_bias"])
            label = batch["masked_lm_ids"][row, slot]
            sums["masked_lm_loss"] -= math.log(words[label])
            sums["masked_lm_accuracy"] += words.argmax() == label
    predictions = float(batch["masked_lm_weights"].sum())
    return {
        name: (total, predictions if "masked" in name else len(batch["input_ids"]))
        for name, total in sums.items()
    }


# === Tests ===


@pytest.fixture
def model(tiny_config, randomize) -> pretrainer.BertPretrainer:
    model = pretrainer.BertPretrainer(tiny_config, name="pretrainer")
    model.build()
    randomize(model)
    return model


def terms_of(model, batch) -> dict[str, tuple[float, float]]:
    terms = model.loss_terms(batch, model(batch))
    return {name: (float(total), float(n)) for name, (total, n) in terms.items()}


def test_losses_and_accuracies_equal_numpy(
    model, tiny_config, make_batch, weights_by_path
):
    lengths = (16, 11, 5, 16, 13, 9, 16, 4)
    batch = make_batch(tiny_config, lengths=lengths)
    # Some answers that the model gets right, so that the accuracies say something.
    logits = model(batch)["masked_lm_logits"]
    batch["masked_lm_ids"][:4] = np.argmax(logits, axis=-1)[:4]
    terms = terms_of(model, batch)
    expected = numpy_loss_terms(weights_by_path(model), batch, tiny_config)
    assert terms.keys() == expected.keys()
    for name, pair in expected.items():
        assert terms[name] == pytest.approx(pair, rel=1e-5), name
    assert 0 < terms["masked_lm_accuracy"][0] < terms["masked_lm_accuracy"][1]
    assert 0 < terms["next_sentence_accuracy"][0] < terms["next_sentence_accuracy"][1]


def test_gradients_equal_finite_differences_of_numpy(
    model, tiny_config, make_batch, weights_by_path
):
    batch = make_batch(tiny_config)
    with tf.GradientTape() as tape:
        terms = model.loss_terms(batch, model(batch))
        loss = sum(terms[name][0] / terms[name][1] for name in model.loss_names)
    gradients = tape.gradient(loss, model.trainable_variables)
    weights = {k: np.float64(v) for k, v in weights_by_path(model).items()}

    def numpy_loss(path, index, step):
        shifted = weights[path].copy()
        shifted.flat[index] += step
        terms = numpy_loss_terms({**weights, path: shifted}, batch, tiny_config)
        return sum(terms[name][0] / terms[name][1] for name in model.loss_names)

    for path, gradient in zip(weights, gradients, strict=True):
        assert not isinstance(gradient, tf.IndexedSlices), path
        gradient = np.array(gradient)
        index = np.abs(gradient).argmax()
        difference = numpy_loss(path, index, 1e-5) - numpy_loss(path, index, -1e-5)
        assert gradient.flat[index] == pytest.approx(difference / 2e-5, rel=1e-3), path


@pytest.mark.slow
def test_jax_gives_the_same(tmp_path, model, tiny_config, make_batch, weights_by_path):
    pytest.importorskip("jax")
    batch = make_batch(tiny_config)
    arrays = {"config": np.array(tiny_config.model_dump_json())}
    weights = weights_by_path(model)
    arrays |= {f"weights/{path}": value for path, value in weights.items()}
    arrays |= {f"features/{name}": value for name, value in batch.items()}
    arrays["seeds"] = test_dropout.SEEDS
    np.savez(tmp_path / "input.npz", **arrays)
    subprocess.run(
        [sys.executable, JAX_SCRIPT, tmp_path / "input.npz", tmp_path / "output.npz"],
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(REPOSITORY),
        },
        check=True,
    )
    on_jax = dict(np.load(tmp_path / "output.npz", allow_pickle=False))

    with tf.GradientTape() as tape:
        outputs = model(batch)
        terms = model.loss_terms(batch, outputs)
        loss = sum(terms[name][0] / terms[name][1] for name in model.loss_names)
    gradients = tape.gradient(loss, model.trainable_variables)
    outputs |= model.encoder(batch)
    expected = {f"outputs/{name}": value for name, value in outputs.items()}
    expected |= {f"terms/{name}": np.array(pair) for name, pair in terms.items()}
    expected |= {
        f"gradients/{path}": value
        for path, value in zip(weights, gradients, strict=True)
    }
    expected["keep_mask"] = 1 - np.array(test_dropout.LITERAL_MASK)
    none, *ways = on_jax.pop("recomputed")
    for way in ways:
        np.testing.assert_allclose(way, none, rtol=1e-5)
    assert on_jax.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            on_jax[name], value, rtol=1e-5, atol=1e-5, err_msg=name
        )


def test_slots_without_weight_change_nothing(model, tiny_config, make_batch):
    batch = make_batch(tiny_config)
    padding = batch["masked_lm_weights"] == 0
    assert padding.any()
    other = {name: values.copy() for name, values in batch.items()}
    other["masked_lm_ids"][padding] = 9
    other["masked_lm_positions"][padding] = 3
    expected = terms_of(model, batch)
    for name, pair in terms_of(model, other).items():
        assert pair == pytest.approx(expected[name], rel=1e-6), name


def test_a_batch_without_predictions_has_no_masked_lm_loss(
    model, tiny_config, make_batch
):
    batch = make_batch(tiny_config)
    batch["masked_lm_weights"] = np.zeros_like(batch["masked_lm_weights"])
    terms = terms_of(model, batch)
    assert terms["masked_lm_loss"] == (0, 0)
    assert terms["masked_lm_accuracy"] == (0, 0)
    assert terms["next_sentence_loss"][1] == 4


def test_padding_never_changes_the_loss(model, tiny_config, make_batch):
    batch = make_batch(tiny_config)
    longer = {
        name: np.pad(values, ((0, 0), (0, 8))) if name in PER_TOKEN else values
        for name, values in batch.items()
    }
    longer |= {
        name: np.pad(values, ((0, 0), (0, 2))) if name in PER_PREDICTION else values
        for name, values in longer.items()
    }
    assert longer["input_ids"].shape != batch["input_ids"].shape
    expected = terms_of(model, batch)
    for name, pair in terms_of(model, longer).items():
        assert pair == pytest.approx(expected[name], rel=1e-5), name


PER_TOKEN = ("input_ids", "input_mask", "segment_ids")
PER_PREDICTION = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def test_labels_may_be_a_vector_or_a_column(model, tiny_config, make_batch):
    batch = make_batch(tiny_config)
    flat = {**batch, "next_sentence_labels": batch["next_sentence_labels"][:, 0]}
    assert terms_of(model, flat) == terms_of(model, batch)


def test_knowing_nothing_costs_the_logarithm_of_the_choices(tiny_config, make_batch):
    batch = make_batch(tiny_config)
    model = pretrainer.BertPretrainer(tiny_config)
    outputs = {
        "masked_lm_logits": np.zeros((4, 3, 40), "float32"),
        "next_sentence_logits": np.zeros((4, 2), "float32"),
    }
    terms = model.loss_terms(batch, outputs)
    weight = batch["masked_lm_weights"].sum()
    assert float(terms["masked_lm_loss"][0]) == pytest.approx(weight * math.log(40))
    assert float(terms["next_sentence_loss"][0]) == pytest.approx(4 * math.log(2))


def test_mixed_precision_is_near_full_precision(tiny_config, make_batch, randomize):
    batch = make_batch(tiny_config)
    models = [
        pretrainer.BertPretrainer(tiny_config, dtype=policy)
        for policy in ("float32", "mixed_bfloat16")
    ]
    for model in models:
        model.build()
        randomize(model, stddev=0.1)
    full, mixed = (model(batch) for model in models)
    for name, logits in mixed.items():
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        difference = np.abs(np.array(logits) - np.array(full[name]))
        assert 0 < difference.max() < 0.03
    full, mixed = (terms_of(model, batch) for model in models)
    for name, (total, weight) in mixed.items():
        assert weight == full[name][1]
        if name.endswith("loss"):
            assert total == pytest.approx(full[name][0], rel=0.01)


def test_static_and_unknown_shapes_give_the_same(model, tiny_config, make_batch):
    batch = make_batch(tiny_config)
    signature = {
        name: tf.TensorSpec((None, None), values.dtype)
        for name, values in batch.items()
    }
    unknown = tf.function(model, input_signature=[signature])
    compiled = tf.function(model, jit_compile=True)
    for name, expected in model(batch).items():
        for function in (unknown, compiled):
            tensors = {key: tf.constant(values) for key, values in batch.items()}
            outputs = function(tensors)[name]
            np.testing.assert_allclose(outputs, expected, atol=1e-4)

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.model import pretrainer

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
    kinds = ("loss", "accuracy")
    sums = {
        f"{n}_{kind}": 0.0 for n in ("masked_lm", "next_sentence") for kind in kinds
    }
    for row in range(len(batch["input_ids"])):
        inputs = (batch[n][row] for n in ("input_ids", "input_mask", "segment_ids"))
        x, pooled = encoded(*inputs, weights, config)
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


def padded(batch):
    """With more padding, and slots that no prediction has."""
    longer = {}
    for name, values in batch.items():
        more = {"input": 8, "segment": 8, "masked": 2}.get(name.split("_")[0], 0)
        longer[name] = np.pad(values, ((0, 0), (0, more)))
    is_slot = longer["masked_lm_weights"] == 0
    longer["masked_lm_ids"][is_slot] = 9
    longer["masked_lm_positions"][is_slot] = 3
    return longer


def with_a_vector_of_labels(batch):
    return {**batch, "next_sentence_labels": batch["next_sentence_labels"][:, 0]}


@pytest.mark.parametrize("change", [padded, with_a_vector_of_labels])
def test_the_form_of_a_batch_changes_no_term(model, tiny_config, make_batch, change):
    batch = make_batch(tiny_config)
    expected = terms_of(model, batch)
    for name, pair in terms_of(model, change(batch)).items():
        assert pair == pytest.approx(expected[name], rel=1e-5), name


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("recompute", ["none", "attention", "layers"])
def test_without_next_sentence_only_masked_places_are_computed(
    model, tiny_config, make_batch, packed, recompute
):
    """The same logits and gradients as where the last layer computes all places."""
    config = tiny_config.model_copy(update={"hidden_dropout_prob": 0.0})
    networks = [
        pretrainer.BertPretrainer(config, next_sentence=next_sentence, seed=1)
        for next_sentence in (True, False)
    ]
    batch = make_batch(tiny_config)
    batch["dropout_seeds"] = np.arange(4, dtype="int32")
    if packed:
        batch["instance_ids"] = batch.pop("input_mask") * (1 + np.arange(16) // 8)
        batch["dropout_seeds"] = np.arange(8, dtype="int32").reshape(4, 2)
    found = []
    for network in networks:
        network.build()
        network.encoder.recompute = recompute
        for own, given in zip(network.weights, model.weights, strict=True):
            own.assign(given)

        @tf.function
        def step(batch, network=network):
            with tf.GradientTape() as tape:
                outputs = network(batch, training=True)
                loss = tf.reduce_sum(outputs["masked_lm_logits"] ** 2)
            return outputs, tape.gradient(loss, network.encoder.trainable_variables)

        outputs, gradients = step(batch)
        with_gradient = [gradient for gradient in gradients if gradient is not None]
        found.append([outputs["masked_lm_logits"], *with_gradient])
    assert outputs.keys() == {"masked_lm_logits"}
    assert len(with_gradient) == 3 + 2 + 12 * config.num_hidden_layers
    for whole, part in zip(*found, strict=True):
        np.testing.assert_allclose(part, whole, rtol=1e-4, atol=1e-5)


def test_mixed_precision_is_near_full_precision(tiny_config, make_batch, randomize):
    batch = make_batch(tiny_config)
    models = [
        pretrainer.BertPretrainer(tiny_config, dtype=policy)
        for policy in ("float32", "mixed_bfloat16")
    ]
    for model in models:
        model.build()
        randomize(model, stddev=0.1)
    assert {v.dtype for v in models[1].trainable_variables} == {"float32"}
    states = models[1].encoder(batch)["sequence_output"]
    assert keras.backend.standardize_dtype(states.dtype) == "bfloat16"
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


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_unknown_shapes_and_xla_give_the_same(
    model, tiny_config, make_batch, jit_compile
):
    batch = make_batch(tiny_config)
    signature = {
        name: tf.TensorSpec((None, None), values.dtype)
        for name, values in batch.items()
    }
    signature = None if jit_compile else [signature]
    traced = tf.function(model, input_signature=signature, jit_compile=jit_compile)
    outputs = traced({key: tf.constant(values) for key, values in batch.items()})
    for name, expected in model(batch).items():
        np.testing.assert_allclose(outputs[name], expected, atol=1e-4)

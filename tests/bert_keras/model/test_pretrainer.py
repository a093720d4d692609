import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.model import pretrainer


@pytest.fixture
def model(tiny_config, randomize) -> pretrainer.BertPretrainer:
    model = pretrainer.BertPretrainer(tiny_config, name="pretrainer")
    model.build()
    randomize(model)
    return model


def terms_of(model, batch) -> dict[str, tuple[float, float]]:
    terms = model.loss_terms(batch, model(batch))
    return {name: (float(total), float(n)) for name, (total, n) in terms.items()}


def test_losses_and_accuracies_of_the_logits(model, tiny_config, make_batch):
    """`checkpoints/formats/test_hugging_face.py` has the logits of transformers."""
    batch = make_batch(tiny_config, lengths=(16, 11, 5, 16, 13, 9, 16, 4))
    outputs = {name: np.float64(values) for name, values in model(batch).items()}
    # Some answers that the model gets right, so that the accuracies say something.
    batch["masked_lm_ids"][:4] = outputs["masked_lm_logits"].argmax(axis=-1)[:4]
    places = np.nonzero(batch["masked_lm_weights"])
    words = outputs["masked_lm_logits"][places], batch["masked_lm_ids"][places]
    nexts = outputs["next_sentence_logits"], batch["next_sentence_labels"][:, 0]
    expected, weights = {}, {"tokens": sum((16, 11, 5, 16, 13, 9, 16, 4))}
    for name, (logits, labels) in (("masked_lm", words), ("next_sentence", nexts)):
        own = np.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        loss = (np.log(np.exp(logits).sum(axis=-1)) - own).sum()
        num_right, count = (logits.argmax(axis=-1) == labels).sum(), len(labels)
        assert 0 < num_right < count
        expected[f"{name}_loss"] = pytest.approx((loss, count), rel=1e-5)
        expected[f"{name}_accuracy"] = num_right, count
        weights[f"{name}_loss"] = count
    assert terms_of(model, batch) == expected
    assert {n: float(x) for n, x in model.loss_weights(batch).items()} == weights


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

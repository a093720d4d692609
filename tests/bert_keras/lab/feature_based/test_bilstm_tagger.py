import numpy as np
import pytest
import tensorflow as tf

from bert_keras.lab.feature_based import bilstm_tagger

LAYERS, SIZE, UNITS, LABELS = 3, 4, 5, 6
LENGTHS = (7, 4, 1)


@pytest.fixture(scope="module", params=[True, False], ids=["weighted", "concat"])
def network(request, randomize):
    made = bilstm_tagger.LayerProbe(
        LAYERS,
        SIZE,
        LABELS,
        is_weighted=request.param,
        bilstm_units=UNITS,
        dropout_prob=0.2,
        seed=1,
    )
    made.build()
    randomize(made, stddev=0.5)
    return made


@pytest.fixture(scope="module")
def batch():
    random = np.random.default_rng(0)
    mask = np.int32(np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None])
    vectors = np.float32(random.normal(size=(*mask.shape, LAYERS, SIZE)))
    labels = np.where(mask, random.integers(0, LABELS, mask.shape), -1)
    return {
        "vectors": np.where(mask[..., None, None], vectors, np.float32(0)),
        "input_mask": mask,
        "label_ids": np.int32(labels),
        "dropout_seeds": np.arange(3, dtype="int32"),
    }


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_logits_and_loss_equal_pytorchs_parts(network, batch):
    torch = pytest.importorskip("torch")
    vectors = torch.tensor(batch["vectors"])
    if network.mix is None:
        words = vectors.flatten(2)
    else:
        shares = torch.tensor(network.mix.scores.numpy()).softmax(0)
        words = network.mix.scale.numpy() * (vectors * shares[:, None]).sum(2)
    lstm = torch.nn.LSTM(
        words.shape[-1], UNITS, num_layers=2, bidirectional=True, batch_first=True
    )
    state = {}
    for number, layer in enumerate(network.bilstms):
        for suffix, direction in zip(("", "_reverse"), layer.directions, strict=True):
            cell, end = direction.cell, f"l{number}{suffix}"
            state[f"weight_ih_{end}"] = torch.tensor(cell.kernel.numpy().T)
            state[f"weight_hh_{end}"] = torch.tensor(cell.recurrent_kernel.numpy().T)
            state[f"bias_ih_{end}"] = torch.tensor(cell.bias.numpy())
            state[f"bias_hh_{end}"] = torch.zeros(4 * UNITS)
    lstm.load_state_dict(state)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        words, torch.tensor(LENGTHS), batch_first=True
    )
    kernel, bias = (torch.tensor(w.numpy()) for w in network.head.classifier.weights)
    with torch.no_grad():
        read, _ = torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], True)
        logits = read @ kernel + bias
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1),
            torch.tensor(batch["label_ids"]).flatten().long(),
            ignore_index=-1,
        )
    outputs = network(batch)
    is_word = batch["input_mask"] > 0
    found = np.array(outputs["logits"])[is_word]
    assert np.std(found) > 0.3
    np.testing.assert_allclose(found, logits.numpy()[is_word], atol=1e-5)
    total, weight = network.loss_terms(batch, outputs)["loss"]
    assert float(weight) == float(network.loss_weights(batch)["loss"]) == 12
    assert float(total / weight) == pytest.approx(loss.item(), rel=1e-5)


def test_padding_and_other_sentences_change_no_word(network, batch):
    outputs = np.array(network(batch)["logits"])
    for row, length in enumerate(LENGTHS):
        alone = {n: x[[row], :length] for n, x in batch.items() if x.ndim > 1}
        found = np.array(network(alone)["logits"])[0]
        np.testing.assert_allclose(found, outputs[row, :length], atol=1e-6)


def test_a_sentence_has_its_dropout_wherever_it_stands(network, batch):
    whole = np.array(network(batch, training=True)["logits"])
    plain = np.array(network(batch)["logits"])
    for row, length in enumerate(LENGTHS):
        alone = {name: values[[row]] for name, values in batch.items()}
        alone |= {n: x[:, :length] for n, x in alone.items() if x.ndim > 1}
        found = np.array(network(alone, training=True)["logits"])[0]
        np.testing.assert_allclose(found, whole[row, :length], atol=1e-6)
        assert np.abs(found - plain[row, :length]).max() > 0.01


def test_each_bilstms_output_is_dropped(network, batch):
    seeds, mask = batch["dropout_seeds"], batch["input_mask"]
    states = batch["vectors"].reshape(*mask.shape, -1)
    if network.mix is not None:
        states = network.mix(batch["vectors"])
    states = network.bilstms[0](states, mask)
    states = network.dropouts[0](states, seeds, training=True)
    states = network.bilstms[1](states, mask)
    expected = network.head(states, seeds, training=True)
    found = network(batch, training=True)["logits"]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_each_bilstms_output_is_dropped_by_itself(network):
    states = [np.ones((1, 400, 2 * UNITS), "float32") for _ in range(2)]
    layers = [network.dropouts[0], network.head.dropout]
    first, second = (
        np.array(layer(x, np.array([3]), training=True))
        for layer, x in zip(layers, states, strict=True)
    )
    for dropped in (first, second):
        assert np.mean(dropped == 0) == pytest.approx(0.2, abs=0.03)
    # Not the same elements: both are dropped in a twenty-fifth of all.
    both = (first == 0) & (second == 0)
    assert np.mean(both) == pytest.approx(0.04, abs=0.02)


def test_layers_weigh_the_same_at_first():
    mix = bilstm_tagger.LayerMix(4)
    mix.build()
    np.testing.assert_allclose(mix.layer_weights, [0.25] * 4)
    vectors = np.float32(np.arange(8).reshape(1, 1, 4, 2))
    np.testing.assert_allclose(mix(vectors), [[[3.0, 4.0]]])
    mix.scores.assign([0, 0, 50, 0])
    mix.scale.assign(2.0)
    np.testing.assert_allclose(mix(vectors), [[[8.0, 10.0]]])


def test_runs_in_mixed_precision(network, batch):
    mixed = bilstm_tagger.LayerProbe(
        LAYERS,
        SIZE,
        LABELS,
        is_weighted=network.mix is not None,
        bilstm_units=UNITS,
        dtype="mixed_bfloat16",
    )
    mixed.build()
    mixed.set_weights(network.get_weights())
    is_word = batch["input_mask"] > 0
    found = mixed(batch)["logits"]
    assert found.dtype == tf.float32
    expected = np.array(network(batch)["logits"])[is_word]
    np.testing.assert_allclose(np.array(found)[is_word], expected, atol=0.1)

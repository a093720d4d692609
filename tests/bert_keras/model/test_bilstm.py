import numpy as np
import pytest
import tensorflow as tf

from bert_keras.model import bilstm

SIZE, UNITS = 6, 5
LENGTHS = (7, 4, 1)


@pytest.fixture(scope="module")
def layer(randomize):
    made = bilstm.BiLSTM(SIZE, UNITS, seed=1)
    made.build()
    randomize(made, stddev=0.5)
    return made


@pytest.fixture(scope="module")
def ends(layer):
    """The same without outputs for all tokens."""
    made = bilstm.BiLSTM(SIZE, UNITS, return_sequences=False)
    made.build()
    made.set_weights(layer.get_weights())
    return made


@pytest.fixture(scope="module")
def batch():
    """Vectors, of which those of padding are large, and the mask."""
    mask = np.int32(np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None])
    vectors = np.random.default_rng(0).normal(size=(*mask.shape, SIZE))
    return np.float32(vectors + 100 * (1 - mask[..., None])), mask


def of_tokens(outputs):
    return [
        np.array(row)[:length] for row, length in zip(outputs, LENGTHS, strict=True)
    ]


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_outputs_and_gradients_equal_pytorch(layer, ends, batch):
    torch = pytest.importorskip("torch")
    reference = torch.nn.LSTM(SIZE, UNITS, bidirectional=True, batch_first=True)
    cells, state = [direction.cell for direction in layer.directions], {}
    for suffix, cell in zip(("", "_reverse"), cells, strict=True):
        # Its gates stand in the same order.
        state |= {
            f"weight_ih_l0{suffix}": torch.tensor(cell.kernel.numpy().T),
            f"weight_hh_l0{suffix}": torch.tensor(cell.recurrent_kernel.numpy().T),
            f"bias_ih_l0{suffix}": torch.tensor(cell.bias.numpy()),
            f"bias_hh_l0{suffix}": torch.zeros(4 * UNITS),
        }
    reference.load_state_dict(state)
    vectors, mask = batch
    inputs = torch.tensor(vectors, requires_grad=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        inputs, torch.tensor(LENGTHS), batch_first=True
    )
    packed, (last, _) = reference(packed)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    factors = np.random.default_rng(1).normal(size=expected.shape)
    factors = np.float32(factors * mask[..., None])
    (expected * torch.tensor(factors)).sum().backward()

    ours = tf.Variable(vectors)
    with tf.GradientTape() as tape:
        outputs = layer(ours, mask)
        total = tf.reduce_sum(outputs * factors)
    names = ("kernel", "recurrent_kernel", "bias")
    wanted = [ours, *(getattr(cell, n).value for n in names for cell in cells)]
    gradients = tape.gradient(total, wanted)

    for found, row in zip(of_tokens(outputs), expected.detach().numpy(), strict=True):
        assert np.std(found) > 0.1
        np.testing.assert_allclose(found, row[: len(found)], atol=1e-6)
    np.testing.assert_allclose(
        ends(vectors, mask), np.concatenate(last.detach().numpy(), axis=-1), atol=1e-6
    )
    theirs = [inputs.grad.numpy()]
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"):
        for suffix in ("", "_reverse"):
            theirs.append(getattr(reference, name + suffix).grad.numpy().T)
    for found, value in zip(gradients, theirs, strict=True):
        assert np.abs(value).max() > 0.1
        np.testing.assert_allclose(found, value, atol=2e-5)


def test_lengths_may_be_unknown_and_nothing_but_padding_gives_zeros(ends, batch):
    vectors, mask = batch
    np.testing.assert_array_equal(ends(vectors, np.zeros_like(mask)), 0)
    signature = [
        tf.TensorSpec([None, None, SIZE]),
        tf.TensorSpec([None, None], tf.int32),
    ]
    traced = tf.function(ends, input_signature=signature)
    for rows, length in ((3, 7), (2, 4)):
        given = vectors[:rows, :length], mask[:rows, :length]
        np.testing.assert_allclose(traced(*given), ends(*given), atol=1e-6)
    assert traced.experimental_get_tracing_count() == 1


@pytest.mark.slow
def test_states_are_float32_in_mixed_precision():
    """In bfloat16 the sum would stop growing: 1 + 0.003 is 1 there."""
    layer = bilstm.BiLSTM(1, 1, dtype="mixed_bfloat16")
    layer.build()
    for weight in layer.weights:
        # All gates open, and a candidate of 0.003.
        weight.assign(0 * weight + ([9, 9, 0.003, 9] if "bias" in weight.path else 0))
    outputs = layer(np.zeros((1, 500, 1)), np.ones((1, 500)))
    assert outputs.dtype == "bfloat16"
    state = sum(0.99987661**n for n in range(500)) * 0.003 * 0.99987661
    assert float(outputs[0, -1, 0]) == pytest.approx(np.tanh(state), abs=0.005)


def test_the_seed_alone_decides_the_weights():
    first, same, other = (bilstm.BiLSTM(3, 4, seed=seed) for seed in (1, 1, 2))
    for made in (first, same, other):
        made.build()
    values = [made.get_weights() for made in (first, same, other)]
    for ours, theirs, changed in zip(*values, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.ndim == 1 or (ours != changed).all()
    # The directions differ too.
    assert (values[0][0] != values[0][3]).all()


def test_weights_begin_as_those_of_keras():
    """A forget gate of 1, orthogonal rows, and a kernel of Glorot's width."""
    layer = bilstm.BiLSTM(30, 20, seed=3)
    layer.build()
    for direction in layer.directions:
        cell = direction.cell
        recurrent = cell.recurrent_kernel.numpy()
        np.testing.assert_array_equal(cell.bias, [0] * 20 + [1] * 20 + [0] * 40)
        np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(20), atol=1e-5)
        limit = np.sqrt(6 / (30 + 80))
        assert 0.95 * limit < np.abs(cell.kernel).max() <= limit

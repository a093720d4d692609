import dataclasses

import numpy as np
import pytest

from bert_keras.checkpoints import weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.data import features, tokenization
from bert_keras.kinds import registry

QUERY, OUTPUT = (
    f"encoder/layer_0/self_attention/{n}" for n in ("query", "output_dense")
)
TASK = tasks.Task(kind="classification", labels=("a", "b", "c"))


@pytest.fixture(scope="module")
def rows(tiny_config):
    options = {"kernel": "", "bias": "b"}, tiny_config, TASK
    return [
        *weights.rows({QUERY: "q", OUTPUT: "o"}, *options, kernels="heads"),
        *weights.rows({"encoder/pooler": "p"}, *options, kernels="transposed"),
    ]


class Tensors:
    """A source in memory that counts what is read."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.shapes = {name: array.shape for name, array in tensors.items()}
        self.num_reads = 0

    def read(self, name):
        self.num_reads += 1
        return self.tensors[name]


@pytest.fixture(scope="module")
def network(tiny_config, randomize):
    network = registry.build_network(tiny_config, TASK)
    randomize(network)
    return network


@pytest.fixture
def checkpoint(tiny_config, network):
    return weights.Checkpoint(
        bert_config=tiny_config,
        task=TASK,
        arrays=weights.from_network(network),
        vocabulary=None,
        do_lower_case=None,
    )


def test_query_key_and_value_are_the_thirds_of_the_fused_kernel(network):
    fused = network.encoder.transformer_layers[1].self_attention.query_key_value
    arrays = weights.from_network(network)
    name = "encoder/layer_1/self_attention/{}/kernel"
    for index, part in enumerate(("query", "key", "value")):
        third = fused.kernel.numpy()[:, 16 * index : 16 * (index + 1)]
        np.testing.assert_array_equal(arrays[name.format(part)], third)


def test_assign_is_the_inverse_for_what_is_there(tiny_config, network):
    arrays = weights.from_network(network)
    biases = [f"encoder/layer_0/self_attention/{p}/bias" for p in weights.APART]
    gone = [*biases, "encoder/pooler/bias"]
    # Of a query, a key and a value all come or none does.
    del arrays[biases[1]], arrays["encoder/pooler/bias"]
    other = registry.build_network(tiny_config, TASK)
    before = weights.from_network(other)
    assert weights.assign(other, arrays) == gone
    for name, array in weights.from_network(other).items():
        expected = before[name] if name in gone else arrays[name]
        np.testing.assert_array_equal(array, expected, err_msg=name)


def test_another_shape_cannot_be_assigned(network):
    arrays = weights.from_network(network) | {"encoder/pooler/bias": np.zeros(3, "f4")}
    with pytest.raises(InputError, match=r"pooler/bias' has the shape \(3,\), .*16"):
        weights.assign(network, arrays)


def test_layouts(rows):
    """4 heads of 4 in a hidden size of 16."""
    numbers = np.arange(256, dtype="f4").reshape(16, 16)
    ours = {row.ours: numbers[0] if "bias" in row.ours else numbers for row in rows}
    theirs = dict(weights.write_rows(rows, ours))
    assert {name: array.shape for name, array in theirs.items()} == {
        "q": (16, 4, 4),
        "qb": (4, 4),
        "o": (4, 4, 16),
        "ob": (16,),
        "p": (16, 16),
        "pb": (16,),
    }
    assert theirs["q"][5, 1, 2] == numbers[5, 4 * 1 + 2]
    assert theirs["o"][1, 2, 5] == numbers[4 * 1 + 2, 5]
    assert theirs["p"][3, 7] == numbers[7, 3]
    source = Tensors(theirs | {"other": np.zeros(2)})
    arrays = weights.open_arrays(source, rows, path="x")
    assert all(name in arrays for name in ours) and "other" not in arrays
    assert source.num_reads == 0
    assert set(arrays) == set(ours)
    for name in ours:
        np.testing.assert_array_equal(arrays[name], ours[name])
    assert source.num_reads == len(rows)


def test_tensors_of_another_shape_are_not_read(rows):
    source = Tensors({"p": np.zeros((16, 8))})
    message = r"model: tensor 'p' has the shape \(16, 8\), but by .* \(16, 16\)"
    with pytest.raises(InputError, match=message):
        weights.open_arrays(source, rows, path="model")
    assert source.num_reads == 0


def test_missing_weights_of_the_encoder(checkpoint):
    arrays = dict(checkpoint.arrays)
    weights.check(dataclasses.replace(checkpoint, arrays=arrays), path="x")
    for name in ("encoder/pooler/kernel", "head/classifier/bias"):
        del arrays[name]
    weights.check(dataclasses.replace(checkpoint, arrays=arrays), path="x")
    del arrays["encoder/layer_1/output_layer_norm/beta"]
    message = "x: 1 weights of the encoder are missing, such as encoder/layer_1/output"
    with pytest.raises(InputError, match=message):
        weights.check(dataclasses.replace(checkpoint, arrays=arrays), path="x")


def test_the_vocabulary_and_the_embedding(checkpoint, caplog):
    def check(num_words):
        words = (f"w{i}" for i in range(num_words - len(features.SPECIAL_TOKENS)))
        vocabulary = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *words))
        of_words = dataclasses.replace(checkpoint, vocabulary=vocabulary)
        weights.check(of_words, path="x")

    check(40)
    assert caplog.text == ""
    check(37)
    assert "the vocabulary has 37 entries, the embedding 40 rows" in caplog.text
    message = "the vocabulary has 41 entries, the embedding only 40 rows"
    with pytest.raises(InputError, match=message):
        check(41)


def test_values_that_are_not_finite_are_refused(checkpoint):
    arrays = {name: array.copy() for name, array in checkpoint.arrays.items()}
    arrays["encoder/pooler/kernel"][3, 4] = np.nan
    arrays["encoder/pooler/bias"][:2] = np.inf, -np.inf
    with pytest.raises(InputError) as error:
        weights.check(dataclasses.replace(checkpoint, arrays=arrays), path="x")
    assert str(error.value) == (
        "x: 3 values are not finite: 1 of encoder/pooler/kernel, 2 of "
        "encoder/pooler/bias: the training has failed, or the file is damaged; take an "
        "earlier checkpoint or another copy"
    )
    names = list(arrays)[:5]
    with pytest.raises(InputError, match=f"1 of {names[2]} and of 2 more weights: the"):
        weights.check_finite(((n, np.array([np.nan, 1])) for n in names), path="x")
    largest = np.full(100, np.finfo(np.float32).max)
    weights.check_finite([("finite", largest)], path="x")

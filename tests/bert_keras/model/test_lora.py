"""Low-rank changes of a frozen encoder, against products written out in NumPy."""

import keras
import numpy as np
import pytest

from bert_keras.checkpoints import weights
from bert_keras.core.settings import tasks
from bert_keras.kinds import registry
from bert_keras.model import lora, weight_shapes
from tests import conftest

EVERY = tuple(weight_shapes.LORA_PLACES)
TASK = tasks.Task(kind="classification", labels=("no", "so", "yes"))


def adapter(*targets, **changes) -> tasks.Adapter:
    values = {"base": "b", "rank": 3, "alpha": 6.0, "targets": targets, **changes}
    return tasks.Adapter(**values)


def make_network(*targets, seed=5, **changes) -> keras.Model:
    network = registry.build_network(conftest.TINY, TASK, seed=2)
    if targets:
        lora.enable(network, adapter(*targets, **changes), seed=seed)
    return network


@pytest.fixture
def batch(make_batch) -> dict:
    return make_batch(conftest.TINY)


def logits(network, batch) -> np.ndarray:
    names = ("input_ids", "input_mask", "segment_ids")
    return np.asarray(network({name: batch[name] for name in names})["logits"])


def test_the_first_outputs_are_those_of_the_base(batch):
    expected = logits(make_network(), batch)
    np.testing.assert_array_equal(logits(make_network(*EVERY), batch), expected)


@pytest.mark.parametrize("targets", [EVERY, ("query", "value"), ("key",)])
def test_each_kernel_is_changed_by_its_own_product(batch, randomize, targets):
    network = make_network(*targets)
    randomize(network)
    arrays = weights.from_network(network)
    for name in [name for name in arrays if name.endswith("/lora_kernel_a")]:
        place = name.removesuffix("lora_kernel_a")
        first, second = (arrays.pop(f"{place}lora_kernel_{x}") for x in "ab")
        arrays[f"{place}kernel"] = arrays[f"{place}kernel"] + 6 / 3 * first @ second
    plain = make_network()
    assert weights.assign(plain, arrays) == []
    expected = logits(plain, batch)
    np.testing.assert_allclose(logits(network, batch), expected, rtol=0, atol=1e-6)
    assert np.abs(expected - logits(make_network(), batch)).max() > 0.1


def test_what_is_trained(batch):
    network = make_network("query", "output.dense")
    head = {"head/classifier/kernel": (16, 3), "head/classifier/bias": (3,)}
    layer = "encoder/layer_0/"
    trained = weights.from_network(network, network.trainable_weights)
    assert {name: array.shape for name, array in trained.items()} == {
        f"{layer}self_attention/query/lora_kernel_a": (16, 3),
        f"{layer}self_attention/query/lora_kernel_b": (3, 16),
        f"{layer}feed_forward/output_dense/lora_kernel_a": (24, 3),
        f"{layer}feed_forward/output_dense/lora_kernel_b": (3, 16),
        **head,
    }
    with_pooler = make_network("query", has_pooler=True).trainable_weights
    assert sum("/pooler/" in weight.path for weight in with_pooler) == 2


def test_first_factors_depend_on_the_seed_and_their_names_alone():
    def factors(*targets, seed=5) -> dict:
        network = make_network(*targets, seed=seed)
        arrays = weights.from_network(network)
        return {k: v.tobytes() for k, v in arrays.items() if "lora_kernel_a" in k}

    all_of_them = factors(*EVERY)
    assert len({*all_of_them.values()}) == len(EVERY)
    assert factors("value", "query").items() <= all_of_them.items()
    assert not {*factors(*EVERY, seed=6).values()} & {*all_of_them.values()}


def test_keras_saves_the_sum(batch, randomize, tmp_path):
    network = make_network(*EVERY)
    randomize(network)
    network.save(tmp_path / "a.keras")
    back = keras.saving.load_model(tmp_path / "a.keras")
    np.testing.assert_allclose(logits(back, batch), logits(network, batch), atol=1e-6)

"""Networks on JAX give what they give on TensorFlow, with dropout too."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import weights
from bert_keras.core.settings import tasks
from bert_keras.kinds import registry
from tests import conftest
from tests.bert_keras.model import test_networks, test_packed_rows
from tests.bert_keras.model.test_networks import batches  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("jax_networks.py")
PRETRAINING = tasks.Task(kind="pretraining")
SEEDS = {"dropout_seeds": np.arange(4, dtype="int32")}


def on_tensorflow(network, batch, *, training):
    with tf.GradientTape() as tape:
        outputs = network(batch, training=training)
        terms = network.loss_terms(batch, outputs)
        loss = sum(terms[name][0] / terms[name][1] for name in network.loss_names)
    gradients = tape.gradient(loss, network.trainable_variables)
    results = outputs | {
        f"terms/{name}": np.array(pair) for name, pair in terms.items()
    }
    for variable, gradient in zip(network.trainable_variables, gradients, strict=True):
        # Keras' optimizers are wrong for another kind: see `operations.take_rows`.
        assert isinstance(gradient, tf.Tensor), variable.path
        results[f"gradients/{variable.path.partition('/')[2]}"] = gradient
    return results


def test_jax_gives_the_same(tmp_path, batches, make_batch, randomize):  # noqa: F811
    pytest.importorskip("jax")
    plain = make_batch(test_networks.CONFIG)
    packed = test_packed_rows
    cases = {
        name: (test_networks.CONFIG, task, batches[name], True, "none")
        for name, task in test_networks.TASKS.items()
    }
    cases["plain"] = (test_networks.CONFIG, PRETRAINING, plain, False, "none")
    for way in ("none", "attention", "layers"):
        cases[way] = (test_networks.CONFIG, PRETRAINING, plain | SEEDS, True, way)
    for attention in ("bidirectional", "left_to_right"):
        changed = packed.CONFIG.model_copy(update={"attention": attention})
        for name in ("packed", "alone"):
            batch = getattr(packed, f"{name}_batch")()
            cases[f"{name} {attention}"] = (changed, PRETRAINING, batch, True, "none")
    arrays, described, expected = {}, {}, {}
    for name, (bert_config, task, batch, training, recompute) in cases.items():
        network = registry.build_network(bert_config, task, dropout_prob=0.1, seed=1)
        randomize(network)
        named = weights.from_network(network)
        arrays |= {f"{name}/weights/{key}": value for key, value in named.items()}
        arrays |= {f"{name}/features/{key}": value for key, value in batch.items()}
        described[name] = {
            "config": bert_config.model_dump(),
            "task": task.model_dump(),
            "training": training,
            "recompute": recompute,
        }
        results = on_tensorflow(network, batch, training=training)
        expected |= {f"{name}/{key}": value for key, value in results.items()}
    arrays["cases"] = np.array(json.dumps(described))
    np.savez(tmp_path / "input.npz", **arrays)
    files = tmp_path / "input.npz", tmp_path / "output.npz"
    environment = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    conftest.run_python(SCRIPT, *files, environment=environment)
    on_jax = dict(np.load(tmp_path / "output.npz", allow_pickle=False))
    assert on_jax.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1.0, np.abs(value).max())
        np.testing.assert_allclose(
            on_jax[name] / scale, value / scale, rtol=1e-5, atol=1e-5, err_msg=name
        )

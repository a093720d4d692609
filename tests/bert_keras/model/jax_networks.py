"""Runs networks on JAX; `test_jax.py` compares what it writes.

    KERAS_BACKEND=jax python jax_networks.py INPUT.npz OUTPUT.npz

INPUT holds `cases`, JSON of `config`, `task`, `training` and `recompute` by name, and
for each case `<case>/weights/<name>` and `<case>/features/<name>`. OUTPUT gets
`<case>/<output>`, `<case>/terms/<name>` (sum and weight) and `<case>/gradients/<path>`
of the loss. Fails if anything brought TensorFlow along.
"""

import json
import sys

import jax
import keras
import numpy as np

from bert_keras.checkpoints import weights
from bert_keras.core.settings import architecture, tasks
from bert_keras.kinds import registry


def below(archive: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        key.removeprefix(prefix): value
        for key, value in archive.items()
        if key.startswith(prefix)
    }


def results_of(network, features: dict, *, training: bool) -> dict[str, np.ndarray]:
    def loss_and_outputs(trainable):
        state = [v.value for v in network.non_trainable_variables]
        outputs, _ = network.stateless_call(trainable, state, features, training)
        terms = network.loss_terms(features, outputs)
        loss = sum(terms[name][0] / terms[name][1] for name in network.loss_names)
        return loss, (outputs, terms)

    differentiate = jax.jit(jax.value_and_grad(loss_and_outputs, has_aux=True))
    values = [v.value for v in network.trainable_variables]
    (_, (outputs, terms)), gradients = differentiate(values)
    results = outputs | {
        f"terms/{name}": np.array(pair) for name, pair in terms.items()
    }
    for variable, gradient in zip(network.trainable_variables, gradients, strict=True):
        results[f"gradients/{variable.path.partition('/')[2]}"] = gradient
    return results


def main(input_path: str, output_path: str) -> None:
    archive = dict(np.load(input_path, allow_pickle=False))
    results = {}
    for name, case in json.loads(str(archive["cases"])).items():
        bert_config = architecture.BertConfig(**case["config"])
        task = tasks.Task(**case["task"])
        network = registry.build_network(bert_config, task, dropout_prob=0.1, seed=1)
        weights.assign(network, below(archive, f"{name}/weights/"))
        network.encoder.recompute = case["recompute"]
        features = below(archive, f"{name}/features/")
        outcome = results_of(network, features, training=case["training"])
        results |= {f"{name}/{key}": value for key, value in outcome.items()}
    if keras.backend.backend() != "jax" or "tensorflow" in sys.modules:
        raise RuntimeError("expected JAX alone, but TensorFlow was loaded")
    np.savez(output_path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])

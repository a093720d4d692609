"""Runs networks of tasks on JAX; `test_networks.py` compares what it writes.

    KERAS_BACKEND=jax python jax_networks.py INPUT.npz OUTPUT.npz

INPUT holds `config` and `tasks` (JSON, from names to tasks), and for each task
`<task>/weights/<name>` and `<task>/features/<name>`. OUTPUT gets `<task>/<output>`,
`<task>/terms/<name>` (sum and weight) and `<task>/gradients/<path>` of the loss, all
with dropout. Fails if anything brought TensorFlow along.
"""

import json
import sys

import jax
import keras
import numpy as np

from bert_keras.checkpoints import weights
from bert_keras.core.settings import config
from bert_keras.kinds import registry


def below(archive: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        key.removeprefix(prefix): value
        for key, value in archive.items()
        if key.startswith(prefix)
    }


def results_of(network: keras.Model, features: dict) -> dict[str, np.ndarray]:
    def loss_and_outputs(trainable):
        state = [v.value for v in network.non_trainable_variables]
        outputs, _ = network.stateless_call(trainable, state, features, training=True)
        terms = network.loss_terms(features, outputs)
        loss = sum(terms[name][0] / terms[name][1] for name in network.loss_names)
        return loss, (outputs, terms)

    differentiate = jax.jit(jax.value_and_grad(loss_and_outputs, has_aux=True))
    (_, (outputs, terms)), gradients = differentiate(
        [v.value for v in network.trainable_variables]
    )
    paths = [v.path.partition("/")[2] for v in network.trainable_variables]
    return {
        **outputs,
        **{f"terms/{name}": np.array(pair) for name, pair in terms.items()},
        **{
            f"gradients/{path}": value
            for path, value in zip(paths, gradients, strict=True)
        },
    }


def main(input_path: str, output_path: str) -> None:
    archive = dict(np.load(input_path, allow_pickle=False))
    bert_config = config.BertConfig.model_validate_json(str(archive["config"]))
    results = {}
    for key, values in json.loads(str(archive["tasks"])).items():
        task = config.Task(**values)
        network = registry.build_network(bert_config, task, dropout_prob=0.1, seed=1)
        weights.assign(network, below(archive, f"{key}/weights/"))
        outcome = results_of(network, below(archive, f"{key}/features/"))
        results |= {f"{key}/{name}": value for name, value in outcome.items()}
    if keras.backend.backend() != "jax" or "tensorflow" in sys.modules:
        raise RuntimeError("expected JAX alone, but TensorFlow was loaded")
    np.savez(output_path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])

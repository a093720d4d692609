"""Losses and gradients on JAX of packed rows and of their instances alone.

    KERAS_BACKEND=jax python jax_packed_rows.py INPUT.npz OUTPUT.npz

INPUT holds `config` (JSON), `weights/<path>`, and `packed/<feature>` and
`alone/<feature>`. OUTPUT gets, below the same two names, `terms/<name>` (sum and
weight) and `<path>` for each gradient of the loss in training, by a jitted step.
"""

import sys

import jax
import numpy as np

from bert_keras.core.settings.config import BertConfig
from bert_keras.model import pretrainer


def main(input_path: str, output_path: str) -> None:
    archive = dict(np.load(input_path, allow_pickle=False))
    config = BertConfig.model_validate_json(str(archive["config"]))
    model = pretrainer.BertPretrainer(config, seed=3)
    model.build()
    paths = [v.path.partition("/")[2] for v in model.trainable_variables]
    trainable = [archive[f"weights/{path}"] for path in paths]
    state = [v.value for v in model.non_trainable_variables]
    results = {}
    for name in ("packed", "alone"):
        features = {
            key.partition("/")[2]: value
            for key, value in archive.items()
            if key.startswith(f"{name}/")
        }

        def loss_and_terms(trainable, features=features):
            outputs, _ = model.stateless_call(trainable, state, features, training=True)
            terms = model.loss_terms(features, outputs)
            return sum(terms[key][0] / terms[key][1] for key in model.loss_names), terms

        differentiate = jax.jit(jax.value_and_grad(loss_and_terms, has_aux=True))
        (_, terms), gradients = differentiate(trainable)
        results |= {f"{name}/terms/{key}": np.array(v) for key, v in terms.items()}
        results |= {
            f"{name}/{path}": value
            for path, value in zip(paths, gradients, strict=True)
        }
    if "tensorflow" in sys.modules:
        raise RuntimeError("expected JAX alone, but TensorFlow was loaded")
    np.savez(output_path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Runs the pre-training model on JAX; `test_pretraining.py` compares what it writes.

    KERAS_BACKEND=jax python jax_outputs.py INPUT.npz OUTPUT.npz

INPUT holds `config` (JSON), `weights/<path>`, `features/<name>` and `seeds`. OUTPUT
gets `outputs/<name>` of the encoder and of the heads, `terms/<name>` (sum and weight)
and `gradients/<path>` of the loss, the `keep_mask` of dropout that the seeds give, and
`recomputed`: loss and norm of the gradients in training, a row for each way of
`BertEncoder.recompute`.
Fails if anything brought TensorFlow along.
"""

import sys

import jax
import keras
import numpy as np

from bert_keras.core.settings.config import BertConfig
from bert_keras.model import dropout, pretrainer


def main(input_path: str, output_path: str) -> None:
    archive = dict(np.load(input_path, allow_pickle=False))
    features = {
        key.partition("/")[2]: value
        for key, value in archive.items()
        if key.startswith("features/")
    }
    config = BertConfig.model_validate_json(str(archive["config"]))
    model = pretrainer.BertPretrainer(config)
    model.build()
    paths = [v.path.partition("/")[2] for v in model.trainable_variables]
    for path, variable in zip(paths, model.trainable_variables, strict=True):
        variable.assign(archive[f"weights/{path}"])

    def loss_and_outputs(trainable, features=features, training=False):
        state = [v.value for v in model.non_trainable_variables]
        outputs, _ = model.stateless_call(trainable, state, features, training=training)
        terms = model.loss_terms(features, outputs)
        loss = sum(terms[name][0] / terms[name][1] for name in model.loss_names)
        return loss, (outputs, terms)

    differentiate = jax.value_and_grad(jax.jit(loss_and_outputs), has_aux=True)
    (_, (outputs, terms)), gradients = differentiate(
        [v.value for v in model.trainable_variables]
    )
    results = {
        f"outputs/{name}": value
        for name, value in {**outputs, **model.encoder(features)}.items()
    }
    results |= {f"terms/{name}": np.array(pair) for name, pair in terms.items()}
    results |= {
        f"gradients/{path}": value for path, value in zip(paths, gradients, strict=True)
    }
    mask = dropout.keep_mask(archive["seeds"], (2, 6), rate=0.5, salt=2**32 - 3)
    results["keep_mask"] = np.array(mask)
    seeded = features | {"dropout_seeds": np.arange(4, dtype="int32")}
    results["recomputed"] = [
        loss_and_norm(model, recompute, loss_and_outputs, seeded)
        for recompute in ("none", "attention", "layers")
    ]
    if keras.backend.backend() != "jax" or "tensorflow" in sys.modules:
        raise RuntimeError("expected JAX alone, but TensorFlow was loaded")
    np.savez(output_path, **results)


def loss_and_norm(model, recompute, loss_and_outputs, features):
    """Of a training step of a network that computes something again."""
    model.encoder.recompute = recompute
    differentiate = jax.value_and_grad(
        lambda trainable: loss_and_outputs(trainable, features, True)[0]
    )
    loss, gradients = jax.jit(differentiate)(
        [v.value for v in model.trainable_variables]
    )
    return float(loss), float(sum((g**2).sum() for g in gradients)) ** 0.5


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Low-rank changes of a frozen encoder's kernels (LoRA; Hu et al., 2021).

A change has the form of Keras's `Dense.enable_lora`. Changes begin at 0, so the first
step begins with the outputs of the base.
"""

import operator
from typing import Any

import keras

from bert_keras.core.settings import tasks
from bert_keras.model import layers, weight_shapes


def enable(network: Any, adapter: tasks.Adapter, *, seed: int | None = None) -> None:
    """Adds an adapter to the encoder of a built network, whose other weights freeze.

    The head stays trainable, and the pooler if it is the adapter's. First values are
    functions of the seed and of the name of a matrix (`None`: random).
    """
    for layer in network.encoder.transformer_layers:
        for target in adapter.targets:
            place = weight_shapes.LORA_PLACES[target]
            name_seed = layers.derive_seed(seed, f"{layer.name}/{place}/lora_kernel_a")
            first = keras.initializers.HeUniform(name_seed)
            if target in weight_shapes.APART:
                enable_lora = layer.self_attention.query_key_value.enable_lora_of
                enable_lora(target, adapter.rank, adapter.alpha, first)
            else:
                dense = operator.attrgetter(place.replace("/", "."))(layer)
                dense.enable_lora(adapter.rank, adapter.alpha, first)
    for weight in network.encoder.weights:
        is_own = adapter.has_pooler and "/pooler/" in weight.path
        if "lora_kernel" not in weight.path and not is_own:
            weight.trainable = False

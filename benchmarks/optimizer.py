"""Cost of updating the weights of BERT-BASE, by our AdamW and by Keras's.

    python -m benchmarks.optimizer [--turns 15]

Weights, gradients and moments have the shapes of BERT; no model is run. The optimizers
take turns; figures are medians of milliseconds per update.
"""

import argparse
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from benchmarks import measuring
from bert_keras.core.settings.architecture import BertConfig
from bert_keras.training.step import optimization

LEARNING_RATE, WEIGHT_DECAY_RATE = 1e-6, 0.01


def weight_shapes(config: BertConfig) -> dict[str, list[tuple[int, ...]]]:
    """Returns shapes of a pre-training model's decayed (`kernel`) and other weights."""
    hidden, inner = config.hidden_size, config.intermediate_size
    num_layers = config.num_hidden_layers
    layer = [(hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)]
    tables = [config.vocab_size, config.max_position_embeddings, config.type_vocab_size]
    heads = [(hidden, hidden), (hidden, hidden), (hidden, 2)]
    layer_vectors = [(3 * hidden,), (inner,), *[(hidden,)] * 6]
    return {
        "kernel": [(rows, hidden) for rows in tables] + num_layers * layer + heads,
        "bias": num_layers * layer_vectors + [(hidden,)] * 6 + [(config.vocab_size,)],
    }


def ways(variables: list[keras.Variable]) -> dict[str, Callable]:
    """Returns functions of the gradients, with the same exclusions from decay."""
    ours = optimization.BertAdamW(LEARNING_RATE, weight_decay_rate=WEIGHT_DECAY_RATE)
    theirs = keras.optimizers.AdamW(
        LEARNING_RATE,
        weight_decay=WEIGHT_DECAY_RATE,
        **{"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6},
    )
    theirs.exclude_from_weight_decay(var_names=["bias"])
    for optimizer in (ours, theirs):
        optimizer.build(variables)
    return {
        "`BertAdamW`": lambda gradients: ours.apply_in_replica(
            gradients, num_updates=ours.iterations
        ),
        "`keras.optimizers.AdamW`": lambda g: theirs.apply(g, variables),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=15)
    args = parser.parse_args()
    random = np.random.default_rng(0)
    variables, gradients = [], []
    for kind, shapes in weight_shapes(BertConfig()).items():
        for index, shape in enumerate(shapes):
            values = random.standard_normal(shape, dtype=np.float32)
            name = f"variable_{index}_{kind}"
            variables.append(keras.Variable(0.02 * values, name=name))
            gradients.append(tf.constant(1e-3 * values))
    functions = {}
    for name, update in ways(variables).items():
        function = tf.function(update)
        functions[name] = lambda function=function: function(gradients)
    print(measuring.machine("tensorflow", "keras"))
    times = measuring.medians_in_turns(functions, args.turns)
    rows = [[name, *(f"{1000 * s:.1f}" for s in both)] for name, both in times.items()]
    measuring.print_table(["way", "wall ms", "CPU ms"], rows)


if __name__ == "__main__":
    main()

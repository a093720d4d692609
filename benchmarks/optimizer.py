"""Cost of updating the weights, for several ways to compute it.

    python benchmarks/optimizer.py --results benchmarks/results/optimizer.md

Weights, gradients and moments have the shapes of BERT; no model is run. Ways are
interleaved, so that whatever else the machine does meets all of them; figures are
medians of milliseconds per update. Where the machine is shared, believe CPU time.
"""

import argparse
import datetime
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from bert_keras.config import BertConfig
from bert_keras.training import optimization

SIZES = {
    "mini": BertConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    ),
    "base": BertConfig(),
}
SETTINGS = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6}
LEARNING_RATE = 1e-6
WEIGHT_DECAY_RATE = 0.01


def weight_shapes(config: BertConfig) -> dict[str, list[tuple[int, ...]]]:
    """The shapes of a pre-training model's decayed (`kernel`) and other weights."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    num_layers = config.num_hidden_layers
    layer = [
        (hidden, 3 * hidden),
        (hidden, hidden),
        (hidden, intermediate),
        (intermediate, hidden),
    ]
    tables = [config.vocab_size, config.max_position_embeddings, config.type_vocab_size]
    heads = [(hidden, hidden), (hidden, hidden), (hidden, 2)]
    layer_vectors = [(3 * hidden,), (intermediate,), *[(hidden,)] * 6]
    return {
        "kernel": [(rows, hidden) for rows in tables] + num_layers * layer + heads,
        "bias": num_layers * layer_vectors + [(hidden,)] * 6 + [(config.vocab_size,)],
    }


def make_variables(config: BertConfig) -> list[keras.Variable]:
    """Random weights."""
    random = np.random.default_rng(0)
    return [
        keras.Variable(
            0.02 * random.standard_normal(shape, dtype=np.float32),
            name=f"variable_{index}_{kind}",
        )
        for kind, shapes in weight_shapes(config).items()
        for index, shape in enumerate(shapes)
    ]


def update_in_replica(optimizer, variables: Sequence[keras.Variable]) -> Callable:
    """Our optimizer as training calls it."""
    optimizer.build(variables)

    def update(gradients):
        optimizer.apply_in_replica(gradients, num_updates=optimizer.iterations)

    return update


def update_by_keras(variables: Sequence[keras.Variable]) -> Callable:
    """Stock AdamW of Keras, with the same exclusions."""
    optimizer = keras.optimizers.AdamW(
        LEARNING_RATE, weight_decay=WEIGHT_DECAY_RATE, **SETTINGS
    )
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.build(variables)
    return lambda gradients: optimizer.apply(gradients, variables)


def moments_and_update(m, v, gradient):
    """BERT's Adam up to the decay, as one operation after the other."""
    new_m = m + 0.1 * (gradient - m)
    new_v = v + 0.001 * (tf.square(gradient) - v)
    return new_m, new_v, new_m / (tf.sqrt(new_v) + 1e-6)


def update_by_operations(variables: Sequence[keras.Variable]) -> Callable:
    """A chain of operations for each variable."""
    weights = [variable.value for variable in variables]
    moments = [[tf.Variable(tf.zeros_like(w)) for w in weights] for _ in range(2)]
    is_decayed = [variable.path.endswith("kernel") for variable in variables]

    def update(gradients):
        groups = zip(weights, *moments, gradients, is_decayed, strict=True)
        for weight, m, v, gradient, decays in groups:
            new_m, new_v, step = moments_and_update(m, v, gradient)
            if decays:
                step = step + WEIGHT_DECAY_RATE * weight
            m.assign(new_m)
            v.assign(new_v)
            weight.assign_sub(LEARNING_RATE * step)

    return update


def update_as_one_vector(variables: Sequence[keras.Variable]) -> Callable:
    """One chain of operations over all gradients, laid end to end."""
    weights = [variable.value for variable in variables]
    sizes = [int(np.prod(weight.shape)) for weight in weights]
    m, v = (tf.Variable(tf.zeros([sum(sizes)])) for _ in range(2))
    is_decayed = [variable.path.endswith("kernel") for variable in variables]

    def update(gradients):
        flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
        new_m, new_v, steps = moments_and_update(m, v, flat)
        m.assign(new_m)
        v.assign(new_v)
        groups = zip(weights, tf.split(steps, sizes), is_decayed, strict=True)
        for weight, step, decays in groups:
            step = tf.reshape(step, weight.shape)
            if decays:
                step = step + WEIGHT_DECAY_RATE * weight
            weight.assign_sub(LEARNING_RATE * step)

    return update


def always_clip(gradients: Sequence) -> tuple[list, tf.Tensor]:
    """Clipping that squares, sums and multiplies in every step."""
    squares = [tf.reduce_sum(tf.square(gradient)) for gradient in gradients]
    norm = tf.sqrt(tf.add_n(squares))
    scale = 1.0 / tf.maximum(norm, 1.0)
    return [gradient * scale for gradient in gradients], norm


def ways(config: BertConfig) -> dict[str, Callable]:
    """The candidates: functions of the gradients."""
    variables = make_variables(config)
    adamw = optimization.BertAdamW(LEARNING_RATE, weight_decay_rate=WEIGHT_DECAY_RATE)
    lamb = optimization.Lamb(LEARNING_RATE, weight_decay_rate=WEIGHT_DECAY_RATE)
    return {
        "`BertAdamW`": update_in_replica(adamw, variables),
        "a chain of operations per variable": update_by_operations(variables),
        "the chain over one flat vector": update_as_one_vector(variables),
        "`keras.optimizers.AdamW`": update_by_keras(variables),
        "`Lamb`": update_in_replica(lamb, variables),
        "`clip_by_global_norm`, below the norm": lambda gradients: (
            optimization.clip_by_global_norm(gradients, 1e9)
        ),
        "`clip_by_global_norm`, above the norm": lambda gradients: (
            optimization.clip_by_global_norm(gradients, 1e-9)
        ),
        "square, sum and multiply in every step": always_clip,
    }


def measure(
    functions: dict[str, Callable], gradients: Sequence[tf.Tensor], *, num_runs: int
) -> dict[str, tuple[float, float]]:
    """Median wall and CPU milliseconds of each function."""
    compiled = {name: tf.function(function) for name, function in functions.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for run in range(num_runs + 1):
        for name, function in compiled.items():
            wall, cpu = time.perf_counter(), time.process_time()
            function(gradients)
            if run:  # The first one traces.
                seconds = (time.perf_counter() - wall, time.process_time() - cpu)
                times[name].append(seconds)
    return {
        name: tuple(
            1000 * statistics.median(column) for column in zip(*pairs, strict=True)
        )
        for name, pairs in times.items()
    }


def table(size: str, *, num_runs: int) -> list[str]:
    """The figures for one size, as Markdown."""
    functions = ways(SIZES[size])
    random = np.random.default_rng(1)
    gradients = [
        tf.constant(1e-3 * random.standard_normal(shape, dtype=np.float32))
        for shapes in weight_shapes(SIZES[size]).values()
        for shape in shapes
    ]
    num_weights = sum(gradient.shape.num_elements() for gradient in gradients)
    lines = [
        f"## {size}: {num_weights / 1e6:.1f} million weights in {len(gradients)}",
        "",
        "| way | wall ms | CPU ms |",
        "|---|---|---|",
    ]
    for name, times in measure(functions, gradients, num_runs=num_runs).items():
        lines.append(f"| {name} | {times[0]:.1f} | {times[1]:.1f} |")
    return [*lines, ""]


def main() -> None:
    """Prints the tables, and writes them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, help="where to write the tables")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--runs", type=int, default=15, help="of each way")
    args = parser.parse_args()
    lines = [
        "# An update of the weights",
        "",
        f"{datetime.date.today()}, Python {platform.python_version()}, tensorflow "
        f"{tf.__version__}, keras {keras.__version__}, {platform.machine()}, "
        f"{len(tf.config.list_physical_devices('GPU'))} GPUs.",
        "Made by `benchmarks/optimizer.py`.",
        "",
    ]
    for size in args.sizes:
        lines += table(size, num_runs=args.runs)
    text = "\n".join(lines)
    print(text)
    if args.results:
        args.results.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

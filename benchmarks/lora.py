"""Memory and time of fine-tuning with low-rank changes, and of many on one base.

    python -m benchmarks.lora [--size base] [--adapters 50]

Steps of a classifier on 8 texts of 128 tokens in float32, at rank 8, each way in a
process of its own: memory is the most that was resident in the steps. Then models that
stay loaded together: memory that each adds to that of the first.
"""

import argparse
import ctypes
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

from benchmarks import measuring, step
from bert_keras.core.settings import tasks

EVERY = tuple(get_args(tasks.LoraTarget))
RANK, BATCH_SIZE, LENGTH = 8, 8, 128


def make_answer(what: str, *words: str) -> Callable[[int], dict]:
    """Returns the answer of a worker: the cost of so many steps, or loaded models."""
    return {"steps": steps, "loads": loads}[what](*words)


def adapter(targets: str, **facts):
    names = tuple(targets.split(","))
    values = {"base": "base", "rank": RANK, "alpha": RANK, "targets": names, **facts}
    return tasks.Adapter(**values)


def classifier(size_name: str, targets: str):
    from bert_keras.kinds import registry
    from bert_keras.model import lora

    task = tasks.Task(kind="classification", labels=("a", "b"))
    config = step.SIZES[size_name].bert_config()
    network = registry.build_network(config, task, dropout_prob=0.1, seed=1)
    if targets != "whole":
        lora.enable(network, adapter(targets), seed=1)
    return network


def steps(size_name: str, targets: str) -> Callable[[int], dict]:
    import numpy as np
    import tensorflow as tf

    from bert_keras.core.settings import pretraining
    from bert_keras.training.step import learner, optimization

    ids = np.random.default_rng(0).integers(1, step.VOCAB_SIZE, (BATCH_SIZE, LENGTH))
    arrays = {
        "input_ids": np.int32(ids),
        "label_ids": np.zeros(BATCH_SIZE, np.int32),
        "dropout_seeds": np.arange(BATCH_SIZE, dtype=np.int32),
    }
    batch = {name: tf.constant(value) for name, value in arrays.items()}
    trained = learner.build_learner(
        *(lambda: classifier(size_name, targets), batch),
        optimizer=lambda: optimization.build_optimizer(
            pretraining.OptimizerConfig(), num_train_steps=1_000
        ),
        max_grad_norm=1.0,
        strategy=tf.distribute.get_strategy(),
    )
    run = tf.function(trained.train_step, autograph=False)
    # What built the weights has gone; the steps' own is the most from here on.
    Path("/proc/self/clear_refs").write_text("5")

    def answer(num_steps: int) -> dict:
        seconds = [
            measuring.timed(lambda: float(run(batch)["loss"])).wall
            for _ in range(num_steps + 1)
        ]
        weights = trained.network.trainable_weights
        return {
            "parameters": sum(weight.value.shape.num_elements() for weight in weights),
            "seconds": statistics.median(seconds[1:]),
            "megabytes": measuring.resident_megabytes("VmHWM"),
        }

    return answer


def loads(size_name: str, way: str) -> Callable[[int], dict]:
    import bert_keras
    from bert_keras.checkpoints import conversion, native, run_directory, starting_point
    from bert_keras.checkpoints import weights as weights_of
    from bert_keras.core.settings import finetuning
    from bert_keras.data import features, tokenization

    # 1. A base, and an adapter of it, as a run has them.
    folder = Path(tempfile.mkdtemp())
    base, run = folder / "base", folder / "run"
    base.mkdir(), run.mkdir()
    network = classifier(size_name, "whole")
    words = (f"w{number}" for number in range(step.VOCAB_SIZE))
    tokens = [*features.SPECIAL_TOKENS, *words][: step.VOCAB_SIZE]
    shared = {
        "bert_config": network.config,
        "vocabulary": tokenization.Vocabulary(tuple(tokens)),
        "do_lower_case": True,
    }
    arrays = weights_of.from_network(network)
    arrays = {name: a for name, a in arrays.items() if name.startswith("encoder/")}
    encoder = tasks.Task(kind="encoder")
    native.write(weights_of.Checkpoint(task=encoder, arrays=arrays, **shared), base)
    digest = starting_point.digest(conversion.read(base), arrays)
    facts = adapter(",".join(EVERY), base_sha256=digest).model_copy(
        update={"base": str(base)}
    )
    task = tasks.Task(kind="classification", labels=("a", "b"))
    made = run_directory.Run(directory=run, task=task, adapter=facts, **shared)
    run_directory.describe_run(made, finetuning.FinetuningConfig(task="text"))
    weights_of.finish_run(made, classifier(size_name, ",".join(EVERY)), {"steps": 1})

    # 2. Models of it: with one base in memory, or each merged.
    def load(loaded_base):
        if way == "merged":
            return bert_keras.load(run)
        return bert_keras.load(loaded_base, adapter=run)

    def answer(num_models: int) -> dict:
        loaded_base = bert_keras.load(base)
        models = [load(loaded_base)]
        models[0].predict(["w1 w2"])
        before, start = memory(), time.perf_counter()
        for _ in range(num_models - 1):
            models.append(load(loaded_base))
            models[-1].predict(["w1 w2"])
        num_more = max(num_models - 1, 1)
        return {
            "megabytes": (memory() - before) / num_more,
            "seconds": (time.perf_counter() - start) / num_more,
            "bytes": os.path.getsize(run / run_directory.WEIGHTS_NAME),
            "base_bytes": os.path.getsize(base / run_directory.WEIGHTS_NAME),
        }

    return answer


def memory() -> float:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return measuring.resident_megabytes("RssAnon")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=step.SIZES, default="base")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--adapters", type=int, default=50)
    parser.add_argument("--merged", type=int, default=8)
    args = parser.parse_args()
    print(measuring.machine("tensorflow", "keras"))

    def step_rows() -> Iterator[list[str]]:
        for name, targets in (
            ("all weights", "whole"),
            ("query and value", "query,value"),
            ("all six matrices", ",".join(EVERY)),
        ):
            words = ("benchmarks.lora", "steps", args.size, targets)
            found = measuring.ask_once(*words, question=args.steps)
            parameters, gigabytes = found["parameters"], found["megabytes"] / 1000
            yield [
                *(name, f"{parameters:,}", f"{gigabytes:.2f}"),
                f"{found['seconds']:.2f}",
            ]

    header = ["trained", "parameters", "memory, GB", "seconds a step"]
    measuring.print_table(header, step_rows())

    def load_rows() -> Iterator[list[str]]:
        for way, number in (("one base", args.adapters), ("merged", args.merged)):
            words = ("benchmarks.lora", "loads", args.size, way)
            found = measuring.ask_once(*words, question=number)
            num_bytes = f"{found['bytes']:,} of {found['base_bytes']:,}"
            yield [
                *(way, number, f"{found['megabytes']:.0f}"),
                *(f"{found['seconds']:.1f}", num_bytes),
            ]

    header = ["models", "number", "MB each", "seconds each", "bytes of a file, base"]
    measuring.print_table(header, load_rows())


if __name__ == "__main__":
    measuring.start(main, make_answer)

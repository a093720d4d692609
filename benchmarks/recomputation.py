"""Memory and time of pre-training steps that compute something again.

    python -m benchmarks.recomputation [--steps 6] [--size base]

Steps of BERT-BASE on 8 sequences of 512 tokens (76 predictions each) in float32, each
way of `recompute` in a process of its own. Memory is the most that was resident less
the memory before the first step; losses must be the same, bit for bit.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Callable, Iterator

from benchmarks import measuring, step

WAYS = ("none", "attention", "layers")


def make_answer(size_name: str, recompute: str) -> Callable[[int], dict]:
    """Returns the answer of a worker: the cost of a number of steps."""
    import tensorflow as tf

    size = dataclasses.replace(step.SIZES[size_name], batch_size=8, length=512)
    arrays = step.random_batch(size)
    batch = {name: tf.constant(value) for name, value in arrays.items()}
    trained = step.our_learner(
        *(size.bert_config(), batch, "float32"),
        strategy=tf.distribute.get_strategy(),
        recompute=recompute,
    )
    run = tf.function(trained.train_step, autograph=False)
    before = measuring.resident_megabytes("VmRSS")

    def answer(num_steps: int) -> dict:
        losses: list[str] = []
        seconds = [
            measuring.timed(lambda: losses.append(float(run(batch)["loss"]).hex())).wall
            for _ in range(num_steps)
        ]
        megabytes = measuring.resident_megabytes("VmHWM") - before
        # The first step is traced.
        return {"losses": losses, "megabytes": megabytes, "seconds": seconds[1:]}

    return answer


def rows(args: argparse.Namespace) -> Iterator[list[str]]:
    losses = None
    for way in WAYS:
        words = ("benchmarks.recomputation", args.size, way)
        found = measuring.ask_once(*words, question=args.steps)
        losses = losses or found["losses"]
        same = "yes" if losses == found["losses"] else "no"
        seconds = f"{statistics.median(found['seconds']):.1f}"
        yield [way, f"{found['megabytes'] / 1000:.2f}", seconds, same]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--size", choices=step.SIZES, default="base")
    args = parser.parse_args()
    print(measuring.machine("tensorflow", "keras"))
    header = ["`recompute`", "memory of the steps, GB", "seconds a step", "same losses"]
    measuring.print_table(header, rows(args))


if __name__ == "__main__":
    measuring.start(main, make_answer)

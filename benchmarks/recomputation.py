"""Memory and time of pre-training steps that compute something again.

    python benchmarks/recomputation.py --results benchmarks/results/recomputation.md

Steps of BERT-BASE on 8 sequences of 512 tokens (76 predictions each) in float32, each
way of `recompute` in a process of its own. Memory is the most that was resident less
what was before the first step; losses must be the same, bit for bit.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

BATCH_SIZE, LENGTH, NUM_PREDICTIONS = 8, 512, 76
WAYS = ("none", "attention", "layers")


def random_batch(vocab_size: int) -> dict[str, np.ndarray]:
    """Full sequences of random tokens."""
    random = np.random.default_rng(0)
    tokens, predictions = (BATCH_SIZE, LENGTH), (BATCH_SIZE, NUM_PREDICTIONS)
    return {
        "input_ids": random.integers(1, vocab_size, tokens, dtype=np.int32),
        "input_mask": np.ones(tokens, np.int32),
        "segment_ids": np.zeros(tokens, np.int32),
        "masked_lm_positions": random.integers(0, LENGTH, predictions, dtype=np.int32),
        "masked_lm_ids": random.integers(1, vocab_size, predictions, dtype=np.int32),
        "masked_lm_weights": np.ones(predictions, np.float32),
        "next_sentence_labels": np.zeros((BATCH_SIZE, 1), np.int32),
        "dropout_seeds": np.arange(BATCH_SIZE, dtype=np.int32),
    }


def work(recompute: str, num_steps: int) -> None:
    """Prints what steps of one way take, as a line of JSON."""
    import tensorflow as tf

    from bert_keras import config
    from bert_keras.model import pretrainer
    from bert_keras.training import learner, optimization

    shape = config.BertConfig(vocab_size=30522)
    arrays = random_batch(shape.vocab_size)
    batch = {name: tf.constant(value) for name, value in arrays.items()}
    trained = learner.build_learner(
        lambda: pretrainer.BertPretrainer(shape, seed=1),
        {name: values[:1] for name, values in batch.items()},
        optimizer=lambda: optimization.build_optimizer(
            config.OptimizerConfig(), num_train_steps=1_000_000
        ),
        strategy=tf.distribute.get_strategy(),
        max_grad_norm=1.0,
        recompute=recompute,
    )
    step = tf.function(trained.train_step, autograph=False)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    before = int(status.partition("VmRSS:")[2].split()[0])
    losses, seconds = [], []
    for _ in range(num_steps):
        start = time.monotonic()
        losses.append(float(step(batch)["loss"]).hex())
        seconds.append(time.monotonic() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gigabytes = (peak - before) * 1024 / 1e9
    # The first step is traced.
    found = {"losses": losses, "gigabytes": gigabytes, "seconds": seconds[1:]}
    print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--results", type=Path, help="the page to write")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.steps)
        return
    lines = [
        "# Memory of a step that computes something again",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores. BASE, "
        f"{BATCH_SIZE} sequences of {LENGTH} tokens, float32; medians of "
        f"{arguments.steps - 1} steps. Made by `benchmarks/recomputation.py`.",
        "",
        "| `recompute` | memory of the steps, GB | seconds a step | the same losses |",
        "|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    losses = None
    for way in WAYS:
        command = [sys.executable, __file__, "--worker", way]
        command += ["--steps", str(arguments.steps)]
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        found = json.loads(output.splitlines()[-1])
        losses = losses or found["losses"]
        same = "yes" if losses == found["losses"] else "no"
        seconds = statistics.median(found["seconds"])
        lines.append(f"| {way} | {found['gigabytes']:.2f} | {seconds:.1f} | {same} |")
        print(lines[-1], flush=True)
    if arguments.results:
        arguments.results.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

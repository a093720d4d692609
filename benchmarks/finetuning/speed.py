"""Examples per second of fine-tuning on SST-2, ours and transformers', in turns.

    python -m benchmarks.finetuning.speed --train SST-2/train.tsv --init MODEL \
        --output speed.json

Steps as fine-tuning makes them, from real sentences in memory to new weights: batches
of 32 as each makes them, padded to their longest (ours of inputs of about one length;
theirs shuffled, which is their trainer's default, and by length, which is its option),
dropout 0.1, clipping, AdamW. The weights are random: only sizes matter. Each has a
process of its own, and they run in turns: a machine that slows down does so for all.
A pair of size and precision that is in the output already is not measured again.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import step
from bert_keras import config, files, finetuning_config
from bert_keras.tasks import catalogue, text_forms

BATCH_SIZE = 32
NUM_EXAMPLES = 16_000
"""Examples to use, from the beginning of the file."""
SIZES = {
    "minilm": step.Size(
        num_layers=6, hidden_size=384, num_heads=12, batch_size=BATCH_SIZE
    ),
    **{
        name: dataclasses.replace(step.SIZES[name], batch_size=BATCH_SIZE)
        for name in ("small", "base")
    },
}
SETTINGS = {"task": "SST-2", "batch_size": BATCH_SIZE, "seed": 1}


class Turn(NamedTuple):
    """Some steps of one implementation."""

    seconds: float
    cpu_seconds: float
    num_examples: int
    num_tokens: int
    """Tokens, padding included."""
    loss: float
    """Loss of the last step."""


# A step: the batch's examples and tokens, padding included, and the loss.
Step = Callable[[], tuple[int, int, float]]


def first_examples(
    train: Path, precision: str
) -> tuple[Any, finetuning_config.FinetuningConfig]:
    """The beginning of the training file, and the settings."""
    settings = finetuning_config.FinetuningConfig(**SETTINGS, precision=precision)
    data: text_forms.TextDataset = catalogue.read(train, settings)
    return dataclasses.replace(data, rows=data.rows[:NUM_EXAMPLES]), settings


def bert_keras_step(size: step.Size, precision: str, train: Path, init: Path) -> Step:
    """Our step, as in `bert-keras finetune`."""
    import tensorflow as tf

    from bert_keras.data import tokenization
    from bert_keras.model import networks
    from bert_keras.training import learner, optimization, task_batches

    data, settings = first_examples(train, precision)
    task = data.describe()
    vocabulary = tokenization.Vocabulary.load(init / "vocab.txt")
    # The sentences are lower-cased already.
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=True)
    examples = data.encode(task, tokenizer, settings)
    shape = config.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=size.hidden_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        intermediate_size=size.intermediate_size,
    )
    tuner = learner.build_learner(
        lambda: networks.build(
            shape, task, dropout_prob=settings.dropout_prob, seed=1, dtype=precision
        ),
        {name: tf.constant(v) for name, v in examples.batch(slice(1)).items()},
        optimizer=lambda: optimization.build_optimizer(
            config.OptimizerConfig(learning_rate=5e-5), num_train_steps=1_000_000
        ),
        max_grad_norm=1.0,
        strategy=tf.distribute.get_strategy(),
    )
    batches = task_batches.example_batches(
        examples.lengths,
        examples.batch,
        batch_size=settings.batch_size,
        by_length=settings.are_batches_by_length(task),
        seed=settings.seed,
    )
    train_step = tf.function(
        tuner.train_step, autograph=False, input_signature=[batches.element_spec]
    )
    endless = iter(batches)

    def make_step() -> tuple[int, int, float]:
        batch = next(endless)
        loss = float(train_step(batch)["loss"])
        num_rows, length = batch["input_ids"].shape
        return num_rows, num_rows * length, loss

    return make_step


def transformers_step(
    size: step.Size,
    precision: str,
    train: Path,
    init: Path,
    *,
    by_length: bool = False,
) -> Step:
    """Their step, as in `peer.py`."""
    import transformers

    from benchmarks.finetuning import peer

    peer.prepare_torch()
    data, settings = first_examples(train, precision)
    task = data.describe()
    examples = peer.make_examples(data, task, init, settings)
    shape = transformers.BertConfig(
        hidden_size=size.hidden_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        intermediate_size=size.intermediate_size,
        num_labels=task.num_labels,
    )
    model = peer.MODELS[task.kind](shape).train()
    trainer = peer.Trainer(
        model, settings, warmup_steps=10_000, num_train_steps=1_000_000
    )
    batches = peer.training_batches(examples, settings, by_length=by_length)

    def make_step() -> tuple[int, int, float]:
        batch = next(batches)
        num_rows, length = batch["input_ids"].shape
        return num_rows, num_rows * length, trainer.step(batch)[0]

    return make_step


IMPLEMENTATIONS = {
    "bert_keras": bert_keras_step,
    "transformers": transformers_step,
    "transformers_by_length": functools.partial(transformers_step, by_length=True),
}


# The processes.


def work(arguments: Sequence[str]) -> None:
    """Answers each line of standard input, a number of steps, with a `Turn`."""
    name, size_name, precision, train, init = arguments
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What the packages print goes elsewhere.
    make_step = IMPLEMENTATIONS[name](
        SIZES[size_name], precision, Path(train), Path(init)
    )
    for line in sys.stdin:
        start, cpu_start = time.perf_counter(), time.process_time()
        counts = [make_step() for _ in range(int(line))]
        turn = Turn(
            seconds=time.perf_counter() - start,
            cpu_seconds=time.process_time() - cpu_start,
            num_examples=sum(count[0] for count in counts),
            num_tokens=sum(count[1] for count in counts),
            loss=counts[-1][2],
        )
        print(json.dumps(turn), file=answers, flush=True)


class Worker:
    """A process that makes steps of one implementation on request."""

    def __init__(self, name: str, arguments: Sequence[str]):
        self._name = name
        module = "benchmarks.finetuning.speed"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--worker", name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, num_steps: int) -> Turn:
        self._process.stdin.write(f"{num_steps}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"{self._name} failed: see above")
        return Turn(*json.loads(answer))

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def measure(
    arguments: Sequence[str], *, num_turns: int, seconds: float
) -> dict[str, list[Turn]]:
    """Turns of about a given time for each implementation."""
    turns: dict[str, list[Turn]] = {name: [] for name in IMPLEMENTATIONS}
    with contextlib.ExitStack() as stack:
        workers = {name: Worker(name, arguments) for name in IMPLEMENTATIONS}
        for worker in workers.values():
            stack.callback(worker.stop)
        num_steps = {}
        for name, worker in workers.items():
            worker.run(3)  # Traces, compiles, allocates.
            per_step = worker.run(5).seconds / 5
            num_steps[name] = max(1, round(seconds / per_step))
        for number, (name, worker) in itertools.product(
            range(num_turns), workers.items()
        ):
            turns[name].append(worker.run(num_steps[name]))
            print(f"turn {number + 1} of {num_turns}: {name}", flush=True)
    return turns


def summarize(turns: Sequence[Turn]) -> dict[str, float]:
    """Medians over the turns."""

    def median(value: Callable[[Turn], float]) -> float:
        return statistics.median(map(value, turns))

    return {
        "examples_per_second": median(lambda t: t.num_examples / t.seconds),
        "examples_per_cpu_second": median(lambda t: t.num_examples / t.cpu_seconds),
        "tokens_per_example": median(lambda t: t.num_tokens / t.num_examples),
        "last_loss": turns[-1].loss,
    }


def unmeasured(
    found: Sequence[dict[str, Any]], sizes: Sequence[str], precisions: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Pairs of size and precision that remain to be measured."""
    known = {(row["size"], row["precision"]) for row in found}
    for pair in itertools.product(sizes, precisions):
        if pair not in known:
            yield pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--train", type=Path, help="of SST-2")
    parser.add_argument("--init", type=Path, help="model with the vocab.txt to use")
    parser.add_argument("--output", type=Path, help="JSON, added to")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument(
        "--precisions", nargs="+", choices=step.PRECISIONS, default=step.PRECISIONS
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of one turn")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker)
        return
    found = json.loads(args.output.read_text()) if args.output.is_file() else []
    for size, precision in unmeasured(found, args.sizes, args.precisions):
        turns = measure(
            [size, precision, str(args.train), str(args.init)],
            num_turns=args.turns,
            seconds=args.seconds,
        )
        speeds = {name: summarize(those) for name, those in turns.items()}
        found.append({"size": size, "precision": precision, "speeds": speeds})
        print(json.dumps(found[-1]), flush=True)
        files.write_atomically(args.output, json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()

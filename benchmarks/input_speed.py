"""How fast batches come out of real examples, and how fast models eat them.

    python benchmarks/input_speed.py --corpus corpus --vocab vocab.txt \
        --work /tmp/input_speed --results benchmarks/results/input_speed.md

Makes examples of 128 and 512 tokens for static and for dynamic masking with
`bert-keras examples` (what is there already is kept), draws batches in a loop of a
compiled function, as training does, and throws them away. Beside it, models train on
one batch over and over, so that they wait for nothing. All are measured in turn,
several times; figures are medians. Where the machine is shared, believe CPU time.
"""

import argparse
import datetime
import functools
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from bert_keras import config_files, manifest
from bert_keras.config import PretrainingConfig
from bert_keras.data import features, masking, tokenization
from bert_keras.model import pretrainer
from bert_keras.training import (
    fitting,
    learner,
    optimization,
    record_batches,
    replicas,
)

BATCH_SIZES = {128: 64, 512: 16}
RECIPES = ("bert_tiny", "bert_mini")
SHUFFLE_BUFFER_SIZE = 20_000


class Times(NamedTuple):
    """What some steps took."""

    wall: float
    cpu: float


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A directory of examples, read."""

    masking: str
    length: int
    vocabulary: tokenization.Vocabulary
    found: manifest.Manifest
    shards: list[record_batches.Shard]

    @property
    def name(self) -> str:
        return f"{self.masking}, {self.length} tokens"

    def batches(self, start_step: int = 0) -> tf.data.Dataset:
        """Batches as `bert-keras pretrain` reads them."""
        source = record_batches.RecordBatches(
            config=features.examples_config(self.found.config, origin="manifest"),
            vocabulary=masking.masking_vocabulary(self.vocabulary),
            batch_size=BATCH_SIZES[self.length],
            shuffle_buffer_size=SHUFFLE_BUFFER_SIZE,
            seed=1,
        )
        return source.to_train(self.shards, start_step=start_step)


def main() -> None:
    """Measures and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", required=True, type=Path)
    parser.add_argument("--vocab", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path, help="for the examples")
    parser.add_argument("--results", required=True, type=Path, help="page to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=500, help="drawn per round")
    parser.add_argument("--steps", type=int, default=4, help="of a model per round")
    parser.add_argument("--precision", default="mixed_bfloat16")
    args = parser.parse_args()
    directories = [
        make_examples(args.corpus, args.vocab, args.work, masking=kind, length=length)
        for length in BATCH_SIZES
        for kind in ("static", "dynamic")
    ]
    subjects = {
        examples.name: drawing(examples, args.batches) for examples in directories
    }
    for length in BATCH_SIZES:
        (examples,) = [e for e in directories if e.name == f"dynamic, {length} tokens"]
        for recipe in RECIPES:
            subjects[f"{recipe}, {length} tokens"] = training(
                recipe, examples, args.steps, precision=args.precision
            )
    times = measure(subjects, num_rounds=args.rounds)
    lines = [*header(args.precision), *rate_table(times, args), ""]
    lines += list(resume_table(directories))
    args.results.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def make_examples(
    corpus: Path, vocab: Path, work: Path, *, masking: str, length: int
) -> Examples:
    """Examples of a corpus, made unless they are there."""
    directory = work / f"{masking}_{length}"
    if not (directory / manifest.MANIFEST_NAME).exists():
        command = f"examples --corpus {corpus} --vocab {vocab} --output {directory}"
        command += f" --max_seq_length {length} --num_shards 64"
        command += f" --set masking={masking} --set dupe_factor=1"
        subprocess.run(
            [sys.executable, "-m", "bert_keras.cli", *command.split()], check=True
        )
    found = manifest.read_manifest(directory, kind="examples", verb="examples")
    return Examples(
        masking=masking,
        length=length,
        vocabulary=tokenization.Vocabulary.load(directory / "vocab.txt"),
        found=found,
        shards=record_batches.read_shards(directory, found),
    )


def drawing(examples: Examples, num_batches: int) -> Callable[[], None]:
    """A function that draws batches and throws them away."""
    iterator = iter(examples.batches())

    @tf.function
    def draw(iterator):
        for _ in tf.range(num_batches):
            next(iterator)

    return lambda: draw(iterator)


def training(
    recipe: str, examples: Examples, num_steps: int, *, precision: str
) -> Callable[[], None]:
    """A function that trains a model for some steps on one batch."""
    settings = config_files.load(PretrainingConfig, recipe)
    bert_config = settings.model.with_vocab_size(len(examples.vocabulary))
    (batch,) = examples.batches().take(1)
    made = learner.build_learner(
        lambda: pretrainer.BertPretrainer(bert_config, seed=1, dtype=precision),
        batch,
        optimizer=lambda: optimization.build_optimizer(
            settings.optimizer, num_train_steps=settings.num_train_steps
        ),
        strategy=tf.distribute.get_strategy(),
        max_grad_norm=settings.optimizer.max_grad_norm,
    )
    batches = tf.data.Dataset.from_tensors(batch).repeat()

    def train() -> None:
        last_step = replicas.optimizer_step(made) + num_steps
        fitting.fit(
            made,
            batches,
            last_step=last_step,
            steps_per_epoch=num_steps,
            evaluation=None,
            run_callbacks=[],
        )

    return train


def timed(function: Callable[[], object]) -> Times:
    """Seconds that a call takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


def measure(
    subjects: dict[str, Callable[[], None]], *, num_rounds: int
) -> dict[str, Times]:
    """Median times of each, all of them in turn."""
    found: dict[str, list[Times]] = {name: [] for name in subjects}
    for number in range(num_rounds + 1):
        for name, function in subjects.items():
            took = timed(function)
            if number:  # The first one traces.
                found[name].append(took)
                print(f"{name}: {took.wall:.2f} s, CPU {took.cpu:.2f} s", flush=True)
    return {
        name: Times(*(statistics.median(column) for column in zip(*rows, strict=True)))
        for name, rows in found.items()
    }


def rate_table(times: dict[str, Times], args: argparse.Namespace) -> Iterator[str]:
    """A line for each subject; how often the input could feed each model."""
    yield "| | examples/s | tokens/s | examples/CPU s | CPU µs per example |"
    yield "|---|---|---|---|---|"
    per_cpu = {}
    for name, took in times.items():
        length = int(name.split()[-2])
        num_steps = args.steps if name.startswith(RECIPES) else args.batches
        count = num_steps * BATCH_SIZES[length]
        per_cpu[name] = count / took.cpu
        yield (
            f"| {name} | {count / took.wall:,.0f} | {count * length / took.wall:,.0f} "
            f"| {per_cpu[name]:,.0f} | {1e6 / per_cpu[name]:.1f} |"
        )
    yield ""
    yield "| CPU seconds of a step, over those of its input | static | dynamic |"
    yield "|---|---|---|"
    for length in BATCH_SIZES:
        for recipe in RECIPES:
            eaten = per_cpu[f"{recipe}, {length} tokens"]
            ratios = [
                f"{per_cpu[f'{kind}, {length} tokens'] / eaten:,.0f}"
                for kind in ("static", "dynamic")
            ]
            yield f"| {recipe}, {length} tokens | {' | '.join(ratios)} |"


def resume_table(directories: list[Examples]) -> Iterator[str]:
    """What it takes until a resumed run has its first batch."""
    yield "| first batch of a resumed run | records before it | s | CPU s |"
    yield "|---|---|---|---|"
    for examples in directories:
        num_records = sum(shard.num_records for shard in examples.shards)
        for epochs in (0, 0.5, 10.9):
            step = int(epochs * num_records) // BATCH_SIZES[examples.length]
            took = timed(functools.partial(first_batch, examples, step))
            passed = step * BATCH_SIZES[examples.length]
            yield (
                f"| {examples.name}, {epochs} epochs | {passed:,} | {took.wall:.1f} "
                f"| {took.cpu:.1f} |"
            )


def first_batch(examples: Examples, step: int) -> None:
    """Draws the batch of a step."""
    next(iter(examples.batches(step)))


def header(precision: str) -> list[str]:
    """What and where."""
    return [
        "# Input speed",
        "",
        f"{datetime.date.today()}, {platform.machine()}, tensorflow {tf.__version__}, "
        f"batches of {BATCH_SIZES[128]} (128 tokens) and {BATCH_SIZES[512]} (512), "
        f"shuffle buffer {SHUFFLE_BUFFER_SIZE:,}; models in {precision}; "
        f"{os.cpu_count()} cores, load average {os.getloadavg()[1]:.1f}. "
        "Made by `benchmarks/input_speed.py`.",
        "",
    ]


if __name__ == "__main__":
    main()

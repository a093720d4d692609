r"""Training of packed rows beside that of the same examples row by row.

    python benchmarks/packing.py --examples DIR... --packed DIR... \
        --results results/packing.md

Each DIR is made by `bert-keras examples`, each of `--packed` from the corpus of the one
at its place with `pack_instances=true`. For each pair, steps of a recipe's model on
batches of as many rows, of one instance and of several, in turns in one process. Time
is the processor's (user and system), by itself comparable on a machine that others use
too, and the clock's; batches are drawn before. A step takes as long whatever is in its
rows, so an epoch takes the time of a row as often as there are rows.
"""

import argparse
import datetime
import platform
import resource
import statistics
import time
from pathlib import Path

import keras
import tensorflow as tf

from bert_keras import config, config_files, manifest
from bert_keras.model import pretrainer
from bert_keras.training import learner, optimization, phases, precision

NUM_BATCHES = 4
"""Of each way, trained on again and again."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--examples", nargs="+", required=True)
    parser.add_argument("--packed", nargs="+", required=True)
    parser.add_argument("--recipe", default="bert_mini")
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of a turn")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    lines = [f"| {' | '.join(cells)} |" for cells in [COLUMNS, ["---"] * len(COLUMNS)]]
    for directories in zip(arguments.examples, arguments.packed, strict=True):
        lines.append(measure(directories, arguments))
        print(lines[-1], flush=True)
    if arguments.results:
        arguments.results.write_text(page(arguments, lines))


COLUMNS = [
    *("examples", "tokens a row", "share of tokens, alone", "packed"),
    *("instances a row", "CPU ms a row, alone", "packed"),
    *("an epoch is faster, median (least to most)", "by the clock"),
]


def page(arguments: argparse.Namespace, lines: list[str]) -> str:
    head = (
        f"# Packed rows\n\n{datetime.date.today()}, Python "
        f"{platform.python_version()}, tensorflow {tf.__version__}, keras "
        f"{keras.__version__}, {platform.machine()}.\nMade by `benchmarks/packing.py`: "
        f"{arguments.recipe}, {arguments.tokens} positions a batch, "
        f"{arguments.turns} turns of {arguments.steps} steps each way.\n\n"
    )
    return head + "\n".join(lines) + "\n"


def measure(directories: tuple[str, str], arguments: argparse.Namespace) -> str:
    """A row of the table."""
    ways = alone, packed = [Way(name, arguments) for name in directories]
    for way in ways:
        # Traced, and compiled.
        way.turn(1)
    for _ in range(arguments.turns):
        for way in ways:
            way.note(arguments.steps)
    instances_per_row = alone.num_rows / packed.num_rows
    ratios, walls = (
        [
            instances_per_row * a / b
            for a, b in zip(getattr(alone, n), getattr(packed, n), strict=True)
        ]
        for n in ("processor", "clock")
    )
    cells = [
        Path(directories[0]).name,
        str(alone.length),
        f"{alone.share:.1%}",
        f"{packed.share:.1%}",
        f"{instances_per_row:.3f}",
        f"{1e3 * statistics.median(alone.processor):.1f}",
        f"{1e3 * statistics.median(packed.processor):.1f}",
        f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})",
        f"{statistics.median(walls):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


class Way:
    """Steps on rows of one instance, or on packed ones."""

    def __init__(self, directory: str, arguments: argparse.Namespace):
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        settings = config_files.load(config.PretrainingConfig, arguments.recipe)
        settings = settings.model_copy(
            update={"precision": precision.resolve(settings.precision, strategy)}
        )
        settings = settings.model_copy(
            update={
                "global_batch_size": self._rows_of_a_batch(
                    settings, directory, arguments
                )
            }
        )
        (phase,) = self._phases(settings, directory)
        self.length = phase.examples.max_seq_length
        data = phases.training_batches(settings, phase, strategy, start_step=0)
        self._batches = list(data.take(NUM_BATCHES))
        made = manifest.read_manifest(directory, kind="examples", verb="")
        # Of all rows, those that are kept for evaluation too.
        self.num_rows = phase.num_train_records
        self.num_rows += sum(shard.num_records for shard in phase.eval_shards)
        num_positions = self.num_rows * self.length
        self.share = made.counters["example_tokens"] / num_positions
        self._batch_size = phase.batch_size
        shape = settings.model.with_vocab_size(len(phase.vocabulary))
        trained = learner.build_learner(
            lambda: pretrainer.BertPretrainer(
                shape, seed=1, dtype=settings.precision, name="bert_pretrainer"
            ),
            {name: values[:1] for name, values in self._batches[0].items()},
            optimizer=lambda: optimization.build_optimizer(
                config.OptimizerConfig(), num_train_steps=1_000_000
            ),
            strategy=strategy,
            max_grad_norm=1.0,
        )
        step = tf.function(trained.train_step, autograph=False)
        self._step = lambda batch: strategy.run(step, args=(batch,))
        self.processor: list[float] = []
        self.clock: list[float] = []

    def _rows_of_a_batch(self, settings, directory, arguments) -> int:
        (phase,) = self._phases(settings, directory)
        return arguments.tokens // phase.examples.max_seq_length

    def _phases(self, settings, directory) -> list[phases.Phase]:
        return phases.read_phases(
            settings, [directory], vocab_path=None, num_replicas=1, verified=None
        )

    def turn(self, num_steps: int) -> None:
        """Makes steps."""
        for index in range(num_steps):
            float(self._step(self._batches[index % NUM_BATCHES])["loss"])

    def note(self, num_steps: int) -> None:
        """Measures a turn, in seconds for each row."""
        begin, clock = _processor_seconds(), time.monotonic()
        self.turn(num_steps)
        num_rows = num_steps * self._batch_size
        self.processor.append((_processor_seconds() - begin) / num_rows)
        self.clock.append((time.monotonic() - clock) / num_rows)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()

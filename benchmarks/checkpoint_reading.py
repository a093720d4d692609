"""Time and memory to read a checkpoint of each format into a network.

    python -m benchmarks.checkpoint_reading --work DIR [--size tiny] [--rounds 3]

Writes one model with random weights in every format. Each is then read in a process of
its own, in turns, as every command reads it: `conversion.read`, a network of the task,
`weights.assign`. The files lie in the page cache; what is measured is the reading, not
the disk. Linux only.

Memory is the highest resident size of the process since it had imported everything and
had used TensorFlow once, less that at this time: the network, all that is held beside
it, and pages of files that are mapped.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import measuring, step
from bert_keras.kinds import registry

FORMATS = ("native", "google", "hugging_face", "keras_hub", "model_garden")
PARTS = ("read", "build", "assign")


def write_all(size: str, folder: Path) -> None:
    """Writes a pre-trained model in each format; KerasHub's has only the encoder."""
    import numpy as np

    from bert_keras.checkpoints import conversion, weights
    from bert_keras.core.settings import architecture, tasks
    from bert_keras.data import features, tokenization
    from bert_keras.model import weight_shapes

    shape = step.SIZES[size].transformers_config(hidden_act="gelu_tanh")
    bert_config = architecture.BertConfig(**shape, vocab_size=step.VOCAB_SIZE)
    random = np.random.default_rng(1)
    words = bert_config.vocab_size - len(features.SPECIAL_TOKENS)
    checkpoint = weights.Checkpoint(
        bert_config=bert_config,
        task=tasks.Task(kind="pretraining"),
        arrays={
            name: random.standard_normal(shape, np.float32)
            for name, shape in weight_shapes.all_shapes(bert_config).items()
            if not name.startswith("head/")
        },
        vocabulary=tokenization.Vocabulary(
            (*features.SPECIAL_TOKENS, *(f"w{number}" for number in range(words)))
        ),
        do_lower_case=True,
    )
    for name in FORMATS:
        (folder / name).mkdir(parents=True)
        conversion.FORMATS[name].write(checkpoint, folder / name)


def read_one(folder: Path) -> dict[str, float]:
    """Reads a checkpoint; returns seconds of each part, and megabytes."""
    from bert_keras.checkpoints import conversion, weights
    from bert_keras.core.settings import tasks

    tiny = step.SIZES["tiny"].bert_config(vocab_size=8)
    registry.build_network(tiny, tasks.Task(kind="encoder"))
    Path("/proc/self/clear_refs").write_text("5")
    before = measuring.resident_megabytes("VmRSS")
    results: list = []
    work: tuple[Callable, ...] = (
        lambda: conversion.read(folder),
        lambda: registry.build_network(results[0].bert_config, results[0].task),
        lambda: weights.assign(results[1], results[0].arrays),
    )
    found = {}
    for part, call in zip(PARTS, work, strict=True):
        times = measuring.timed(lambda call=call: results.append(call()))
        found[part], found[f"{part}_cpu"] = times
    if missing := results[2]:
        raise RuntimeError(f"{folder}: has no {missing}")
    return {"megabytes": measuring.resident_megabytes("VmHWM") - before, **found}


def make_answer(kind: str, folder: str) -> Callable:
    if kind == "read":
        return lambda _: read_one(Path(folder))
    return lambda size: write_all(size, Path(folder))


def rows(folder: Path, num_rounds: int) -> Iterator[list[str]]:
    """Yields medians of each format; seconds, in brackets CPU seconds."""
    module, formats = "benchmarks.checkpoint_reading", sorted(folder.iterdir())
    turns = [
        {path: measuring.ask_once(module, "read", path) for path in formats}
        for _ in range(num_rounds)
    ]
    for path in formats:
        took = {
            key: statistics.median(turn[path][key] for turn in turns)
            for key in turns[0][path]
        }
        for clock in ("", "_cpu"):
            took["all" + clock] = sum(took[part + clock] for part in PARTS)
        size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) / 1e6
        cells = [f"{took[p]:.2f} ({took[f'{p}_cpu']:.2f})" for p in (*PARTS, "all")]
        memory = took["megabytes"]
        yield [
            path.name,
            f"{size:,.0f}",
            *cells,
            f"{memory:,.0f}",
            f"{memory / size:.2f}",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=step.SIZES, default="base")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, required=True, help="for the checkpoints")
    args = parser.parse_args()
    folder = args.work / args.size
    if not folder.is_dir():
        words = ("benchmarks.checkpoint_reading", "write", folder)
        measuring.ask_once(*words, question=args.size)
    print(measuring.machine("tensorflow", "keras", "safetensors", "h5py"))
    header = ["format", "files MB", *PARTS, "all", "memory MB", "× files"]
    measuring.print_table(header, rows(folder, args.rounds))


if __name__ == "__main__":
    measuring.start(main, make_answer)

"""Time and memory to read a checkpoint of each format into a network.

    python benchmarks/checkpoint_reading.py --work /tmp/checkpoints \
        --results benchmarks/results/checkpoint_reading.md

Writes one model with random weights in every format. Each is then read in a process of
its own, in turns, as every command reads it: `conversion.read`, a network of the task,
`weights.assign`. The files lie in the page cache; what is measured is the reading, not
the disk. Linux only.

Memory is the highest resident size of the process since it had imported everything and
had used TensorFlow once, less that at this time: the network, all that is held beside
it, and pages of files that are mapped.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SIZES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 512,
    },
    "base": {},
}
PARTS = ("read", "build", "assign")
MOST_SECONDS, MOST_TIMES_THE_FILE = 5.0, 2.0


# === In processes of their own ===


def write_all(size: str, folder: Path) -> None:
    """A pre-trained model in each format; KerasHub's has only the encoder."""
    import numpy as np

    from bert_keras import config
    from bert_keras.checkpoints import conversion, weights
    from bert_keras.data import features, tokenization

    bert_config = config.BertConfig(**SIZES[size], hidden_act="gelu_tanh")
    random = np.random.default_rng(1)
    words = bert_config.vocab_size - len(features.SPECIAL_TOKENS)
    checkpoint = weights.Checkpoint(
        bert_config=bert_config,
        task=config.Task(kind="pretraining"),
        arrays={
            name: random.standard_normal(shape, np.float32)
            for name, shape in weights.all_shapes(bert_config, num_labels=1).items()
            if not name.startswith("head/")
        },
        vocabulary=tokenization.Vocabulary(
            (*features.SPECIAL_TOKENS, *(f"w{number}" for number in range(words)))
        ),
        do_lower_case=True,
    )
    for name, form in conversion.FORMATS.items():
        (folder / name).mkdir(parents=True)
        form.write(checkpoint, folder / name)


def read_one(folder: Path) -> dict[str, float]:
    """Reads the checkpoint of a directory; seconds of each part, and megabytes."""
    from bert_keras import config
    from bert_keras.checkpoints import conversion, weights
    from bert_keras.model import networks

    tiny = config.BertConfig(**SIZES["tiny"], vocab_size=8)
    networks.build(tiny, config.Task(kind="encoder"))
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_megabytes("VmRSS")

    clocks = [(time.perf_counter(), time.process_time())]

    def tick() -> None:
        clocks.append((time.perf_counter(), time.process_time()))

    checkpoint = conversion.read(folder)
    tick()
    network = networks.build(checkpoint.bert_config, checkpoint.task)
    tick()
    missing = weights.assign(network, checkpoint.arrays)
    tick()
    if missing:
        raise RuntimeError(f"{folder}: has no {missing}")
    found = {"megabytes": _status_megabytes("VmHWM") - before}
    for part, begin, end in zip(PARTS, clocks, clocks[1:], strict=False):
        found[part], found[f"{part}_cpu"] = end[0] - begin[0], end[1] - begin[1]
    return found


def _status_megabytes(key: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    line = next(line for line in lines if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024 / 1e6


# === In turns ===


def run(*arguments: str | Path) -> str:
    """Runs this script in a new process; returns its last line."""
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-3000:]}")
    return done.stdout


def measure(folder: Path, *, rounds: int) -> dict[str, dict[str, float]]:
    """Medians for each format, measured in turns."""
    found: dict[str, list[dict[str, float]]] = {
        path.name: [] for path in sorted(folder.iterdir())
    }
    for number in range(rounds):
        for name, turns in found.items():
            turns.append(json.loads(run("--worker", folder / name)))
            wall, cpu = total(turns[-1]), total(turns[-1], "_cpu")
            print(
                f"round {number + 1} of {rounds}, {name}: {wall:.1f} s, CPU {cpu:.1f} "
                f"s, {turns[-1]['megabytes']:,.0f} MB",
                flush=True,
            )
    return {
        name: {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        for name, turns in found.items()
    }


def total(took: dict[str, float], clock: str = "") -> float:
    """Seconds of all parts."""
    return sum(took[part + clock] for part in PARTS)


def file_megabytes(directory: Path) -> float:
    """Size of a checkpoint's files."""
    sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    return sum(sizes) / 1e6


# === The page ===


def page(
    folder: Path, found: dict[str, dict[str, float]], args: argparse.Namespace
) -> Iterator[str]:
    packages = ("tensorflow", "keras", "safetensors", "h5py")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    yield "# Reading a checkpoint"
    yield ""
    yield (
        f"    python benchmarks/checkpoint_reading.py --size {args.size} "
        f"--rounds {args.rounds}"
    )
    yield ""
    yield (
        f"{datetime.date.today()}, {len(os.sched_getaffinity(0))} cores, load average "
        f"{os.getloadavg()[1]:.1f}, Python {platform.python_version()}, "
        f"{', '.join(versions)}."
    )
    yield ""
    yield (
        f"BERT-{args.size.upper()} with both heads of pre-training (keras_hub: the "
        f"encoder), medians of {args.rounds} turns, each in a new process. `read` "
        "opens the files, checks shapes and vocabulary; `build` makes a network with "
        "random weights; `assign` reads each tensor into it. Seconds, in brackets CPU "
        "seconds, which other work on the machine changes less; memory beyond that of "
        "an idle TensorFlow, network included, and how many times the size of the "
        "files that is."
    )
    yield ""
    yield "| format | files MB | read | build | assign | all | memory MB | × files |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, took in found.items():
        size = file_megabytes(folder / name)
        cells = [f"{took[p]:.2f} ({took[f'{p}_cpu']:.2f})" for p in PARTS]
        cells += [f"{total(took):.2f} ({total(took, '_cpu'):.2f})"]
        cells += [f"{took['megabytes']:,.0f}", f"{took['megabytes'] / size:.2f}"]
        yield f"| {name} | {size:,.0f} | " + " | ".join(cells) + " |"
    yield ""
    above = [
        name
        for name, took in found.items()
        if total(took) >= MOST_SECONDS
        or took["megabytes"] > MOST_TIMES_THE_FILE * file_megabytes(folder / name)
    ]
    yield (
        f"Bounds for BASE: {MOST_SECONDS:.0f} s, and {MOST_TIMES_THE_FILE:.0f} times "
        f"the files. Above them: {', '.join(above) or 'none'}."
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="where the checkpoints are kept")
    parser.add_argument("--results", type=Path, help="the page to write")
    parser.add_argument("--writer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.writer:
        write_all(args.size, args.writer)
    elif args.worker:
        print(json.dumps(read_one(args.worker)))
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    work = args.work or Path(tempfile.mkdtemp(prefix="checkpoints-"))
    folder = work / args.size
    try:
        if not folder.is_dir():
            partial = folder.with_name(f".{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            run("--writer", partial, "--size", args.size)
            partial.rename(folder)
        text = "\n".join(page(folder, measure(folder, rounds=args.rounds), args))
    finally:
        if args.work is None:
            shutil.rmtree(work)
    print(text)
    if args.results:
        args.results.write_text(text.rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

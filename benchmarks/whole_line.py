"""The whole line on real input: dumps, books and SST-2, with times and peak memory.

    python benchmarks/whole_line.py --data ../shared/data --work /tmp/line \
        --results benchmarks/results/whole_line.md

Runs the commands that a user would type, one after the other, and writes a page with
each command, its wall time, CPU time and peak memory, and what it printed last.
"""

import argparse
import csv
import datetime
import glob
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One command that was run."""

    command: str
    seconds: float
    cpu_seconds: float
    peak_megabytes: float
    output: str


def run(command: str) -> Measured:
    """Runs a `bert-keras` command and measures it."""
    print(f"$ bert-keras {command}", flush=True)
    start = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "bert_keras.cli", *expanded(command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"failed with exit code {process.returncode}: {command}")
    return Measured(
        command=command,
        seconds=time.monotonic() - start,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_megabytes=usage.ru_maxrss / 1024,
        output="".join(lines),
    )


def expanded(command: str) -> Iterator[str]:
    """The arguments with their patterns filled in, as a shell would."""
    for word in shlex.split(command):
        yield from sorted(glob.glob(word)) if "*" in word else [word]


def commands(data: Path, work: Path, steps: int) -> list[str]:
    """The line's commands, in order."""
    sst2, mini, tuned = data / "glue/SST-2", work / "runs/mini", work / "runs/sst2"
    write_unlabelled(sst2 / "dev.tsv", work / "sentences.tsv")
    return [
        "corpus --allow_cut_dumps "
        f"--wikipedia {data}/wikipedia/*.bz2 {data}/wikipedia/*.xml "
        f"--books {data}/books/gutenberg/*.txt --output {work}/corpus",
        f"vocab --corpus {work}/corpus --vocab_size 30522 --output {work}/vocab.txt",
        f"examples --corpus {work}/corpus --vocab {work}/vocab.txt "
        f"--max_seq_length 128 --set dupe_factor=2 --output {work}/examples_128",
        f"inspect {work}/examples_128 --limit 2",
        f"pretrain --config bert_mini --examples {work}/examples_128 "
        f"--output_dir {mini} --set num_train_steps={steps} "
        "--set optimizer.warmup_steps=100 --set optimizer.learning_rate=5e-4 "
        "--set global_batch_size=64 --set save_checkpoint_steps=200",
        f"fill-mask --model {mini} 'the capital of france is [MASK].' "
        "'he opened the [MASK] and went out.'",
        f"finetune --task text --train {sst2}/train.tsv --dev {sst2}/dev.tsv "
        f"--set columns.text=sentence --set num_train_epochs=1 "
        f"--set learning_rate=1e-4 --init {mini} --output_dir {tuned}",
        f"evaluate --model {tuned} --input {sst2}/dev.tsv",
        f"predict --model {tuned} --input {work}/sentences.tsv "
        f"--output {work}/predictions.tsv",
        f"export --model {tuned} --output {work}/exported/1",
    ]


def write_unlabelled(labelled: Path, path: Path) -> None:
    """Writes the sentences of a GLUE file without their labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(labelled, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        sentences = [row["sentence"] for row in rows]
    path.write_text("\n".join(["sentence", *sentences]) + "\n", encoding="utf-8")


def page(measured: list[Measured], hide: dict[str, str]) -> str:
    """The results as markdown; `hide` shortens paths of this machine."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("tensorflow", "keras", "tensorflow-text", "apache-beam", "numpy")
    )
    lines = [
        "# The whole line on real input",
        "",
        f"{datetime.date.today()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {versions}.",
        "Made by `benchmarks/whole_line.py`.",
        "",
        "| command | wall s | CPU s | peak MB |",
        "|---|---|---|---|",
    ]
    for m in measured:
        lines.append(
            f"| {m.command.split()[0]} | {m.seconds:.1f} | {m.cpu_seconds:.1f} | "
            f"{m.peak_megabytes:.0f} |"
        )
    for m in measured:
        lines += ["", "```", f"$ bert-keras {m.command}", m.output.rstrip(), "```"]
    text = "\n".join(lines) + "\n"
    for path, name in hide.items():
        text = text.replace(path, name)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="real data sets")
    parser.add_argument("--work", type=Path, required=True, help="a new directory")
    parser.add_argument("--results", type=Path, required=True, help="page to write")
    parser.add_argument("--steps", type=int, default=400, help="of pre-training")
    args = parser.parse_args()
    args.work.mkdir(parents=True)
    measured = []
    for command in commands(args.data, args.work, args.steps):
        measured.append(run(command))
        args.results.parent.mkdir(parents=True, exist_ok=True)
        hide = {str(args.data): "DATA", str(args.work): "WORK"}
        args.results.write_text(page(measured, hide), encoding="utf-8")


if __name__ == "__main__":
    main()

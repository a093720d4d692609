"""Vectors of texts before and after `finetune --task embedding`, and what it costs.

    python benchmarks/sentence_vectors.py --demo DEMO --model RUN --corpus CORPUS \\
        --published MODEL --glue ../shared/data/glue --work WORK \\
        --results benchmarks/results/sentence_vectors.md

DEMO is the output of `bert-keras demo`; RUN a pre-training, here of `bert_mini_fast` by
`benchmarks/compute.py`, and CORPUS its documents; MODEL a published one for vectors, as
a yardstick. "Before" is the mean over the tokens of the same model untouched. Pairs are
neighbouring paragraphs, of which 5 % of the documents are held out; STS-B is scored on
its dev file. What WORK has is not made again. Cost is the processor time of the whole
command.
"""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from bert_keras import config, files, finetuning_config
from bert_keras.checkpoints import starting_point
from bert_keras.inference import tuned
from bert_keras.tasks import catalogue

SEEDS = (1, 2, 3)
DEMO, MODEL = "the demo's model", "bert_mini_fast"
_SHARED = "--set max_seq_length=64 --set num_train_epochs=1 --set batch_size="
_PAIRS, _NUMBERS = (
    f"{_SHARED}64",
    f"{_SHARED}32 --set embedding.max_label=5 --set embedding.metric=spearman",
)
SETTINGS = {
    "demo": f"{_PAIRS} --set learning_rate=1e-3",
    "pairs": f"{_PAIRS} --set train_fraction=0.5 --set learning_rate=3e-4",
    "numbers": f"{_NUMBERS} --set learning_rate=3e-4",
}
TUNED = {
    "demo": "on pairs, rate 1e-3",
    "pairs": "on half of the pairs, rate 3e-4",
    "numbers": "on STS-B, rate 3e-4",
}

Row = dict[str, Any]


def write_sts(glue: Path, directory: Path) -> None:
    """STS-B with our names of columns."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = finetuning_config.FinetuningConfig(task="STS-B")
    for name in ("train", "dev"):
        rows = catalogue.read(glue / "STS-B" / f"{name}.tsv", settings).rows
        lines = (
            files.to_json({"text": r.text, "text_pair": r.text_pair, "label": r.label})
            for r in rows
        )
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def run(*arguments: str | Path) -> float:
    """Runs a `bert-keras` command; its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "bert_keras.cli", *map(str, arguments)]
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def scores(model: tuned.TunedModel, paths: dict[str, Path]) -> dict[str, float]:
    """Scores on files, with their names before them."""
    found = {}
    for name, path in paths.items():
        given = model.answer(model.read(path, has_labels=True)).scores()
        found |= {f"{name} {key}": value for key, value in given.items()}
    return found


def untouched(path: Path, max_seq_length: int) -> tuned.TunedModel:
    """A model that was not tuned for vectors: the mean over its tokens."""
    checkpoint = starting_point.read_with_tokenizer(path)
    if checkpoint.task.kind != "embedding":
        checkpoint = dataclasses.replace(
            checkpoint,
            task=config.Task(kind="embedding"),
            max_seq_length=max_seq_length,
        )
    model = tuned.TunedModel.of_checkpoint(checkpoint, path)
    if model is None:
        raise SystemExit(f"{path}: no tokenizer")
    return model


def measure(arguments: argparse.Namespace) -> Iterator[Row]:
    """All rows, the cheapest first."""
    work: Path = arguments.work
    write_sts(arguments.glue, work / "sts")
    sts = {name: work / "sts" / f"{name}.jsonl" for name in ("train", "dev")}
    for name, corpus, per_document in (
        ("demo", arguments.demo / "corpus", 4),
        ("pairs", arguments.corpus, 2),
    ):
        if not (work / name).exists():
            options = ["--of", "neighbours", "--per_document", per_document]
            run(
                "pairs", "--corpus", corpus, "--output", work / name, *map(str, options)
            )
    pretrained = arguments.demo / "runs" / "pretrained"
    demo_dev = {"pairs": work / "demo" / "dev.tsv"}
    sts_dev = {"STS-B": sts["dev"]}
    dev = {"pairs": work / "pairs" / "dev.tsv", **sts_dev}
    for title, path, given in (
        (DEMO, pretrained, demo_dev),
        (MODEL, arguments.model, dev),
        ("all-MiniLM-L6-v2, published", arguments.published, dev),
    ):
        kept = work / f"{title.split(',')[0]}.json"
        if not kept.is_file():
            kept.write_text(json.dumps(scores(untouched(path, 64), given)))
        yield {"model": title, "tuned": "", "scores": json.loads(kept.read_text())}
    for name, init, train, given in (
        ("demo", pretrained, work / "demo/train.tsv", demo_dev),
        ("pairs", arguments.model, work / "pairs/train.tsv", dev),
        ("numbers", arguments.model, sts["train"], sts_dev | dev),
    ):
        for seed in SEEDS:
            directory = work / "runs" / f"{name},seed={seed}"
            cost = work / "runs" / f"{name},seed={seed}.seconds"
            if not cost.is_file() and not arguments.finished_only:
                seconds = run(
                    *("finetune", "--task", "embedding", "--init", init),
                    *("--train", train, "--dev", *given.values()),
                    *SETTINGS[name].split(),
                    *("--set", f"seed={seed}", "--output_dir", directory),
                )
                cost.write_text(f"{seconds:.0f}")
            if cost.is_file():
                yield {
                    "model": MODEL if init == arguments.model else DEMO,
                    "tuned": TUNED[name],
                    "scores": named_scores(directory),
                    "seconds": float(cost.read_text()),
                }


def named_scores(directory: Path) -> dict[str, float]:
    """Scores of a run with the name of their file before them."""
    named = {}
    # Those of a second file have `dev_` before them.
    found = json.loads((directory / "results.json").read_text())["eval"]
    for key, value in found.items():
        owner = "STS-B" if "spearman" in key or "pearson" in key else "pairs"
        named[f"{owner} {key.removeprefix('dev_')}"] = value
    return named


def table(rows: list[Row], columns: dict[str, str]) -> Iterator[str]:
    """A line for each model and training, mean and deviation over seeds."""
    header = ["model", "tuned", "seeds", *columns.values(), "processor seconds"]
    yield "| " + " | ".join(header) + " |"
    yield "|---" * len(header) + "|"
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["tuned"]), []).append(row)
    for (model, how), found in groups.items():
        cells = [model, how or "no", str(len(found)) if how else ""]
        for key in columns:
            cells.append(_cell([row["scores"].get(key) for row in found]))
        seconds = [row["seconds"] for row in found if "seconds" in row]
        cells.append(f"{statistics.mean(seconds):.0f}" if seconds else "")
        yield "| " + " | ".join(cells) + " |"


def _cell(values: list[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return ""
    shown = f"{statistics.mean(known):.1f}"
    return f"{shown} ± {statistics.stdev(known):.1f}" if len(known) > 1 else shown


COLUMNS = {
    "pairs recall_at_10": "recall at 10",
    "pairs recall_at_1": "recall at 1",
    "STS-B spearman": "STS-B, Spearman",
}


def page(rows: list[Row], arguments: argparse.Namespace) -> str:
    counts = {
        name: sum(1 for _ in open(arguments.work / name / "dev.tsv")) - 1
        for name in ("demo", "pairs")
    }
    packages = ", ".join(f"{n} {metadata.version(n)}" for n in ("tensorflow", "keras"))
    is_demo = [row["model"] == DEMO for row in rows]
    demo = [row for row, yes in zip(rows, is_demo, strict=True) if yes]
    others = [row for row, yes in zip(rows, is_demo, strict=True) if not yes]
    recall = dict(list(COLUMNS.items())[:2])
    return "\n".join(
        (
            "# Vectors of texts, before and after",
            "",
            f"{datetime.date.today().isoformat()}: "
            f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores "
            f"shared with other work, {packages}. Made by "
            "`benchmarks/sentence_vectors.py`, which says how; in percent, mean and "
            "deviation over seeds.",
            "",
            "Recall: how many second paragraphs of held-out pairs are among the ten "
            "nearest (the nearest) of all of them. STS-B: rank correlation of cosines "
            "with the labels of its dev file.",
            "",
            f"## The demo's documentation: {counts['demo']:,} held-out pairs",
            "",
            *table(demo, recall),
            "",
            f"## Wikipedia and books: {counts['pairs']:,} held-out pairs",
            "",
            *table(others, COLUMNS),
            "",
            "The settings:",
            "",
            *(f"- {name}: `{given}`" for name, given in SETTINGS.items()),
            "",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("demo", "model", "corpus", "published", "glue", "work", "results"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument(
        "--finished_only", action="store_true", help="a page of what WORK has"
    )
    arguments = parser.parse_args()
    rows = []
    for row in measure(arguments):
        print(json.dumps(row), flush=True)
        rows.append(row)
    arguments.results.write_text(page(rows, arguments), encoding="utf-8")


if __name__ == "__main__":
    main()

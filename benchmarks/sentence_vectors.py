"""Vectors of texts before and after `finetune --task embedding`, and what it costs.

    python -m benchmarks.sentence_vectors --demo DEMO --model RUN --corpus CORPUS \\
        --published MODEL --glue ../shared/data/glue --work WORK

DEMO is the output of `bert-keras demo`; RUN a pre-training, here of `bert_mini_fast` by
`benchmarks/compute.py`, and CORPUS its documents; MODEL a published one for vectors, as
a yardstick. "Before" is the mean over the tokens of the same model untouched. Pairs are
neighbouring paragraphs, of which 5 % of the documents are held out; STS-B is scored on
its dev file. What WORK has is not made again. Cost is the processor time of the whole
command.
"""

import argparse
import dataclasses
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import measuring
from bert_keras.checkpoints import conversion
from bert_keras.core import files
from bert_keras.core.settings import finetuning, tasks
from bert_keras.inference import finetuned
from bert_keras.kinds import catalogue

SEEDS = (1, 2, 3)
_SHARED = ("max_seq_length=64", "num_train_epochs=1")
_NUMBERS = ("batch_size=32", "embedding.max_label=5", "embedding.metric=spearman")
SETTINGS = {
    "demo": (*_SHARED, "batch_size=64", "learning_rate=1e-3"),
    "pairs": (*_SHARED, "batch_size=64", "train_fraction=0.5", "learning_rate=3e-4"),
    "numbers": (*_SHARED, *_NUMBERS, "learning_rate=3e-4"),
}
COLUMNS = ("pairs recall_at_10", "pairs recall_at_1", "STS-B spearman")
Scores = dict[str, float]


def write_sts(glue: Path, directory: Path) -> None:
    """Writes STS-B with our names of columns."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = finetuning.FinetuningConfig(task="STS-B")
    for name in ("train", "dev"):
        rows = catalogue.read(glue / "STS-B" / f"{name}.tsv", settings).rows
        lines = (
            files.to_json({"text": r.text, "text_pair": r.text_pair, "label": r.label})
            for r in rows
        )
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def score_untouched(path: Path, dev: Mapping[str, Path]) -> Scores:
    """Returns scores of a model that was not tuned: the mean over its tokens."""
    checkpoint = conversion.read_with_tokenizer(path)
    if checkpoint.task.kind != "embedding":
        task = tasks.Task(kind="embedding")
        checkpoint = dataclasses.replace(checkpoint, task=task, max_seq_length=64)
    model = finetuned.FinetunedModel.from_checkpoint(checkpoint, path)
    if model is None:
        raise SystemExit(f"{path}: no tokenizer")
    return {
        f"{name} {key}": value
        for name, file in dev.items()
        for key, value in model.answer(model.read(file, has_labels=True))
        .scores()
        .items()
    }


def tune(
    name: str, init: Path, train: Path, dev: Mapping[str, Path], seed: int, work: Path
) -> Scores:
    """Tunes a model; returns its scores, with the name of their file, and its cost."""
    output = work / "runs" / f"{name},seed={seed}"
    cost = measuring.bert_keras(
        *("finetune", "--task", "embedding", "--init", init, "--train", train),
        *("--dev", *dev.values(), "--output_dir", output),
        *measuring.set_options([*SETTINGS[name], f"seed={seed}"]),
    )
    scores = {"seconds": cost.cpu_seconds}
    # Scores of a second file have `dev_` before them.
    for key, value in json.loads((output / "results.json").read_text())["eval"].items():
        owner = "STS-B" if "spearman" in key or "pearson" in key else "pairs"
        scores[f"{owner} {key.removeprefix('dev_')}"] = value
    return scores


def row(model: str, how: str, found: list[Scores]) -> list[str]:
    """Returns means and deviations over seeds, in percent."""
    cells = [[100 * scores[c] for scores in found if c in scores] for c in COLUMNS]
    seconds = [scores["seconds"] for scores in found if "seconds" in scores]
    cost = f"{statistics.mean(seconds):.0f}" if seconds else ""
    return [model, how, *map(measuring.mean_and_deviation, cells), cost]


def rows(args: argparse.Namespace) -> Iterator[list[str]]:
    work: Path = args.work
    write_sts(args.glue, work / "sts")
    for name, corpus, number in (
        ("demo", args.demo / "corpus", 4),
        ("pairs", args.corpus, 2),
    ):
        if not (work / name).exists():
            options = ("--of", "neighbours", "--per_document", number)
            measuring.bert_keras(
                "pairs", "--corpus", corpus, "--output", work / name, *options
            )
    pretrained = args.demo / "runs" / "pretrained"
    sts_dev = {"STS-B": work / "sts/dev.jsonl"}
    demo_dev = {"pairs": work / "demo/dev.tsv"}
    dev = {"pairs": work / "pairs/dev.tsv", **sts_dev}
    for title, path, given in (
        ("demo", pretrained, demo_dev),
        ("model", args.model, dev),
        ("published", args.published, dev),
    ):
        scores = measuring.once(
            work / f"{title}.json", lambda p=path, g=given: score_untouched(p, g)
        )
        yield row(title, "untouched", [scores])
    for name, init, train, given in (
        ("demo", pretrained, work / "demo/train.tsv", demo_dev),
        ("pairs", args.model, work / "pairs/train.tsv", dev),
        ("numbers", args.model, work / "sts/train.jsonl", sts_dev | dev),
    ):
        found = [
            measuring.once(
                work / "runs" / f"{name},seed={seed}.json",
                lambda words=(name, init, train, given, seed, work): tune(*words),
            )
            for seed in SEEDS
        ]
        yield row("demo" if name == "demo" else "model", f"on {name}", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("demo", "model", "corpus", "published", "glue", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    print(measuring.machine("tensorflow", "keras"))
    measuring.print_table(["model", "tuned", *COLUMNS, "CPU seconds"], rows(args))


if __name__ == "__main__":
    main()

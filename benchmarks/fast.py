"""The recipe `bert_mini_fast` beside the run of two hours, held out, against its cost.

    python benchmarks/fast.py text --data ../shared/data --work /tmp/fast
    taskset -c 1 python benchmarks/fast.py train --work /tmp/fast --seeds 12345
    python benchmarks/fast.py page --work /tmp/fast --seeds 12345 \
        --results benchmarks/results/fast.md

`text` makes what `benchmarks/long_run.py` was given, and examples of 64 tokens: the
same shards of documents are held out at every length. `train` runs the recipe with each
seed and scores it on single examples, packed into no rows, as the run of two hours was.
Cost is the processor time of the whole process: start, evaluations and all. What was
done before is not done again; an interrupted run resumes. Linux only.
"""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import compute
import yaml

from bert_keras import files
from bert_keras.report import drawing

BERT_KERAS = compute.BERT_KERAS
NUM_SHARDS, NUM_HELD_OUT = 64, 4
LENGTHS = {
    "64": ["masked_lm_prob=0.3"],
    "plain_64": [],
    "128": [],
    "512": [],
    "packed_512": ["pack_instances=true"],
}
"""Folders of examples, and their settings beside the common ones."""
PHASES = ("64", "128", "packed_512")
SCORED = ("plain_64", "128", "512")
"""Folders that checkpoints of each phase are scored on."""
NUM_SCORED, NUM_ON_CURVE = {"plain_64": 50, "128": 100, "512": 50}, 50
"""Batches of 32 that the end of a run is scored on, and the points of its curve."""
SETTINGS = [
    f"num_eval_shards={NUM_HELD_OUT}",
    # Every point is scored afterwards.
    "num_checkpoints=1000",
    "num_eval_steps=20",
    "evaluate_steps=1020",
    # Pictures for TensorBoard are no part of the training.
    "draw_steps=1000000",
]
LONG_RUN_ACCURACIES = [
    *(8.6, 11.1, 12.8, 13.4, 13.5, 13.7, 14.1, 14.2, 14.2, 14.3, 14.4, 14.5, 14.6),
    *(14.9, 15.0, 15.3, 15.6, 15.9, 17.5, 19.5, 22.1, 23.4, 24.6, 25.5, 26.0, 26.7),
    *(27.1, 27.5, 27.9, 28.5, 28.7, 28.9, 19.5, 20.1, 21.5, 22.2),
]
"""Held-out masked tokens found by the run of two hours, %: read off
`results/long_run/masked_lm_accuracy.png`, whose run is gone."""
LONG_RUN_STEPS = [*range(500, 15501, 500), 15750, *range(16000, 17501, 500)]
LONG_RUN_SECONDS = {15750: 5026.0, 17500: 7571.0}
"""Its wall time up to two steps: 2:06:11 in all, 22 sequences a second at the end."""
BUSY_CORES = 1.85
"""Of two, in `results/disk_and_rate.md`: the run's processor time was not recorded."""


class Run(NamedTuple):
    """A finished run of the recipe."""

    seed: int
    samples: list[compute.Sample]
    points: dict[int, dict[str, float]]
    """Scores by step, each at the length of its phase."""
    end: dict[str, dict[str, float]]
    """Scores of the end at all lengths."""


# What is made.


def make_text(data: Path, work: Path) -> None:
    """Corpus, vocabulary and examples, all as those of the run of two hours."""
    corpus, vocab = work / "corpus", work / "vocab.txt"
    wikis = f"{data}/wikipedia_extracted/enwiki_2018_articles/AA/wiki_*"
    sources = ["--wikipedia", f"{data}/wikipedia/*.bz2", "--wikiextractor", wikis]
    sources += ["--books", f"{data}/books/gutenberg/*.txt", "--output", corpus]
    compute.make_once(corpus, "corpus", *sources)
    words = ["--corpus", corpus, "--vocab_size", "8000", "--output", vocab]
    compute.make_once(vocab, "vocab", *words)
    for name, more in LENGTHS.items():
        target = work / f"examples_{name}"
        settings = [f"max_seq_length={name.rpartition('_')[2]}", "masking=dynamic"]
        words = ["--corpus", corpus, "--vocab", vocab, "--num_shards", NUM_SHARDS]
        sets = compute.as_options([*settings, "dupe_factor=4", *more])
        compute.make_once(target, "examples", *words, *sets, "--output", target)


def run_path(work: Path, seed: int) -> Path:
    return work / "runs" / f"seed={seed}"


def train(work: Path, seed: int) -> None:
    """Trains and scores the recipe with a seed, unless that was done."""
    directory = run_path(work, seed)
    if not (directory / "results.json").is_file():
        examples = [str(work / f"examples_{name}") for name in PHASES]
        words = ["pretrain", "--config", "bert_mini_fast", "--examples", *examples]
        sets = compute.as_options([*SETTINGS, f"seed={seed}"])
        compute.train_and_count(work, directory, [*BERT_KERAS, *words, *sets])
    if not Path(f"{directory}.json").is_file():
        # A process of its own: TensorFlow's memory is given back.
        script = [sys.executable, __file__, "score", "--work", str(work)]
        subprocess.run([*script, "--seeds", str(seed)], check=True)


def score(work: Path, seed: int) -> None:
    """Scores a run on the held-out shards, in the order of a run's own evaluations.

    Each checkpoint at the length that it was trained on, with 15 % of tokens masked and
    single examples, and the last at all lengths.
    """
    directory = run_path(work, seed)
    results = json.loads((directory / "results.json").read_text(encoding="utf-8"))
    lasts = phase_ends(directory, results["steps"])
    found = {n: _score_at(work, directory, n, NUM_SCORED[n]) for n in SCORED}
    points = {}
    for path in sorted((directory / "checkpoints").glob("step-*.npz")):
        step = int(path.stem.partition("-")[2])
        length = next(n for n, last in zip(SCORED, lasts, strict=True) if step <= last)
        is_end = step == results["steps"]
        points[step] = (
            found[length] if is_end else _score_at(work, path, length, NUM_ON_CURVE)
        )
    text = json.dumps({"points": points, "end": found}, indent=1)
    files.write_atomically(Path(f"{directory}.json"), text.encode())


def phase_ends(directory: Path, num_steps: int) -> list[int]:
    """Last steps of a run's phases."""
    settings = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    shares = itertools.accumulate(p["fraction"] for p in settings["phases"])
    return [round(share * num_steps) for share in shares]


def _score_at(work: Path, checkpoint: Path, name: str, num_batches: int) -> dict:
    return compute.mean_terms_of(
        checkpoint,
        work / f"examples_{name}",
        num_held_out=NUM_HELD_OUT,
        batch_size=32,
        num_batches=num_batches,
    )


def read_run(work: Path, seed: int) -> Run:
    directory = run_path(work, seed)
    scores = json.loads(Path(f"{directory}.json").read_text(encoding="utf-8"))
    return Run(
        seed,
        compute.read_samples(Path(f"{directory}.cost.csv")),
        {int(step): point for step, point in scores["points"].items()},
        scores["end"],
    )


# The page.


def long_run_curve() -> tuple[list[float], list[float]]:
    """Processor seconds and accuracies, %, of the run of two hours."""
    change, end = LONG_RUN_SECONDS
    before, total = LONG_RUN_SECONDS.values()

    def seconds(step: int) -> float:
        if step <= change:
            return before * step / change
        return before + (total - before) * (step - change) / (end - change)

    costs = [BUSY_CORES * seconds(step) for step in LONG_RUN_STEPS]
    return costs, LONG_RUN_ACCURACIES


def table(runs: Sequence[Run]) -> str:
    """A row a run, the run of two hours first."""
    costs, accuracies = long_run_curve()
    at_128 = f"{max(accuracies):.1f} % at step 15,750"
    lines = [
        "| run | processor seconds | steps | on 128 tokens | loss | on 512 tokens "
        "| loss |",
        "|---|---|---|---|---|---|---|",
        f"| two hours | about {costs[-1]:,.0f} | 17,500 | {at_128} | | "
        f"{accuracies[-1]} % | 5.025 |",
    ]
    for run in runs:
        cells = [f"`bert_mini_fast`, seed {run.seed}"]
        cells += [f"{run.samples[-1].cpu_seconds:,.0f}", f"{run.samples[-1].step:,}"]
        for length in ("128", "512"):
            found = run.end[length]
            cells.append(f"{found['masked_lm_accuracy']:.1%}".replace("%", " %"))
            cells.append(f"{found['masked_lm_loss']:.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(runs: Sequence[Run], path: Path) -> None:
    """Held-out accuracy against processor seconds."""

    def picture():
        figure, plot = drawing.new_plot("held-out masked tokens found, against cost")
        plot.plot(*long_run_curve(), "o-", markersize=3, label="two hours, Adam")
        for run in runs:
            costs = [compute.cost_at(run.samples, step) for step in run.points]
            found = [100 * p["masked_lm_accuracy"] for p in run.points.values()]
            label = f"bert_mini_fast, seed {run.seed}"
            plot.plot(costs, found, "o-", markersize=3, label=label)
        plot.set(xlabel="processor seconds", ylabel="found, %", ylim=0)
        drawing.add_legend(figure)
        return figure

    files.write_atomically(path, drawing.as_png(picture))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=["text", "train", "score", "page"])
    parser.add_argument("--work", type=Path, required=True, help="for all that is made")
    parser.add_argument("--data", type=Path, help="dumps and books")
    parser.add_argument("--seeds", type=int, nargs="+", default=[12345])
    parser.add_argument("--results", type=Path, help="page: its table and picture")
    args = parser.parse_args()
    if args.stage == "text" and args.data is None:
        parser.error("text needs --data")
    if args.stage == "page" and args.results is None:
        parser.error("page needs --results")
    if args.stage == "text":
        make_text(args.data, args.work)
    for seed in args.seeds if args.stage in ("train", "score") else ():
        {"train": train, "score": score}[args.stage](args.work, seed)
    if args.stage == "page":
        runs = [read_run(args.work, seed) for seed in args.seeds]
        draw(runs, args.results.with_suffix(".png"))
        sys.stdout.write(table(runs))


if __name__ == "__main__":
    main()

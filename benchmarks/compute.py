"""What recipes of pre-training reach for what they cost: one protocol for all.

    python benchmarks/compute.py text --data ../shared/data --work /tmp/compute
    python benchmarks/compute.py train --work /tmp/compute [--only NAME ...]
    python benchmarks/compute.py tasks --work /tmp/compute --data ../shared/data
    python benchmarks/compute.py page --work /tmp/compute \
        --results benchmarks/results/compute.md

`text` splits documents into shards; the last ones are held out from every run, and
20,000 of their sequences of 128 tokens, masked once as in the paper, are what every
model is scored on, with the full softmax. `train` runs the recipes of `compute.yaml`:
first short trials of each one's learning rates, as many for each recipe, then the best
with every seed. `tasks` tunes each result by the same settings, with the best on dev of
the same rates. Cost is the processor time of the whole process, scoring left out, and
FLOPs. What was done before is not done again; an interrupted run resumes. Linux only.
"""

import argparse
import csv
import dataclasses
import datetime
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bert_keras import files

BERT_KERAS = [sys.executable, "-m", "bert_keras.cli"]
NUM_SHARDS, NUM_HELD_OUT = 20, 3
NUM_SCORED, NUM_ON_CURVE = 20_000, 2_000
"""Sequences that the end of a run is scored on, and the points of its curve."""
NUM_POINTS = 12
SAMPLE_SECONDS = 1.0
TASKS = {
    "SST-2": ("glue", ["num_train_epochs=0.5"], "accuracy"),
    "MRPC": ("glue", [], "accuracy"),
    "RTE": ("glue", [], "accuracy"),
    "CoNLL-2003": ("ner/conll2003", [], "f1"),
}
"""Folder, settings and score of what results are tuned on."""
TASK_RATES, TASK_SEEDS = ("1e-4", "3e-4"), (1, 2, 3)


Plan = dict[str, Any]
"""What `compute.yaml` holds."""


# Text.


def make_text(data: Path, work: Path, plan: Plan) -> None:
    """Corpus, vocabulary and examples of each length, in 20 shards of documents."""
    sources = [
        *("--wikipedia", f"{data}/wikipedia/enwiki*"),
        *("--wikiextractor", f"{data}/wikipedia_extracted/enwiki_*/AA/*"),
        *("--books", f"{data}/books/gutenberg/*.txt"),
    ]
    corpus, vocab = work / "corpus", work / "vocab.txt"
    make_once(corpus, "corpus", *sources, "--output", corpus)
    words = ["--vocab_size", "16000", "--output", vocab]
    make_once(vocab, "vocab", "--corpus", corpus, *words)
    # The scored sequences, twice each shard's, under no recipe's own masks.
    makes = {"held_out": ["max_seq_length=128", "dupe_factor=2"], **plan["examples"]}
    for name, settings in makes.items():
        shared = ["--corpus", corpus, "--vocab", vocab, "--num_shards", NUM_SHARDS]
        target = work / "examples" / str(name)
        make_once(
            target, "examples", *shared, *as_options(settings), "--output", target
        )


def make_once(output: Path, *words: Any) -> None:
    """Runs a command unless its output is there; ours appear whole."""
    if not output.exists():
        subprocess.run([*BERT_KERAS, *map(str, words)], check=True)


def as_options(settings: Iterable[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


# Runs.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A pre-training of a recipe."""

    recipe: str
    """Its name in the plan."""
    rate: str
    seed: int
    is_trial: bool

    @property
    def name(self) -> str:
        kind = "trial" if self.is_trial else "run"
        return f"{self.recipe},{kind},rate={self.rate},seed={self.seed}"


class Sample(NamedTuple):
    """How far a run was."""

    cpu_seconds: float
    step: int


def train(work: Path, plan: Plan, only: Sequence[str]) -> None:
    """Makes and scores all runs of the plan that are missing."""
    for recipe in only or plan["recipes"]:
        rates, seeds = plan["recipes"][recipe]["rates"], plan["seeds"]
        trials = [
            Run(recipe=recipe, rate=str(rate), seed=seeds[0], is_trial=True)
            for rate in rates
        ]
        for run in trials:
            make_run(work, plan, run)
        best = min(trials, key=lambda run: final_score(work, run)["masked_lm_loss"])
        for seed in seeds:
            made = dataclasses.replace(best, seed=seed, is_trial=False)
            make_run(work, plan, made)


def make_run(work: Path, plan: Plan, run: Run) -> None:
    """Trains and scores one run, unless that was done."""
    directory = work / "runs" / run.name
    if not (directory / "results.json").is_file():
        train_and_count(work, directory, command(work, plan, run))
    if not (work / "scores" / f"{run.name}.json").is_file():
        # A process of its own: TensorFlow's memory is given back.
        script = [sys.executable, __file__, "score", "--work", str(work)]
        subprocess.run([*script, "--only", run.name], check=True)


def command(work: Path, plan: Plan, run: Run) -> list[str]:
    """The training's words: the recipe's, and those that all have in common."""
    recipe = plan["recipes"][run.recipe]
    settings = [*recipe.get("set", []), f"seed={run.seed}"]
    settings += [f"optimizer.learning_rate={run.rate}"]
    num_steps = recipe["num_train_steps"]
    if run.is_trial:
        num_steps = round(num_steps * plan["trial_fraction"])
    interval = max(1, num_steps // NUM_POINTS)
    settings += [
        f"num_train_steps={num_steps}",
        f"save_checkpoint_steps={interval}",
        # Every point is scored afterwards; the run's own evaluation is not.
        "num_checkpoints=1000",
        f"evaluate_steps={num_steps}",
        "num_eval_steps=1",
        f"num_eval_shards={NUM_HELD_OUT}",
    ]
    examples = [str(work / "examples" / str(name)) for name in recipe["examples"]]
    words = ["pretrain", "--config", recipe["config"], "--examples", *examples]
    return [*BERT_KERAS, *words, *as_options(settings)]


def train_and_count(work: Path, directory: Path, words: list[str]) -> None:
    """Runs a training and writes what it cost beside it.

    A resumed one goes on from the cost of its last checkpoint.
    """
    log_path, cost_path = Path(f"{directory}.log"), Path(f"{directory}.cost.csv")
    directory.parent.mkdir(parents=True, exist_ok=True)
    samples = read_samples(cost_path)
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            [*words, "--output_dir", str(directory)], stdout=log, stderr=log
        )
        before, ended = None, 0
        while not ended:
            time.sleep(SAMPLE_SECONDS)
            cpu = _cpu_seconds(process.pid)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                cpu = usage.ru_utime + usage.ru_stime
            text = log_path.read_text(encoding="utf-8", errors="replace")
            if before is None and (step := first_step(text)) is not None:
                samples = [sample for sample in samples if sample.step <= step]
                before = samples[-1].cpu_seconds if samples else 0.0
            if before is not None:
                samples.append(Sample(before + cpu, last_step(text)))
                _write_samples(cost_path, samples)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"exit code {process.returncode}: see {log_path}")


_STEP = re.compile(r"^step (\d+)/\d+ ", re.MULTILINE)
_RESUMED = re.compile(r"^resuming after step (\d+) ", re.MULTILINE)


def last_step(log: str) -> int:
    """The step of the last progress line; without any, that which it resumed from."""
    found = _STEP.findall(log) or _RESUMED.findall(log)
    return int(found[-1]) if found else 0


def first_step(log: str) -> int | None:
    """The step that a process began from; `None`: it does not say yet."""
    if found := _RESUMED.search(log):
        return int(found[1])
    return 0 if _STEP.search(log) else None


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process that has no others below it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_samples(path: Path) -> list[Sample]:
    """What `_write_samples` wrote; empty: nothing."""
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return [Sample(float(cpu), int(step)) for cpu, step in csv.reader(file)]


def _write_samples(path: Path, samples: Sequence[Sample]) -> None:
    lines = [f"{cpu:.1f},{step}\n" for cpu, step in samples]
    files.write_atomically(path, "".join(lines).encode())


def cost_at(samples: Sequence[Sample], step: int) -> float:
    """Processor seconds when a step was logged, in a line between samples."""
    before = max((s for s in samples if s.step <= step), default=Sample(0.0, 0))
    after = min((s for s in samples if s.step >= step), default=before)
    if after.step == before.step:
        return before.cpu_seconds
    share = (step - before.step) / (after.step - before.step)
    return before.cpu_seconds + share * (after.cpu_seconds - before.cpu_seconds)


# Scores.


def score(work: Path, name: str) -> None:
    """Scores all checkpoints of a run on the held-out sequences."""
    points = {}
    paths = sorted((work / "runs" / name / "checkpoints").glob("step-*.npz"))
    for path in paths:
        wanted = NUM_SCORED if path == paths[-1] else NUM_ON_CURVE
        points[int(path.stem.partition("-")[2])] = mean_terms_of(
            path,
            work / "examples" / "held_out",
            num_held_out=NUM_HELD_OUT,
            batch_size=100,
            num_batches=-(-wanted // 100),
        )
    target = work / "scores" / f"{name}.json"
    target.parent.mkdir(exist_ok=True)
    files.write_atomically(target, json.dumps(points, indent=1).encode())


def mean_terms_of(
    checkpoint: Path,
    examples: Path,
    *,
    num_held_out: int,
    batch_size: int,
    num_batches: int,
) -> dict[str, float]:
    """Losses and accuracies of a checkpoint on the last shards of examples."""
    from bert_keras.inference import fill_mask

    batches = held_out_batches(
        examples,
        num_held_out=num_held_out,
        batch_size=batch_size,
        num_batches=num_batches,
    )
    return mean_terms(fill_mask.load_pretrainer(checkpoint)[1], batches)


def held_out_batches(
    examples: Path, *, num_held_out: int, batch_size: int, num_batches: int
) -> Any:
    """Batches of the last shards, in the order of a run's own evaluation.

    Fewer if the shards hold no more.
    """
    from bert_keras import manifest
    from bert_keras.data import features, masking, tokenization
    from bert_keras.training import record_batches

    made = manifest.read_manifest(examples, kind="examples", verb="examples")
    vocabulary = tokenization.Vocabulary.load(examples / "vocab.txt")
    batches = record_batches.RecordBatches(
        config=features.examples_config(made.config, origin=examples),
        vocabulary=masking.masking_vocabulary(vocabulary),
        batch_size=batch_size,
        # That of dynamic masks: a run's evaluation has its own seed's, by default.
        seed=12345,
        shuffle_buffer_size=1,
    )
    shards = record_batches.read_shards(examples, made)[-num_held_out:]
    data, num_batches = batches.to_evaluate(shards, num_batches=num_batches)
    return data.take(num_batches)


def mean_terms(network: Any, batches: Any) -> dict[str, float]:
    """Means of a network's losses and accuracies over all that they count."""
    import tensorflow as tf

    @tf.function
    def terms(batch):
        return network.loss_terms(batch, network(batch, training=False))

    totals: dict[str, list[float]] = {}
    for batch in batches:
        for name, (summed, weight) in terms(batch).items():
            total = totals.setdefault(name, [0.0, 0.0])
            total[0] += float(summed)
            total[1] += float(weight)
    return {name: total / max(weight, 1.0) for name, (total, weight) in totals.items()}


def read_points(work: Path, run: Run) -> dict[int, dict[str, float]]:
    """Scores of a run by step."""
    text = (work / "scores" / f"{run.name}.json").read_text(encoding="utf-8")
    return {int(step): point for step, point in json.loads(text).items()}


def final_score(work: Path, run: Run) -> dict[str, float]:
    """Scores at a run's end."""
    points = read_points(work, run)
    return points[max(points)]


# Tasks.


def tune(work: Path, data: Path, only: Sequence[str]) -> None:
    """Tunes every scored run on every task, and keeps each one's score on dev."""
    for run in finished_runs(work):
        if run.is_trial or (only and run.recipe not in only):
            continue
        for task in TASKS:
            for rate in TASK_RATES:
                for seed in TASK_SEEDS:
                    tune_once(work, data, run, task=task, rate=rate, seed=seed)


def tune_once(
    work: Path, data: Path, run: Run, *, task: str, rate: str, seed: int
) -> None:
    """One fine-tuning, of which only `results.json` stays."""
    folder, settings, _ = TASKS[task]
    target = task_path(work, run, task=task, rate=rate, seed=seed)
    if target.is_file():
        return
    tuned = work / "tuned"
    shutil.rmtree(tuned, ignore_errors=True)
    settings = [*settings, f"learning_rate={rate}", f"seed={seed}"]
    words = ["finetune", "--task", task, "--data", data / folder, *as_options(settings)]
    init = ["--init", work / "runs" / run.name, "--output_dir", tuned]
    subprocess.run([*BERT_KERAS, *map(str, [*words, *init])], check=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(target, (tuned / "results.json").read_bytes())


def task_path(work: Path, run: Run, *, task: str, rate: str, seed: int) -> Path:
    """File of a fine-tuning's results."""
    return work / "tasks" / run.name / f"{task},rate={rate},seed={seed}.json"


def task_score(work: Path, run: Run, task: str) -> float | None:
    """The best rate's mean over seeds; `None`: not all were made."""
    means = []
    for rate in TASK_RATES:
        paths = [
            task_path(work, run, task=task, rate=rate, seed=seed) for seed in TASK_SEEDS
        ]
        if not all(path.is_file() for path in paths):
            return None
        found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        scores = [one["eval"][TASKS[task][2]] for one in found]
        means.append(statistics.mean(scores))
    return max(means)


# The page.


def finished_runs(work: Path) -> list[Run]:
    """All that were scored."""
    runs = []
    for path in sorted((work / "scores").glob("*.json")):
        recipe, kind, rate, seed = path.stem.split(",")
        runs.append(
            Run(
                recipe=recipe,
                rate=rate.partition("=")[2],
                seed=int(seed.partition("=")[2]),
                is_trial=kind == "trial",
            )
        )
    return runs


def page(work: Path, plan: Plan) -> str:
    """The table of all recipes."""
    tasks = "".join(f" {task} |" for task in TASKS)
    lines = [
        "# What recipes of pre-training reach for what they cost",
        "",
        f"{datetime.date.today()}, {len(os.sched_getaffinity(0))} cores. Made by "
        "`benchmarks/compute.py`, which says how. Mean and standard deviation over "
        "seeds; processor minutes of the whole training; held-out sequences of 128 "
        "tokens.",
        "",
        "| recipe | rate, of trials | seeds | processor minutes | PFLOP | masked-LM "
        f"loss | accuracy, % |{tasks}",
        "|---|---|---|---|---|---|---|" + "---|" * len(TASKS),
    ]
    found = finished_runs(work)
    for recipe in dict.fromkeys(run.recipe for run in found if not run.is_trial):
        runs = [run for run in found if run.recipe == recipe and not run.is_trial]
        trials = [run for run in found if run.recipe == recipe and run.is_trial]
        ends = [final_score(work, run) for run in runs]
        costs = [
            read_samples(work / "runs" / f"{run.name}.cost.csv")[-1].cpu_seconds / 60
            for run in runs
        ]
        cells = [
            recipe,
            f"{runs[0].rate}, of {', '.join(run.rate for run in trials)}",
            str(len(runs)),
            mean_and_deviation(costs, ".1f"),
            mean_and_deviation([petaflops(work, plan, run) for run in runs], ".2f"),
            mean_and_deviation([end["masked_lm_loss"] for end in ends], ".3f"),
            mean_and_deviation([100 * end["masked_lm_accuracy"] for end in ends]),
        ]
        for task in TASKS:
            scores = [task_score(work, run, task) for run in runs]
            made = [100 * score for score in scores if score is not None]
            cells.append(mean_and_deviation(made) if made else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def mean_and_deviation(values: Sequence[float], form: str = ".1f") -> str:
    """`28.9 ± 0.2`; of a single value no deviation."""
    mean = format(statistics.mean(values), form)
    if len(values) == 1:
        return mean
    return f"{mean} ± {format(statistics.stdev(values), form)}"


def petaflops(work: Path, plan: Plan, run: Run) -> float:
    """Operations of a whole run's products, forward and backward."""
    from bert_keras import config, strict_model
    from bert_keras.model import flops

    directory = work / "runs" / run.name
    facts = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    usual = facts["global_batch_size"]
    bert = json.loads((directory / "bert_config.json").read_text(encoding="utf-8"))
    sizes = strict_model.build_config(config.BertConfig, bert)
    made = plan["recipes"][run.recipe]["examples"]
    # Of the steps, and examples in a step.
    shares = [
        (phase["fraction"], phase["global_batch_size"] or usual)
        for phase in facts["phases"]
    ]
    total = 0.0
    shares = shares if len(made) > 1 else [(1.0, usual)]
    for name, (share, batch_size) in zip(made, shares, strict=True):
        manifest = work / "examples" / str(name) / "manifest.json"
        values = json.loads(manifest.read_text(encoding="utf-8"))["config"]
        length = values["max_seq_length"]
        total += (
            share
            * batch_size
            * flops.pretraining_flops_per_example(
                sizes,
                max_seq_length=length,
                num_predictions=values["max_predictions_per_seq"]
                or round(0.15 * length),
                next_sentence=facts["next_sentence"],
            )
        )
    return total * facts["num_train_steps"] / 1e15


def draw(work: Path, path: Path) -> None:
    """Held-out loss against cost: a line a recipe, mean and deviation over seeds."""
    import numpy as np

    from bert_keras.report import drawing

    def picture():
        figure, plot = drawing.new_plot("held-out masked-LM loss against cost")
        found = [run for run in finished_runs(work) if not run.is_trial]
        for recipe in dict.fromkeys(run.recipe for run in found):
            runs = [run for run in found if run.recipe == recipe]
            points = [read_points(work, run) for run in runs]
            steps = sorted(set.intersection(*(set(one) for one in points)))
            costs = [
                [
                    cost_at(read_samples(work / "runs" / f"{run.name}.cost.csv"), step)
                    for step in steps
                ]
                for run in runs
            ]
            losses = [[one[step]["masked_lm_loss"] for step in steps] for one in points]
            x, y = np.mean(costs, 0) / 60, np.mean(losses, 0)
            (line,) = plot.plot(x, y, marker="o", markersize=3, label=recipe)
            deviation = np.std(losses, 0)
            colour = line.get_color()
            plot.fill_between(x, y - deviation, y + deviation, color=colour, alpha=0.2)
        plot.set(xlabel="processor minutes", ylabel="masked-LM loss")
        drawing.add_legend(figure)
        return figure

    files.write_atomically(path, drawing.as_png(picture))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=["text", "train", "score", "tasks", "page"])
    parser.add_argument("--work", type=Path, required=True, help="for all that is made")
    parser.add_argument("--data", type=Path, help="dumps, books and labelled files")
    parser.add_argument("--only", nargs="+", default=[], help="names of recipes")
    parser.add_argument(
        "--plan", type=Path, default=Path(__file__).with_name("compute.yaml")
    )
    parser.add_argument("--results", type=Path, help="page to write")
    args = parser.parse_args()
    if args.stage in ("text", "tasks") and args.data is None:
        parser.error(f"{args.stage} needs --data")
    if args.stage == "page" and args.results is None:
        parser.error("page needs --results")
    plan = yaml.safe_load(args.plan.read_text(encoding="utf-8"))
    if args.stage == "text":
        make_text(args.data, args.work, plan)
    elif args.stage == "train":
        train(args.work, plan, args.only)
    elif args.stage == "score":
        for name in args.only:
            score(args.work, name)
    elif args.stage == "tasks":
        tune(args.work, args.data, args.only)
    else:
        picture = args.results.with_suffix(".png")
        draw(args.work, picture)
        text = (
            page(args.work, plan) + f"\n![held-out loss against cost]({picture.name})\n"
        )
        files.write_atomically(args.results, text.encode())


if __name__ == "__main__":
    main()

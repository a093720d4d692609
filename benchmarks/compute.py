"""What recipes of pre-training reach for what they cost: one protocol for all.

    python benchmarks/compute.py text --data ../shared/data --work WORK
    taskset -c 1 python benchmarks/compute.py train --work WORK [--only RECIPE ...]
    python benchmarks/compute.py tasks --data ../shared/data --work WORK
    python benchmarks/compute_page.py --work WORK --picture compute.png

`text` makes what `benchmarks/long_run.py` was given, and examples of more lengths: the
same shards of documents are held out at every length, from every run. `train` runs the
recipes of `compute.yaml`: first short trials of each one's rates, if it has several,
then the best with each seed; and scores them. `tasks` tunes the results, with the rate
that was best on dev for the first of them. Cost is the processor
time of the whole training: start, evaluations and all, scoring left out. What was done
before is not done again; an interrupted run resumes. Linux only.
"""

import argparse
import csv
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bert_keras import files

BERT_KERAS = [sys.executable, "-m", "bert_keras.cli"]
NUM_SHARDS, NUM_HELD_OUT = 64, 4
NUM_SCORED, NUM_ON_CURVE = {"plain_64": 50, "128": 100, "512": 50}, 50
"""Batches of 32 that the end of a run is scored on, and the points of its curve."""
SAMPLE_SECONDS = 1.0
FLOOR = "no pre-training"
SETTINGS = [
    f"num_eval_shards={NUM_HELD_OUT}",
    # Every point is scored afterwards.
    "num_checkpoints=1000",
    "num_eval_steps=20",
    "evaluate_steps=1020",
    # Pictures for TensorBoard are no part of the training.
    "draw_steps=1000000",
]
"""What all runs have in common."""
Plan = dict[str, Any]
"""What `compute.yaml` holds."""
Terms = dict[str, float]
"""Losses and accuracies by name."""


def read_plan() -> Plan:
    path = Path(__file__).with_name("compute.yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


class Run(NamedTuple):
    """A pre-training of a recipe."""

    recipe: str
    """Its name in the plan."""
    rate: str
    seed: int
    is_trial: bool = False

    @property
    def name(self) -> str:
        kind = "trial" if self.is_trial else "run"
        return f"{self.recipe},{kind},rate={self.rate},seed={self.seed}"

    @property
    def title(self) -> str:
        kind = "trial" if self.is_trial else f"seed {self.seed}"
        return f"{self.recipe}, rate {self.rate}, {kind}"

    def path(self, work: Path, suffix: str = "") -> Path:
        return work / "runs" / f"{self.name}{suffix}"


class Sample(NamedTuple):
    """How far a run was."""

    cpu_seconds: float
    step: int


# Text.


def make_text(data: Path, work: Path, plan: Plan) -> None:
    """Corpus, vocabulary and examples, as those of the run of two hours.

    That run also read extracted articles in the `<doc>` form of WikiExtractor.
    """
    corpus, vocab = work / "corpus", work / "vocab.txt"
    sources = ["--wikipedia", f"{data}/wikipedia/*.bz2"]
    sources += ["--books", f"{data}/books/gutenberg/*.txt", "--output", corpus]
    make_once(corpus, "corpus", *sources)
    words = ["--corpus", corpus, "--vocab_size", "8000", "--output", vocab]
    make_once(vocab, "vocab", *words)
    for name, settings in plan["examples"].items():
        target = examples_path(work, name)
        words = ["--corpus", corpus, "--vocab", vocab, "--num_shards", NUM_SHARDS]
        sets = as_options([*settings, "masking=dynamic", "dupe_factor=4"])
        make_once(target, "examples", *words, *sets, "--output", target)


def examples_path(work: Path, name: object) -> Path:
    return work / f"examples_{name}"


def make_once(output: Path, *words: Any) -> None:
    """Runs a command unless its output is there; ours appear whole."""
    if not output.exists():
        subprocess.run([*BERT_KERAS, *map(str, words)], check=True)


def as_options(settings: Iterable[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


# Runs.


def trials(plan: Plan, recipe: str) -> list[Run]:
    """Short runs of a recipe, one for each rate; none if it has a single rate."""
    facts = plan["recipes"][recipe]
    rates = facts["rates"] if len(facts["rates"]) > 1 else []
    return [Run(recipe, rate, facts["seeds"][0], is_trial=True) for rate in rates]


def full_runs(work: Path, plan: Plan, recipe: str) -> list[Run]:
    """A recipe's runs, with the rate that has the lowest loss of its scored trials."""
    facts = plan["recipes"][recipe]
    rate = facts["rates"][0]
    if tried := trials(plan, recipe):
        first = str(facts["scored"][0])
        losses = {
            run.rate: read_scores(work, run)["end"][first]["masked_lm_loss"]
            for run in tried
        }
        rate = min(losses, key=losses.__getitem__)
    return [Run(recipe, rate, seed) for seed in facts["seeds"]]


def finished_runs(work: Path, plan: Plan) -> dict[str, list[Run]]:
    """Scored runs by recipe, in the plan's order; recipes without any left out."""
    found = {}
    for recipe in plan["recipes"]:
        try:
            runs = full_runs(work, plan, recipe)
        except FileNotFoundError:  # Its trials are not made.
            continue
        runs = [run for run in runs if run.path(work, ".json").is_file()]
        found |= {recipe: runs} if runs else {}
    return found


def train(work: Path, plan: Plan, only: Sequence[str]) -> None:
    """Makes and scores all runs of the plan that are missing."""
    for recipe in only or plan["recipes"]:
        for run in trials(plan, recipe):
            make_run(work, plan, run)
        for run in full_runs(work, plan, recipe):
            make_run(work, plan, run)


def make_run(work: Path, plan: Plan, run: Run) -> None:
    """Trains and scores one run, unless that was done."""
    if not (run.path(work) / "results.json").is_file():
        train_and_count(run.path(work), command(work, plan, run))
    if not run.path(work, ".json").is_file():
        # A process of its own: TensorFlow's memory is given back.
        script = [sys.executable, __file__, "score", "--work", str(work)]
        subprocess.run([*script, "--only", run.name], check=True)


def command(work: Path, plan: Plan, run: Run) -> list[str]:
    """The training's words: a trial has less steps, all on the first examples."""
    facts = plan["recipes"][run.recipe]
    settings = [*facts.get("set", []), *SETTINGS, f"seed={run.seed}"]
    settings += [f"optimizer.learning_rate={run.rate}"]
    names = facts["examples"]
    if run.is_trial:
        names, num_steps = names[:1], facts["trial_steps"]
        settings += [f"num_train_steps={num_steps}"]
        settings += [f"save_checkpoint_steps={num_steps}"]
    examples = [str(examples_path(work, name)) for name in names]
    words = ["pretrain", "--config", facts["config"], "--examples", *examples]
    return [*BERT_KERAS, *words, *as_options(settings)]


def train_and_count(directory: Path, words: list[str]) -> None:
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


def score(work: Path, plan: Plan, names: Sequence[str]) -> None:
    """Scores runs, by name, on the held-out shards, as a run's own evaluations do.

    Each checkpoint at the length that it was trained on, with 15 % of tokens masked and
    single examples, and the last at all lengths.
    """
    for name in names:
        directory = work / "runs" / name
        lasts = phase_ends(directory)
        # A trial has one length.
        recipe = plan["recipes"][name.partition(",")[0]]
        lengths = [str(length) for length in recipe["scored"]][: len(lasts)]
        end = {
            length: _score_at(work, directory, length, NUM_SCORED[length])
            for length in lengths
        }
        points = {lasts[-1]: end[lengths[-1]]}
        for path in sorted((directory / "checkpoints").glob("step-*.npz")):
            step = int(path.stem.partition("-")[2])
            length = next(n for n, e in zip(lengths, lasts, strict=True) if step <= e)
            if step not in points:
                points[step] = _score_at(work, path, length, NUM_ON_CURVE)
        found = {"points": dict(sorted(points.items())), "end": end}
        text = json.dumps(found, indent=1)
        files.write_atomically(work / "runs" / f"{name}.json", text.encode())


def phase_ends(directory: Path) -> list[int]:
    """Last steps of a run's phases."""
    facts = read_settings(directory)
    inputs = json.loads((directory / "inputs.json").read_text(encoding="utf-8"))
    if isinstance(inputs["examples_sha256"], str):
        return [facts["num_train_steps"]]
    shares = itertools.accumulate(phase["fraction"] for phase in facts["phases"])
    return [round(share * facts["num_train_steps"]) for share in shares]


def read_settings(directory: Path) -> dict[str, Any]:
    return yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))


def _score_at(work: Path, checkpoint: Path, name: str, num_batches: int) -> Terms:
    from bert_keras.inference import fill_mask

    batches = held_out_batches(
        examples_path(work, name),
        num_held_out=NUM_HELD_OUT,
        batch_size=32,
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


def read_scores(work: Path, run: Run) -> dict[str, dict[str, Terms]]:
    """`points`, terms by step, each at the length of its phase; `end`, by length."""
    return json.loads(run.path(work, ".json").read_text(encoding="utf-8"))


# Tasks.


def tune(work: Path, data: Path, plan: Plan, only: Sequence[str]) -> None:
    """Tunes every scored run, and random weights, on every task.

    The first run is tuned with each of a task's rates, the others with the best.
    """
    runs = list(itertools.chain(*finished_runs(work, plan).values()))
    for task in only or plan["tasks"]:
        for rate in plan["tasks"][task]["rates"]:
            tune_once(work, data, plan, runs[0], task=task, rate=rate)
        best = best_rate(work, plan, runs[0], task)
        for run in [*runs[1:], None]:
            tune_once(work, data, plan, run, task=task, rate=best)


def best_rate(work: Path, plan: Plan, first: Run, task: str) -> str:
    """That of the highest score on dev."""
    found = {
        rate: task_score(work, plan, first, task=task, rate=str(rate))
        for rate in plan["tasks"][task]["rates"]
    }
    return max(found, key=lambda rate: found[rate] or 0.0)


def tune_once(
    work: Path, data: Path, plan: Plan, run: Run | None, *, task: str, rate: str
) -> None:
    """One fine-tuning, of which only `results.json` stays; `None`: random weights."""
    facts, target = plan["tasks"][task], task_path(work, run, task=task, rate=rate)
    if target.is_file():
        return
    first = next(itertools.chain(*finished_runs(work, plan).values()))
    words = ["--init", (run or first).path(work), *([] if run else ["--from_scratch"])]
    tuned = work / "tuned"
    shutil.rmtree(tuned, ignore_errors=True)
    settings = [*facts.get("set", []), f"learning_rate={rate}"]
    words += ["--task", task, "--data", data / facts["folder"], *as_options(settings)]
    words = ["finetune", *words, "--output_dir", tuned]
    subprocess.run([*BERT_KERAS, *map(str, words)], check=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(target, (tuned / "results.json").read_bytes())


def task_path(work: Path, run: Run | None, *, task: str, rate: str) -> Path:
    """File of a fine-tuning's results."""
    return work / "tasks" / (run.name if run else FLOOR) / f"{task},rate={rate}.json"


def task_score(
    work: Path, plan: Plan, run: Run | None, *, task: str, rate: str
) -> float | None:
    """Score on dev, %; `None`: not tuned yet."""
    path = task_path(work, run, task=task, rate=rate)
    if not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))["eval"]
    return 100 * found[plan["tasks"][task]["score"]]


STAGES = {
    "text": lambda args, plan: make_text(args.data, args.work, plan),
    "train": lambda args, plan: train(args.work, plan, args.only),
    "score": lambda args, plan: score(args.work, plan, args.only),
    "tasks": lambda args, plan: tune(args.work, args.data, plan, args.only),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--work", type=Path, required=True, help="for all that is made")
    parser.add_argument("--data", type=Path, help="dumps, books and labelled files")
    parser.add_argument("--only", nargs="+", default=[], help="recipes, runs or tasks")
    args = parser.parse_args()
    if args.stage in ("text", "tasks") and args.data is None:
        parser.error(f"{args.stage} needs --data")
    STAGES[args.stage](args, read_plan())


if __name__ == "__main__":
    main()

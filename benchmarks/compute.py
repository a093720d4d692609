"""What recipes of pre-training reach for what they cost: one protocol for all.

    python -m benchmarks.compute text --data ../shared/data --work WORK
    taskset -c 1 python -m benchmarks.compute train --work WORK [--only RECIPE ...]
    python -m benchmarks.compute tasks --data ../shared/data --work WORK
    python -m benchmarks.compute page --work WORK

`text` makes what `benchmarks/long_run.py` was given, and examples of more lengths: the
same shards of documents are held out at every length, from every run. `train` runs the
recipes of `compute.yaml` with each seed, and scores them. `tasks` tunes the results.
`page` prints tables and draws `compute.png` in WORK, beside the run of two hours. Cost
is the processor time of the whole training: start, evaluations and all, scoring left
out. Finished work is not done again; unfinished runs go on. Linux only.
"""

import csv
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from benchmarks import long_run, measuring
from bert_keras.core import files

NUM_SHARDS, NUM_HELD_OUT = 64, 4
NUM_SCORED, NUM_ON_CURVE = {"plain_64": 50, "128": 100, "512": 50}, 50
"""Batches of 32 that the end of a run is scored on, and the points of its curve."""
SAMPLE_SECONDS = 1.0
SHOWN = ("128", "512")
"""Lengths in the table."""
SETTINGS = [
    f"num_eval_shards={NUM_HELD_OUT}",
    # Every point is scored afterwards.
    *("num_checkpoints=1000", "num_eval_steps=20", "evaluate_steps=1020"),
    # Pictures for TensorBoard are no part of the training.
    "draw_steps=1000000",
]
"""What all runs have in common."""
PLAN: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("compute.yaml").read_text(encoding="utf-8")
)
LONG_RUN_STEPS = [*range(500, 15501, 500), 15750, *range(16000, 17501, 500)]
LONG_RUN = {
    "masked_lm_accuracy": [
        *(8.6, 11.1, 12.8, 13.4, 13.5, 13.7, 14.1, 14.2, 14.2, 14.3, 14.4, 14.5),
        *(14.6, 14.9, 15.0, 15.3, 15.6, 15.9, 17.5, 19.5, 22.1, 23.4, 24.6, 25.5),
        *(26.0, 26.7, 27.1, 27.5, 27.9, 28.5, 28.7, 28.9, 19.5, 20.1, 21.5, 22.2),
    ],
    "masked_lm_loss": [
        *(6.59, 6.38, 6.26, 6.18, 6.13, 6.12, 6.08, 6.08, 6.06, 6.03, 6.02, 6.00),
        *(5.98, 5.96, 5.93, 5.91, 5.88, 5.82, 5.66, 5.42, 5.09, 4.89, 4.76, 4.66),
        *(4.59, 4.51, 4.46, 4.41, 4.36, 4.32, 4.30, 4.29, 5.37, 5.30, 5.11, 5.02),
    ],
}
"""Held-out masked tokens found by the run of two hours, %, and its loss: read off the
pictures in `results/long_run`, whose run is gone."""
LONG_RUN_SECONDS = {15750: 5026.0, 17500: 7571.0}
"""Its wall time up to two steps: 2:06:11 in all, 22 sequences a second at the end."""
BUSY_CORES = 1.85
"""Of two, in `results/disk_and_rate.md`: the run's processor time was not recorded."""


class Run(NamedTuple):
    """A pre-training of a recipe."""

    recipe: str
    """Its name in the plan."""
    seed: int

    def path(self, work: Path, suffix: str = "") -> Path:
        return work / "runs" / f"{self.recipe},seed={self.seed}{suffix}"

    def scores(self, work: Path) -> dict[str, dict[str, dict[str, float]]]:
        """Returns terms: `points` by step, at its phase's length; `end` by length."""
        return json.loads(self.path(work, ".json").read_text(encoding="utf-8"))

    def costs(self, work: Path) -> list[tuple[float, int]]:
        return read_costs(self.path(work))

    def examples(self, work: Path) -> list[Path]:
        """Returns the directories of its phases."""
        names = PLAN["recipes"][self.recipe]["examples"]
        return [work / f"examples_{name}" for name in names]

    def petaflops(self, work: Path) -> float:
        return petaflops(self.path(work), self.examples(work))


def finished_runs(work: Path) -> dict[str, list[Run]]:
    """Returns scored runs by recipe, in the plan's order."""
    runs = {
        recipe: [Run(recipe, seed) for seed in facts["seeds"]]
        for recipe, facts in PLAN["recipes"].items()
    }
    done = {
        k: [r for r in v if r.path(work, ".json").is_file()] for k, v in runs.items()
    }
    return {recipe: runs for recipe, runs in done.items() if runs}


# Text.


def make_text(data: Path, work: Path) -> None:
    """Makes corpus, vocabulary and examples as those of the run of two hours.

    That run also read extracted articles in the `<doc>` form of WikiExtractor.
    """
    corpus, vocab = work / "corpus", work / "vocab.txt"
    sources = ("--wikipedia", f"{data}/wikipedia/*.bz2")
    make_once(corpus, "corpus", *sources, "--books", f"{data}/books/gutenberg/*.txt")
    make_once(vocab, "vocab", "--corpus", corpus, "--vocab_size", "8000")
    for name, settings in PLAN["examples"].items():
        words = ("--corpus", corpus, "--vocab", vocab, "--num_shards", NUM_SHARDS)
        sets = measuring.set_options([*settings, "masking=dynamic", "dupe_factor=4"])
        make_once(work / f"examples_{name}", "examples", *words, *sets)


def make_once(output: Path, *words: Any) -> None:
    """Runs a command unless its output exists; outputs appear whole."""
    if not output.exists():
        measuring.bert_keras(*words, "--output", output)


# Runs.


def train(work: Path, only: Sequence[str]) -> None:
    """Makes and scores all runs of the plan that are missing."""
    for recipe in only or PLAN["recipes"]:
        for seed in PLAN["recipes"][recipe]["seeds"]:
            run = Run(recipe, seed)
            if not (run.path(work) / "results.json").is_file():
                train_and_count(command(work, run), run.path(work))
            # A process of its own: TensorFlow's memory is given back.
            make_answer = ("benchmarks.compute", work, recipe, seed)
            path = run.path(work, ".json")
            measuring.once(path, lambda words=make_answer: measuring.ask_once(*words))


def command(work: Path, run: Run) -> list[object]:
    facts = PLAN["recipes"][run.recipe]
    settings = [*facts.get("set", []), *SETTINGS, f"seed={run.seed}"]
    words = ["pretrain", "--config", facts["config"], "--examples", *run.examples(work)]
    return [*measuring.BERT_KERAS, *words, *measuring.set_options(settings)]


def beside(directory: Path, suffix: str) -> Path:
    return directory.with_name(directory.name + suffix)


def read_costs(directory: Path) -> list[tuple[float, int]]:
    """Returns processor seconds and steps of a run, sampled."""
    with open(beside(directory, ".cost.csv"), encoding="utf-8", newline="") as file:
        return [(float(cpu), int(step)) for cpu, step in csv.reader(file)]


def train_and_count(command: Sequence[object], directory: Path) -> None:
    """Runs a training, or continues an unfinished one from its last checkpoint.

    Writes the processor seconds of all attempts together, and the steps, beside it.
    """
    log_path, costs_path = beside(directory, ".log"), beside(directory, ".cost.csv")
    if not directory.is_dir():
        log_path.unlink(missing_ok=True)
        costs_path.unlink(missing_ok=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    costs_path.touch()
    spent = max((cpu for cpu, _ in read_costs(directory)), default=0.0)
    ended = 0
    with open(log_path, "ab") as log, open(costs_path, "a", buffering=1) as costs:
        words = [*map(str, command), "--output_dir", str(directory)]
        process = subprocess.Popen(words, stdout=log, stderr=log)
        probe = psutil.Process(process.pid)
        while not ended:
            time.sleep(SAMPLE_SECONDS)
            cpu = sum(probe.cpu_times()[:2])
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                cpu = usage.ru_utime + usage.ru_stime
            text = log_path.read_text(encoding="utf-8", errors="replace")
            costs.write(f"{spent + cpu:.1f},{long_run.last_step(text)}\n")
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"exit code {process.returncode}: see {log_path}")


def cost_at(costs: Sequence[tuple[float, int]], step: int) -> float:
    """Returns processor seconds when a step was logged, in a line between samples."""
    before = max((s for s in costs if s[1] <= step), default=(0.0, 0))
    after = min((s for s in costs if s[1] >= step), default=before)
    if after[1] == before[1]:
        return before[0]
    share = (step - before[1]) / (after[1] - before[1])
    return before[0] + share * (after[0] - before[0])


# Scores.


def make_answer(work: str, recipe: str, seed: str) -> Any:
    return lambda _: score(Path(work), Run(recipe, int(seed)))


def score(work: Path, run: Run) -> dict[str, Any]:
    """Scores a run on the held-out shards, as its own evaluations do.

    Each checkpoint at the length that it was trained on, with 15 % of tokens masked and
    single examples, and the last at all lengths.
    """
    directory = run.path(work)
    lasts = phase_ends(directory)
    lengths = [str(length) for length in PLAN["recipes"][run.recipe]["scored"]]
    end = {n: _score_at(work, directory, n, NUM_SCORED[n]) for n in lengths}
    points = {lasts[-1]: end[lengths[-1]]}
    for path in sorted((directory / "checkpoints").glob("step-*.safetensors")):
        step = int(path.stem.partition("-")[2])
        length = next(n for n, e in zip(lengths, lasts, strict=True) if step <= e)
        if step not in points:
            points[step] = _score_at(work, path, length, NUM_ON_CURVE)
    return {"points": dict(sorted(points.items())), "end": end}


def phase_ends(directory: Path) -> list[int]:
    """Returns the last steps of a run's phases."""
    facts = read_settings(directory)
    shares = itertools.accumulate(phase["fraction"] for phase in facts["phases"])
    return [round(share * facts["num_train_steps"]) for share in shares]


def read_settings(directory: Path) -> dict[str, Any]:
    return yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))


def _score_at(work: Path, checkpoint: Path, name: str, num_batches: int) -> Any:
    from bert_keras.inference import fill_mask

    sizes = {"num_held_out": NUM_HELD_OUT, "batch_size": 32, "num_batches": num_batches}
    batches = held_out_batches(work / f"examples_{name}", **sizes)
    return mean_terms(fill_mask.load_pretrainer(checkpoint)[1], batches)


def held_out_batches(
    examples: Path, *, num_held_out: int, batch_size: int, num_batches: int
) -> Any:
    """Returns batches of the last shards, in the order of a run's own evaluation.

    Fewer if the shards hold no more.
    """
    from bert_keras.core import manifest
    from bert_keras.data import features, tokenization
    from bert_keras.training.pretraining import record_batches

    made = manifest.read_manifest(examples, kind="examples")
    vocabulary = tokenization.Vocabulary.load(examples / "vocab.txt")
    batches = record_batches.RecordBatches(
        config=features.examples_config(made.config, origin=examples),
        vocabulary=vocabulary,
        batch_size=batch_size,
        # That of dynamic masks: a run's evaluation has its own seed's, by default.
        seed=12345,
        shuffle_buffer_size=1,
    )
    shards = record_batches.read_shards(examples, made)[-num_held_out:]
    data, num_batches = batches.to_evaluate(shards, num_batches=num_batches)
    return data.take(num_batches)


def mean_terms(network: Any, batches: Any) -> dict[str, float]:
    """Returns means of a network's losses and accuracies over all batches."""
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


# Tasks.


def tune(work: Path, data: Path) -> None:
    """Tunes every scored run, and random weights, on every task."""
    runs = list(itertools.chain(*finished_runs(work).values()))
    for task, facts in PLAN["tasks"].items():
        for run in [*runs, None]:
            target = task_path(work, run, task)
            if target.is_file():
                continue
            words = ["--init", (run or runs[0]).path(work)]
            words += [] if run else ["--from_scratch"]
            words += ["--task", task, "--data", data / facts["folder"]]
            tuned = work / "tuned"
            shutil.rmtree(tuned, ignore_errors=True)
            words += [*measuring.set_options(facts["set"]), "--output_dir", tuned]
            measuring.bert_keras("finetune", *words)
            target.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(target, (tuned / "results.json").read_bytes())


def task_path(work: Path, run: Run | None, task: str) -> Path:
    """Returns the file of a fine-tuning's results; `None`: random weights."""
    name = f"{run.recipe},seed={run.seed}" if run else "no pre-training"
    return work / "tasks" / name / f"{task}.json"


# The page.


def print_page(work: Path) -> None:
    """Prints costs and scores, a row a run and a mean of several runs; and tasks."""
    finished = finished_runs(work)
    loss, found = LONG_RUN["masked_lm_loss"], LONG_RUN["masked_lm_accuracy"]
    rows = [["two hours", f"about {long_run_costs()[-1]:,.0f}", "17,500", ""]]
    rows[0] += [min(loss), max(found), loss[-1], found[-1]]
    for runs in finished.values():
        rows += [score_row(work, [run]) for run in runs]
        rows += [score_row(work, runs)] if len(runs) > 1 else []
    header = ["run", "processor seconds", "steps", "PFLOP"]
    header += [word for n in SHOWN for word in (f"loss at {n}", "found, %")]
    measuring.print_table(header, rows)
    rows = []
    for name, runs in [*finished.items(), ("no pre-training", [None])]:
        cells = []
        for task, facts in PLAN["tasks"].items():
            paths = [task_path(work, run, task) for run in runs]
            results = [json.loads(p.read_text()) for p in paths if p.is_file()]
            scores = [100 * found["eval"][facts["score"]] for found in results]
            cells.append(measuring.mean_and_deviation(scores))
        rows.append([f"{name} ({len(runs)})", *cells])
    header = [f"{name}, {facts['score']}" for name, facts in PLAN["tasks"].items()]
    measuring.print_table(["weights", *header], rows)
    draw(work, finished)


def score_row(work: Path, runs: Sequence[Run]) -> list[str]:
    """Returns means of runs that differ in the seed."""
    costs = [run.costs(work)[-1] for run in runs]
    seeds = "mean" if len(runs) > 1 else f"seed {runs[0].seed}"
    cells = [f"{runs[0].recipe}, {seeds}"]
    cells += [measuring.mean_and_deviation([cpu for cpu, _ in costs], ",.0f")]
    cells += [f"{costs[0][1]:,}", f"{runs[0].petaflops(work):.2f}"]
    for length in SHOWN:
        ends = [run.scores(work)["end"].get(length) for run in runs]
        losses = [end["masked_lm_loss"] for end in ends if end]
        found = [100 * end["masked_lm_accuracy"] for end in ends if end]
        cells += [measuring.mean_and_deviation(losses, ".3f")]
        cells += [measuring.mean_and_deviation(found)]
    return cells


def petaflops(directory: Path, examples_dirs: Sequence[Path]) -> float:
    """Returns operations of a whole run's matrix products: forward, backward, Muon's.

    Six for each weight and token and 12 for each hidden unit, token and token attended
    to, of each layer: `bert_keras.model.flops`.
    """
    from bert_keras.core import manifest
    from bert_keras.core.settings import architecture, strict
    from bert_keras.data import features
    from bert_keras.model import flops

    facts, lasts, total = read_settings(directory), phase_ends(directory), 0
    bert = json.loads((directory / "bert_config.json").read_text(encoding="utf-8"))
    sizes = strict.build_config(architecture.BertConfig, bert)
    for path, phase, first, last in zip(
        examples_dirs, facts["phases"], [0, *lasts[:-1]], lasts, strict=True
    ):
        made = manifest.read_manifest(path, kind="examples")
        examples = features.examples_config(made.config, origin=path)
        batch_size = phase["global_batch_size"] or facts["global_batch_size"]
        each = flops.pretraining_flops_per_example(
            sizes,
            max_seq_length=examples.max_seq_length,
            num_predictions=examples.num_row_predictions,
            next_sentence=facts["next_sentence"],
            num_instances=examples.num_slots,
        )
        total += (last - first) * batch_size * each
        if facts["optimizer"]["name"] == "muon":
            total += (last - first) * flops.muon_flops_per_step(
                sizes, next_sentence=facts["next_sentence"]
            )
    return total / 1e15


def long_run_costs() -> list[float]:
    """Returns processor seconds of the points of the run of two hours."""
    change, end = LONG_RUN_SECONDS
    before, total = LONG_RUN_SECONDS.values()

    def seconds(step: int) -> float:
        if step <= change:
            return before * step / change
        return before + (total - before) * (step - change) / (end - change)

    return [BUSY_CORES * seconds(step) for step in LONG_RUN_STEPS]


def draw(work: Path, finished: dict[str, list[Run]]) -> None:
    """Draws held-out loss and accuracy by cost: mean and deviation over seeds."""
    import numpy as np
    from matplotlib import figure

    from bert_keras.pages import drawing

    def draw_term(axes, term: str, scale: float) -> None:
        look = {"color": drawing.GREY, "marker": "o", "markersize": 3}
        axes.plot(long_run_costs(), LONG_RUN[term], label="two hours", **look)
        for recipe, runs in finished.items():
            points = [run.scores(work)["points"] for run in runs]
            steps = list(points[0])
            costs = [[cost_at(r.costs(work), int(s)) for s in steps] for r in runs]
            found = [[scale * at[step][term] for step in steps] for at in points]
            x, y = np.mean(costs, 0), np.mean(found, 0)
            spread = np.std(found, 0, ddof=min(1, len(runs) - 1))
            (line,) = axes.plot(x, y, "o-", markersize=3, label=recipe)
            low, high = y - spread, y + spread
            axes.fill_between(x, low, high, color=line.get_color(), alpha=0.3)
        axes.set(xlabel="processor seconds")

    def picture():
        drawn = figure.Figure(figsize=(13, 5), layout="constrained")
        loss, accuracy = drawn.subplots(1, 2)
        draw_term(loss, "masked_lm_loss", 1)
        loss.set(title="held-out masked-LM loss")
        # Both have the same lines.
        loss.legend(frameon=False)
        draw_term(accuracy, "masked_lm_accuracy", 100)
        accuracy.set(title="held-out masked tokens found, %", ylim=0)
        return drawn

    files.write_atomically(work / "compute.png", drawing.as_png(picture))


STAGES = {
    "text": lambda args: make_text(args.data, args.work),
    "train": lambda args: train(args.work, args.only),
    "tasks": lambda args: tune(args.work, args.data),
    "page": lambda args: print_page(args.work),
}


def main() -> None:
    measuring.run_stage(__doc__.splitlines()[0], STAGES)


if __name__ == "__main__":
    measuring.start(main, make_answer)

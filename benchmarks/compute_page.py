"""Tables and the picture of what `benchmarks/compute.py` made.

    python benchmarks/compute_page.py --work WORK --picture compute.png

Prints what each run cost and reached, and the tasks; draws the curves of held-out loss
and accuracy against processor seconds, beside those of the run of two hours.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import compute

from bert_keras import files

SHOWN = ("128", "512")
"""Lengths in the table."""
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


def tables(work: Path, plan: compute.Plan) -> str:
    """Costs and scores, a row a run and those of several a mean; and tasks."""
    seconds = f"about {long_run_costs()[-1]:,.0f}"
    loss, found = LONG_RUN["masked_lm_loss"], LONG_RUN["masked_lm_accuracy"]
    finished = compute.finished_runs(work, plan)
    rows = [["two hours", seconds, "17,500", "", f"{min(loss)} at step 15,750"]]
    rows[0] += [f"{max(found)}", f"{loss[-1]}", f"{found[-1]}"]
    for recipe, runs in finished.items():
        rows += [
            row(work, plan, [run]) for run in [*compute.trials(plan, recipe), *runs]
        ]
        rows += [row(work, plan, runs)] if len(runs) > 1 else []
    head = ["run", "processor seconds", "steps", "PFLOP"]
    head += [word for length in SHOWN for word in (f"loss at {length}", "found, %")]
    return f"{_lines([head, *rows])}\n{task_table(work, plan, finished)}"


def _lines(rows: Sequence[Sequence[str]]) -> str:
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def row(work: Path, plan: compute.Plan, runs: Sequence[compute.Run]) -> list[str]:
    """Means of runs that differ in the seed."""
    samples = [compute.read_samples(run.path(work, ".cost.csv"))[-1] for run in runs]
    is_mean = len(runs) > 1
    cells = [f"{runs[0].recipe}, mean of {len(runs)}" if is_mean else runs[0].title]
    cells += [mean_and_deviation([sample.cpu_seconds for sample in samples], ",.0f")]
    cells += [f"{samples[0].step:,}", f"{petaflops(work, plan, runs[0]):.2f}"]
    for length in SHOWN:
        ends = [compute.read_scores(work, run)["end"].get(length) for run in runs]
        losses = [end["masked_lm_loss"] for end in ends if end]
        found = [100 * end["masked_lm_accuracy"] for end in ends if end]
        cells += [mean_and_deviation(losses, ".3f"), mean_and_deviation(found)]
    return cells


def task_table(
    work: Path, plan: compute.Plan, finished: dict[str, list[compute.Run]]
) -> str:
    """Scores on dev: each rate's for the first run, and those of the best for all."""
    first = next(itertools.chain(*finished.values()))
    rates = {task: compute.best_rate(work, plan, first, task) for task in plan["tasks"]}

    def cell(runs: Sequence[compute.Run | None], task: str, rate: str) -> str:
        found = [
            compute.task_score(work, plan, run, task=task, rate=rate) for run in runs
        ]
        made = [value for value in found if value is not None]
        number = f" ({len(made)})" if 0 < len(made) < len(runs) else ""
        return mean_and_deviation(made) + number

    tried = dict.fromkeys(
        rate for facts in plan["tasks"].values() for rate in facts["rates"]
    )
    rows = [
        [f"{first.title}: tuned at {rate}"]
        + [cell([first], task, rate) for task in plan["tasks"]]
        for rate in tried
    ]
    for name, runs in [*finished.items(), (compute.FLOOR, [None])]:
        cells = [cell(runs, task, rates[task]) for task in plan["tasks"]]
        rows.append([f"{name} ({len(runs)})", *cells])
    heads = [f"{name}, {facts['score']}" for name, facts in plan["tasks"].items()]
    return _lines([["weights", *heads], *rows])


def mean_and_deviation(values: Sequence[float], form: str = ".1f") -> str:
    """`28.9 ± 0.2`; of a single value no deviation, of none nothing."""
    if not values:
        return ""
    mean = format(statistics.mean(values), form)
    if len(values) == 1:
        return mean
    return f"{mean} ± {format(statistics.stdev(values), form)}"


def petaflops(work: Path, plan: compute.Plan, run: compute.Run) -> float:
    """Operations of a whole run's matrix products, forward and backward.

    Six for each weight and token and 12 for each hidden unit, token and token attended
    to, of each layer: `bert_keras.model.flops`.
    """
    from bert_keras import config, manifest, strict_model
    from bert_keras.data import features
    from bert_keras.model import flops

    facts = compute.read_settings(run.path(work))
    bert = json.loads((run.path(work) / "bert_config.json").read_text(encoding="utf-8"))
    sizes = strict_model.build_config(config.BertConfig, bert)
    names = plan["recipes"][run.recipe]["examples"]
    lasts = compute.phase_ends(run.path(work))
    total = 0
    for name, phase, first, last in zip(
        names, facts["phases"], [0, *lasts], lasts, strict=False
    ):
        path = compute.examples_path(work, name)
        made = manifest.read_manifest(path, kind="examples", verb="examples")
        examples = features.examples_config(made.config, origin=path)
        batch_size = phase["global_batch_size"] or facts["global_batch_size"]
        total += (
            (last - first)
            * batch_size
            * flops.pretraining_flops_per_example(
                sizes,
                max_seq_length=examples.max_seq_length,
                num_predictions=examples.num_row_predictions,
                next_sentence=facts["next_sentence"],
                num_instances=examples.num_slots,
            )
        )
    return total / 1e15


def long_run_costs() -> list[float]:
    """Processor seconds of the points of the run of two hours."""
    change, end = LONG_RUN_SECONDS
    before, total = LONG_RUN_SECONDS.values()

    def seconds(step: int) -> float:
        if step <= change:
            return before * step / change
        return before + (total - before) * (step - change) / (end - change)

    return [BUSY_CORES * seconds(step) for step in LONG_RUN_STEPS]


def draw(work: Path, plan: compute.Plan, path: Path) -> None:
    """Held-out loss and accuracy against cost: mean and deviation over seeds."""
    import numpy as np
    from matplotlib import figure

    from bert_keras.report import drawing

    def draw_term(axes, term: str, scale: float) -> None:
        look = {"color": drawing.GREY, "marker": "o", "markersize": 3}
        axes.plot(long_run_costs(), LONG_RUN[term], label="two hours", **look)
        for recipe, runs in compute.finished_runs(work, plan).items():
            points = [compute.read_scores(work, run)["points"] for run in runs]
            samples = [
                compute.read_samples(run.path(work, ".cost.csv")) for run in runs
            ]
            costs = [
                [compute.cost_at(one, int(step)) for step in points[0]]
                for one in samples
            ]
            found = [[scale * at[step][term] for step in at] for at in points]
            x, y = np.mean(costs, 0), np.mean(found, 0)
            spread = np.std(found, 0, ddof=min(1, len(runs) - 1))
            label = f"{recipe}, {len(runs)} seeds" if len(runs) > 1 else recipe
            (line,) = axes.plot(x, y, "o-", markersize=3, label=label)
            colour = line.get_color()
            axes.fill_between(x, y - spread, y + spread, color=colour, alpha=0.3)
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

    files.write_atomically(path, drawing.as_png(picture))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="of compute.py")
    parser.add_argument("--picture", type=Path, required=True, help="PNG to write")
    args = parser.parse_args()
    plan = compute.read_plan()
    draw(args.work, plan, args.picture)
    print(tables(args.work, plan), end="")


if __name__ == "__main__":
    main()

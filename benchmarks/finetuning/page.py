"""The page of `compare.py`: its runs as tables and a picture."""

import dataclasses
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib import figure

from benchmarks.finetuning import check

BASELINE, SCRATCH = "baseline", "from_scratch"
OURS, THEIRS = "bert_keras", "transformers"
HEADINGS = {
    BASELINE: "no model",
    SCRATCH: "bert-keras from random weights",
    THEIRS: "transformers",
    OURS: "bert-keras",
}
"""The columns of scores, in their order."""
SPEED_HEADINGS = {
    OURS: "bert-keras",
    THEIRS: "transformers",
    "transformers_by_length": "transformers, by length",
}
"""Columns of speeds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """The metric of a task."""

    metric: str
    """Name of a metric in `eval` of results.json."""
    scale: float = 100.0
    """Factor that makes it a percentage."""
    bound: float | None = None
    """Smallest value expected, in per cent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A finished run, or a baseline, which has no settings."""

    task: str
    implementation: str
    precision: str
    """Precision of the computation."""
    seed: int
    settings: Mapping[str, Any]
    """All of `FinetuningConfig`."""
    results: Mapping[str, Any]
    """Metrics as in a run's results.json."""
    machine: str
    """Date, processor and versions."""


def read_records(directory: Path) -> list[Record]:
    """All records of a folder, by task and seed."""
    records = [
        Record(**json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(directory.glob("*.json"))
    ]
    return sorted(records, key=lambda record: (record.task, record.seed))


class Summary(NamedTuple):
    """Scores of several seeds, in per cent."""

    mean: float
    deviation: float | None
    """Deviation of the sample, with n - 1; `None` for a single run."""
    num_runs: int

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ± {self.deviation:.2f} ({self.num_runs})"


def summarize(scores: Sequence[float]) -> Summary:
    """Mean and deviation."""
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return Summary(statistics.fmean(scores), deviation, len(scores))


class Row(NamedTuple):
    """A task, computed in one precision."""

    task: str
    precision: str
    cells: Mapping[str, Summary]
    """Scores by implementation."""


def rows_of(records: Iterable[Record], measures: Mapping[str, Measure]) -> list[Row]:
    """A row for each task and precision that was trained in, in the order of tasks.

    Args:
        records: of tasks that `measures` has.
        measures: by task.
    """
    scores: dict[tuple[str, str], dict[str, list[float]]] = {}
    baselines: dict[str, float] = {}
    for record in records:
        measure = measures[record.task]
        score = measure.scale * record.results["eval"][measure.metric]
        if record.implementation == BASELINE:
            baselines[record.task] = score
            continue
        of_row = scores.setdefault((record.task, record.precision), {})
        of_row.setdefault(record.implementation, []).append(score)
    rows = []
    for task in measures:
        for precision in sorted(p for t, p in scores if t == task):
            found = dict(scores[task, precision])
            if task in baselines:
                found[BASELINE] = [baselines[task]]
            cells = {name: summarize(values) for name, values in found.items()}
            rows.append(Row(task, precision, cells))
    return rows


# Tables.


def table(heading: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def scores_table(rows: Sequence[Row], measures: Mapping[str, Measure]) -> str:
    """Scores in per cent side by side, and whether they reach the bounds."""
    heading = ["task", "metric", "precision", *HEADINGS.values()]
    lines = [
        [
            row.task,
            measures[row.task].metric,
            row.precision,
            *(row.cells.get(name, "") for name in HEADINGS),
            bound_text(row, measures[row.task]),
            difference_text(row),
        ]
        for row in rows
    ]
    return table([*heading, "bound", "against transformers"], lines)


def bound_text(row: Row, measure: Measure) -> str:
    """Whether the mean of our runs reaches the bound of the task."""
    if measure.bound is None:
        return ""
    if OURS not in row.cells:
        return f"{measure.bound:g}"
    is_reached = row.cells[OURS].mean >= measure.bound
    return f"{measure.bound:g}: {'reached' if is_reached else '**missed**'}"


def difference_text(row: Row) -> str:
    """Whether our mean is below theirs by more than the deviation of their runs."""
    if not row.cells.keys() >= {OURS, THEIRS}:
        return ""
    ours, theirs = row.cells[OURS], row.cells[THEIRS]
    difference = f"{ours.mean - theirs.mean:+.2f}"
    if theirs.deviation is None:
        return f"{difference} (one run)"
    is_lower = ours.mean < theirs.mean - theirs.deviation
    return f"{difference}: {'**lower**' if is_lower else 'not lower'}"


_SHOWN_SETTINGS = (
    *("batch_size", "learning_rate", "num_train_epochs", "warmup_proportion"),
    *("max_seq_length", "dropout_prob"),
)


def settings_table(records: Sequence[Record], tasks: Iterable[str]) -> str:
    """Data and settings of each task; the settings are those of all its runs."""
    lines = []
    for task in tasks:
        runs = [r for r in records if r.task == task and r.implementation != BASELINE]
        if not runs:
            continue
        results, settings = runs[0].results, runs[0].settings
        lines.append(
            [
                task,
                f"{results['num_train_examples']:,}",
                f"{results['num_eval_examples']:,}",
                *(f"{settings[name]:g}" for name in _SHOWN_SETTINGS),
                f"{results['steps']:,}",
            ]
        )
    names = [name.replace("_", " ") for name in _SHOWN_SETTINGS]
    return table(["task", "train", "dev", *names, "steps"], lines)


def check_table(agreements: Mapping[str, check.Agreement]) -> str:
    """Agreement of both implementations in their first steps."""
    lines = [
        [
            task,
            found.num_steps,
            "yes" if found.same_inputs else "**no**",
            f"{found.first_loss:.1e}",
            f"{found.first_gradient_norm:.1e}",
            f"{found.largest_loss:.1e}",
            "yes" if found.is_close else "**no**",
        ]
        for task, found in agreements.items()
    ]
    heading = ["task", "steps", "same tokens", "first loss", "first gradient norm"]
    return table([*heading, "largest of all losses", "within bounds"], lines)


def speed_table(speeds: Sequence[Mapping[str, Any]]) -> str:
    """Examples per second, and tokens per example with the padding."""
    lines = []
    for row in speeds:
        ours = row["speeds"][OURS]["examples_per_second"]
        cells = []
        for name in SPEED_HEADINGS:
            speed = row["speeds"][name]
            ratio = speed["examples_per_second"] / ours
            bracket = "" if name == OURS else f" ({ratio:.2f})"
            cells.append(
                f"{speed['examples_per_second']:.1f}{bracket}; "
                f"{speed['examples_per_cpu_second']:.1f}; "
                f"{speed['tokens_per_example']:.1f}"
            )
        lines.append([row["size"], row["precision"], *cells])
    return table(["model", "precision", *SPEED_HEADINGS.values()], lines)


# The page.

_SCORES_TEXT = """\
Per cent on the whole dev set after the last epoch: mean ± deviation (of the sample)
over as many seeds as stand in brackets. All start from the trained encoder but "from
random weights", which has its sizes and vocabulary alone. "Lower" would be a mean of
ours below that of transformers by more than the deviation of their runs. Batch sizes,
rates and epochs were chosen on dev, as in the paper, by single runs of bert-keras.

transformers trains its own model class by torch's AdamW (epsilon 1e-8), in shuffled
batches; bert-keras by its AdamW (epsilon 1e-6; with bias correction, as theirs:
`adamw_mode=corrected`), in batches of about one length, but shuffled ones of
CoNLL-2003. Both have the original BERT's schedule, whose decay is counted from the
first step. Files are read and answers scored by the same functions. "No model" answers
with the commonest label, the mean, each word's commonest tag, or the sentence that
shares most words with the question."""

_CHECK_TEXT = """\
Without dropout, in float32, both from the same weights (head included), with the same
examples in the same batches, each side tokenizing and padding by itself, and both with
AdamW as torch has it. Differences in proportion; bounds: {first:g} of the first loss,
{norm:g} of its gradient norm (torch's is a float32 sum), {all:g} of any loss."""

_SPEED_TEXT = """\
Steps on real sentences of SST-2, batch 32, dropout 0.1, clipping and AdamW, each
implementation with its own batches, padded to their longest: bert-keras puts inputs
of about one length together; transformers shuffles, or groups by length if its trainer
is told to. Each cell: examples per second (in brackets how many times as fast as
bert-keras); examples per second of processor time; tokens per example, padding
included. Medians of turns."""


def render(
    records: Sequence[Record],
    measures: Mapping[str, Measure],
    *,
    model: str,
    command: str,
    picture: str,
    agreements: Mapping[str, check.Agreement],
    speeds: Sequence[Mapping[str, Any]],
) -> str:
    """The page in Markdown.

    Args:
        records: of finished runs and baselines, of tasks that `measures` has.
        measures: by task, in the order of the rows.
        model: what was tuned.
        command: that makes the page.
        picture: its path, relative to the page.
        agreements: of the first steps, by task; may be empty.
        speeds: rows of `speed.py`; may be empty.
    """
    machines = sorted({record.machine for record in records})
    parts = [
        "# Fine-tuning a real trained model",
        f"Full fine-tuning of all weights of {model}.",
        f"```\n{command}\n```",
        "\n".join(f"- {machine}" for machine in machines),
        "## Scores",
        scores_table(rows_of(records, measures), measures),
        f"![scores]({picture})",
        _SCORES_TEXT,
        "## Data and settings",
        settings_table(records, measures),
    ]
    if agreements:
        bounds = {
            "first": check.FIRST_LOSS,
            "norm": check.GRADIENT_NORM,
            "all": check.ALL_LOSSES,
        }
        parts += ["## The same computation", _CHECK_TEXT.format(**bounds)]
        parts.append(check_table(agreements))
    if speeds:
        parts += ["## Speed", _SPEED_TEXT, speed_table(speeds)]
    return "\n\n".join(parts) + "\n"


# The picture.

_MARKS = {
    BASELINE: {"color": "#666666", "marker": "_", "markersize": 16},
    SCRATCH: {"color": "#009E73", "marker": "s"},
    THEIRS: {"color": "#D55E00", "marker": "D"},
    OURS: {"color": "#0072B2", "marker": "o"},
}
_STYLE = {
    "font.size": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(rows: Sequence[Row], measures: Mapping[str, Measure], path: Path) -> None:
    """Means with their deviations, and the bounds as lines."""
    with matplotlib.rc_context(_STYLE):
        width = min(16.0, max(6.0, 2.0 + 1.2 * len(rows)))
        picture = figure.Figure(figsize=(width, 5), dpi=150, layout="constrained")
        plot = picture.add_subplot(title="Scores on dev", ylabel="per cent")
        for offset, (name, heading) in enumerate(HEADINGS.items()):
            drawn = [
                (x, row.cells[name]) for x, row in enumerate(rows) if name in row.cells
            ]
            if drawn:
                plot.errorbar(
                    [x + 0.14 * (offset - 1.5) for x, _ in drawn],
                    [cell.mean for _, cell in drawn],
                    yerr=_bars([cell for _, cell in drawn]),
                    linestyle="none",
                    capsize=3,
                    label=heading,
                    **_MARKS[name],
                )
        bounds = [(x, measures[row.task].bound) for x, row in enumerate(rows)]
        bounds = [(x, bound) for x, bound in bounds if bound is not None]
        if bounds:
            plot.hlines(
                [bound for _, bound in bounds],
                [x - 0.35 for x, _ in bounds],
                [x + 0.35 for x, _ in bounds],
                colors="#CC79A7",
                linestyles="dashed",
                label="bound",
            )
        plot.set_xticks(range(len(rows)), [_tick(row, measures) for row in rows])
        plot.set_ylim(bottom=min(0.0, plot.get_ylim()[0]))
        picture.legend(loc="outside lower center", ncols=3, frameon=False)
        picture.savefig(path)


def _bars(cells: Sequence[Summary]) -> list[float] | None:
    """Lengths of error bars; `None` if there are none at all."""
    lengths = [cell.deviation or 0.0 for cell in cells]
    return lengths if any(lengths) else None


def _tick(row: Row, measures: Mapping[str, Measure]) -> str:
    precision = {"mixed_bfloat16": "bf16"}.get(row.precision, row.precision)
    task = row.task.replace("+", "\n+")
    return f"{task}\n{measures[row.task].metric}\n{precision}"

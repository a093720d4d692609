"""The result of a sweep: results.tsv, report.md, pictures, best.json and `best`."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from bert_keras.core import files
from bert_keras.lab.sweep import drawings, planning, scores
from bert_keras.pages import drawing, markdown

PAGE_NAME = "report.md"
PICTURE_NAME = "scores.png"
_CURVE_NAME = "learning_curve.png"


@dataclass(kw_only=True)
class State:
    directory: Path
    task: str
    criterion: scores.Criterion
    keys: tuple[str, ...] = ()
    runs: dict[str, planning.Run] = field(default_factory=dict)
    """Runs by name, in the order of the plan."""
    ended: dict[str, scores.Outcome] = field(default_factory=dict)
    """Outcomes of the ended runs by name, in the order of their ends."""

    @property
    def outcomes(self) -> list[scores.Outcome]:
        """Returns the outcomes of the ended runs, in the order of the plan."""
        return [self.ended[name] for name in self.runs if name in self.ended]

    @property
    def is_finished(self) -> bool:
        return len(self.outcomes) == len(self.runs)

    @property
    def points(self) -> list[scores.Point]:
        return scores.points_of(self.outcomes, self.keys)

    @property
    def curve(self) -> dict[str, drawings.Line]:
        """Returns a learning curve's lines; none without two `train_fraction`."""
        if drawings.FRACTION_KEY not in self.keys:
            return {}
        lines = drawings.curve_lines(self.points, self.keys)
        return lines if any(len(line) > 1 for line in lines.values()) else {}

    @property
    def num_folds(self) -> int:
        """Returns the folds of the ended runs; 0: all were scored on the same files."""
        return len({o.run.fold for o in self.outcomes} - {None})

    @property
    def chosen(self) -> tuple[scores.Point, scores.Outcome] | None:
        return scores.choose(self.points, self.criterion)


def write_tables(state: State) -> None:
    """Writes the table of the runs and the page, also of an unfinished sweep."""
    files.write_atomically(state.directory / "results.tsv", runs_tsv(state).encode())
    files.write_atomically(state.directory / PAGE_NAME, page(state).encode())


def write_pictures(state: State) -> None:
    """Draws the scores of all runs, and with several fractions a learning curve."""
    metric, task = f"{state.criterion.metric} on dev", state.task
    pictures = {
        PICTURE_NAME: lambda: drawings.draw_points(
            *(state.points, state.keys),
            criterion=state.criterion,
            title=f"{task}: {metric}",
        )
    }
    if lines := state.curve:
        pictures[_CURVE_NAME] = lambda: drawings.draw_curve(
            lines, metric=metric, title=f"{task}: learning curve"
        )
    for name, draw in pictures.items():
        files.write_atomically(state.directory / name, drawing.as_png(draw))


def write_best(state: State) -> None:
    """Writes best.json and makes `best` a link to the directory of the chosen run; a
    run must have been chosen."""
    point, best = cast(tuple[scores.Point, scores.Outcome], state.chosen)
    values = {
        "run": f"runs/{best.run.name}",
        "metric": state.criterion.metric,
        "goal": state.criterion.goal,
        "choose": state.criterion.choose,
        "score": best.score,
        "mean_of_point": point.mean,
        "deviation_of_point": point.deviation,
        "point": dict(zip(state.keys, point.values, strict=True)),
        "seed": best.run.settings.seed,
        **({} if best.run.fold is None else {"fold": best.run.fold}),
        "eval": dict(best.evaluation),
    }
    files.write_json(state.directory / "best.json", values, ensure_ascii=False)
    temporary = state.directory / ".best.tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(values["run"], target_is_directory=True)
    temporary.replace(state.directory / "best")


def runs_tsv(state: State) -> str:
    """Returns results.tsv: a line for each run, with all its metrics."""
    metrics = list(dict.fromkeys(n for o in state.outcomes for n in o.evaluation))
    fold = ["fold"] if state.num_folds else []
    rows = [["run", *state.keys, *fold, "seed", "state", *metrics, "seconds", "note"]]
    for outcome in state.outcomes:
        run = outcome.run
        row = [
            f"runs/{run.name}",
            *(planning.show(run.value(key)) for key in state.keys),
            *([run.fold] if fold else []),
            run.settings.seed,
            outcome.state,
            *(outcome.evaluation.get(name, "") for name in metrics),
            "" if outcome.seconds is None else outcome.seconds,
            " ".join((outcome.failure or outcome.majority or "").split()),
        ]
        rows.append(list(map(str, row)))
    return "".join("\t".join(row) + "\n" for row in rows)


def points_table(state: State) -> str:
    """Returns the grid points in Markdown, the chosen one in bold."""
    chosen = state.chosen
    rows = []
    for point in state.points:
        best = point.best(state.criterion)
        row = [
            *map(planning.show, point.values),
            str(len(point.scores)),
            _number(point.mean),
            _number(point.deviation),
            _number(None if best is None else best.score),
            str(point.num_failed),
            str(point.num_majority),
        ]
        is_chosen = chosen is not None and point.values == chosen[0].values
        rows.append([f"**{c}**" if is_chosen and c else c for c in row])
    header = [*state.keys, "n", "mean", "deviation", "best", "failed", "majority"]
    return markdown.table(header, rows)


def lines(state: State) -> list[str]:
    """Returns the table of grid points and the chosen run, for people."""
    return [*points_table(state).splitlines(), chosen_line(state)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def chosen_line(state: State) -> str:
    """Returns a sentence with the chosen run, and the reason for the choice."""
    if state.chosen is None:
        return "No run has a score."
    point, best = state.chosen
    metric = state.criterion.metric
    how = "the best single run"
    if state.criterion.choose == "mean":
        mean = markdown.spread(point.scores, digits=4)
        how = f"the best run of the point with the best mean, {mean}"
        if state.num_folds:
            how += f" over {state.num_folds} folds"
    line = f"Chosen: {best.run.name}, {metric} {best.score:.4f} on dev, {how}."
    if best.majority is not None:
        line += f" All runs are at the majority class, this one {best.majority}."
    return line


def page(state: State) -> str:
    states = [outcome.state for outcome in state.outcomes]
    parts = [
        f"# Sweep: {state.task}",
        f"{len(state.outcomes)} of {len(state.runs)} runs have ended, "
        f"{states.count('failed')} of them failed and {states.count('majority')} at "
        "the majority class.",
        chosen_line(state),
        *_use(state),
        points_table(state),
        _EXPLANATION.format(
            metric=state.criterion.metric, how=_HOW[state.criterion.choose]
        ),
        *([_FOLDS] if state.num_folds else []),
        *_picture(state),
        *_notes("Failed runs", state, "failure"),
        *_notes("Runs at the majority class", state, "majority"),
    ]
    return "\n\n".join(parts) + "\n"


_HOW = {
    "best": (
        "the best single run, as in the paper (section 4.1). The best of many runs was "
        "also lucky on dev: expect the mean of another run"
    ),
    "mean": (
        "the point with the best mean among those with the fewest failed runs, and its "
        "best run"
    ),
}

_EXPLANATION = (
    "n, mean, deviation (of the sample) and best: `{metric}` on dev of the runs that "
    "did not fail, those at the majority class, which learnt nothing, included. Chosen "
    "is {how}. Each run is in `results.tsv`, its output in `logs`."
)

_FOLDS = (
    "Each run learnt from all folds but one and was scored on that one. With one point "
    "the mean is what to expect of such a model on new data of this kind; the best of "
    "several points was also lucky, and is expected to score lower there. The chosen "
    "run has not seen its own fold; `finetune` on all data makes a model to keep."
)


def _use(state: State) -> Iterator[str]:
    if state.chosen is not None and state.is_finished:
        model = shlex.quote(str(state.directory / "best"))
        yield (
            f"`--model {model}` gives it to `bert-keras predict`, `evaluate` and "
            "`export`."
        )


def _picture(state: State) -> Iterator[str]:
    if state.is_finished:
        yield f"![{state.criterion.metric} of each run]({PICTURE_NAME})"
        if state.curve:
            yield f"![{state.criterion.metric} against labels]({_CURVE_NAME})"


def _notes(title: str, state: State, attribute: str) -> Iterator[str]:
    length = markdown.MAX_TEXT_LENGTH
    lines = [
        f"- `{outcome.run.name}`: {markdown.literal(note, max_length=length)}"
        for outcome in state.outcomes
        if (note := getattr(outcome, attribute))
    ]
    if lines:
        yield f"## {title}"
        yield "\n".join(lines)

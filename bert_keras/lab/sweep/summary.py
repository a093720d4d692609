"""The result of a sweep: results.tsv, report.md and report.html, pictures, sweep.json
and `best`.

A sweep whose first axis is the model, a comparison, adds paired differences and
baselines to the page and to sweep.json.
"""

import collections
import itertools
import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import scipy.stats

from bert_keras.checkpoints import run_directory
from bert_keras.core import files, progress
from bert_keras.core.settings import finetuning
from bert_keras.kinds import catalogue
from bert_keras.lab.sweep import (
    baselines,
    drawings,
    forecast,
    planning,
    ranking,
    scores,
)
from bert_keras.pages import drawing, html, markdown

PAGE_NAME, HTML_NAME = "report.md", "report.html"
_PICTURE_NAME = "scores.png"
_CURVE_NAME = "learning_curve.png"


@dataclass(kw_only=True)
class State:
    directory: Path
    settings: finetuning.FinetuningConfig
    """Settings of all runs, before the grid."""
    criterion: scores.Criterion
    keys: tuple[str, ...] = ()
    runs: dict[str, planning.Run] = field(default_factory=dict)
    """Runs by name, in the order of the plan."""
    ended: dict[str, scores.Outcome] = field(default_factory=dict)
    """Outcomes of the ended runs by name, in the order of their ends."""
    baselines: list[scores.Outcome] = field(default_factory=list)
    """Outcomes of the baselines of a comparison."""
    rankings: list[ranking.Ranking] = field(default_factory=list)
    """Rankings of a comparison, by number of labels, ascending."""

    @property
    def outcomes(self) -> list[scores.Outcome]:
        """Returns the outcomes of the ended runs, in the order of the plan."""
        return [self.ended[name] for name in self.runs if name in self.ended]

    @property
    def points(self) -> list[scores.Point]:
        return scores.points_of(self.outcomes, self.keys)

    @property
    def baseline_points(self) -> list[scores.Point]:
        return scores.points_of(self.baselines, self.keys)

    @property
    def curve(self) -> dict[str, drawings.Line]:
        """Returns a learning curve's lines; none without two `train_fraction`."""
        if planning.FRACTION_KEY not in self.keys:
            return {}
        points = [*self.baseline_points, *self.points]
        points = [point for point in points if point.num_train_examples]
        # A line for each combination of the other keys.
        share = self.keys.index(planning.FRACTION_KEY)
        others = [(*p.values[:share], *p.values[share + 1 :]) for p in points]
        lines = collections.defaultdict(list)
        for name, point in zip(planning.varied_names(others), points, strict=True):
            lines[name].append((point.num_train_examples, tuple(point.scores)))
        curve = {name: sorted(line) for name, line in lines.items()}
        return curve if any(len(line) > 1 for line in curve.values()) else {}

    @property
    def more_labels(self) -> list[str]:
        """Returns whether more labels would help the chosen point; [] if unknown."""
        if not self.curve or self.chosen is None:
            return []
        share, values = self.keys.index(planning.FRACTION_KEY), self.chosen[0].values
        line = [
            (point.num_train_examples, tuple(point.scores))
            for point in self.points
            if point.num_train_examples
            and (*point.values[:share], values[share], *point.values[share + 1 :])
            == values
        ]
        metric = catalogue.find(self.settings).metric(self.criterion.metric)
        found = forecast.sentence(line, metric)
        return [found] if found else []

    @property
    def num_folds(self) -> int:
        """Returns the folds of the ended runs; 0: all were scored on the same files."""
        return len({o.run.fold for o in self.outcomes} - {None})

    @property
    def chosen(self) -> tuple[scores.Point, scores.Outcome] | None:
        """Returns the chosen point, the first of equals, and its best run; `None`: no
        run has a score."""
        point = max(self.points, key=lambda p: p.merit(self.criterion), default=None)
        best = point and point.best(self.criterion)
        return (point, best) if point and best else None

    @property
    def conclusions(self) -> list[str]:
        """Returns what the differences of a comparison allow to say, in sentences."""
        return ranking.conclusions(self.rankings, self.criterion.metric)


def write_tables(state: State) -> None:
    """Writes the table of the runs and the page, also of an unfinished sweep. The page
    in HTML holds the pictures, which are there before."""
    # A line for each run, with all its metrics.
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
    tsv = "".join("\t".join(row) + "\n" for row in rows)
    files.write_atomically(state.directory / "results.tsv", tsv.encode())
    page = "\n\n".join(paragraphs(state)) + "\n"
    files.write_atomically(state.directory / PAGE_NAME, page.encode())
    page = html.from_markdown(page, state.directory)
    files.write_atomically(state.directory / HTML_NAME, page)


def write_pictures(state: State) -> None:
    """Draws the scores of all runs, and with several fractions a learning curve."""
    metric, task = f"{state.criterion.metric} on dev", state.settings.task
    baselines = state.baseline_points
    image = drawing.as_png(
        *(drawings.draw_points, [*baselines, *state.points], state.keys),
        criterion=state.criterion,
        chosen=state.chosen,
        title=f"{task}: {metric}",
    )
    files.write_atomically(state.directory / _PICTURE_NAME, image)
    if lines := state.curve:
        image = drawing.as_png(
            *(drawings.draw_curve, lines),
            metric=metric,
            title=f"{task}: learning curve",
            baselines={str(point.values[0]) for point in baselines},
        )
        files.write_atomically(state.directory / _CURVE_NAME, image)


def write_best(state: State) -> None:
    """Writes sweep.json and makes `best` a link to the directory of the chosen run; a
    run must have been chosen."""

    def run_json(outcome: scores.Outcome) -> dict[str, Any]:
        run = outcome.run
        return {
            "run": f"runs/{run.name}",
            "seed": run.settings.seed,
            **({} if run.fold is None else {"fold": run.fold}),
            "state": outcome.state,
            "score": outcome.score,
            "seconds": outcome.seconds,
            "num_train_examples": outcome.num_train_examples,
        }

    def point_json(point: scores.Point) -> dict[str, Any]:
        return {
            "point": dict(zip(state.keys, point.values, strict=True)),
            "mean": point.mean,
            "deviation": point.deviation,
            "runs": [*map(run_json, point.outcomes)],
        }

    # 1. The choice, and all runs by point.
    criterion = state.criterion
    point, best = cast(tuple[scores.Point, scores.Outcome], state.chosen)
    chosen: dict[str, Any] = run_json(best) | point_json(point)
    chosen["eval"] = best.evaluation
    del chosen["runs"]
    facts = {
        "task": state.settings.task,
        "metric": criterion.metric,
        "goal": criterion.goal,
        "choose": criterion.choose,
        "chosen": chosen,
        "points": [*map(point_json, state.points)],
    }
    # 2. Of a comparison also the baselines, and the first model against each other one.
    if state.rankings:
        facts["baselines"] = [*map(point_json, state.baseline_points)]
        facts["confidence"] = ranking.CONFIDENCE
        facts["differences"] = [
            {
                "num_train_examples": ranking.num_labels,
                "num_dev_examples": ranking.num_dev,
                "best": ranking.best,
                "model_beats_baselines": ranking.model_beats_baselines,
                "first": ranking.first.values[0],
                "others": [
                    {"name": other.values[0]} | (interval._asdict() if interval else {})
                    for other, interval in ranking.others
                ],
            }
            for ranking in state.rankings
        ]
        facts["conclusions"] = state.conclusions
    files.write_json(state.directory / "sweep.json", facts, ensure_ascii=False)
    # 3. The link, which is at no time missing.
    temporary = state.directory / ".best.tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(chosen["run"], target_is_directory=True)
    temporary.replace(state.directory / "best")


def points_table(state: State, points: Sequence[scores.Point]) -> str:
    """Returns grid points in Markdown, the chosen one in bold."""
    rows = []
    for point in points:
        best = point.best(state.criterion)
        seconds = [o.seconds for o in point.finished if o.seconds is not None]
        size = point.num_train_examples
        figures = (point.mean, point.deviation, best and best.score)
        row = [
            *map(planning.show, point.values),
            str(len(point.scores)),
            *("" if figure is None else f"{figure:.4f}" for figure in figures),
            str(point.num_failed),
            str(sum(outcome.majority is not None for outcome in point.outcomes)),
            f"{size:,.0f}" if size else "",
            progress.duration(statistics.fmean(seconds)) if seconds else "",
        ]
        is_chosen = state.chosen is not None and point.values == state.chosen[0].values
        rows.append([f"**{c}**" if is_chosen and c else c for c in row])
    header = [*state.keys, "n", "mean", "deviation", "best", "failed", "majority"]
    return markdown.table([*header, "labels", "time"], rows)


def lines(state: State) -> list[str]:
    """Returns what a sweep prints: conclusions, or grid points and the chosen run."""
    if state.conclusions:
        return state.conclusions + state.more_labels
    table = points_table(state, state.points).splitlines()
    return [*table, chosen_line(state), *state.more_labels]


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


def paragraphs(state: State) -> Iterator[str]:
    """Yields the paragraphs of `report.md`."""
    # 1. How far the sweep got, and which run it chose.
    metric, states = state.criterion.metric, [o.state for o in state.outcomes]
    is_finished = len(states) == len(state.runs)
    title = "Comparison" if planning.MODEL_KEY in state.keys else "Sweep"
    yield f"# {title}: {markdown.literal(state.settings.task)}"
    first = chosen_line(state)
    if state.conclusions:
        first = markdown.literal(state.conclusions[0], max_length=2000)
    yield f"**{first}**"
    yield (
        f"{len(state.outcomes)} of {len(state.runs)} runs have ended, "
        f"{states.count('failed')} of them failed and {states.count('majority')} at "
        "the majority class."
    )
    if state.conclusions:
        yield chosen_line(state)
    if state.chosen is not None and is_finished:
        model = shlex.quote(str(state.directory / "best"))
        yield (
            f"`--model {model}` gives it to `bert-keras predict`, `evaluate` and "
            "`export`."
        )
    # 2. The points of the grid, and what their figures mean.
    yield points_table(state, state.points)
    yield (
        f"The columns n, mean, deviation (of the sample) and best are about the "
        f"`{metric}` on dev of the runs that did not fail. Runs at the majority class, "
        f"which learnt nothing, count. The chosen run is {_HOW[state.criterion.choose]}"
        ". The time is the mean wall time of a run on this machine. `results.tsv` "
        "lists each run, and `logs` has its output."
    )
    if state.num_folds:
        yield (
            "Each run learnt from all folds but one and was scored on that one. With "
            "one point the mean is what to expect of such a model on new data of this "
            "kind; the best of several points was also lucky, and is expected to score "
            "lower there. The chosen run has not seen its own fold; `finetune` on all "
            "data makes a model to keep."
        )
    if is_finished:
        yield f"![{metric} of each run]({_PICTURE_NAME})"
        if state.curve:
            yield f"![{metric} against labels]({_CURVE_NAME})"
            yield from state.more_labels
    # 3. Of a comparison the significance of the differences, and the baselines.
    if state.rankings:
        yield from _differences(state)
        yield "## Baselines\n\n" + points_table(state, state.baseline_points)
        names = dict.fromkeys(point.values[0] for point in state.baseline_points)
        described = [f"- {name}: {baselines.DESCRIPTIONS[name]}." for name in names]
        yield "The baselines learnt from the same examples as the models:"
        yield "\n".join(described)
    # 4. The runs to look at.
    notes = {"Failed runs": "failure", "Runs at the majority class": "majority"}
    for title, attribute in notes.items():
        listed = [
            f"- `{outcome.run.name}`: {markdown.excerpt(note)}"
            for outcome in state.outcomes
            if (note := getattr(outcome, attribute))
        ]
        if listed:
            yield f"## {title}\n\n" + "\n".join(listed)


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


def _differences(state: State) -> Iterator[str]:
    yield "## Paired differences"
    _, *sentences = state.conclusions
    yield "\n".join(f"- {markdown.literal(s, max_length=2000)}" for s in sentences)
    changed = run_directory.flat(
        state.settings.model_dump(mode="json", exclude_defaults=True, exclude={"task"})
    )
    listed = [f"`{k}={markdown.literal(str(v))}`" for k, v in changed.items()]
    yield (
        "Each model is tuned in the same way on the same examples: a share of the "
        "training file, chosen by a hash of the seed and of the example, the smaller "
        "inside the larger. Settings of `finetune` that differ from its defaults: "
        f"{', '.join(listed) or 'none'}. They were tuned for none of the models: other "
        "settings may suit one better."
    )
    num_dev = state.rankings[0].num_dev
    if num_dev < ranking.MIN_EXAMPLES:
        yield (
            f"The dev file has {num_dev} examples: with fewer than "
            f"{ranking.MIN_EXAMPLES} no difference is called significant."
        )
    points = itertools.chain(*(ranking.points for ranking in state.rankings))
    num_seeds = max(len(point.scores) for point in points)
    caution = "With one seed there are none."
    if num_seeds > 1:
        factor = scipy.stats.t.ppf((1 + ranking.CONFIDENCE) / 2, num_seeds - 1)
        caution = (
            f"With {num_seeds} seeds Student's t is {factor:.1f} for one pair, with "
            "many 2.0."
        )
    yield (
        "The differences in brackets are those of the means, with intervals of "
        f"{100 * ranking.CONFIDENCE:.0f} % that hold together for all pairs at one "
        "number of labels (Bonferroni). They contain the chance of training, by "
        "Student's t from the seeds that both have, and that of the dev examples, from "
        f"{ranking.NUM_RESAMPLES:,} resamples of the {num_dev:,}. {caution} The best "
        "is the best on this dev file, and a little lucky on it."
    )

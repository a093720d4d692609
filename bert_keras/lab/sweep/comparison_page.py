"""The page of a comparison: conclusions from its figures, a drawing, and tables."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.stats

from bert_keras.core import files, progress
from bert_keras.lab.sweep import baselines, bootstrap, drawings, planning, summary
from bert_keras.lab.sweep import ranking as rankings
from bert_keras.pages import drawing, markdown


@dataclass(frozen=True, kw_only=True)
class Report:
    task: str
    metric: str
    num_dev: int
    candidates: tuple[rankings.Candidate, ...]
    """Baselines, then models."""
    rankings: tuple[rankings.Ranking, ...]
    """By number of labels, ascending."""
    num_seeds: int
    num_jobs: int
    settings: Mapping[str, Any]

    @property
    def baselines(self) -> list[str]:
        return [c.name for c in self.candidates if c.is_baseline]


def write(report: Report, directory: Path) -> None:
    keys = (planning.MODEL_KEY, drawings.FRACTION_KEY)
    points = [point for c in report.candidates for point in c.points.values()]
    image = drawing.as_png(
        lambda: drawings.draw_curve(
            drawings.curve_lines(points, keys),
            metric=f"{report.metric} on dev",
            title=f"{report.task}: {report.metric} against labels",
            baselines=report.baselines,
        )
    )
    files.write_atomically(directory / summary.PICTURE_NAME, image)
    path = directory / "comparison.json"
    files.write_json(path, facts(report), ensure_ascii=False)
    files.write_atomically(directory / summary.PAGE_NAME, render(report).encode())


def facts(report: Report) -> dict[str, Any]:
    return {
        "task": report.task,
        "metric": report.metric,
        "num_dev_examples": report.num_dev,
        "confidence": bootstrap.CONFIDENCE,
        "contenders": [
            {
                "name": candidate.name,
                "is_floor": candidate.is_baseline,
                "num_failed": candidate.num_failed,
                "num_majority": candidate.num_majority,
                "runs": [
                    {
                        "train_fraction": outcome.run.settings.train_fraction,
                        "seed": outcome.run.settings.seed,
                        "num_train_examples": outcome.num_train_examples,
                        "score": outcome.score,
                        "seconds": outcome.seconds,
                    }
                    for point in candidate.points.values()
                    for outcome in point.finished
                ],
            }
            for candidate in report.candidates
        ],
        "rankings": [
            {
                "train_fraction": ranking.fraction,
                "num_train_examples": ranking.num_examples,
                "best": ranking.best.name,
                "a_model_is_worth_it": ranking.model_is_worth_it,
                "better_than": [
                    {"name": other.name, **(interval._asdict() if interval else {})}
                    for other, interval in ranking.others
                ],
            }
            for ranking in report.rankings
        ],
        "said": sentences(report),
    }


def sentences(report: Report) -> list[str]:
    """Returns sentences on whether a model is worth it, and which one."""
    worth = [ranking.model_is_worth_it for ranking in report.rankings]
    # The smallest number of labels from which on a model stays worth it.
    start = next((n for n in range(len(worth)) if all(worth[n:])), len(worth))
    names = " and ".join(report.baselines)
    if start < len(worth):
        count = f"{report.rankings[start].num_examples:,} labelled examples"
        is_last = start == len(worth) - 1
        how = f"With {count}" if is_last else f"From {count} on"
        first = f"{how}, a model is worth it: clearly better than {names}."
    elif any(worth):
        first = (
            f"A model is clearly better than {names} at some numbers of labels, but "
            "not at the largest."
        )
    elif report.num_seeds == 1:
        first = (
            "One seed says nothing about the chance of training, so no difference is "
            "called clear: give more with --seeds."
        )
    else:
        first = f"At no number of labels here is a model clearly better than {names}."
    return [first, *(_sentence(r, report) for r in reversed(report.rankings))]


def _sentence(ranking: rankings.Ranking, report: Report) -> str:
    """Compares the best candidate at a number of labels with the others."""
    best = ranking.best
    scores = best.points[ranking.fraction].scores
    text = (
        f"With {ranking.num_examples:,} labelled examples {best.name} is best, "
        f"{report.metric} {markdown.spread(scores, digits=3)}"
    )
    for is_clear, what in (
        (True, "it is better than"),
        (False, "the figures do not tell it from"),
    ):
        others = [
            f"{other.name} (by {i.difference:.3f}, {i.low:.3f} to {i.high:.3f})"
            for other, i in ranking.others
            if i and i.is_clear == is_clear
        ]
        if others:
            text += f"; {what} {_listed(others)}"
    return text + "."


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def render(report: Report) -> str:
    first, *rest = (
        markdown.literal(sentence, max_length=2000) for sentence in sentences(report)
    )
    parts = [
        f"# Comparison: {markdown.literal(report.task)}",
        f"**{first}**",
        "\n".join(f"- {sentence}" for sentence in rest),
        f"![{report.metric} against labels]({summary.PICTURE_NAME})",
        f"## {report.metric} on dev",
        _scores_table(report),
        *_failures(report),
        "## Training time",
        _times_table(report),
        "## How",
        *_method(report),
    ]
    return "\n\n".join(parts) + "\n"


def _table(
    report: Report,
    corner: str,
    cell: Callable[[rankings.Candidate, rankings.Ranking], str],
) -> str:
    """Returns a table with a row for each candidate and a column for each share."""
    rows = [
        [markdown.literal(c.name), *(cell(c, ranking) for ranking in report.rankings)]
        for c in report.candidates
    ]
    sizes = [f"{ranking.num_examples:,} labels" for ranking in report.rankings]
    return markdown.table([corner, *sizes], rows)


def _scores_table(report: Report) -> str:
    def cell(candidate: rankings.Candidate, ranking: rankings.Ranking) -> str:
        values = candidate.points[ranking.fraction].scores
        text = markdown.spread(values, digits=3, num_runs=report.num_seeds)
        return f"**{text}**" if candidate is ranking.best else text

    return _table(report, "mean ± deviation", cell)


def _failures(report: Report) -> Iterator[str]:
    for what, attribute in (
        ("Runs that failed and are left out", "num_failed"),
        ("Runs that learnt nothing, at the majority class, and count", "num_majority"),
    ):
        counts = {c.name: getattr(c, attribute) for c in report.candidates}
        listed = [f"{count} of {name}" for name, count in counts.items() if count]
        if listed:
            yield f"{what}: {markdown.literal(_listed(listed))}."


def _times_table(report: Report) -> str:
    def cell(candidate: rankings.Candidate, ranking: rankings.Ranking) -> str:
        runs = candidate.points[ranking.fraction].finished
        if not runs:
            return "–"
        mean = statistics.fmean(outcome.seconds or 0.0 for outcome in runs)
        return f"{mean:.2g} s" if mean < 10 else progress.duration(mean)

    return _table(report, "mean of the seeds", cell)


def _method(report: Report) -> Iterator[str]:
    seeds, caution = "one seed", "With one seed there are none."
    if report.num_seeds > 1:
        seeds = f"{report.num_seeds} seeds"
        factor = scipy.stats.t.ppf((1 + bootstrap.CONFIDENCE) / 2, report.num_seeds - 1)
        caution = (
            f"With {seeds} Student's t is {factor:.1f} for one pair, with many 2.0."
        )
    changed = ", ".join(
        f"`{key}={markdown.literal(str(value))}`"
        for key, value in report.settings.items()
    )
    yield (
        "Each model is tuned in the same way on the same examples: a share of the "
        "training file, chosen by a hash of the seed and of the example, the smaller "
        f"inside the larger; {seeds}. Settings of `finetune` that differ from "
        f"its defaults: {changed or 'none'}. They were sought for none of the models: "
        "others may suit one better."
    )
    if report.num_dev < bootstrap.MIN_EXAMPLES:
        yield (
            f"The dev file has {report.num_dev} examples: with fewer than "
            f"{bootstrap.MIN_EXAMPLES} no difference is called clear."
        )
    yield (
        "Differences in brackets: of the means, with intervals of "
        f"{100 * bootstrap.CONFIDENCE:.0f} % that hold together for all pairs at one "
        "number of labels (Bonferroni). They hold the chance of training, by Student's "
        "t from the seeds that both have, and that of the dev examples, from "
        f"{bootstrap.NUM_RESAMPLES:,} resamples of the {report.num_dev:,}. "
        f"{caution} The best is the best on this dev file, and a little "
        "lucky on it."
    )
    described = [f"{name}: {baselines.DESCRIPTIONS[name]}" for name in report.baselines]
    yield f"Baselines, from the same examples: {'; '.join(described)}."
    at_once = f", {report.num_jobs} runs at a time" if report.num_jobs > 1 else ""
    yield f"Times are wall time on this machine{at_once}."

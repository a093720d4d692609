"""The page of a comparison: what its figures allow to say, a drawing, and tables."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.stats

from bert_keras.core import files, progress
from bert_keras.lab.compare import costs, floors, paired, results
from bert_keras.lab.sweep import learning_curve
from bert_keras.pages import drawing, markdown

PAGE_NAME = "report.md"
_PICTURE_NAME = "scores.png"
_FACTS_NAME = "comparison.json"


@dataclass(frozen=True, kw_only=True)
class Report:
    """A finished comparison."""

    task: str
    metric: str
    num_dev: int
    """Examples of the dev file."""
    contenders: tuple[results.Contender, ...]
    """Floors, then models."""
    rankings: tuple[results.Ranking, ...]
    """By number of labels, ascending."""
    num_seeds: int
    num_jobs: int
    settings: Mapping[str, Any]
    """Of the tuning, those that differ from the defaults."""


def write(report: Report, directory: Path) -> None:
    """Writes page, picture and figures.

    Raises:
        InputError: the disk is full or not writable.
    """
    image = drawing.as_png(
        lambda: learning_curve.draw(
            [_line(contender) for contender in report.contenders],
            metric=f"{report.metric} on dev",
            title=f"{report.task}: {report.metric} against labels",
        )
    )
    files.write_atomically(directory / _PICTURE_NAME, image)
    files.write_json(directory / _FACTS_NAME, facts(report), ensure_ascii=False)
    files.write_atomically(directory / PAGE_NAME, render(report).encode())


def _line(contender: results.Contender) -> learning_curve.Line:
    points = []
    for runs in contender.runs.values():
        size = statistics.fmean(run.num_examples for run in runs.values())
        points.append((size, tuple(run.score for run in runs.values())))
    return learning_curve.Line(
        name=contender.name, points=tuple(sorted(points)), is_floor=contender.is_floor
    )


def facts(report: Report) -> dict[str, Any]:
    """All figures, for programs."""
    return {
        "task": report.task,
        "metric": report.metric,
        "num_dev_examples": report.num_dev,
        "confidence": paired.CONFIDENCE,
        "contenders": [
            {
                "name": contender.name,
                "is_floor": contender.is_floor,
                "num_failed": contender.num_failed,
                "num_majority": contender.num_majority,
                "costs": contender.cost and contender.cost.model_dump(mode="json"),
                "runs": [
                    {
                        "train_fraction": fraction,
                        "seed": seed,
                        "num_train_examples": run.num_examples,
                        "score": run.score,
                        "seconds": run.seconds,
                    }
                    for fraction, runs in contender.runs.items()
                    for seed, run in runs.items()
                ],
            }
            for contender in report.contenders
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
    # From which number of labels on it stays so.
    place = len(worth)
    while place and worth[place - 1]:
        place -= 1
    names = " and ".join(c.name for c in report.contenders if c.is_floor)
    if place < len(worth):
        count = report.rankings[place].num_examples
        how = f"From {count:,} labelled examples on"
        if place == len(worth) - 1:
            how = f"With {count:,} labelled examples"
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


def _sentence(ranking: results.Ranking, report: Report) -> str:
    """The best at a number of labels, and what it is better than."""
    best = ranking.best
    spread = _spread(best.scores(ranking.fraction))
    clear = [_against(o, i) for o, i in ranking.others if i and i.is_clear]
    unclear = [_against(o, i) for o, i in ranking.others if i and not i.is_clear]
    text = (
        f"With {ranking.num_examples:,} labelled examples {best.name} is best, "
        f"{report.metric} {spread}"
    )
    if clear:
        text += f"; it is better than {_listed(clear)}"
    if unclear:
        text += f"; the figures do not tell it from {_listed(unclear)}"
    return text + "."


def _against(other: results.Contender, interval: paired.Interval) -> str:
    return (
        f"{other.name} (by {interval.difference:.3f}, {interval.low:.3f} to "
        f"{interval.high:.3f})"
    )


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:.3f}"
    return f"{mean:.3f} ± {statistics.stdev(values):.3f}"


def render(report: Report) -> str:
    """The whole page."""
    first, *rest = (
        markdown.literal(sentence, max_length=2000) for sentence in sentences(report)
    )
    parts = [
        f"# Comparison: {markdown.literal(report.task)}",
        f"**{first}**",
        "\n".join(f"- {sentence}" for sentence in rest),
        f"![{report.metric} against labels]({_PICTURE_NAME})",
        f"## {report.metric} on dev",
        _scores_table(report),
        *_failures(report),
        "## Training time",
        _times_table(report),
        "## Size and speed",
        _costs_table(report),
        "## How",
        *_method(report),
    ]
    return "\n\n".join(parts) + "\n"


def _sizes(report: Report) -> list[str]:
    return [f"{ranking.num_examples:,} labels" for ranking in report.rankings]


def _scores_table(report: Report) -> str:
    rows = []
    for contender in report.contenders:
        row = [markdown.literal(contender.name)]
        for ranking in report.rankings:
            values = contender.scores(ranking.fraction)
            cell = _spread(values)
            if 0 < len(values) < report.num_seeds:
                cell += f" (n = {len(values)})"
            is_best = contender is ranking.best
            row.append(f"**{cell}**" if is_best else cell)
        rows.append(row)
    return markdown.table(["mean ± deviation", *_sizes(report)], rows)


def _failures(report: Report) -> Iterator[str]:
    failed = {c.name: c.num_failed for c in report.contenders}
    stuck = {c.name: c.num_majority for c in report.contenders}
    for what, counts in (
        ("Runs that failed and are left out", failed),
        ("Runs that learnt nothing, at the majority class, and count", stuck),
    ):
        listed = [f"{count} of {name}" for name, count in counts.items() if count]
        if listed:
            yield f"{what}: {markdown.literal(_listed(listed))}."


def _times_table(report: Report) -> str:
    rows = []
    for contender in report.contenders:
        row = [markdown.literal(contender.name)]
        for ranking in report.rankings:
            runs = contender.runs.get(ranking.fraction, {}).values()
            seconds = statistics.fmean(r.seconds for r in runs) if runs else None
            row.append("–" if seconds is None else _duration(seconds))
        rows.append(row)
    return markdown.table(["mean of the seeds", *_sizes(report)], rows)


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else progress.duration(seconds)


def _costs_table(report: Report) -> str:
    rows = []
    for contender in report.contenders:
        found = contender.cost
        if found is None:
            continue
        parameters = found.num_parameters
        rows.append(
            [
                markdown.literal(contender.name),
                "" if parameters is None else f"{parameters:,}",
                f"{found.num_bytes / 1e6:,.1f}",
                f"{found.milliseconds_single:,.2g}",
                f"{found.examples_per_second:,.0f}",
            ]
        )
    header = [
        "",
        "parameters",
        "MB",
        "ms for one example",
        f"examples a second, {costs.BATCH_SIZE} at a time",
    ]
    return markdown.table(header, rows)


def _method(report: Report) -> Iterator[str]:
    changed = ", ".join(
        f"`{key}={markdown.literal(str(value))}`"
        for key, value in report.settings.items()
    )
    yield (
        "Each model is tuned in the same way on the same examples: a share of the "
        "training file, chosen by a hash of the seed and of the example, the smaller "
        f"inside the larger; {_seeds(report)}. Settings of `finetune` that differ from "
        f"its defaults: {changed or 'none'}. They were sought for none of the models: "
        "others may suit one better."
    )
    if report.num_dev < paired.MIN_EXAMPLES:
        yield (
            f"The dev file has {report.num_dev} examples: with fewer than "
            f"{paired.MIN_EXAMPLES} no difference is called clear."
        )
    yield (
        "Differences in brackets: of the means, with intervals of "
        f"{100 * paired.CONFIDENCE:.0f} % that hold together for all pairs at one "
        "number of labels (Bonferroni). They hold the chance of training, by Student's "
        "t from the seeds that both have, and that of the dev examples, from "
        f"{paired.NUM_RESAMPLES:,} resamples of the {report.num_dev:,}. "
        f"{_caution(report)} The best is the best on this dev file, and a little "
        "lucky on it."
    )
    present = [c.name for c in report.contenders if c.is_floor]
    described = [f"{name}: {floors.DESCRIPTIONS[name]}" for name in present]
    yield f"Floors, from the same examples: {'; '.join(described)}."
    at_once = f", {report.num_jobs} runs at a time" if report.num_jobs > 1 else ""
    yield (
        f"Times are wall time on this machine{at_once}. Speed: from text to answer in "
        "Python, medians; an exported model is faster."
    )


def _caution(report: Report) -> str:
    if report.num_seeds == 1:
        return "With one seed there are none."
    factor = scipy.stats.t.ppf((1 + paired.CONFIDENCE) / 2, report.num_seeds - 1)
    return (
        f"With {report.num_seeds} seeds Student's t is {factor:.1f} for one pair, with "
        "many 2.0."
    )


def _seeds(report: Report) -> str:
    return "one seed" if report.num_seeds == 1 else f"{report.num_seeds} seeds"

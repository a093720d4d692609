"""Models and files for `bert-keras score`, and the function of that name."""

# matplotlib's types are narrower than what it takes.
# pyright: reportArgumentType=false

import collections
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from matplotlib import figure, ticker

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings.choices import PllForm
from bert_keras.inference import fill_mask
from bert_keras.labelled import reading
from bert_keras.pages import drawing, pictures
from bert_keras.scoring import minimal_pairs
from bert_keras.scoring.scorer import SentenceScore, SentenceScorer

MAX_DRAWN = 200
"""Number of groups that a picture has room for."""


def score(
    model: str | Path, texts: Iterable[str], *, pll: PllForm = "original"
) -> list[SentenceScore]:
    """Scores sentences with a masked LM: see `SentenceScorer`.

    Args:
        model: run directory, or any checkpoint with a masked-LM head that `convert`
            reads.
        texts: sentences; the tokenizer of an uncased model lower-cases them.
        pll: which pieces are masked together, see `PllForm`.

    Raises:
        InputError: a sentence has no pieces, or more than the model has positions.
    """
    return list(load_scorer(model, pll=pll)(texts))


def load_scorer(model: str | Path, *, pll: PllForm = "original") -> SentenceScorer:
    checkpoint, network = fill_mask.load_pretrainer(model)
    return SentenceScorer(network, checkpoint.tokenizer, pll=pll)


def score_sentences(
    model: str | Path, path: str, *, output: str | None, pll: PllForm
) -> Iterator[str]:
    """Scores the lines of a file, blank ones left out, or of standard input for `-`;
    yields a table, or with `output` only its last line."""
    if output is not None:
        files.new_file(output)
    remedy = "write the sentences alone; JSON lines and tables of pairs: --pairs"
    texts = sys.stdin if path == "-" else reading.read_plain_texts(path, remedy=remedy)
    numbered = enumerate(texts, start=1)
    lines = [(number, text.strip()) for number, text in numbered if text.strip()]
    if not lines:
        raise InputError(f"{path}: expected sentences, one a line, found none")
    name = "standard input" if path == "-" else path
    scorer = load_scorer(model, pll=pll)
    scores = scorer(
        (text for _, text in lines),
        total=len(lines),
        place=lambda number: f"{name}: line {lines[number - 1][0]}",
    )
    counts = collections.Counter()
    if output is None:
        yield "   total  per piece  per word  unknown  sentence"
    with _json_lines(output) as write:
        for score in scores:
            _count(counts, score)
            write(score.as_json())
            if output is None:
                yield (
                    f"{score.total:8.2f}  {score.per_piece:9.3f}  "
                    f"{score.per_word:8.3f}  {score.num_unknown:7d}  {score.text}"
                )
    yield _summarize(counts, scorer)


def score_pairs(
    model: str | Path,
    path: str,
    *,
    group_by: str | None,
    output: str | None,
    picture: str | None,
    pll: PllForm,
) -> Iterator[str]:
    """Scores pairs; yields a table of accuracies by group, and draws it."""
    for name in (output, picture):
        if name is not None:
            files.new_file(name)
    if picture is not None and not picture.lower().endswith(".png"):
        raise InputError(f"{picture}: the picture is a PNG: expected a name in .png")
    pairs = minimal_pairs.read_pairs(path, group_by=group_by)
    scorer = load_scorer(model, pll=pll)
    tally, counts = minimal_pairs.Tally(), collections.Counter()
    scored = minimal_pairs.score_pairs(scorer, pairs, total=2 * len(pairs))
    with _json_lines(output) as write:
        for pair in scored:
            tally.add(pair)
            for score in (pair.good, pair.bad):
                _count(counts, score)
            line = {"group": pair.pair.group} if pair.pair.group else {}
            sides = {"good": pair.good.as_json(), "bad": pair.bad.as_json()}
            write({**line, "right": pair.right, **sides})
    yield from table(tally)
    yield _summarize(counts, scorer)
    yield (
        f"{tally.num_ties:,} ties, which count one half; a model that finds all pieces "
        f"equally probable has {tally.mean().by_length:.1%}"
    )
    if picture is not None:
        title = f"Minimal pairs of {files.name_of(path)}"
        image = drawing.as_png(draw_groups, tally, title=title)
        files.write_atomically(picture, image)


def table(tally: minimal_pairs.Tally) -> Iterator[str]:
    """Yields lines: the accuracy of each group and their mean, with intervals."""
    groups = tally.groups()
    rows = [*groups, tally.mean()] if len(groups) > 1 else [tally.mean()]
    width = max(len("group"), *(len(row.name) for row in rows))
    yield f"{'group':{width}}  {'pairs':>7}  {'right':>6}   95 % interval"
    for row in rows:
        yield (
            f"{row.name:{width}}  {row.num_pairs:7,}  {row.share:6.1%}  "
            f"{row.low:6.1%} - {row.high:6.1%}"
        )


def draw_groups(tally: minimal_pairs.Tally, *, title: str) -> figure.Figure:
    """Draws the accuracy of each group with its interval, the highest above. Draws the
    lowest groups if there are more than `MAX_DRAWN`."""
    groups = sorted(tally.groups(), key=lambda group: -group.share)
    if len(groups) > MAX_DRAWN:
        title += f": the {MAX_DRAWN} lowest of {len(groups):,} groups"
    groups, mean = groups[-MAX_DRAWN:], tally.mean()
    picture, plot = drawing.new_plot(title, height=1.8 + 0.22 * len(groups))
    rows = range(len(groups))
    plot.errorbar(
        [group.share for group in groups],
        rows,
        xerr=np.transpose([(g.share - g.low, g.high - g.share) for g in groups]),
        fmt="o",
        color=drawing.BLUE,
        ecolor=drawing.GREY,
        markersize=5,
    )
    plot.axvline(0.5, color=drawing.VERMILION, label="chance")
    label = f"mean {mean.share:.1%}"
    plot.axvline(mean.share, color="black", linestyle="--", label=label)
    pictures.name_rows(plot, drawing.drawable([group.name for group in groups]))
    plot.tick_params(axis="y", labelsize=9)
    plot.set_xlim(0, 1)
    plot.xaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
    plot.set_xlabel("pairs told right, with the 95 % interval", fontsize=11)
    drawing.add_legend(picture)
    return picture


def _count(counts: collections.Counter, score: SentenceScore) -> None:
    """Counts the capitals and words that the tokenizer did not keep."""
    counts["sentences"] += 1
    counts["with capitals"] += score.text != score.text.lower()
    counts["unknown words"] += score.num_unknown
    counts["with unknown words"] += score.num_unknown > 0


def _summarize(counts: collections.Counter, scorer: SentenceScorer) -> str:
    casing = "keeps case and accents"
    if scorer.tokenizer.do_lower_case:
        casing = "lower-cases, and strips accents"
    return (
        f"{counts['sentences']:,} sentences, {counts['with capitals']:,} with capitals;"
        f" the tokenizer {casing}; {counts['unknown words']:,} unknown words in "
        f"{counts['with unknown words']:,} sentences"
    )


@contextlib.contextmanager
def _json_lines(path: str | None) -> Iterator[Callable[[object], object]]:
    """Yields a function that writes objects, into a file that is whole or not there."""
    if path is None:
        yield lambda value: None
        return
    with files.open_atomically(files.path(path)) as file:
        yield lambda value: file.write(f"{files.to_json(value)}\n".encode())

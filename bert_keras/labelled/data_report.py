"""A report on labelled files before a model learns them: labels, lengths, repeats.

The report takes one pass over the texts and tokens of the run. No TensorFlow.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from bert_keras.core.settings import config, strict
from bert_keras.labelled import dataset

FEW = 5
"""Labels with fewer examples are named."""

NOTABLE_SHARE = 0.01
"""Share of repeated or too long examples from which on the share is a problem."""

MAX_LABELS = 500
"""Number of labels with counts of their own; all others share one sum."""


class Wording(Protocol):
    """Words and facts of a kind of task for the report."""

    examples: ClassVar[str]
    """Examples in words, such as `texts`."""
    no_label: ClassVar[str | None]
    """Name for examples without a label; `None`: every example has a label."""
    always_windows: ClassVar[bool]
    """Whether longer inputs are read in overlapping windows, whatever the settings."""


_NUM_SHOWN = 3
_SHOWN_LENGTH = 80
_NUM_BINS = 40


class Lengths(strict.StrictModel):
    """Lengths of whole examples as one input, in tokens, before anything is cut off."""

    median: int
    percentile_95: int
    longest: int
    num_long: int
    """Examples with more than `max_seq_length` tokens."""
    bin_width: int
    counts: tuple[int, ...]
    """Examples of 1 to `bin_width` tokens, and so on."""


class Numbers(strict.StrictModel):
    least: float
    mean: float
    deviation: float
    greatest: float


class FileReport(strict.StrictModel):
    file: str
    num_examples: int
    labels: dict[str, int] = {}
    """Occurrences by label, the commonest first; `tagging` counts words."""
    num_other_labels: int = 0
    """Occurrences of the labels that are not listed."""
    num_unlisted: int = 0
    """Labels that are not listed."""
    num_rare_unlisted: int = 0
    """Unlisted labels with fewer than `FEW` examples."""
    numbers: Numbers | None = None
    """In place of labels, if they are numbers."""
    lengths: Lengths
    num_empty: int
    """Examples with a text that is empty or only white space."""
    num_repeated: int
    """Examples whose text came before in the file."""
    num_contradicted: int
    """Examples whose text is elsewhere in the file with another label."""
    contradicted: tuple[str, ...] = ()
    """Beginnings of some contradicted texts."""
    num_in_training: int | None = None
    """Examples whose text is in the training file; `None`: this is that file."""
    in_training: tuple[str, ...] = ()
    """Beginnings of some texts that are in the training file."""


class DataReport(strict.StrictModel):
    """The report on all files of a run."""

    kind: config.TaskKind
    max_seq_length: int
    long_texts: config.LongTexts = "cut"
    files: tuple[FileReport, ...]
    """The training file first."""


def describe(
    examples: Iterable[tuple[str, dataset.Dataset, dataset.EncodedInputs]],
    *,
    kind: config.TaskKind,
    max_seq_length: int,
    long_texts: config.LongTexts = "cut",
) -> DataReport:
    """Returns the report on all files of a run: name, examples and inputs of each, the
    training file first."""
    known: Mapping[Any, int] | None = None
    reports = []
    for name, data, inputs in examples:
        contents = data.contents()
        texts = contents.texts
        first = _first_rows(texts)
        is_there = all if contents.needs_all_texts else any
        lengths = _lengths(inputs.whole_lengths, max_seq_length)
        reports.append(
            FileReport(
                file=name,
                num_examples=len(texts),
                lengths=lengths,
                num_empty=sum(not is_there(map(str.strip, p[:2])) for p in texts),
                numbers=_numbers(contents.numbers),
                **_count_labels(contents.labels),
                **_describe_repeats(texts, contents.answers, first),
                **({} if known is None else _describe_overlap(texts, known)),
            )
        )
        known = first if known is None else known
    return DataReport(
        kind=kind,
        max_seq_length=max_seq_length,
        long_texts=long_texts,
        files=tuple(reports),
    )


def _first_rows(texts: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
    # A dictionary keeps the last value of a key.
    return dict(zip(reversed(texts), reversed(range(len(texts))), strict=True))


def _count_labels(labels: Sequence[Any]) -> dict[str, Any]:
    counts = collections.Counter(labels).most_common()
    common = counts[:MAX_LABELS]
    unlisted = counts[MAX_LABELS:]
    return {
        "labels": {str(label): count for label, count in common},
        "num_other_labels": sum(count for _, count in unlisted),
        "num_unlisted": len(unlisted),
        "num_rare_unlisted": sum(count < FEW for _, count in unlisted),
    }


def _describe_repeats(
    texts: Sequence[tuple[str, ...]],
    answers: Sequence[Any],
    first: Mapping[tuple[str, ...], int],
) -> dict[str, Any]:
    rows = {}
    if len(first) < len(texts):
        for row, parts in enumerate(texts):
            if first[parts] != row:
                rows.setdefault(parts, [first[parts]]).append(row)
    contradicted = {
        parts: those
        for parts, those in rows.items()
        if len({answers[row] for row in those}) > 1
    }
    return {
        "num_repeated": len(texts) - len(first),
        "num_contradicted": sum(map(len, contradicted.values())),
        "contradicted": _shown(contradicted),
    }


def _describe_overlap(
    texts: Sequence[tuple[str, ...]], known: Mapping[tuple[str, ...], int]
) -> dict[str, Any]:
    found = [parts for parts in texts if parts in known]
    return {"num_in_training": len(found), "in_training": _shown(found)}


def _numbers(values: Sequence[float]) -> Numbers | None:
    if not values:
        return None
    array = np.array(values)
    return Numbers(
        least=float(array.min()),
        mean=float(array.mean()),
        deviation=float(array.std()),
        greatest=float(array.max()),
    )


def _lengths(lengths: np.ndarray, max_seq_length: int) -> Lengths:
    longest = int(lengths.max())
    # The last bin has all texts that are far too long.
    width = max(1, -(-min(longest, 4 * max_seq_length) // _NUM_BINS))
    places = np.minimum((lengths - 1) // width, _NUM_BINS - 1)
    return Lengths(
        median=int(np.median(lengths)),
        percentile_95=int(np.percentile(lengths, 95)),
        longest=longest,
        num_long=int((lengths > max_seq_length).sum()),
        bin_width=width,
        counts=tuple(np.bincount(places, minlength=_NUM_BINS).tolist()),
    )


def _shown(texts: Iterable[Sequence[str]]) -> tuple[str, ...]:
    joined = (" / ".join(parts) for parts in itertools.islice(texts, _NUM_SHOWN))
    # Half of a surrogate pair cannot be written.
    plain = (text.encode("utf-8", "replace").decode() for text in joined)
    return tuple(
        text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 1]}…"
        for text in plain
    )


def lines(report: DataReport, kind: Wording) -> list[str]:
    """Returns the report for people: problems first, then a line for each file."""
    summaries = [_summary(file, kind.examples) for file in report.files]
    return [*(f"problem: {line}" for line in problems(report, kind)), *summaries]


def problems(report: DataReport, kind: Wording, *, quotes: bool = True) -> list[str]:
    """Returns problems that may spoil a model or its scores, the training file's first.
    `quotes` decides whether the messages quote texts of the files."""
    return [p for file in report.files for p in _problems(file, report, kind, quotes)]


def _problems(
    file: FileReport, report: DataReport, kind: Wording, quotes: bool
) -> Iterator[str]:
    total, train = file.num_examples, report.files[0].file
    what = kind.examples
    if file.num_in_training:
        yield (
            f"{file.file}: {_share(file.num_in_training, total)} of the {what} are in "
            f"{train} too, so their scores say little about new ones"
            + _quoted(file.in_training, quotes)
        )
    if file.num_contradicted:
        yield (
            f"{file.file}: {_share(file.num_contradicted, total)} of the {what} are "
            f"there again with another answer{_quoted(file.contradicted, quotes)}"
        )
    if file.num_empty:
        yield f"{file.file}: {_share(file.num_empty, total)} of the {what} lack a text"
    num_long = file.lengths.num_long
    if num_long >= NOTABLE_SHARE * total:
        fate = "lose their end"
        if kind.always_windows or config.reads_windows(report.long_texts):
            fate = "are divided into windows"
        elif report.long_texts == "head_tail":
            fate = "lose their middle"
        yield (
            f"{file.file}: {_share(num_long, total)} of the {what} are longer than "
            f"max_seq_length={report.max_seq_length} and {fate}; the longest has "
            f"{file.lengths.longest:,} tokens"
        )
    if file.num_in_training is None:
        yield from _training_problems(file, kind)


def _training_problems(file: FileReport, kind: Wording) -> Iterator[str]:
    total, what = file.num_examples, kind.examples
    if file.num_repeated >= NOTABLE_SHARE * total:
        yield (
            f"{file.file}: {_share(file.num_repeated, total)} of the {what} repeat an "
            "earlier one and count more often"
        )
    if rare := _rare_labels(file, kind.no_label):
        yield f"{file.file}: fewer than {FEW} examples of {rare}"
    for alike in _labels_alike(file.labels):
        yield (
            f"{file.file}: labels that differ in spaces or capital letters only are "
            f"learnt as different ones: {', '.join(map(repr, alike))}"
        )


def _labels_alike(labels: Iterable[str]) -> list[list[str]]:
    """Groups labels that a person would take for one, such as " Yes" and "yes"."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault("".join(label.split()).casefold(), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def _rare_labels(file: FileReport, no_label: str | None) -> str:
    """Lists labels with few examples for people; empty if there are none."""
    labels = file.labels.items()
    rare = [name for name, count in labels if count < FEW and name != no_label]
    shown = ", ".join(map(repr, rare[:_NUM_SHOWN]))
    rest = max(0, len(rare) - _NUM_SHOWN) + file.num_rare_unlisted
    if not rest:
        return shown
    return f"{shown} and {rest:,} more" if rare else f"{rest:,} labels"


def _share(count: int, total: int) -> str:
    share = 100 * count / total
    shown = "below 0.1" if 0 < share < 0.1 else f"{share:.1f}"
    return f"{count:,} of {total:,} ({shown} %)"


def _quoted(texts: Sequence[str], quotes: bool) -> str:
    return f": {texts[0]!r}" if quotes else ""


def _summary(file: FileReport, examples: str) -> str:
    lengths = file.lengths
    parts = [
        f"{file.num_examples:,} {examples}",
        f"tokens: median {lengths.median:,}, 95 % up to {lengths.percentile_95:,}, "
        f"longest {lengths.longest:,}",
    ]
    if file.numbers is not None:
        numbers = file.numbers
        parts.insert(
            1,
            f"numbers {numbers.least:g} to {numbers.greatest:g}, mean "
            f"{numbers.mean:.3g}",
        )
    elif file.labels:
        parts.insert(1, f"labels: {_counted(file)}")
    return f"{file.file}: {'; '.join(parts)}"


def _counted(file: FileReport) -> str:
    labels = list(file.labels.items())
    shown = ", ".join(f"{name} {count:,}" for name, count in labels[:_NUM_COUNTED])
    if len(labels) <= _NUM_COUNTED:
        return shown
    name, count = labels[-1]
    last = "" if file.num_unlisted else f"{name} {count:,} "
    return f"{shown}, ... {last}({len(labels) + file.num_unlisted:,} labels)"


_NUM_COUNTED = 6

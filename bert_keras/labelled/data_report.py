"""A report on labelled files before a model learns them: labels, lengths, repeats.

The report takes one pass over the texts and tokens of the run. No TensorFlow.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Protocol

import numpy as np

from bert_keras.core.settings import finetuning, strict, tasks
from bert_keras.labelled import dataset

FEW = 5
"""Labels with fewer examples are named."""

NOTABLE_SHARE = 0.01
"""Share of repeated or too long examples from which on the share is a problem."""

MAX_LABELS = 500
"""Number of labels with counts of their own; all others share one sum."""

_NUM_SHOWN = 3
_NUM_COUNTED = 6
_SHOWN_LENGTH = 80
_NUM_BINS = 40


class Kind(Protocol):
    """Describes a kind of task to a report, as each `kinds.kind.Labelled` does."""

    examples: ClassVar[str]
    always_windows: ClassVar[bool]


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

    kind: tasks.TaskKind
    max_seq_length: int
    long_texts: tasks.LongTexts = "cut"
    files: tuple[FileReport, ...]
    """The training file first."""


def describe(
    examples: Iterable[tuple[str, dataset.Dataset, dataset.EncodedInputs]],
    settings: finetuning.FinetuningConfig,
    *,
    kind: tasks.TaskKind,
) -> DataReport:
    """Returns the report on all files of a run: name, examples and inputs of each, the
    training file first."""
    known = None
    reports = []
    for name, data, inputs in examples:
        contents = data.contents()
        texts = contents.texts
        is_there = all if contents.needs_all_texts else any
        # 1. Labels, the commonest first, or numbers.
        counts = collections.Counter(contents.labels).most_common()
        unlisted = [count for _, count in counts[MAX_LABELS:]]
        numbers = None
        if contents.numbers:
            array = np.array(contents.numbers)
            values = (array.min(), array.mean(), array.std(), array.max())
            names = ("least", "mean", "deviation", "greatest")
            numbers = Numbers(**dict(zip(names, map(float, values), strict=True)))
        # 2. Texts that come again, in this file or after the training file.
        distinct, conflicts = {*texts}, contents.conflicts()
        overlap = {}
        if known is not None:
            seen = [parts for parts in texts if parts in known]
            overlap = {"num_in_training": len(seen), "in_training": _shown(seen)}
        known = distinct if known is None else known
        reports.append(
            FileReport(
                file=name,
                num_examples=len(texts),
                lengths=_lengths(inputs.whole_lengths, settings.max_seq_length),
                num_empty=sum(not is_there(map(str.strip, p[:2])) for p in texts),
                numbers=numbers,
                labels={str(label): count for label, count in counts[:MAX_LABELS]},
                num_other_labels=sum(unlisted),
                num_unlisted=len(unlisted),
                num_rare_unlisted=sum(count < FEW for count in unlisted),
                num_repeated=len(texts) - len(distinct),
                num_contradicted=sum(map(len, conflicts)),
                contradicted=_shown(texts[rows[0]] for rows in conflicts),
                **overlap,
            )
        )
    return DataReport(
        kind=kind,
        max_seq_length=settings.max_seq_length,
        long_texts=settings.long_texts,
        files=tuple(reports),
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
    most = _SHOWN_LENGTH
    return tuple(t if len(t) <= most else f"{t[: most - 1]}…" for t in plain)


def lines(report: DataReport, kind: Kind) -> list[str]:
    """Returns the report for people: problems first, then a line for each file."""
    found = [f"problem: {line}" for line in problems(report, kind)]
    for file in report.files:
        lengths, labels, answers = file.lengths, list(file.labels.items()), ""
        if labels:
            counts = [f"{name} {count:,}" for name, count in labels]
            answers = f"labels: {', '.join(counts[:_NUM_COUNTED])}; "
            if len(labels) > _NUM_COUNTED:
                last = "" if file.num_unlisted else f"{counts[-1]} "
                total = f"({len(labels) + file.num_unlisted:,} labels)"
                answers = f"{answers[:-2]}, ... {last}{total}; "
        if numbers := file.numbers:
            span = f"{numbers.least:g} to {numbers.greatest:g}"
            answers = f"numbers {span}, mean {numbers.mean:.3g}; "
        found.append(
            f"{file.file}: {file.num_examples:,} {kind.examples}; {answers}tokens: "
            f"median {lengths.median:,}, 95 % up to {lengths.percentile_95:,}, longest "
            f"{lengths.longest:,}"
        )
    return found


def problems(report: DataReport, kind: Kind, *, quotes: bool = True) -> list[str]:
    """Returns problems that may spoil a model or its scores, the training file's first.
    `quotes` decides whether the messages quote texts of the files."""
    found, train = [], report.files[0].file
    fate = "lose their end"
    if kind.always_windows or tasks.reads_windows(report.long_texts):
        fate = "are divided into windows"
    elif report.long_texts == "head_tail":
        fate = "lose their middle"
    for file in report.files:
        total, is_train = file.num_examples, file.num_in_training is None
        # A few long or repeated examples are usual.
        num_long, num_repeated = (
            count * (count >= NOTABLE_SHARE * total)
            for count in (file.lengths.num_long, file.num_repeated * is_train)
        )
        shared, contradicted = (
            f": {texts[0]!r}" if quotes and texts else ""
            for texts in (file.in_training, file.contradicted)
        )
        counts = {
            f"are in {train} too, so their scores say little about new ones{shared}": (
                file.num_in_training or 0
            ),
            f"are there again with another answer{contradicted}": file.num_contradicted,
            "lack a text": file.num_empty,
            f"are longer than max_seq_length={report.max_seq_length} and {fate}; the "
            f"longest has {file.lengths.longest:,} tokens": num_long,
            "repeat an earlier one and count more often": num_repeated,
        }
        for problem, count in counts.items():
            if count:
                share = 100 * count / total
                percent = "below 0.1" if share < 0.1 else f"{share:.1f}"
                found.append(
                    f"{file.file}: {count:,} of {total:,} ({percent} %) of the "
                    f"{kind.examples} {problem}"
                )
        if is_train:
            found += [f"{file.file}: {problem}" for problem in _label_problems(file)]
    return found


def _label_problems(file: FileReport) -> Iterator[str]:
    labels = file.labels
    # Few examples.
    rare = [n for n, count in labels.items() if count < FEW and n != dataset.NO_LABEL]
    shown = ", ".join(map(repr, rare[:_NUM_SHOWN]))
    if rest := max(0, len(rare) - _NUM_SHOWN) + file.num_rare_unlisted:
        shown = f"{shown} and {rest:,} more" if rare else f"{rest:,} labels"
    if shown:
        yield f"fewer than {FEW} examples of {shown}"
    # Lists of labels: most examples' labels have parts, which are fewer than labels.
    for separator in ",;|":
        joined = [label for label in labels if separator in label]
        parts = {part.strip() for label in labels for part in label.split(separator)}
        count = sum(labels[label] for label in joined)
        if 2 * count > sum(labels.values()) and len(parts) < len(labels):
            yield (
                f"{count:,} of {sum(labels.values()):,} labels have {separator!r} in "
                f"them, such as {joined[0]!r}: if these are several labels of a text, "
                "give --set multi_label=true and, unless it is a comma, --set "
                f"columns.label_separator={separator!r}"
            )
            break
    # Labels that a person would take for one, such as " Yes" and "yes".
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault("".join(label.split()).casefold(), []).append(label)
    for alike in groups.values():
        if len(alike) > 1:
            yield (
                "labels that differ in spaces or capital letters only are learnt as "
                "different ones, give them one spelling: "
                + ", ".join(f"{label!r} {labels[label]:,}" for label in alike)
            )

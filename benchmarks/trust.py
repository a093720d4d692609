"""Whether `bert-keras calibrate` keeps its promise: many random halves of dev files.

    python -m benchmarks.trust --answers RUN/dev_answers.jsonl ... --output trust.md
    python -m benchmarks.trust --model RUN --data FILE --candidates candidates.npz
    python -m benchmarks.trust --candidates candidates.npz ...

Each file has the answers of a classifier to a development file, as `finetune` leaves
them, and no model is run; or the candidates of the answers of any kind of run to a
labelled file, which the second command writes. A half is calibrated as `calibrate`
does; of a file with documents it is a half of these. A promise is broken if fewer
answers are right than promised, where each answer counts alike: in the whole file, from
which the half was drawn, and in the other half, which is as small a sample as the first
and misses the promise by chance alone now and then. `--rows` draws so many rows with
replacement instead of a half, as if the file were all texts that there are. With
`--without`, texts with one of some words are left out of the calibration, and then
asked instead of the other half: a source that the promise says nothing about.

    python -m benchmarks.trust --drift RUN --answers films.jsonl news.jsonl ...

counts the warnings of `predict` instead: of random halves of the first file against its
other half, and of rows of each other file, against a half of the first. The files are
what `predict --output NAME.jsonl` or `finetune` write; RUN has the tokenizer.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.checkpoints import run_directory
from bert_keras.core.settings import tasks
from bert_keras.data import tokenization
from bert_keras.kinds.text import text, text_forms
from bert_keras.labelled import dataset, drift
from bert_keras.pages import markdown, pictures
from bert_keras.trust import thresholds

TASK = tasks.Task(kind="classification", labels=("any",))


def read_candidates(
    path: Path, without: Sequence[str]
) -> tuple[dataset.Candidates, np.ndarray]:
    """Returns the probabilities, and which texts have none of the words."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    names = [*records[0]["probabilities"]]
    rows = [[record["probabilities"][name] for name in names] for record in records]
    # Logarithms of probabilities are logits.
    logits = np.log(np.maximum(rows, 1e-30))
    right = np.array([names.index(record["label"]) for record in records])
    words = [{*record["text"].split()} for record in records]
    is_usual = np.array([not here.intersection(without) for here in words])
    found = dataset.Candidates.of_classes(logits, right)
    return found._replace(labels=np.array(names)[found.answers]), is_usual


def write_candidates(run: Path, data: Path, path: Path) -> None:
    from bert_keras.inference import finetuned

    model = finetuned.FinetunedModel.load(run)
    rows = model.read(data, has_labels=True)
    if (found := model.answer(rows).candidates()) is None:
        raise SystemExit(f"{run}: no probabilities to compare a threshold with")
    arrays = {k: v for k, v in found._asdict().items() if v is not None}
    halves = np.unique(rows.keys(), return_inverse=True)[1]
    np.savez(path, **arrays, halves=halves[arrays.get("texts", slice(None))])


class Whole(NamedTuple):
    candidates: dataset.Candidates
    halves: np.ndarray
    """`(num_answers,)` int, equal where answers are in one half: for instance those to
    the sentences of one document, or to the questions about one text."""


class Split(NamedTuple):
    """A calibration; `None` where there is no threshold, or nothing was answered."""

    share: float
    """Of the whole file that is answered."""
    precision: float | None
    precision_of_rest: float | None
    before: float
    """Expected calibration errors on the rows that were not drawn."""
    after: float


def calibrate(
    whole: Whole,
    others: dataset.Candidates | None,
    rng: np.random.Generator,
    args: argparse.Namespace,
) -> Split:
    ids = np.unique(whole.halves)
    drawn, rest = np.split(rng.permutation(ids), [len(ids) // 2])
    drawn, rest = (np.isin(whole.halves, part) for part in (drawn, rest))
    if args.rows:
        drawn, rest = rng.integers(0, len(ids), args.rows), np.arange(len(ids))
    candidates, texts = whole.candidates, whole.candidates.texts
    drawn, rest = candidates.take(drawn), others or candidates.take(rest)
    # As `calibrate` does: a text's answers are in one part.
    size = len(drawn.logits) if texts is None else texts.max() + 1
    is_first = rng.random(size) < thresholds.FIRST_PART
    is_first = is_first if texts is None else is_first[drawn.texts]
    first, second = drawn.take(is_first), drawn.take(~is_first)
    if args.ungrouped:
        first, second = (part._replace(texts=None) for part in (first, second))
    temperature = thresholds.fit_temperature(first)
    common = {"precision": args.precision, "confidence": args.confidence}
    if args.by_label:
        every = thresholds.choose_by_label(first, second, temperature, **common)
    else:
        answered = (part.answered(temperature) for part in (first, second))
        every = {None: thresholds.choose_threshold(*answered, **common)}
    before, after = (
        pictures.calibration_error(pictures.reliability_bins(*rest.answered(t)[:2]))
        for t in (1.0, temperature)
    )

    def precision(asked: dataset.Candidates) -> tuple[float, float | None]:
        """Returns the share answered, and the precision, of labels the lowest."""
        probabilities, is_right, _ = asked.answered(temperature)
        given, precisions = np.zeros(len(is_right), bool), []
        for name, tested in every.items():
            if tested.lowest is not None:
                here = probabilities >= tested.thresholds[tested.lowest]
                here &= name is None or asked.labels == name
                given |= here
                if here.any():
                    precisions.append(float(is_right[here].mean()))
        return float(given.mean()), min(precisions, default=None)

    return Split(*precision(candidates), precision(rest)[1], before, after)


def row_of(path: Path, args: argparse.Namespace) -> list[str]:
    others = None
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            halves = arrays["halves"]
            names = dataset.Candidates._fields
            found = {name: arrays[name] for name in names if name in arrays}
            candidates = dataset.Candidates(**found)
    else:
        candidates, is_usual = read_candidates(path, args.without)
        if args.without:
            others = candidates.take(~is_usual)
            candidates = candidates.take(is_usual)
        halves = np.arange(len(candidates.logits))
    whole = Whole(candidates, halves)
    rng = np.random.default_rng(args.seed)
    splits = [calibrate(whole, others, rng, args) for _ in range(args.splits)]

    def broken(values: list[float | None]) -> str:
        count = sum(v is not None and v < args.precision for v in values)
        return f"{count} of {len(values)}"

    right = candidates.answered(1.0).is_right
    shares = [split.share for split in splits]
    return [
        f"{path.parent.name} {path.stem} ({len(right):,} answers)",
        f"{right.mean():.1%}",
        f"{args.precision:g}",
        f"{args.rows or 'a half'}",
        f"{sum(share == 0 for share in shares)} of {args.splits}",
        f"{np.mean([share for share in shares if share] or [0]):.0%}",
        broken([split.precision for split in splits]),
        broken([split.precision_of_rest for split in splits]),
        f"{np.mean([split.before for split in splits]):.1%}",
        f"{np.mean([split.after for split in splits]):.1%}",
    ]


ROWS_OF_OTHERS = (20, 25, 50, 100, 200, 400)


def read_measured(path: Path, tokenizer: tokenization.Tokenizer) -> drift.Measured:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    # SST-2 has sentences; `dev_answers.jsonl` has the probabilities in one object.
    texts = [(r.get("sentence") or r["text"], r.get("text_pair", "")) for r in records]
    probabilities = [
        record.get("probabilities")
        or {name: value for name, value in record.items() if name.startswith("p(")}
        for record in records
    ]
    data = text_forms.TextDataset(
        path=path,
        rows=[text.LabelledText(*parts, None, 0) for parts in texts],
        has_labels=False,
        kind="classification",
    )
    rows = [[*values.values()] for values in probabilities]
    answers = data.answers_of(np.log(np.maximum(rows, 1e-30)), TASK)
    return drift.measure(data, answers, tokenizer, temperature=1.0)


def take(measured: drift.Measured, rows: Sequence[int]) -> drift.Measured:
    values = {name: array[rows] for name, array in measured.values.items()}
    return drift.Measured([measured.keys[row] for row in rows], values)


def drift_rows(args: argparse.Namespace) -> Iterator[list[str]]:
    """Yields the share of halves with a warning, by file and by number of rows."""
    rng, size = np.random.default_rng(args.seed), ROWS_OF_OTHERS
    tokenizer = run_directory.read_run(args.drift).tokenizer
    home, *others = (read_measured(path, tokenizer) for path in args.answers)
    half = len(home.keys) // 2
    for path, other in zip(args.answers, (None, *others), strict=True):
        counts, words = Counter(), Counter()
        for _ in range(args.splits):
            order = rng.permutation(len(home.keys))
            known = take(home, order[:half]).describe()
            rest = take(home, order[half:]) if other is None else other
            for number in sorted({*size, len(rest.keys)}):
                if number <= len(rest.keys):
                    rows = rng.permutation(len(rest.keys))[:number]
                    found = take(rest, rows).differences(known)
                    counts[number] += bool(found)
            # Of all rows, which is the last.
            words.update(text.partition(" (")[0] for text in found)
        cells = [counts[n] if n <= len(rest.keys) else "" for n in size]
        named = ", ".join(f"{word} {n}" for word, n in words.most_common())
        yield [path.stem, *map(str, cells), str(counts[len(rest.keys)]), named]


HEADER = (
    *("dev file", "accuracy", "promised", "rows", "no threshold", "answered"),
    *("broken", "missed in the others", "ECE of the others before", "after"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=Path, nargs="+", default=[])
    parser.add_argument("--candidates", type=Path, nargs="+", default=[])
    parser.add_argument("--model", type=Path, help="with --data: writes --candidates")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--ungrouped", action="store_true", help="as if independent")
    parser.add_argument("--by_label", action="store_true", help="each label's promise")
    parser.add_argument("--precision", type=float, default=0.95)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--without", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--drift", type=Path, metavar="RUN")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if args.model:
        write_candidates(args.model, args.data, *args.candidates)
        return
    if args.drift:
        header = ["file", *map(str, ROWS_OF_OTHERS), "all its rows", "of these"]
        table = markdown.table(header, [*drift_rows(args)])
    else:
        paths = [*args.answers, *args.candidates]
        table = markdown.table(HEADER, [row_of(path, args) for path in paths])
    print(table)
    if args.output:
        args.output.write_text(table + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Hard negatives: wrong passages that vectors take for right ones.

For each question the nearest passages by the cosine of their vectors are looked for in
a file of any size, without its right ones. Some of the nearest may be right though
nobody has said so: the first ranks can be skipped, and passages that are about as near
as a right one are left out, as Moreira et al. (2024, "NV-Retriever") do. No TensorFlow.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.core import files, progress
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.kinds import splits
from bert_keras.kinds.ranking import candidates
from bert_keras.kinds.ranking.candidates import Question
from bert_keras.kinds.text import similarity
from bert_keras.labelled import reading, row_files, tables

logger = logging.getLogger(__name__)

BLOCK = 8192
"""Passages whose vectors are in memory at once."""

_QUESTIONS_AT_ONCE = 1024
_SUFFIXES = (".tsv", ".csv", ".jsonl")

Embed = Callable[[Sequence[str]], np.ndarray]
"""From texts to vectors `(num_texts, size)`, float32."""


class Choice(NamedTuple):
    """Which of the nearest passages become negatives."""

    num_negatives: int
    """Of each question at most."""
    depth: int
    """Nearest passages to choose from, those skipped included."""
    skip: int
    """Nearest passages that are left out."""
    margin: float
    """Share of the cosine of the question with its nearest right passage by which a
    negative is farther, at least."""
    seed: int


def check(choice: Choice, output_path: str | Path) -> None:
    """Raises an `InputError` for numbers out of range, or an output that exists."""
    num_negatives, depth, skip, margin, _ = choice
    if num_negatives < 1 or skip < 0 or depth < skip + num_negatives:
        raise InputError(
            "expected --num_negatives of 1 or more, --skip of 0 or more, and --depth "
            f"of both together or more, got {num_negatives}, {skip} and {depth}"
        )
    if not 0 <= margin < 1:
        raise InputError(f"--margin is from 0 to below 1, got {margin}")
    if (suffix := files.path(output_path).suffix.lower()) not in _SUFFIXES:
        raise InputError(
            f"{output_path}: expected a name with {', '.join(_SUFFIXES)}, got "
            f"{suffix or 'no suffix'}"
        )
    files.new_file(output_path)


def mine(
    input_path: str | Path,
    passages_path: str | Path,
    output_path: str | Path,
    *,
    embed: Embed,
    choice: Choice,
) -> None:
    """Writes the rows of a file with negatives for each question.

    Vectors of `BLOCK` passages are in memory, and `depth` cosines for each question.

    Args:
        input_path: questions and right passages; wrong ones are kept.
        passages_path: passages to search: a `.txt` file with one a line, or a column
            `passage` of `.tsv`, `.csv` or `.jsonl`.
        output_path: file to make, `.tsv`, `.csv` or `.jsonl`, with `question`,
            `passage` and `relevance`.
    """
    questions = candidates.read_questions(input_path, finetuning.TextColumns())
    vectors = similarity.unit_length(embed([question.text for question in questions]))
    numbers = _nearest(questions, vectors, files.path(passages_path), embed, choice)
    chosen = _texts(files.path(passages_path), numbers)
    if not any(chosen):
        raise InputError(
            f"{passages_path}: no passage is far enough from the right ones: lower "
            "--margin or --skip, or give more passages"
        )
    rows = _rows(questions, chosen, files.path(output_path).suffix.lower())
    files.write_atomically(output_path, rows.encode())
    logger.info(
        "%s: %d negatives for %d of %d questions",
        *(output_path, sum(map(len, chosen)), sum(map(bool, chosen)), len(questions)),
    )


def read_passages(path: Path) -> Iterator[str]:
    """Reads the different passages of a file, one by one; blank ones are skipped."""
    rows = row_files.reader(path) if path.suffix.lower() != ".txt" else _read_lines
    seen: set[int] = set()
    for line, row in rows(path):
        passage = row.get(_PASSAGE)
        if not isinstance(passage, str):
            raise InputError(
                f"{path}: line {line}: expected a text named {_PASSAGE!r}, got "
                f"{', '.join(row)}"
            )
        passage = passage.strip()
        if passage and (key := hash(passage)) not in seen:
            seen.add(key)
            yield passage


def _read_lines(path: Path) -> reading.Rows:
    for number, line in enumerate(files.read_lines(path), start=1):
        yield number, {_PASSAGE: line}


_PASSAGE = "passage"


def _nearest(
    questions: Sequence[Question],
    vectors: np.ndarray,
    path: Path,
    embed: Embed,
    choice: Choice,
) -> list[np.ndarray]:
    """Returns the numbers of the negatives of each question, the nearest first."""
    owners: dict[str, list[int]] = {}
    for row, question in enumerate(questions):
        for candidate in question.candidates:
            owners.setdefault(candidate.passage.strip(), []).append(row)
    # All of the file is read before the work begins: it is seen to be sound.
    total = sum(1 for _ in read_passages(path))
    limits = _limits(questions, vectors, embed, choice.margin)
    best = np.full((len(questions), choice.depth), -np.inf, np.float32)
    numbers = np.full(best.shape, -1)
    num_done, passages = 0, read_passages(path)
    with progress.Progress(
        f"searching {path.name}", total=total, unit="passages", read=lambda: num_done
    ):
        while block := list(itertools.islice(passages, BLOCK)):
            own = [(row, i) for i, p in enumerate(block) for row in owners.get(p, ())]
            own_rows, own_places = np.array(own, int).reshape(-1, 2).T
            block_vectors = similarity.unit_length(embed(block)).T
            for first in range(0, len(questions), _QUESTIONS_AT_ONCE):
                part = slice(first, first + _QUESTIONS_AT_ONCE)
                cosines = vectors[part] @ block_vectors
                is_here = (own_rows >= first) & (own_rows < first + len(cosines))
                cosines[own_rows[is_here] - first, own_places[is_here]] = -np.inf
                found = _merge(best[part], numbers[part], cosines, num_done)
                best[part], numbers[part] = found
            num_done += len(block)
    return [
        _chosen(best[row], numbers[row], limits[row], question.text, choice)
        for row, question in enumerate(questions)
    ]


def _limits(
    questions: Sequence[Question], vectors: np.ndarray, embed: Embed, margin: float
) -> np.ndarray:
    """Returns the greatest cosine of a negative for each question, `(num_questions,)`,
    infinite for a question without a right passage."""
    pairs = [
        (row, candidate.passage)
        for row, question in enumerate(questions)
        for candidate in question.candidates
        if candidate.relevance
    ]
    nearest = np.full(len(questions), -np.inf, np.float32)
    for begin in range(0, len(pairs), BLOCK):
        rows, passages = zip(*pairs[begin : begin + BLOCK], strict=True)
        cosines = (vectors[[*rows]] * similarity.unit_length(embed(passages))).sum(
            axis=1
        )
        np.maximum.at(nearest, [*rows], cosines)
    limits = nearest - margin * np.abs(nearest)
    return np.where(np.isfinite(nearest), limits, np.inf)


def _merge(
    best: np.ndarray, numbers: np.ndarray, cosines: np.ndarray, begin: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns `(num_questions, depth)` cosines and numbers of the nearest passages:
    `best` and `numbers` are those so far, `cosines`, `(num_questions, num_passages)`,
    those of the passages from number `begin` on."""
    depth = best.shape[1]
    new = np.broadcast_to(np.arange(begin, begin + cosines.shape[1]), cosines.shape)
    both = np.concatenate([best, cosines], axis=1)
    nearest = np.argpartition(-both, depth - 1, axis=1)[:, :depth]
    all_numbers = np.concatenate([numbers, new], axis=1)
    return (
        np.take_along_axis(both, nearest, axis=1),
        np.take_along_axis(all_numbers, nearest, axis=1),
    )


def _chosen(
    cosines: np.ndarray, numbers: np.ndarray, limit: float, asked: str, choice: Choice
) -> np.ndarray:
    """Returns the numbers of a question's negatives, the nearest first."""
    order = np.lexsort((numbers, -cosines))
    order = order[cosines[order] > -np.inf][choice.skip :]
    order = order[cosines[order] <= limit]
    if len(order) > choice.num_negatives:
        place = [choice.seed & (2**64 - 1), splits.number_of(asked)]
        rng = np.random.default_rng(place)
        order = order[np.sort(rng.permutation(len(order))[: choice.num_negatives])]
    return numbers[order]


def _texts(path: Path, numbers: Sequence[np.ndarray]) -> list[list[str]]:
    wanted = {int(number) for row in numbers for number in row}
    texts = {n: p for n, p in enumerate(read_passages(path)) if n in wanted}
    return [[texts[number] for number in row] for row in numbers]


def _rows(
    questions: Sequence[Question], negatives: Sequence[Sequence[str]], suffix: str
) -> str:
    rows, relevances = [], []
    for question, wrong in zip(questions, negatives, strict=True):
        passages = [candidate.passage for candidate in question.candidates]
        rows += [{"question": question.text, _PASSAGE: p} for p in (*passages, *wrong)]
        relevances += [*question.relevances, *([0] * len(wrong))]
    columns = {"relevance": tables.Column(relevances, "g")}
    return tables.joined(rows, columns, suffix=suffix)

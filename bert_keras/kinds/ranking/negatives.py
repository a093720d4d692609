"""Hard negatives: wrong passages that vectors take for right ones.

For each question the nearest passages by the cosine of their vectors are looked for in
a file of any size, without its right ones. Some of the nearest may be right though
nobody has said so: the first ranks can be skipped, and passages that are about as near
as a right one are left out, as Moreira et al. (2024, "NV-Retriever") do. Texts are
equal if the tokenizer makes the same ids of them: capitals, blanks and accents mostly
make no difference. No TensorFlow.
"""

import collections
import hashlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.core import files, progress
from bert_keras.core.errors import InputError
from bert_keras.kinds import splits
from bert_keras.kinds.ranking import dataset
from bert_keras.labelled import reading, similarity, tables

logger = logging.getLogger(__name__)

BLOCK = 8192
"""Passages whose vectors are in memory at once."""

# Their float32 cosines with a block of passages are 32 MiB.
_QUESTIONS_AT_ONCE = 1024
_TEXTS_AT_ONCE = 512
"""Texts that are embedded between two steps of the progress line."""

_SUFFIXES = (".tsv", ".csv", ".jsonl")
PASSAGE = "passage"

Embed = Callable[[Sequence[str]], np.ndarray]
"""From texts to vectors `(num_texts, size)`, float32."""

Encode = Callable[[str], bytes]
"""From a text to the bytes of its ids, `Tokenizer.encode_packed`."""


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
    encode: Encode,
    choice: Choice,
) -> None:
    """Writes the rows of a file with negatives for each question.

    Vectors of `BLOCK` passages are in memory, and `depth` cosines for each question.

    Args:
        input_path: questions and right passages; wrong ones are kept.
        passages_path: passages to search: a `.txt` file with one a line, or a column
            `passage` of `.tsv`, `.csv`, `.jsonl` or `.parquet`.
        output_path: file to make, `.tsv`, `.csv` or `.jsonl`, with the columns of the
            input, and `question`, `passage` and `relevance`. A negative has the
            `question_id` of its question, too.
    """
    questions = dataset.read_questions(input_path)

    # 1. Passages that are no negatives of a question: its own ones, and what is right
    #    for an equal question that has another id.
    equal_questions: dict[bytes, list[int]] = collections.defaultdict(list)
    for row, question in enumerate(questions):
        equal_questions[_key(encode, question.text)].append(row)
    right = [
        (row, candidate.passage)
        for rows in equal_questions.values()
        for row, other in itertools.product(rows, rows)
        for candidate in questions[other].candidates
        if candidate.relevance
    ]
    own = [(row, c.passage) for row, q in enumerate(questions) for c in q.candidates]
    owners: dict[bytes, set[int]] = collections.defaultdict(set)
    for row, passage in (*right, *own):
        owners[_key(encode, passage)].add(row)

    # 2. All passages are read once before the work begins, so the file is sound: which
    #    passages are equal to none before, and which of these a question knows.
    path = files.path(passages_path)
    is_new, keys, owned = bytearray(), set(), []
    for passage in read_passages(path):
        key = _key(encode, passage)
        is_new.append(key not in keys)
        if is_new[-1]:
            owned += [(len(keys), row) for row in sorted(owners.get(key, ()))]
            keys.add(key)

    # 3. The search and the draw, while a line of progress counts texts.
    num_embedded = 0

    def embed_and_count(texts: Sequence[str]) -> np.ndarray:
        nonlocal num_embedded
        vectors = []
        for begin in range(0, len(texts), _TEXTS_AT_ONCE):
            part = texts[begin : begin + _TEXTS_AT_ONCE]
            vectors.append(similarity.unit_length(embed(part)))
            num_embedded += len(part)
        return np.concatenate(vectors)

    total = len(questions) + len(right) + len(keys)
    title = f"searching {path.name}"
    with progress.Progress(title, total=total, unit="texts", read=lambda: num_embedded):
        passages = itertools.compress(read_passages(path), is_new)
        chosen = _chosen(
            questions, right, passages, owned, embed=embed_and_count, choice=choice
        )

    # 4. The texts of the passages that were drawn.
    drawn = {number for numbers in chosen for number in numbers}
    passages = itertools.compress(read_passages(path), is_new)
    texts = {n: passage for n, passage in enumerate(passages) if n in drawn}
    if not texts:
        raise InputError(
            f"{passages_path}: no passage is far enough from the right ones: lower "
            "--margin or --skip, or give more passages"
        )
    negatives = [[texts[number] for number in numbers] for numbers in chosen]
    content = _table(files.path(input_path), questions, negatives, output_path)
    files.write_atomically(output_path, content.encode())
    logger.info(
        "%s: %d negatives for %d of %d questions",
        *(output_path, sum(map(len, chosen)), sum(map(bool, negatives))),
        len(questions),
    )


def _key(encode: Encode, text: str) -> bytes:
    """Returns a digest that is the same for equal texts."""
    return hashlib.blake2b(encode(text), digest_size=16).digest()


def read_passages(path: Path) -> Iterator[str]:
    """Reads the passages of a file, one by one; blank ones are skipped."""
    if path.suffix.lower() == ".txt":
        texts = enumerate(files.read_lines(path), start=1)
        rows = (reading.Row(path, n, {PASSAGE: text}) for n, text in texts)
    else:
        rows = reading.read_rows(path)
    for row in rows:
        passage = row.cells.get(PASSAGE)
        if not isinstance(passage, str):
            found = ", ".join(row.cells)
            raise row.error(f"expected a text named {PASSAGE!r}, got {found}")
        if passage := passage.strip():
            yield passage


def _chosen(
    questions: Sequence[dataset.Question],
    right: Sequence[tuple[int, str]],
    passages: Iterator[str],
    known: Sequence[tuple[int, int]],
    *,
    embed: Embed,
    choice: Choice,
) -> list[list[int]]:
    """Returns the numbers of the passages that become negatives of each question, the
    nearest first. `right` are questions with their right passages; `known` are
    passages, ascending, each with a question that it is no negative of."""
    vectors = embed([question.text for question in questions])
    # 1. The greatest cosine of a negative, infinite without a right passage.
    own = np.full(len(vectors), -np.inf, np.float32)
    for begin in range(0, len(right), BLOCK):
        rows, texts = zip(*right[begin : begin + BLOCK], strict=True)
        own_cosines = (vectors[[*rows]] * embed(texts)).sum(axis=1)
        # Unlike an assignment, it counts each of a question's right passages.
        np.maximum.at(own, [*rows], own_cosines)
    # The absolute value, so that a cosine below 0 has a lower limit, too.
    limits = own - choice.margin * np.abs(own)
    limits = np.where(np.isfinite(own), limits, np.inf)

    # 2. The nearest passages so far, in no order; of fewer the rest is -inf.
    best = np.full((len(vectors), choice.depth), -np.inf, np.float32)
    numbers = np.full(best.shape, -1)
    owned, owners = np.array(known, int).reshape(-1, 2).T
    begin = 0
    while block := list(itertools.islice(passages, BLOCK)):
        block_vectors = embed(block).T
        block_numbers = np.arange(begin, begin + len(block))
        here = slice(*np.searchsorted(owned, [begin, begin + len(block)]))
        for first in range(0, len(vectors), _QUESTIONS_AT_ONCE):
            part = slice(first, first + _QUESTIONS_AT_ONCE)
            cosines = vectors[part] @ block_vectors
            row, column = owners[here] - first, owned[here] - begin
            is_here = (row >= 0) & (row < len(cosines))
            cosines[row[is_here], column[is_here]] = -np.inf
            both = np.concatenate([best[part], cosines], axis=1)
            new_numbers = np.broadcast_to(block_numbers, cosines.shape)
            all_numbers = np.concatenate([numbers[part], new_numbers], axis=1)
            nearest = np.argpartition(-both, choice.depth - 1, axis=1)
            nearest = nearest[:, : choice.depth]
            best[part] = np.take_along_axis(both, nearest, axis=1)
            numbers[part] = np.take_along_axis(all_numbers, nearest, axis=1)
        begin += len(block)

    # 3. The draw of each question, which depends on no other one.
    chosen = []
    for row, question in enumerate(questions):
        order = np.lexsort((numbers[row], -best[row]))
        order = order[best[row, order] > -np.inf][choice.skip :]
        order = order[best[row, order] <= limits[row]]
        if len(order) > choice.num_negatives:
            place = [choice.seed & (2**64 - 1), splits.number_of(question.text)]
            drawn = np.random.default_rng(place).permutation(len(order))
            order = order[np.sort(drawn[: choice.num_negatives])]
        chosen.append(numbers[row, order].tolist())
    return chosen


def _table(
    input_path: Path,
    questions: Sequence[dataset.Question],
    negatives: Sequence[Sequence[str]],
    output_path: str | Path,
) -> str:
    """Returns the rows of the input, one for each passage, and those of negatives."""
    cells = [row.cells for row in reading.read_rows(input_path)]
    rows, relevances = [], []
    for question, wrong in zip(questions, negatives, strict=True):
        asked = {"question": question.text}
        for candidate in question.candidates:
            row = cells[candidate.row]
            if "relevance" not in row:
                # A row with a right passage and a wrong one becomes two.
                row = {n: v for n, v in row.items() if n not in dataset.TRIPLE}
            rows.append({**row, **asked, PASSAGE: candidate.passage})
            relevances.append(candidate.relevance)
        # Other columns may be about the passage.
        first = cells[question.candidates[0].row]
        if dataset.QUESTION_ID in first:
            asked = {dataset.QUESTION_ID: first[dataset.QUESTION_ID], **asked}
        rows += [{**asked, PASSAGE: passage} for passage in wrong]
        relevances += [0] * len(wrong)
    # Nine digits: float32.
    columns = {"relevance": tables.Column(relevances, ".9g")}
    suffix = files.path(output_path).suffix.lower()
    return tables.joined(rows, columns, suffix=suffix)

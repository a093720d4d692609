"""Questions about a text, in files of SQuAD's layout.

The layout is that of SQuAD 1.1 and 2.0, and of other data sets (XQuAD, TriviaQA after
conversion); or that of Hugging Face's datasets, a flat list.
"""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.labelled import reading


class Answer(NamedTuple):
    """An answer that a person marked in the context."""

    text: str
    start: int | None
    """First character in the context; `None` where it was not found."""


class Question(NamedTuple):
    """A question, and the text that may hold the answer."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    """Empty for a question that has no answer, or if answers were not read."""

    @property
    def can_be_learnt(self) -> bool:
        """Returns whether an answer was found in the context, or there is none."""
        starts = [answer.start for answer in self.answers]
        return not starts or any(start is not None for start in starts)


class QuestionSet(NamedTuple):
    questions: tuple[Question, ...]
    has_impossible: bool
    """Whether questions may have no answer (SQuAD 2.0)."""
    num_repaired_answers: int = 0
    """Answers that were not where the file says, but in one other place of the text."""
    skipped: tuple[str, ...] = ()
    """Id and reason, a line for each question that cannot be trained on."""


def gold_answers(questions: Iterable[Question]) -> dict[str, tuple[str, ...]]:
    """Returns the answers' texts by question id, as `squad_scores` takes them."""
    return {q.id: tuple(a.text for a in q.answers) for q in questions}


def read_squad(path: files.Path, *, has_answers: bool = True) -> QuestionSet:
    """Reads a `.json` file in the layout of SQuAD 1.1 or 2.0; or a flat list of
    questions, which is an array there, JSON lines (`.jsonl`) or Parquet.

    An answer that is not at its `answer_start` is given its place if the text has it
    exactly once. A question without any answer that has a place can be answered and
    scored, not trained on. Other keys are ignored, and `answers` without `has_answers`.
    The file is UTF-8, a byte order mark allowed.
    """
    path, content = files.path(path), None
    if path.suffix.lower() not in (".jsonl", ".parquet"):
        content = files.read_json_value(path)
    questions, places, num_repaired = {}, {}, 0
    if isinstance(content, dict):
        has_impossible = str(content.get("version")).lstrip("v") == "2.0"
        paragraphs = [
            paragraph
            for place, article in items(content, "data", str(path))
            for paragraph in items(article, "paragraphs", place)
        ]
    else:
        has_impossible, paragraphs = False, [*_flat_paragraphs(path, has_answers)]
    for paragraph_place, paragraph in paragraphs:
        context = field(paragraph, "context", str, paragraph_place)
        for place, node in items(paragraph, "qas", paragraph_place):
            id = field(node, "id", str, place)
            question = field(node, "question", str, place)
            if id in places:
                raise InputError(
                    f"{place}: the id {id!r} is also at "
                    f"{places[id].removeprefix(f'{path}: ')}: predictions go by id, "
                    "give each question its own"
                )
            places[id] = place
            answers: tuple[Answer, ...] = ()
            if has_answers:
                answers, num_moved = _read_answers(node, context, place)
                num_repaired += num_moved
                has_impossible |= not answers
            questions[id] = Question(id, question, context, answers)
    if not questions:
        raise InputError(f"{path}: holds no questions, expected at least one")
    skipped = (
        f"{q.id}: the text does not have the answer {q.answers[0].text[:60]!r} "
        "where it should be, nor exactly once"
        for q in questions.values()
        if not q.can_be_learnt
    )
    return QuestionSet(
        tuple(questions.values()), has_impossible, num_repaired, tuple(skipped)
    )


def _flat_paragraphs(path: Path, has_answers: bool) -> Iterator[tuple[str, Any]]:
    """Yields a paragraph for each question of a flat list, and its place."""
    names, expected = ("text", "answer_start"), '{"context": ..., "question": ..., ...}'
    is_parquet = path.suffix.lower() == ".parquet"
    lines = reading.read_jsonl(path, expected=expected)
    for row in reading.read_parquet(path) if is_parquet else lines:
        place = f"{path}: {row.unit} {row.line}"
        context = field(row.cells, "context", str, place)
        node = {**row.cells, "id": str(row.cells.get("id", row.line))}
        if has_answers:
            answers = field(row.cells, "answers", dict, place)
            columns = (field(answers, name, list, place) for name in names)
            pairs = itertools.zip_longest(*columns)
            node["answers"] = [dict(zip(names, pair, strict=True)) for pair in pairs]
            # Without an answer as in SQuAD 2.0.
            node["is_impossible"] = not node["answers"]
        yield place, {"context": context, "qas": [node]}


def _read_answers(
    node: Any, context: str, place: str
) -> tuple[tuple[Answer, ...], int]:
    """Returns the answers of a question, none if it is impossible, and how many were in
    another place."""
    key = "is_impossible"
    is_impossible = key in node and field(node, key, bool, place)
    answers, num_moved = [], 0
    for answer_place, answer in items(node, "answers", place):
        text = field(answer, "text", str, answer_place)
        start = field(answer, "answer_start", int, answer_place)
        actual_start = None
        if text.strip() and start >= 0 and context.startswith(text, start):
            actual_start = start
        elif text.strip() and context.find(text) == context.rfind(text) >= 0:
            # The only place that has it.
            actual_start = context.find(text)
            num_moved += 1
        answers.append(Answer(text, actual_start))
    if bool(answers) == is_impossible:
        raise InputError(
            f"{place}: expected answers or `is_impossible: true`, got "
            + ("both" if answers else "neither")
        )
    return tuple(answers), num_moved


def load_predictions(path: files.Path) -> dict[str, str]:
    """Reads a `predictions.json`: a text for each question id."""
    content = files.read_json(path)
    return {id: field(content, id, str, str(path)) for id in content}


def items(node: Any, name: str, place: str) -> list[tuple[str, Any]]:
    """Returns the members of a list below `node`, each with its place."""
    separator = "." if place.endswith("]") else ": "
    return [
        (f"{place}{separator}{name}[{index}]", item)
        for index, item in enumerate(field(node, name, list, place))
    ]


_KINDS = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def field(node: Any, name: str, kind: type, place: str) -> Any:
    if not isinstance(node, dict):
        short = json.dumps(node)[:60]
        raise InputError(f"{place}: expected an object with {name!r}, got {short}")
    if name not in node:
        raise InputError(
            f"{place}: expected {name!r}, which is not there (there: "
            f"{', '.join(list(node)[:8]) or 'nothing'}): is it SQuAD's layout?"
        )
    value = node[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        short = json.dumps(value)[:60]
        raise InputError(f"{place}: {name!r}: expected {_KINDS[kind]}, got {short}")
    return value

"""Questions about a text: files in SQuAD's layout in, windows of tokens out.

The layout is that of SQuAD 1.1 and 2.0, and of other data sets (XQuAD, TriviaQA after
conversion). `squad_predictions` turns the model's scores into answers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.data import token_offsets, tokenization
from bert_keras.labelled import dataset, tokenized


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
    def has_place(self) -> bool:
        """Returns whether an answer was found in the context."""
        return any(answer.start is not None for answer in self.answers)


class QuestionSet(NamedTuple):
    questions: tuple[Question, ...]
    has_impossible: bool
    """Whether questions may have no answer (SQuAD 2.0)."""
    num_repaired_answers: int
    """Answers that were not where the file says, but in one other place of the text."""
    skipped: tuple[str, ...]
    """Id and reason, a line for each question that cannot be trained on."""

    def gold_answers(self) -> dict[str, tuple[str, ...]]:
        """Returns the answers' texts by question id, as `squad_scores` takes them."""
        return {q.id: tuple(a.text for a in q.answers) for q in self.questions}

    def for_training(self) -> "QuestionSet":
        """Returns the set without questions whose answers have no place in the text."""
        kept = tuple(q for q in self.questions if not q.answers or q.has_place)
        return self._replace(questions=kept)


def read_squad(path: files.Path, *, has_answers: bool = True) -> QuestionSet:
    """Reads a `.json` file in the layout of SQuAD 1.1 or 2.0.

    An answer that is not at its `answer_start` is given its place if the text has it
    exactly once. A question without any answer that has a place can be answered and
    scored, not trained on. Other keys are ignored, and `answers` without `has_answers`.
    The file is UTF-8, a byte order mark allowed.
    """
    reader = _Reader(path=str(path), has_answers=has_answers)
    content = files.read_json(path)
    version = content.get("version") if isinstance(content, dict) else None
    for place, article in items(content, "data", str(path)):
        for paragraph_place, paragraph in items(article, "paragraphs", place):
            context = field(paragraph, "context", str, paragraph_place)
            for question_place, node in items(paragraph, "qas", paragraph_place):
                reader.add(node, context, question_place)
    if not reader.places:
        raise InputError(f"{path}: holds no questions, expected at least one")
    return QuestionSet(
        questions=tuple(reader.questions),
        has_impossible=reader.has_impossible or str(version).lstrip("v") == "2.0",
        num_repaired_answers=reader.num_repaired_answers,
        skipped=tuple(reader.skipped),
    )


class _Reader:
    def __init__(self, *, path: str, has_answers: bool):
        self.path = path
        self.has_answers = has_answers
        self.places: dict[str, str] = {}
        self.questions: list[Question] = []
        self.has_impossible = False
        self.num_repaired_answers = 0
        self.skipped: list[str] = []

    def add(self, node: Any, context: str, place: str) -> None:
        id = field(node, "id", str, place)
        question = field(node, "question", str, place)
        if id in self.places:
            raise InputError(
                f"{place}: the id {id!r} is also at "
                f"{self.places[id].removeprefix(self.path + ': ')}: predictions go by "
                "id, give each question its own"
            )
        self.places[id] = place
        answers = self._answers(node, context, place) if self.has_answers else ()
        self.questions.append(Question(id, question, context, answers))
        if answers and not self.questions[-1].has_place:
            self.skipped.append(
                f"{id}: the text does not have the answer {answers[0].text[:60]!r} "
                "where it should be, nor exactly once"
            )

    def _answers(self, node: Any, context: str, place: str) -> tuple[Answer, ...]:
        is_impossible = "is_impossible" in node and field(
            node, "is_impossible", bool, place
        )
        self.has_impossible |= is_impossible
        answers = []
        for answer_place, answer in items(node, "answers", place):
            words = field(answer, "text", str, answer_place)
            start = field(answer, "answer_start", int, answer_place)
            found = locate(words, start, context)
            self.num_repaired_answers += found not in (start, None)
            answers.append(Answer(words, found))
        if bool(answers) == is_impossible:
            raise InputError(
                f"{place}: expected answers or `is_impossible: true`, got "
                + ("both" if answers else "neither")
            )
        return tuple(answers)


def locate(answer: str, start: int, context: str) -> int | None:
    """Returns the place of an answer: `start`, or else the only place that has it."""
    if not answer.strip():
        return None
    if start >= 0 and context.startswith(answer, start):
        return start
    first = context.find(answer)
    return first if first >= 0 and first == context.rfind(answer) else None


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
        raise InputError(
            f"{place}: expected an object with {name!r}, got {_short(node)}"
        )
    if name not in node:
        raise InputError(
            f"{place}: expected {name!r}, which is not there (there: "
            f"{', '.join(list(node)[:8]) or 'nothing'}): is it SQuAD's layout?"
        )
    value = node[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(
            f"{place}: {name!r}: expected {_KINDS[kind]}, got {_short(value)}"
        )
    return value


def _short(value: Any) -> str:
    return json.dumps(value)[:60]


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Model inputs `[CLS] question [SEP] window of the context [SEP]`, one or more for
    each question, in order. Values of tokens are end to end, as in `texts`."""

    texts: tokenized.TokenizedTexts
    questions: np.ndarray
    """`(num_windows,)` int32: the place of each window's question among all."""
    start_positions: np.ndarray
    """`(num_windows,)` int32: the answer's first token, counted from `[CLS]`; 0, which
    is `[CLS]`, if the window does not hold the whole answer or there is none."""
    end_positions: np.ndarray
    """`(num_windows,)` int32: the answer's last token."""
    char_starts: np.ndarray
    """`(num_tokens,)` int32: first character of a token of the context; else 0."""
    char_ends: np.ndarray
    """`(num_tokens,)` int32: the character after its last one; else 0."""
    has_max_context: np.ndarray
    """`(num_tokens,)` bool: whether a token of the context has more tokens around it
    here than in the other windows. An answer begins only with such a token."""
    lost_answers: tuple[str, ...]
    """Ids of questions whose answer has no token (it is control characters only)."""
    whole_lengths: np.ndarray
    """`(num_questions,)` int64: tokens of each question with all of its context."""

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns inputs and positions of some windows, padded to the longest."""
        return {
            **self.texts.batch(rows),
            "start_positions": self.start_positions[rows],
            "end_positions": self.end_positions[rows],
        }

    @property
    def lengths(self) -> np.ndarray:
        """Returns the tokens of each window, `(num_windows,)` int64."""
        return self.texts.lengths

    @property
    def num_answers(self) -> int:
        """Returns the number of tokens of all windows: each has outputs."""
        return len(self.texts.input_ids)

    def places(self, rows: np.ndarray) -> dataset.Places:
        """Returns places of the outputs for a batch of windows, among all tokens."""
        tokens, mask = self.texts.tokens(rows)
        return dataset.Places(tokens[mask], np.nonzero(mask))


def featurize(
    questions: Sequence[Question],
    tokenizer: tokenization.Tokenizer,
    *,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
) -> Windows:
    """Cuts each context into overlapping windows, as run_squad.py does.

    The answer is the first one that has a place, from the piece that has its first
    character to the piece that has its last one: where it begins or ends inside a
    piece, the whole piece belongs to it.

    Args:
        max_seq_length: tokens of a window at most, with the question.
        doc_stride: tokens from the beginning of a window to that of the next.
        max_query_length: tokens of the question at most; the rest of it is cut off.
    """
    if max_seq_length < max_query_length + 4 or max_query_length < 1:
        raise InputError(
            f"a window of max_seq_length={max_seq_length} tokens has no room for "
            f"max_query_length={max_query_length} of the question, 3 special tokens "
            "and some of the text: raise the first or lower the second"
        )
    if doc_stride < 1:
        raise InputError(f"`doc_stride` must be at least 1, got {doc_stride}")
    locate_tokens = token_offsets.OffsetTokenizer(tokenizer).encode
    context, offsets = None, locate_tokens("")
    rows: list[dict[str, Any]] = []
    lost_answers, whole_lengths = [], []
    for number, question in enumerate(questions):
        # The questions of a paragraph follow each other.
        if context is not question.context:
            context, offsets = question.context, locate_tokens(question.context)
        answer = next((a for a in question.answers if a.start is not None), None)
        span = answer and answer_tokens(answer, offsets)
        if answer and not span:
            lost_answers.append(question.id)
        query = tokenizer.encode(question.question)
        whole_lengths.append(len(query) + len(offsets.ids) + 3)
        query = query[:max_query_length]
        for window in cut_windows(
            len(offsets.ids), max_seq_length - len(query) - 3, doc_stride
        ):
            row = _row(query, offsets, window, span, tokenizer.vocabulary)
            rows.append({"questions": number, **row})
    return _windows(rows, tuple(lost_answers), np.array(whole_lengths, np.int64))


class Window(NamedTuple):
    """Some tokens of a context, from `start` up to `end`."""

    start: int
    end: int
    has_max_context: np.ndarray
    """`(end - start,)` bool, see `Windows`."""


def cut_windows(num_tokens: int, window_length: int, doc_stride: int) -> list[Window]:
    """Returns the windows over a context; a single empty one if it has no tokens."""
    spans = tokenized.window_spans(num_tokens, window_length, doc_stride)
    best = np.full(num_tokens, -np.inf)
    owners = np.zeros(num_tokens, np.int32)
    for number, (start, end) in enumerate(spans):
        # The smaller side counts; among equals the longer window, then the first.
        left = np.arange(end - start)
        score = np.minimum(left, left[::-1]) + 0.01 * (end - start)
        is_better = score > best[start:end]
        best[start:end][is_better] = score[is_better]
        owners[start:end][is_better] = number
    return [
        Window(start, end, owners[start:end] == number)
        for number, (start, end) in enumerate(spans)
    ]


def answer_tokens(
    answer: Answer, offsets: token_offsets.TokenOffsets
) -> tuple[int, int] | None:
    """Returns the first and last token that have a part of the answer, if any."""
    start = cast(int, answer.start)  # Only answers without a place have none.
    first = int(np.searchsorted(offsets.ends, start, side="right"))
    last = int(np.searchsorted(offsets.starts, start + len(answer.text))) - 1
    return (first, last) if first <= last else None


def _row(
    query: list[int],
    offsets: token_offsets.TokenOffsets,
    window: Window,
    span: tuple[int, int] | None,
    vocabulary: tokenization.Vocabulary,
) -> dict[str, Any]:
    """Returns one window: kinds of its tokens, and the place of the answer."""
    start, end, has_max_context = window
    context = len(query) + 2
    length = context + end - start + 1
    tokens = {name: np.zeros(length, kind) for name, kind in _TOKEN_ARRAYS.items()}
    tokens["input_ids"][:context] = [vocabulary.cls_id, *query, vocabulary.sep_id]
    tokens["input_ids"][-1] = vocabulary.sep_id
    tokens["segment_ids"][context:] = 1
    inside = slice(context, length - 1)
    tokens["input_ids"][inside] = offsets.ids[start:end]
    tokens["char_starts"][inside] = offsets.starts[start:end]
    tokens["char_ends"][inside] = offsets.ends[start:end]
    tokens["has_max_context"][inside] = has_max_context
    shift = context - start
    first, last = (0, 0)
    if span is not None and start <= span[0] and span[1] < end:
        first, last = span[0] + shift, span[1] + shift
    return {
        **tokens,
        "lengths": length,
        "start_positions": first,
        "end_positions": last,
    }


_TOKEN_ARRAYS: Mapping[str, type] = {
    "input_ids": np.int32,
    "segment_ids": np.int32,
    "char_starts": np.int32,
    "char_ends": np.int32,
    "has_max_context": np.bool_,
}


def _windows(
    rows: list[dict[str, Any]],
    lost_answers: tuple[str, ...],
    whole_lengths: np.ndarray,
) -> Windows:
    if not rows:
        raise InputError("expected at least one question, got none")
    tokens = {name: np.concatenate([r[name] for r in rows]) for name in _TOKEN_ARRAYS}
    numbers = {
        name: np.array([row[name] for row in rows], np.int32)
        for name in ("questions", "start_positions", "end_positions")
    }
    texts = tokenized.TokenizedTexts(
        input_ids=tokens.pop("input_ids"),
        segment_ids=tokens.pop("segment_ids"),
        lengths=np.array([row["lengths"] for row in rows], np.int64),
    )
    return Windows(
        texts=texts,
        lost_answers=lost_answers,
        whole_lengths=whole_lengths,
        **numbers,
        **tokens,
    )

"""Questions about a text: files in SQuAD's layout in, windows of tokens out.

The layout is that of SQuAD 1.1 and 2.0, and of other data sets (XQuAD, TriviaQA after
conversion). `dataset` turns the model's scores into answers.
"""

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
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
    """Reads a `.json` file in the layout of SQuAD 1.1 or 2.0.

    An answer that is not at its `answer_start` is given its place if the text has it
    exactly once. A question without any answer that has a place can be answered and
    scored, not trained on. Other keys are ignored, and `answers` without `has_answers`.
    The file is UTF-8, a byte order mark allowed.
    """
    content = files.read_json(path)
    has_impossible = str(content.get("version")).lstrip("v") == "2.0"
    questions, places, num_repaired = {}, {}, 0
    paragraphs = [
        paragraph
        for place, article in items(content, "data", str(path))
        for paragraph in items(article, "paragraphs", place)
    ]
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


def _read_answers(
    node: Any, context: str, place: str
) -> tuple[tuple[Answer, ...], int]:
    """Returns the answers of a question, none if it is impossible, and how many were in
    another place."""
    is_impossible = "is_impossible" in node and field(
        node, "is_impossible", bool, place
    )
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
    settings: finetuning.SpanConfig,
    *,
    max_seq_length: int,
) -> Windows:
    """Cuts each context into overlapping windows, as run_squad.py does.

    The answer is the first one that has a place, from the piece that has its first
    character to the piece that has its last one: where it begins or ends inside a
    piece, the whole piece belongs to it. A window has at most `max_seq_length` tokens,
    with the question.
    """
    max_query_length = settings.max_query_length
    if max_seq_length < max_query_length + 4:
        raise InputError(
            f"a window of max_seq_length={max_seq_length} tokens has no room for "
            f"max_query_length={max_query_length} of the question, 3 special tokens "
            "and some of the text: raise the first or lower the second"
        )
    if not questions:
        raise InputError("expected at least one question, got none")
    cls_id, sep_id = tokenizer.vocabulary.cls_id, tokenizer.vocabulary.sep_id
    whole_lengths, numbers, values = [], [], []
    # The questions of a paragraph follow each other.
    offset_tokenizer = token_offsets.OffsetTokenizer(tokenizer)
    encode_context = functools.lru_cache(1)(offset_tokenizer.encode)

    def inputs() -> Iterator[tuple[list[int], list[int]]]:
        """Yields ids and segments, so that not all are in lists at once."""
        for number, question in enumerate(questions):
            offsets = encode_context(question.context)
            query = tokenizer.encode(question.question)
            whole_lengths.append(len(query) + len(offsets.ids) + 3)
            head = [cls_id, *query[:max_query_length], sep_id]
            room = max_seq_length - len(head) - 1
            # The first and the last token with a part of the first answer that has a
            # place; the last is before the first without one, or if the answer is
            # control characters only.
            answer = 0, -1
            for text, start in question.answers:
                if start is not None:
                    first = int(np.searchsorted(offsets.ends, start, side="right"))
                    last = int(np.searchsorted(offsets.starts, start + len(text))) - 1
                    answer = first, last
                    break
            windows = cut_windows(len(offsets.ids), room, settings.doc_stride)
            for tokens, has_max_context in windows:
                shift = len(head) - tokens.start
                is_inside = tokens.start <= answer[0] <= answer[1] < tokens.stop
                positions = [token + shift for token in answer] if is_inside else [0, 0]
                numbers.append([number, *positions])
                columns = offsets.starts[tokens], offsets.ends[tokens], has_max_context
                values.append([np.pad(column, (len(head), 1)) for column in columns])
                tail = [*offsets.ids[tokens].tolist(), sep_id]
                yield head + tail, [0] * len(head) + [1] * len(tail)

    texts = tokenized.TokenizedTexts.join(inputs())
    question_numbers, start_positions, end_positions = np.array(numbers, np.int32).T
    char_starts, char_ends, has_max_context = map(
        np.concatenate, zip(*values, strict=True)
    )
    return Windows(
        texts=texts,
        questions=question_numbers,
        start_positions=start_positions,
        end_positions=end_positions,
        char_starts=char_starts,
        char_ends=char_ends,
        has_max_context=has_max_context,
        whole_lengths=np.array(whole_lengths, np.int64),
    )


def cut_windows(
    num_tokens: int, window_length: int, doc_stride: int
) -> list[tuple[slice, np.ndarray]]:
    """Returns the windows over a context; a single empty one if it has no tokens. Each
    is its tokens, and `Windows.has_max_context` of them."""
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
    windows = [slice(*span) for span in spans]
    return [(window, owners[window] == n) for n, window in enumerate(windows)]

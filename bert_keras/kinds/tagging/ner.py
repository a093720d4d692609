"""Tagged words: sentences in, tags and scores out (see also `ner_windows`).

A file is in the columns of CoNLL-2003 (a word a line: the word first, its tag last, a
blank line between sentences, `-DOCSTART-` before each document; four columns, two or
any other number) or, named `.jsonl`, has lines of `{"words": [...], "tags": [...]}`, or
of texts with spans of characters, see `character_spans`. All tags of a file are of one
scheme, see `scheme_of`; IOB1 becomes IOB2 when it is read. No TensorFlow.
"""

# Labels are None only in files without any, which are not asked for them.
# pyright: reportArgumentType=false, reportOptionalIterable=false

import itertools
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.special
from seqeval.metrics import sequence_labeling

from bert_keras.core import files
from bert_keras.core.errors import InputError, nearest
from bert_keras.data import tokenization
from bert_keras.kinds.tagging import character_spans
from bert_keras.labelled import reading

logger = logging.getLogger(__name__)

OUTSIDE = "O"
"""Tag of a word outside any entity."""

DOCUMENT_START = "-DOCSTART-"
"""First column of a line that begins a document."""


PREFIXED = re.compile("[BIESLU]-.+")
"""Tag of a word in an entity, by its scheme."""

_ENDS = ("E-", "S-", "L-", "U-")
"""Beginnings of the tags of an entity's last word."""

Scheme = Literal["IOB", "BIOES", "BILOU", "plain"]


def scheme_of(tags: Iterable[str]) -> Scheme:
    """Returns the scheme of tags, or of a model's labels.

    `IOB`, `BIOES` and `BILOU` mark entities: all tags but `O` have a prefix for the
    first word (`B-`), one inside (`I-`), the last (`E-`, `L-`) or the only one (`S-`,
    `U-`). `plain` tags, such as parts of speech, have no prefix.
    """
    tags = set(tags) - {OUTSIDE}
    if not all(PREFIXED.fullmatch(tag) for tag in tags):
        return "plain"
    prefixes = {tag[0] for tag in tags}
    if prefixes <= set("BI"):
        return "IOB"
    return "BIOES" if prefixes <= set("BIES") else "BILOU"


class Sentence(NamedTuple):
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    """One for each word, IOB1 as IOB2; `None` if they were not read."""
    document: int
    """Equal for sentences of one document, which follow one another."""
    line: int
    """First line in its file, from 1."""
    text: str | None = None
    """Text that the words were found in, if the file has texts."""
    places: character_spans.Places = ()
    """Of a text: start and end of each word in it."""


def read(
    path: str | Path, *, has_tags: bool = True, has_lines: bool = False
) -> list[Sentence]:
    """Reads all sentences of a file, `.jsonl` or columns, in UTF-8.

    In IOB every entity then begins with `B-`, also one that begins with `I-` in its
    file, as in IOB1. In a file where most entities begin as they only do in IOB2, an
    `I-` there is an error of the file: it is read in the same way, as `conlleval` does,
    with a warning. Without `has_tags`, `tags` is `None`; with `has_lines`, such a file
    has a text a line if it is not `.jsonl`.
    """
    path = files.path(path)
    if path.suffix.lower() == ".jsonl":
        sentences = list(_read_jsonl(path, has_tags))
    elif has_lines and not has_tags:
        lines = enumerate(reading.read_lines(path), start=1)
        sentences = [of_text(line, number, number) for number, line in lines]
    else:
        sentences = list(_read_columns(path, has_tags))
    if not sentences:
        raise InputError(f"{path}: holds no sentences, expected at least one")
    if not has_tags:
        return sentences
    if not any(sentence.words for sentence in sentences):
        raise InputError(f"{path}: holds blank texts only, expected some words")
    _check_one_scheme(sentences, path)
    if scheme_of(tag for s in sentences for tag in s.tags) != "IOB":
        return sentences
    _warn_of_faults(sentences, path)
    return [s._replace(tags=to_iob2(s.tags)) for s in sentences]


def _read_columns(path: Path, has_tags: bool) -> Iterator[Sentence]:
    lines = reading.read_lines(path)
    rows = [re.split("[ \t]+", line.strip(" \t")) for line in lines]
    has_documents = any(row[0] == DOCUMENT_START for row in rows)
    num_columns, num_documents, num_sentences, first = None, 0, 0, 0
    # A blank line ends the last sentence too.
    for number, row in enumerate([*rows, [""]], start=1):
        if row[0] not in ("", DOCUMENT_START):
            num_columns = num_columns or len(row)
            _check_row(row, num_columns, has_tags, place=f"{path}: line {number}")
            continue
        if block := rows[first : number - 1]:
            yield Sentence(
                words=tuple(row[0] for row in block),
                tags=tuple(row[-1] for row in block) if has_tags else None,
                document=num_documents if has_documents else num_sentences,
                line=first + 1,
            )
            num_sentences += 1
        num_documents += row[0] == DOCUMENT_START
        first = number


def _check_row(row: list[str], num_columns: int, has_tags: bool, *, place: str) -> None:
    if len(row) != num_columns:
        raise InputError(
            f"{place}: expected {num_columns} columns as in the lines before, got "
            f"{len(row)}; texts go as JSON lines of {character_spans.FORM}"
        )
    if not has_tags:
        return
    if num_columns < 2:
        raise InputError(f"{place}: expected a word and its tag, got {row[0]!r}")
    _check_tag(row[-1], place=place)


def _read_jsonl(path: Path, has_tags: bool) -> Iterator[Sentence]:
    expected = '{"words": [...], "tags": [...]}' if has_tags else '{"words": [...]}'
    rows = list(reading.read_jsonl_to_copy(path, expected=expected))
    if rows and "text" in rows[0][1] and "words" not in rows[0][1]:
        yield from _read_texts(path, rows, has_tags)
        return
    for number, (line, row) in enumerate(rows):
        place = f"{path}: line {line}"
        words = _strings(row, "words", place=place)
        for word in words:
            if not word or _NOT_IN_WORDS.search(word):
                raise InputError(
                    f"{place}: expected words without blanks in them, got {word!r}"
                )
        tags = _strings(row, "tags", place=place) if has_tags else None
        if tags is not None and len(tags) != len(words):
            raise InputError(
                f"{place}: {len(words)} words, but {len(tags)} tags: expected one for "
                "each word"
            )
        for tag in tags or ():
            _check_tag(tag, place=place)
        yield Sentence(words, tags, number, line)


def _read_texts(
    path: Path, rows: Iterable[tuple[int, dict[str, Any]]], has_tags: bool
) -> Iterator[Sentence]:
    """Reads texts with spans of characters."""
    counts = character_spans.Counts()
    for number, (line, row) in enumerate(rows):
        place = f"{path}: line {line}"
        text = character_spans.read_text(row, place=place)
        sentence = of_text(text, number, line)
        if has_tags:
            entities = character_spans.read_entities(row, text, place=place)
            tagged = character_spans.to_tags(entities, sentence.places, place=place)
            sentence = sentence._replace(tags=tagged.tags)
            counts.add(line, entities, tagged)
        yield sentence
    counts.warn(path)


def of_text(text: str, document: int, line: int) -> Sentence:
    """Returns the words of a text, without tags."""
    places = split_words(text)
    words = tuple(text[start:end] for start, end in places)
    return Sentence(words, None, document, line, text, places)


def _strings(row: dict[str, Any], name: str, *, place: str) -> tuple[str, ...]:
    values = row.get(name)
    if isinstance(values, list) and values:
        if all(isinstance(value, str) for value in values):
            return tuple(values)
    raise InputError(
        f"{place}: expected {name!r} with a list of one string or more, got "
        f"{values!r:.60}"
    )


# Characters that would break a file of columns.
_NOT_IN_WORDS = re.compile("[ \t\r\n\ud800-\udfff]")
_TAG = re.compile("(?![BIESLU]-$)[^\\s\x00-\x1f\x7f\ud800-\udfff]+")


def _check_tag(tag: str, *, place: str) -> None:
    if not _TAG.fullmatch(tag):
        raise InputError(
            f"{place}: expected a tag such as NN, or O, B-TYPE and I-TYPE, got {tag!r}"
        )


def _check_one_scheme(sentences: Sequence[Sentence], path: Path) -> None:
    """Refuses tags with and without prefixes, and both BIOES and BILOU."""
    lines = {tag: s.line for s in reversed(sentences) for tag in s.tags}
    tags = sorted(lines.keys() - {OUTSIDE}, key=lambda tag: lines[tag])
    prefixed = [tag for tag in tags if PREFIXED.fullmatch(tag)]
    for ones, others in (
        ([tag for tag in tags if tag not in prefixed], prefixed),
        *([[t for t in prefixed if t[0] in letters] for letters in ("ES", "LU")],),
    ):
        if ones and others:
            raise InputError(
                f"{path}: expected tags of one scheme (plain, IOB, BIOES or BILOU), "
                f"got {ones[0]!r} (sentence of line {lines[ones[0]]}) and "
                f"{others[0]!r} (sentence of line {lines[others[0]]})"
            )


def split_words(text: str) -> list[tuple[int, int]]:
    """Returns the places `text[start:end]` of the words of a text.

    White space ends a word; a punctuation character or an ideograph is a word of its
    own. So the words are those of `tokenization.basic_tokenize` for cased text, with
    the control characters inside them, and those of `graph_tokenizer.WordSplitter`.
    """
    words: list[tuple[int, int]] = []
    is_open = False
    for place, char in enumerate(text):
        if tokenization.is_dropped(char):
            continue
        is_isolated = tokenization.is_punctuation(char) or tokenization.is_cjk(char)
        is_word = not char.isspace()
        if is_open and is_word and not is_isolated:
            words[-1] = (words[-1][0], place + 1)
        elif is_word:
            words.append((place, place + 1))
        is_open = is_word and not is_isolated
    return words


def to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """Makes every entity of a sentence begin with `B-`; entities are as `conlleval`
    reads IOB1, IOB2 or the tags of a model."""
    pairs = itertools.pairwise([OUTSIDE, *tags])
    return tuple(
        f"B-{tag[2:]}" if _begins_with_inside(previous, tag) else tag
        for previous, tag in pairs
    )


def _begins_with_inside(previous: str, tag: str) -> bool:
    is_over = previous[2:] != tag[2:] or previous.startswith(_ENDS)
    return tag.startswith("I-") and is_over


def _warn_of_faults(sentences: Sequence[Sentence], path: Path) -> None:
    begun_inside, num_begun_as_iob2 = [], 0
    for sentence in sentences:
        for previous, tag in itertools.pairwise([OUTSIDE, *sentence.tags]):
            if _begins_with_inside(previous, tag):
                begun_inside.append(sentence.line)
            # IOB1 has B- only right after an entity of the same type.
            num_begun_as_iob2 += tag.startswith("B-") and previous[2:] != tag[2:]
    # The majority tells: CoNLL-2003's own training file, IOB1, has two as in IOB2.
    if 0 < len(begun_inside) < num_begun_as_iob2:
        logger.warning(
            "%s: %d entities of an IOB2 file begin with I-, read as B- (the first is "
            "in the sentence of line %d)",
            path,
            len(begun_inside),
            begun_inside[0],
        )


def distinct_labels(
    sentences: Sequence[Sentence], *, path: str | Path
) -> tuple[str, ...]:
    """Returns the labels of a model of these tags: plain tags by the alphabet; else
    `O`, then the tags of each type of entity, by the alphabet, with all prefixes of the
    scheme."""
    tags = {tag for sentence in sentences for tag in sentence.tags}
    scheme = scheme_of(tags)
    if tags == {OUTSIDE}:
        raise InputError(f"{path}: every word is tagged O: expected some entities")
    if scheme == "plain":
        if len(tags) == 1:
            raise InputError(f"{path}: every word is tagged {tags.pop()!r}")
        return tuple(sorted(tags))
    types = sorted({tag[2:] for tag in tags} - {""})
    prefixes = {"IOB": "BI", "BIOES": "BIES", "BILOU": "BILU"}[scheme]
    return (OUTSIDE, *(f"{p}-{name}" for name in types for p in prefixes))


def label_ids(
    sentences: Sequence[Sentence], labels: Sequence[str], *, path: str | Path
) -> np.ndarray:
    """Returns `(num_words,)` int32 label numbers, sentence after sentence."""
    places = {label: place for place, label in enumerate(labels)}
    for sentence in sentences:
        for tag in sentence.tags:
            if tag not in places:
                raise InputError(
                    f"{path}: sentence of line {sentence.line}: tag {tag!r} was not in "
                    f"the training data (known: {', '.join(labels)})"
                    f"{nearest(tag, labels)}"
                )
    tags = {tag for sentence in sentences for tag in sentence.tags}
    found, trained = scheme_of(tags), scheme_of(labels)
    if tags != {OUTSIDE} and found != trained:
        raise InputError(
            f"{path}: its tags are {found}, those of the training data {trained}: "
            "convert one of the two"
        )
    return np.array([places[tag] for s in sentences for tag in s.tags], np.int32)


def decode(
    word_logits: np.ndarray, labels: Sequence[str], sentences: Sequence[Sentence]
) -> list[tuple[str, ...]]:
    """Returns the most probable tag of each word of each sentence, IOB as IOB2.

    `word_logits` are `(num_words, num_labels)`, sentence after sentence. An entity that
    the model begins with `I-` is made to begin with `B-`. Tags of `sentences` are not
    used.
    """
    tags = iter([labels[place] for place in word_logits.argmax(axis=-1)])
    return [to_iob2(list(itertools.islice(tags, len(s.words)))) for s in sentences]


def in_bioes(tags: Iterable[str]) -> list[str]:
    """Returns the tags with the letters of BIOES for those of BILOU, as in seqeval."""
    letters = {"L-": "E-", "U-": "S-"}
    return [letters.get(tag[:2], tag[:2]) + tag[2:] for tag in tags]


class EntityScores(NamedTuple):
    """Scores by whole entities."""

    precision: float
    recall: float
    f1: float
    num_entities: int
    """In the data."""


def scores(
    word_logits: np.ndarray, labels: Sequence[str], sentences: Sequence[Sentence]
) -> dict[str, float]:
    """Returns scores of answers, `(num_words, num_labels)` logits, sentence after
    sentence.

    `loss` (mean cross entropy of the words, nats), `accuracy` of the words, and, if
    tags are not plain, `precision`, `recall` and `f1` of whole entities, all types
    together, as `conlleval` counts them. All but the loss are fractions of 1; 0 where
    nothing could be right.
    """
    true_label_ids = label_ids(sentences, labels, path="the data")
    log_probabilities = scipy.special.log_softmax(word_logits.astype(float), axis=-1)
    rows = np.arange(len(true_label_ids))
    found = {
        "loss": float(-log_probabilities[rows, true_label_ids].mean()),
        "accuracy": float((word_logits.argmax(axis=-1) == true_label_ids).mean()),
    }
    if scheme_of(labels) == "plain":
        return found
    entities = entity_scores(
        [s.tags for s in sentences], decode(word_logits, labels, sentences)
    )
    return {
        **found,
        "precision": entities.precision,
        "recall": entities.recall,
        "f1": entities.f1,
    }


def entity_scores(
    true_tags: Iterable[Sequence[str]], predicted_tags: Iterable[Sequence[str]]
) -> EntityScores:
    """Returns scores of all entities together, as `conlleval` counts them. Both
    arguments have the tags of each sentence."""
    return _as_python(*_entity_scores(true_tags, predicted_tags, average="micro"))


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Returns type, first and last word of each entity, as `conlleval` reads them. With
    plain tags each word is one, but for `O`."""
    if scheme_of(tags) == "plain":
        words = enumerate(tags)
        return [(tag, word, word) for word, tag in words if tag != OUTSIDE]
    return sequence_labeling.get_entities(in_bioes(tags))


def entity_scores_by_type(
    true_tags: Iterable[Sequence[str]], predicted_tags: Iterable[Sequence[str]]
) -> dict[str, EntityScores]:
    """Returns scores for all types of entity in the data or the predictions."""
    true_tags, predicted_tags = list(true_tags), list(predicted_tags)
    tags = itertools.chain(*true_tags, *predicted_tags)
    # In the order of seqeval.
    types = sorted({tag[2:] for tag in tags} - {""})
    columns = _entity_scores(true_tags, predicted_tags, average=None)
    rows = zip(*columns, strict=True)
    return {name: _as_python(*row) for name, row in zip(types, rows, strict=True)}


def _entity_scores(
    true_tags: Iterable[Sequence[str]],
    predicted_tags: Iterable[Sequence[str]],
    *,
    average: str | None,
) -> tuple[Any, Any, Any, Any]:
    # This mode of seqeval, not its strict one, finds entities as conlleval does.
    return sequence_labeling.precision_recall_fscore_support(
        [in_bioes(tags) for tags in true_tags],
        [in_bioes(tags) for tags in predicted_tags],
        average=average,
        zero_division=0,
    )


def _as_python(precision: Any, recall: Any, f1: Any, num_entities: Any) -> EntityScores:
    return EntityScores(float(precision), float(recall), float(f1), int(num_entities))


def scores_table(by_type: dict[str, EntityScores]) -> str:
    """Returns scores by type as tab-separated lines, with a line of column names."""
    lines = ["type\tprecision\trecall\tf1\tentities\n"]
    for name, (precision, recall, f1, num_entities) in by_type.items():
        lines.append(
            f"{name}\t{precision:.4f}\t{recall:.4f}\t{f1:.4f}\t{num_entities}\n"
        )
    return "".join(lines)


def with_columns(path: Path, answers: str, *, suffix: str) -> str:
    """Returns all columns of a file, and the predicted tag of each word as one more.

    Args:
        answers: `predictions_columns` for the file.
        suffix: of the file to write: `.jsonl` for a line for each sentence, with
            everything that a line of JSON has or else the words, and `prediction`, its
            tags. JSON lines have no columns: another file has words and tags instead.
    """
    if suffix == ".jsonl":
        return _answers_jsonl(path, answers)
    if path.suffix.lower() == ".jsonl":
        return answers
    rows = (re.split("[ \t]+", line.strip(" \t")) for line in reading.read_lines(path))
    words = (row for row in rows if row[0] not in ("", DOCUMENT_START))
    lines = (
        line and " ".join([*next(words), line.split()[-1]])
        for line in answers.split("\n")
    )
    return "\n".join(lines)


def _answers_jsonl(path: Path, answers: str) -> str:
    blocks = [
        [line.split(" ") for line in block.split("\n")]
        for block in answers.removesuffix("\n\n").split("\n\n")
    ]
    rows: Iterable[dict[str, Any]] = ({"words": [w for w, *_ in b]} for b in blocks)
    if path.suffix.lower() == ".jsonl":
        rows = (row for _, row in reading.read_jsonl(path))
    return "".join(
        json.dumps(row | {"prediction": [w[-1] for w in b]}, ensure_ascii=False) + "\n"
        for row, b in zip(rows, blocks, strict=True)
    )


def predictions_columns(
    sentences: Sequence[Sentence], predicted_tags: Sequence[Sequence[str]]
) -> str:
    """Returns answers in columns: word, tag if there is one, predicted tag. With tags,
    `conlleval` reads the table. A blank line ends each sentence."""
    blocks = []
    for sentence, predicted in zip(sentences, predicted_tags, strict=True):
        columns = [
            sentence.words,
            *([sentence.tags] if sentence.tags else []),
            predicted,
        ]
        rows = zip(*columns, strict=True)
        blocks.append("".join(f"{' '.join(row)}\n" for row in rows) + "\n")
    return "".join(blocks)

"""Files of tagged words: sentences in, and answers beside them out.

A file is in the columns of CoNLL-2003 (a word a line: the word first, its tag last, a
blank line between sentences, `-DOCSTART-` before each document; four columns, two or
any other number) or, named `.jsonl` or `.json`, has records of `{"words": [...],
"tags": [...]}`, or of texts with entities as spans of characters: `{"text": "...",
"entities": [{"start": 0, "end": 5, "label": "PER"}]}`, where `start` is the first
character and `end` the one after the last, in Unicode code points from 0, as Python
counts; or as `annotation_tools` reads them. All tags of a file are of one scheme, see
`tag_schemes`; IOB1 becomes IOB2 when it is read. No TensorFlow.
"""

# Labels are None only in files without any, which are not asked for them.
# pyright: reportArgumentType=false, reportOptionalIterable=false

import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.data import tokenization
from bert_keras.kinds.tagging import annotation_tools, tag_schemes
from bert_keras.labelled import reading, tables

logger = logging.getLogger(__name__)

FORM = '{"text": ..., "entities": [{"start": ..., "end": ..., "label": ...}]}'

Places = Sequence[tuple[int, int]]
"""Start and end of each word of a text."""

_WIDENED = "do not begin and end where words do: widened to words"
_DROPPED = "share their only words with the one before: left out"

DOCUMENT_START = "-DOCSTART-"
"""First column of a line that begins a document."""


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
    places: Places = ()
    """Of a text: start and end of each word in it."""


def read(
    path: str | Path, *, has_tags: bool = True, has_lines: bool = False
) -> list[Sentence]:
    """Reads all sentences of a file, of JSON or in columns, in UTF-8.

    In IOB every entity then begins with `B-`, also one that begins with `I-` in its
    file, as in IOB1. In a file where most entities begin as they only do in IOB2, an
    `I-` there is an error of the file: it is read in the same way, as `conlleval` does,
    with a warning. Without `has_tags`, `tags` is `None`; with `has_lines`, such a file
    has a text a line if it is not of JSON.
    """
    path = files.path(path)
    if is_json(path):
        sentences = list(_read_json(path, has_tags))
    elif has_lines and not has_tags:
        remedy = "write the texts alone, or JSON lines named .jsonl"
        lines = enumerate(reading.read_plain_texts(path, remedy=remedy), start=1)
        sentences = [of_text(line, number, number) for number, line in lines]
    else:
        sentences = list(_read_columns(path, has_tags))
    if not sentences:
        raise InputError(f"{path}: holds no sentences, expected at least one")
    if not has_tags:
        return sentences
    if not any(sentence.words for sentence in sentences):
        raise InputError(f"{path}: holds blank texts only, expected some words")
    return _in_one_scheme(sentences, path)


def _in_one_scheme(sentences: list[Sentence], path: Path) -> list[Sentence]:
    """Refuses tags with and without prefixes, and both BIOES and BILOU; IOB becomes
    IOB2."""
    # Backwards, so that the first line of each tag is what stays.
    lines = {tag: s.line for s in reversed(sentences) for tag in s.tags}
    tags = sorted(lines.keys() - {tag_schemes.OUTSIDE}, key=lines.__getitem__)
    for patterns in (("(?![BIESLU]-.).+", "[BIESLU]-.+"), ("[ES]-.+", "[LU]-.+")):
        matches = [[t for t in tags if re.fullmatch(p, t)] for p in patterns]
        if all(matches):
            one, other = (
                f"{tag!r} (sentence of line {lines[tag]})" for tag, *_ in matches
            )
            raise InputError(
                f"{path}: expected tags of one scheme (plain, IOB, BIOES or BILOU), "
                f"got {one} and {other}"
            )
    if tag_schemes.scheme_of(tags) != "IOB":
        return sentences
    begun_inside, num_begun_as_iob2 = [], 0
    for sentence in sentences:
        for previous, tag in itertools.pairwise([tag_schemes.OUTSIDE, *sentence.tags]):
            if tag_schemes.begins_with_inside(previous, tag):
                begun_inside.append(sentence.line)
            # IOB1 has B- only right after an entity of the same type.
            num_begun_as_iob2 += tag.startswith("B-") and previous[2:] != tag[2:]
    # The majority tells: CoNLL-2003's own training file, IOB1, has two as in IOB2.
    if 0 < len(begun_inside) < num_begun_as_iob2:
        logger.warning(
            "%s: %d entities of an IOB2 file begin with I-, read as B- (the first is "
            "in the sentence of line %d)",
            *(path, len(begun_inside), begun_inside[0]),
        )
    return [s._replace(tags=tag_schemes.to_iob2(s.tags)) for s in sentences]


def _rows(path: Path) -> list[list[str]]:
    lines = reading.read_lines(path)
    return [re.split("[ \t]+", line.strip(" \t")) for line in lines]


def _has_word(row: list[str]) -> bool:
    return row[0] not in ("", DOCUMENT_START)


def _read_columns(path: Path, has_tags: bool) -> Iterator[Sentence]:
    rows = _rows(path)
    has_documents = any(row[0] == DOCUMENT_START for row in rows)
    num_columns = next((len(row) for row in rows if _has_word(row)), 0)
    document = 0
    numbered = enumerate(rows, start=1)
    for are_words, group in itertools.groupby(numbered, lambda row: _has_word(row[1])):
        lines, block = zip(*group, strict=True)
        if not are_words:
            document += sum(row[0] == DOCUMENT_START for row in block)
            continue
        for line, row in zip(lines, block, strict=True):
            here = reading.Row(path, line, {})
            if len(row) != num_columns:
                raise here.error(
                    f"expected {num_columns} columns as in the lines before, got "
                    f"{len(row)}; texts go as JSON lines of {FORM}"
                )
            if has_tags and num_columns < 2:
                raise here.error(f"expected a word and its tag, got {row[0]!r}")
            if has_tags:
                _check_tag(row[-1], here)
        yield Sentence(
            words=tuple(row[0] for row in block),
            tags=tuple(row[-1] for row in block) if has_tags else None,
            document=document,
            line=lines[0],
        )
        document += not has_documents


def is_json(path: Path) -> bool:
    return path.suffix.lower() in (".jsonl", ".json")


def read_records(path: Path, *, has_tags: bool) -> Iterator[reading.Row]:
    """Yields the records of a file of JSON, those of annotation tools in our form; all
    of them without `has_tags`."""
    expected = '{"words": [...], "tags": [...]}' if has_tags else '{"words": [...]}'
    records = reading.read_jsonl(path, expected=expected, is_copied=True)
    return annotation_tools.in_own_form(records, has_tags=has_tags)


def _read_json(path: Path, has_tags: bool) -> Iterator[Sentence]:
    rows = list(read_records(path, has_tags=has_tags))
    if rows and "text" in rows[0].cells and "words" not in rows[0].cells:
        yield from _read_texts(rows, has_tags)
        return
    for number, row in enumerate(rows):
        words = _strings(row, "words")
        for word in words:
            # Characters that would break a file of columns.
            if not word or re.search("[ \t\r\n\ud800-\udfff]", word):
                raise row.error(f"expected words without blanks in them, got {word!r}")
        tags = _strings(row, "tags") if has_tags else None
        if tags is not None and len(tags) != len(words):
            raise row.error(
                f"{len(words)} words, but {len(tags)} tags: expected one for each word"
            )
        for tag in tags or ():
            _check_tag(tag, row)
        yield Sentence(words, tags, number, row.line)


def _read_texts(rows: Sequence[reading.Row], has_tags: bool) -> Iterator[Sentence]:
    """Reads texts with spans of characters."""
    num_entities, changed = 0, {_WIDENED: [], _DROPPED: []}
    for number, row in enumerate(rows):
        if not isinstance(text := row.cells.get("text"), str):
            raise row.error(f"expected 'text' with a string, got {text!r:.60}")
        sentence = of_text(text, number, row.line)
        if has_tags:
            entities = _read_entities(row, text)
            num_entities += len(entities)
            tags = _to_tags(entities, sentence.places, row, changed)
            sentence = sentence._replace(tags=tags)
        yield sentence
    for change, lines in changed.items():
        if lines:
            logger.warning(
                "%s: %d of %d entities %s (the first in line %d)",
                *(rows[0].path, len(lines), num_entities, change, lines[0]),
            )


def _read_entities(row: reading.Row, text: str) -> list[tuple[int, int, str]]:
    """Returns the entities of a line, in the order of the text: the first character,
    the one after the last, and the label."""
    values, entities = row.cells.get("entities"), []
    if not isinstance(values, list):
        raise row.error(
            f"expected 'entities' with a list, [] if there are none, got {values!r:.60}"
        )
    for number, value in enumerate(values, start=1):
        fields: dict[str, Any] = value if isinstance(value, dict) else {}
        start, end, label = map(fields.get, ("start", "end", "label"))
        # Not `isinstance`: Python's `True` is an `int`.
        if type(start) is not int or type(end) is not int or type(label) is not str:
            raise row.error(
                f'entity {number}: expected {{"start": 0, "end": 5, "label": "PER"}} '
                "with whole numbers of characters"
            )
        if not re.fullmatch("[^\\s\x00-\x1f\x7f\ud800-\udfff]+", label):
            raise row.error(
                f"entity {number}: expected a label without blanks, such as PER or "
                f"Job_Title, got {label!r}"
            )
        if not 0 <= start < end <= len(text):
            raise row.error(
                f"entity {number}: expected 0 <= start < end <= {len(text)} "
                f"(characters of the text), got {start} and {end}"
            )
        entities.append((start, end, label))
    entities.sort()
    for pair in itertools.pairwise(entities):
        if pair[1][0] < pair[0][1]:
            one, other = (f"{text[s:e]!r:.40} ({s} to {e})" for s, e, _ in pair)
            raise row.error(
                f"the entities {one} and {other} overlap: a word has one tag, keep one "
                "of them"
            )
    return entities


def _to_tags(
    entities: Iterable[tuple[int, int, str]],
    words: Places,
    row: reading.Row,
    changed: dict[str, list[int]],
) -> tuple[str, ...]:
    """Tags each word that an entity has a character of, IOB2.

    An entity that cuts a word has the whole word; a word that two entities share is
    that of the first. `words` are ascending. Lines of entities that become other ones
    are added to `changed`.
    """
    tags = ["O"] * len(words)
    starts, ends = np.array(words, np.int64).reshape(-1, 2).T
    free = 0
    for start, end, label in entities:
        first = int(np.searchsorted(ends, start, side="right"))
        stop = int(np.searchsorted(starts, end, side="left"))
        if first >= stop:
            raise row.error(
                f"the entity from {start} to {end} ({label}) has no character of a word"
            )
        if (words[first][0], words[stop - 1][1]) != (start, end):
            changed[_WIDENED].append(row.line)
        first = max(first, free)
        if first >= stop:
            changed[_DROPPED].append(row.line)
        for word in range(first, stop):
            tags[word] = f"{'I' if word > first else 'B'}-{label}"
        free = max(free, stop)
    return tuple(tags)


def of_text(text: str, document: int, line: int) -> Sentence:
    """Returns the words of a text, without tags."""
    places = split_words(text)
    words = tuple(text[start:end] for start, end in places)
    return Sentence(words, None, document, line, text, places)


def _strings(row: reading.Row, name: str) -> tuple[str, ...]:
    values = row.cells.get(name)
    is_list = isinstance(values, list) and values
    if is_list and all(isinstance(value, str) for value in values):
        return tuple(values)
    raise row.error(
        f"expected {name!r} with a list of one string or more, got {values!r:.60}"
    )


def _check_tag(tag: str, row: reading.Row) -> None:
    if not re.fullmatch("(?![BIESLU]-$)[^\\s\x00-\x1f\x7f\ud800-\udfff]+", tag):
        raise row.error(f"expected a tag such as NN, or O, B-TYPE, I-TYPE, got {tag!r}")


def split_words(text: str) -> list[tuple[int, int]]:
    """Returns the places `text[start:end]` of the words of a text.

    White space ends a word; a punctuation character or an ideograph is a word of its
    own. So the words are those of `tokenization.basic_tokenize` for cased text, with
    the control characters inside them, and those of `graph_tokenizer.WordSplitter`.
    """

    def kind(char: str) -> str:
        if tokenization.is_dropped(char):
            return "-"
        if tokenization.is_punctuation(char) or tokenization.is_cjk(char):
            return "."
        return " " if char.isspace() else "w"

    kinds = "".join(map(kind, text))
    return [match.span() for match in re.finditer("w(-*w)*|[.]", kinds)]


def with_columns(
    path: Path,
    sentences: Iterable[Sentence],
    predicted_tags: Iterable[Sequence[str]],
    *,
    suffix: str,
) -> str:
    """Returns all columns of a file, and the predicted tag of each word as one more.
    With tags in the file, `conlleval` reads the table. A blank line ends each sentence.

    Args:
        sentences: of the file, with a row of tags each.
        suffix: of the file to write: `.jsonl` for a line for each sentence, with
            everything that a line of JSON has or else the words, and `prediction`, its
            tags. JSON lines have no columns: another file has their words instead.
    """
    if suffix == ".jsonl":
        rows: Iterable[dict[str, Any]] = ({"words": s.words} for s in sentences)
        if is_json(path):
            rows = (row.cells for row in read_records(path, has_tags=False))
        columns = {"prediction": tables.Column(predicted_tags)}
        return tables.joined(rows, columns, suffix=suffix)
    words = ([word] for sentence in sentences for word in sentence.words)
    if not is_json(path):
        words = (row for row in _rows(path) if _has_word(row))
    lines = []
    for tags in predicted_tags:
        lines += [" ".join([*next(words), tag]) + "\n" for tag in tags] + ["\n"]
    return "".join(lines)


def relabelled(
    path: Path,
    sentences: Sequence[Sentence],
    changes: Mapping[int, Sequence[str] | None],
) -> tuple[str, str]:
    """Returns the suffix and the content of a file with other tags, by sentence;
    sentences with `None` are left out. All else stays."""
    if not is_json(path):
        lines: list[Any] = reading.read_lines(path)
        for row, tags in changes.items():
            for word in range(len(sentences[row].words)):
                number = sentences[row].line - 1 + word
                others = re.split(r"[^ \t]+[ \t]*$", lines[number])[0]
                lines[number] = tags and f"{others}{tags[word]}"
        return ".txt", "".join(f"{line}\n" for line in lines if line is not None)
    rows: list[Any] = [row.cells for row in read_records(path, has_tags=True)]
    for row, tags in changes.items():
        places = sentences[row].places
        if tags is None:
            rows[row] = None
        elif sentences[row].text is None:
            rows[row] |= {"tags": tags}
        else:
            rows[row]["entities"] = [
                {"start": places[begin][0], "end": places[end - 1][1], "label": name}
                for name, begin, end in tag_schemes.entities(tags)
            ]
    return ".jsonl", tables.joined(filter(None, rows), {}, suffix=".jsonl")

"""Documents to leave out of a corpus: pages that only list links, and documents that
contain text of evaluation files; without Beam.

Pages are judged by title and templates, since after cleaning a list looks like sparse
prose. Disambiguation pages, lists, indexes of articles and outlines go. Timelines,
glossaries, discographies and set indexes stay: many are written in sentences (the
article Anaconda is a set index), and cleaning leaves so little of the others that they
fall below the minimum length of a document.
"""

import array
import csv
import hashlib
import io
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.data import tokenization
from bert_keras.pipelines import sentences
from bert_keras.pipelines import words as word_counts

DISAMBIGUATION_PAGE = "disambiguation page"
LIST_PAGE = "list page"

_LISTS = word_counts.read_lists("filters")
_TITLE_NOTE = re.compile(r"[(（]([^()（）]+)[)）]\s*$")
# A lower-case word tells lists from names: `Список Шиндлера` is a film, `Liste
# électorale` an article.
_LIST_TITLE = re.compile(
    "|".join(
        (
            r"Lists? of |Index of .*\b(?:articles|topics)$|Outline of (?!an? )",
            r"Listen? (?:der|von|vom|aller|[a-zäöü]\w*er) ",
            r"Listes? (?:de |des |du |d['’])",
            r"Listas? (?:de \w+s\b|d[ao]s |dei |degli |delle )",
            r"Llistes? (?:de \w+s\b|dels )|Listo de ",
            r"Lijst van |Lista över |Liste over |Luettelo ",
            r"Список [а-я]|Списък (?:на|с) |Seznam [a-zčřšžúá]|Zoznam [a-zčšž]",
            r"Danh sách |Daftar ",
            r".*(?:一覧|列表| 목록| listesi)\s*(?:[(（][^()（）]+[)）])?$",
        )
    )
)
_TEMPLATE = re.compile(r"\{\{\s*([^{}|<\n]{2,60}\}?)")
_NOT_SHOWN = re.compile(
    r"<!--.*?(?:-->|\Z)|<nowiki>.*?(?:</nowiki>|\Z)", re.DOTALL | re.IGNORECASE
)


def page_reason(title: str, wikitext: str) -> str | None:
    """Returns `DISAMBIGUATION_PAGE` or `LIST_PAGE`; `None` for an article."""
    note = _TITLE_NOTE.search(title)
    if note and note[1].strip().lower() in _LISTS["disambiguation_titles"]:
        return DISAMBIGUATION_PAGE
    if _LIST_TITLE.match(title):
        return LIST_PAGE
    # Again without hidden parts, which are rarely there.
    if _is_marked(wikitext) and _is_marked(_NOT_SHOWN.sub("", wikitext)):
        return DISAMBIGUATION_PAGE
    return None


def _is_marked(wikitext: str) -> bool:
    """Whether a template or magic word calls the page a disambiguation page."""
    if "__DISAMBIG__" in wikitext:
        return True
    names = set(_TEMPLATE.findall(wikitext))
    names = {" ".join(name.lower().replace("_", " ").split()) for name in names}
    # Dutch pages use `dp` without arguments; elsewhere it has some.
    names |= {name.removesuffix("}").rstrip() for name in names}
    return not _LISTS["disambiguation_templates"].isdisjoint(names)


# === Overlap with evaluation files ===

MIN_WORDS = 8
"""Shorter lines of evaluation files occur by chance anywhere."""

# Answers are parts of their contexts, and often mere names.
_IGNORED_KEYS = frozenset(("id", "answers", "plausible_answers"))

_QUARTER_WORD = re.compile(f"[{word_counts.SOUTH_EAST_ASIAN}]")
_UNSPACED = re.compile(
    f"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff{word_counts.SOUTH_EAST_ASIAN}]"
)


def _compared_form(char: str) -> str:
    if _UNSPACED.match(char):
        return f" {char} "
    is_of_word = char.isalnum() or unicodedata.category(char).startswith("M")
    return char.casefold() if is_of_word else " "


_COMPARED = tokenization.CharacterTable(_compared_form)


def normalise(text: str) -> list[str]:
    """Returns words as they are compared: case folded, without punctuation. Punctuation
    divides words, so that tokenised text (`doesn 't`) equals other text (`doesn't`).
    Each character of a script without spaces is a word."""
    return unicodedata.normalize("NFC", text).translate(_COMPARED).split()


class Overlap:
    """Lines of evaluation files, each as its words in their compared form. Of a line,
    16 bytes are held: the hashes of its first words and of all of them."""

    def __init__(self, lines: Iterable[str]):
        # The 0 is there because `take` in `find` fails on an empty array.
        heads, digests, lengths = array.array("q", [0]), array.array("Q"), set()
        for line in lines:
            words = line.split(" ")
            # Python's `hash` differs between processes: each builds heads of its own.
            heads.append(hash(tuple(words[:MIN_WORDS])))
            digests.append(_digest(line))
            lengths.add(len(words))
        self._heads, self._digests = np.unique(heads), np.unique(digests)
        self._lengths = sorted(lengths)

    @property
    def sha256(self) -> str:
        """Returns a hash of the set of lines: the same for any order of them."""
        return hashlib.sha256(self._digests.astype("<u8").tobytes()).hexdigest()

    def find(self, paragraphs: Iterable[str]) -> str | None:
        """Returns the first line that is a run of words, even across paragraphs."""
        words = list(itertools.chain.from_iterable(map(normalise, paragraphs)))
        # All runs of `MIN_WORDS` words; hardly one begins a line.
        runs = zip(*(words[n:] for n in range(MIN_WORDS)), strict=False)
        hashes = np.fromiter(map(hash, runs), np.int64)
        places = np.searchsorted(self._heads, hashes)
        begins = self._heads.take(places, mode="clip") == hashes
        for start in np.flatnonzero(begins).tolist():
            for length in self._lengths:
                line = " ".join(words[start : start + length])
                digest = np.uint64(_digest(line))
                place = np.searchsorted(self._digests, digest)
                if digest in self._digests[place : place + 1]:
                    return line
        return None


def _digest(line: str) -> int:
    data = line.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def compared_lines(lines: Iterable[str]) -> set[str]:
    """Returns the lines of at least `MIN_WORDS` words in their compared form. A Thai
    character is a quarter of a word."""
    compared = set()
    for words in map(normalise, lines):
        num_quarters = sum(_QUARTER_WORD.match(word) is not None for word in words)
        if len(words) - num_quarters * 3 / 4 >= MIN_WORDS:
            compared.add(" ".join(words))
    return compared


def read_evaluation_files(paths: Sequence[str]) -> set[str]:
    """Returns the `compared_lines` of files whose text must stay out of a corpus.

    A line is:

    - in `.txt`: each line.
    - in `.tsv`, as in GLUE (no quoting), and `.csv`: each field of each row.
    - in `.json` and `.jsonl`: each line of each string, at any depth, except ids and
      answers. In `context`, as in SQuAD, each sentence, since a paragraph of Wikipedia
      rarely stays the same as a whole.
    """
    compared: set[str] = set()
    for pattern in paths:
        if not (matches := files.match(pattern)):
            raise InputError(f"--exclude_overlap_with: no file matches {pattern!r}")
        for path in matches:
            lines = compared_lines(read_lines(path))
            if not lines:
                raise InputError(
                    f"{path}: no line of at least {MIN_WORDS} words, so nothing could "
                    "be compared with it; leave it out"
                )
            compared |= lines
    return compared


def read_lines(path: str) -> list[str]:
    name = files.name_of(path)
    read = _READERS.get(name[name.rfind(".") :].lower())
    if read is None:
        raise InputError(
            f"{path}: evaluation files are {', '.join(_READERS)}, told by their names; "
            "write its text into a .txt file, one item a line"
        )
    csv.field_size_limit(2**31 - 1)
    text = files.read_text(path)
    try:
        if "\0" in text:
            raise ValueError("it holds NUL characters")
        return list(read(text))
    except (ValueError, csv.Error, RecursionError) as error:
        raise InputError(
            f"{path}: expected UTF-8 text of the kind that its name says: {error}"
        ) from None


_READERS = {
    ".txt": str.splitlines,
    ".tsv": lambda text: re.split(r"[\t\n]", text),
    ".csv": lambda text: itertools.chain(*csv.reader(io.StringIO(text, newline=""))),
    ".json": lambda text: _strings(json.loads(text)),
    ".jsonl": lambda text: itertools.chain.from_iterable(
        _strings(json.loads(line)) for line in text.split("\n") if line.strip()
    ),
}


def _strings(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for inner_key, inner in value.items():
            if inner_key not in _IGNORED_KEYS:
                yield from _strings(inner, inner_key)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, key)
    elif isinstance(value, str):
        for line in value.splitlines():
            split = key == "context"
            yield from sentences.split_sentences(line) if split else [line]

"""A gigabyte of varied text through all three commands, against the arithmetic.

    python -m benchmarks.gigabyte make --data ../shared/data --work DIR
    python -m benchmarks.gigabyte run --work DIR

There is no gigabyte of distinct real text at hand, so `make` recombines the real
sentences of dumps in 11 languages, articles, books, and files of tasks: copy 0 is the
text as it is; in every other copy, the sentences of a file are shuffled with the number
of the copy as the seed, and fill the paragraphs of its documents again, at least two in
each, so that copies share few paragraphs. In dumps only lines of prose are shuffled,
and pages get an id of their copy. Dumps are packed as multistream; the rest are lines
of JSON. No word is new in a copy: a real gigabyte has more different words.

`run` prints processor seconds and peak memory of all processes of each command.
"""

import argparse
import bz2
import itertools
import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks import data as data_line
from benchmarks import measuring
from bert_keras.pipelines import filters, sentences, words
from bert_keras.pipelines.sources import dump_pages, reading, source

# Dumps.

_TEXT = re.compile(r"(?<=>)[^<]*(?=</text>)")
_ID = re.compile(r"(?<=<id>)\d+(?=</id>)")
_END = re.compile(r"(?<=[.!?]) +(?=[\w\[('])|(?<=[。！？])")
_PAIRS = (("[[", "]]"), ("{{", "}}"), ("&lt;ref", "&lt;/ref"), ("&lt;", "&gt;"))


def pieces_of(line: str) -> list[str]:
    """Returns the sentences of a line of prose, as wikitext; of other lines none."""
    if len(line) < 60 or not (line[0].isalpha() or line[0] in "'["):
        return []
    pieces = _END.split(line)
    whole = all(
        piece.count(opening) == piece.count(closing)
        for piece in pieces
        for opening, closing in _PAIRS
    )
    return pieces if whole else []


def recombined_pages(pages: list[str], copy: int) -> Iterator[str]:
    """Yields the pages of a dump, their sentences shuffled if `copy` is not 0."""
    texts = [_TEXT.search(page) for page in pages]
    lines = [text[0].split("\n") if text else [] for text in texts]
    split = [list(map(pieces_of, page)) for page in lines]
    pool = [one for page in split for line in page for one in line]
    random.Random(copy).shuffle(pool)
    drawn = itertools.cycle(pool)
    for page, text, page_lines, page_split in zip(
        pages, texts, lines, split, strict=True
    ):
        page = _ID.sub(lambda found: str(int(found[0]) + copy * 10**9), page, count=1)
        if text and copy:
            shift = len(page) - len(text.string)
            filled = [
                " ".join(itertools.islice(drawn, max(2, len(pieces))))
                if pieces
                else line
                for line, pieces in zip(page_lines, page_split, strict=True)
            ]
            start, end = text.start() + shift, text.end() + shift
            page = page[:start] + "\n".join(filled) + page[end:]
        yield page


def make_dump(path: Path, output: Path, num_copies: int) -> None:
    """Writes the copies of one dump as one multistream dump."""
    with open(path, "rb") as file:
        head = dump_pages.read_head(file, str(path))
        size = path.stat().st_size
        cut = dump_pages._cut_pages(file, str(path), head, 0, size, True)  # noqa: SLF001
        pages = [xml.decode() for xml, problem in cut if problem is None]
    with open(output, "wb") as file:
        site = f"<siteinfo><dbname>{path.name.partition('wiki')[0]}wiki</dbname>"
        start = f"<mediawiki>\n{site}</siteinfo>\n"
        file.write(bz2.compress(start.encode()))
        for copy in range(num_copies):
            made = recombined_pages(pages, copy)
            while stream := "\n".join(itertools.islice(made, 100)):
                file.write(bz2.compress((stream + "\n").encode()))
        file.write(bz2.compress(b"</mediawiki>\n"))


# Other text.


def read_documents(kind: str, path: Path) -> list[list[list[str]]]:
    """Returns the documents of a file of `corpus`: sentences of paragraphs."""
    return [
        [sentences.split_sentences(paragraph) for paragraph in found.paragraphs]
        for item in reading.find_inputs({kind: [str(path)]})
        for part in reading.split_input(item)
        for found in reading.read_range(part, source.Context())
        if isinstance(found, source.SourceDocument)
    ]


def read_lines(_: str, path: Path) -> list[list[list[str]]]:
    """Returns lines of five words or more, five a paragraph, twenty a document."""
    if path.suffix == ".tokens":
        read = path.read_text().split("\n")
    else:
        read = filters.read_lines(str(path))
    lines = dict.fromkeys(line.strip() for line in read if words.count_words(line) > 4)
    split = iter([one for line in lines for one in sentences.split_sentences(line)])
    paragraphs = iter(lambda: list(itertools.islice(split, 5)), [])
    return list(iter(lambda: list(itertools.islice(paragraphs, 4)), []))


def recombined(documents: list, copy: int) -> Iterator[list[list[str]]]:
    """Yields documents of these shapes, shuffled if `copy` is not 0."""
    if not copy:
        yield from documents
        return
    pool = [one for paragraphs in documents for one in itertools.chain(*paragraphs)]
    random.Random(copy).shuffle(pool)
    drawn = itertools.cycle(pool)
    for paragraphs in documents:
        yield [list(itertools.islice(drawn, max(2, len(p)))) for p in paragraphs]


def write_json(documents: list, source: str, output: Path, num_copies: int) -> None:
    """Writes the copies of one file as lines of JSON."""
    with open(output, "w", encoding="utf-8") as file:
        for copy in range(num_copies):
            for number, paragraphs in enumerate(recombined(documents, copy)):
                text = "\n\n".join(" ".join(p) for p in paragraphs)
                name = f"{output.stem}/{copy}/{number}"
                line = {"id": name, "text": text, "source": source}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def cut_books(kind: str, path: Path) -> list[list[list[str]]]:
    """Returns parts of some hundred sentences, documents of a page's size."""
    whole = [{"id": "", "paragraphs": p} for p in read_documents(kind, path)]
    return [part["paragraphs"] for part in data_line.parts(iter(whole))]


OTHER_FILES = {
    "wikipedia_extracted/enwikinews_json/AA/wiki_*": (read_documents, "jsonl"),
    "books/gutenberg*/*.txt": (cut_books, "books"),
    **dict.fromkeys(
        (
            *("glue/*/*.tsv", "squad/v*/*.json", "squad/xquad/*.json"),
            *("triviaqa/**/*.json", "multiple_choice/codah_swag_format/*.csv"),
            *("tokenization/*.jsonl", "wikitext-2/*.tokens"),
        ),
        (read_lines, "evaluation"),
    ),
}
"""How each file but the dumps is read, and its source."""


def make(data: Path, work: Path, num_copies: int) -> None:
    """Writes the inputs of `corpus`."""
    shutil.rmtree(work, ignore_errors=True)
    for folder in ("dumps", "json"):
        (work / folder).mkdir(parents=True)
    # Each text once: another of bgwiki is in UTF-16.
    folders = data / "wikipedia", data / "wikipedia/other_languages"
    for path in sorted(path for f in folders for path in f.iterdir()):
        if path.is_dir() or path.name.startswith("bgwiki"):
            continue
        name = path.name.removesuffix(".bz2").removesuffix(".xml")
        make_dump(path, work / f"dumps/{name}.xml.bz2", num_copies)
    for pattern, (read, origin) in OTHER_FILES.items():
        for path in sorted(data.glob(pattern)):
            name = "-".join(path.relative_to(data).parts)
            try:
                documents = read(origin, path)
            except filters.InputError as error:
                print(f"left out: {error}")
                continue
            output = work / f"json/{name}.jsonl"
            write_json(documents, origin, output, num_copies)


def rows(work: Path) -> Iterator[list[str]]:
    corpus, vocab, examples = work / "corpus", work / "vocab.txt", work / "examples"
    inputs = "--wikipedia", f"{work}/dumps/*.bz2", "--jsonl", f"{work}/json/*.jsonl"
    words = ("--corpus", corpus)
    for command, output in (
        (("corpus", *inputs), corpus),
        (("vocab", *words, "--vocab_size", "30522"), vocab),
        (("examples", *words, "--vocab", vocab, "--set", "dupe_factor=10"), examples),
    ):
        cost = measuring.bert_keras(*command, "--output", data_line.fresh(output))
        yield [command[0], f"{cost.cpu_seconds:.1f}", f"{cost.peak_megabytes:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("make", "run"))
    parser.add_argument("--data", type=Path, help="real data sets, for `make`")
    parser.add_argument("--work", type=Path, required=True, help="a directory")
    parser.add_argument("--copies", type=int, default=11)
    args = parser.parse_args()
    if args.what == "make":
        make(args.data, args.work, args.copies)
    else:
        measuring.print_table(["command", "CPU s", "peak MB"], rows(args.work))


if __name__ == "__main__":
    main()

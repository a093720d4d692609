"""A gigabyte of varied text through all three commands, against the arithmetic.

    python benchmarks/gigabyte.py make --data ../shared/data --work /tmp/gigabyte
    python benchmarks/gigabyte.py run --work /tmp/gigabyte [--dupe_factors 1 10]

There is no gigabyte of distinct real text at hand, so `make` recombines the real
sentences of dumps in 11 languages, extracted articles, books in three languages, and
of GLUE, SQuAD, XQuAD, TriviaQA, CODAH, WikiText-2 and tokenization files: copy 0 is the
text as it is; in every other copy, the sentences of a file are shuffled with the number
of the copy as the seed, and fill the paragraphs of its documents again, at least two in
each, so that copies share few paragraphs. In dumps the sentences are those of lines
of prose, with their links, templates and references, and the rest of a page (tables,
lists, infoboxes), other namespaces and redirects are as in the dump; pages get an id of
their copy. Dumps are packed as multistream, 100 pages a stream; the rest are lines of
JSON. No word is new in a copy: a real gigabyte has more different words.

`run` prints processor seconds and peak memory (MB) of all processes of each command.
"""

import argparse
import bz2
import itertools
import json
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import data as data_line
import process_tree

from bert_keras.pipelines import filters, sentences, words
from bert_keras.pipelines.sources import dump_head, readers, wikipedia

PAGES_PER_STREAM = 100
ID_STEP = 10**9
EVALUATION_FILES = (
    *("glue/*/*.tsv", "squad/v*/*.json", "squad/xquad/*.json", "triviaqa/**/*.json"),
    *("multiple_choice/codah/full_data.tsv", "tokenization/*.jsonl"),
)


# Dumps.

_TEXT = re.compile(r"(?<=>)[^<]*(?=</text>)")
_ID = re.compile(r"(?<=<id>)\d+(?=</id>)")
_END = re.compile(r"(?<=[.!?]) +(?=[\w\[('])|(?<=[。！？])")
_PAIRS = (("[[", "]]"), ("{{", "}}"), ("&lt;ref", "&lt;/ref"), ("&lt;", "&gt;"))


def pieces_of(line: str) -> list[str]:
    """The sentences of a line of prose, as wikitext; none if it is something else."""
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
    """The pages of a dump, their sentences shuffled if `copy` is not 0."""
    texts = [_TEXT.search(page) for page in pages]
    lines = [text[0].split("\n") if text else [] for text in texts]
    split = [list(map(pieces_of, page)) for page in lines]
    pool = [one for page in split for line in page for one in line]
    random.Random(copy).shuffle(pool)
    drawn = itertools.cycle(pool)
    for page, text, page_lines, page_split in zip(
        pages, texts, lines, split, strict=True
    ):
        page = _ID.sub(lambda found: str(int(found[0]) + copy * ID_STEP), page, count=1)
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
        head = dump_head.read_head(file, str(path))
        size = path.stat().st_size
        cut = wikipedia._cut_pages(file, str(path), head, 0, size)  # noqa: SLF001
        pages = [xml.decode() for xml, problem in cut if problem is None]
    with open(output, "wb") as file:
        site = f"<siteinfo><dbname>{path.name.partition('wiki')[0]}wiki</dbname>"
        start = f"<mediawiki>\n{site}</siteinfo>\n"
        file.write(bz2.compress(start.encode()))
        for copy in range(num_copies):
            made = recombined_pages(pages, copy)
            while stream := "\n".join(itertools.islice(made, PAGES_PER_STREAM)):
                file.write(bz2.compress((stream + "\n").encode()))
        file.write(bz2.compress(b"</mediawiki>\n"))


# Other text.


def read_documents(kind: str, path: Path) -> list[list[list[str]]]:
    """The documents of a file of `corpus`: sentences of paragraphs."""
    return [
        [sentences.split_sentences(paragraph) for paragraph in found.paragraphs]
        for item in readers.find_inputs({kind: [str(path)]})
        for part in readers.split_input(item)
        for found in readers.read_range(part, lambda _: None, lambda *_: None)
        if isinstance(found, readers.SourceDocument)
    ]


def read_lines(_: str, path: Path) -> list[list[list[str]]]:
    """Lines of five words or more, twenty in a document, five in a paragraph."""
    read = path.read_text().split("\n") if path.suffix == ".tokens" else None
    read = filters.read_lines(str(path)) if read is None else read
    lines = dict.fromkeys(line.strip() for line in read if words.has_words(line, 5))
    split = iter([one for line in lines for one in sentences.split_sentences(line)])
    paragraphs = iter(lambda: list(itertools.islice(split, 5)), [])
    return list(iter(lambda: list(itertools.islice(paragraphs, 4)), []))


def recombined(documents: list, copy: int) -> Iterator[list[list[str]]]:
    """Documents of the same shapes, their sentences shuffled if `copy` is not 0."""
    if not copy:
        yield from documents
        return
    pool = [one for paragraphs in documents for one in itertools.chain(*paragraphs)]
    random.Random(copy).shuffle(pool)
    drawn = itertools.cycle(pool)
    for paragraphs in documents:
        yield [list(itertools.islice(drawn, max(2, len(p)))) for p in paragraphs]


def make_json(
    read: Callable, kind: str, path: Path, name: str, output: Path, num_copies: int
) -> None:
    """Writes the copies of one file as lines of JSON."""
    documents = read(kind, path)
    source = "books" if kind == "books" else kind or "evaluation"
    with open(output, "w", encoding="utf-8") as file:
        for copy in range(num_copies):
            for number, paragraphs in enumerate(recombined(documents, copy)):
                text = "\n\n".join(" ".join(p) for p in paragraphs)
                line = {"id": f"{name}/{copy}/{number}", "text": text, "source": source}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def cut_books(kind: str, path: Path) -> list[list[list[str]]]:
    """Books in parts of some hundred sentences, documents of a page's size."""
    whole = [{"id": "", "paragraphs": p} for p in read_documents(kind, path)]
    return [part["paragraphs"] for part in data_line.parts(iter(whole))]


def json_inputs(data: Path) -> Iterator[tuple[Callable, str, Path]]:
    """How each file but the dumps is read."""
    for path in sorted(data.glob("wikipedia_extracted/enwikinews_json/AA/wiki_*")):
        yield read_documents, "jsonl", path
    for path in sorted(data.glob("books/gutenberg*/*.txt")):
        yield cut_books, "books", path
    for pattern in EVALUATION_FILES:
        for path in sorted(data.glob(pattern)):
            yield read_lines, "", path
    for path in sorted(data.glob("wikitext-2/*.tokens")):
        yield read_lines, "", path


def dumps(data: Path) -> list[Path]:
    """All dumps but the one in UTF-16, each text once."""
    folders = data / "wikipedia", data / "wikipedia/other_languages"
    paths = sorted(path for f in folders for path in f.iterdir() if path.is_file())
    return [path for path in paths if not path.name.startswith("bgwiki")]


def make(data: Path, work: Path, num_copies: int) -> None:
    """Writes the inputs of `corpus`."""
    shutil.rmtree(work, ignore_errors=True)
    for folder in ("dumps", "json"):
        (work / folder).mkdir(parents=True)
    for path in dumps(data):
        name = path.name.removesuffix(".bz2").removesuffix(".xml")
        make_dump(path, work / f"dumps/{name}.xml.bz2", num_copies)
    for read, kind, path in json_inputs(data):
        name = "-".join(path.relative_to(data).parts)
        try:
            make_json(read, kind, path, name, work / f"json/{name}.jsonl", num_copies)
        except filters.InputError as error:
            print(f"left out: {error}")
            (work / f"json/{name}.jsonl").unlink(missing_ok=True)


def run(work: Path, dupe_factors: list[int]) -> None:
    """Measures the three commands, each a row of a table."""

    def measure(name: str, arguments: Iterable[str], output: Path) -> None:
        shutil.rmtree(output, ignore_errors=True)
        output.unlink(missing_ok=True)
        command = [*data_line.BERT_KERAS, *arguments, "--output", str(output)]
        made = process_tree.run(command)
        print(
            f"| {name} | {made.cpu_seconds:.1f} | {made.peak_megabytes:.0f} |",
            flush=True,
        )

    corpus, vocab = work / "corpus", work / "vocab.txt"
    inputs = "--wikipedia", f"{work}/dumps/*.bz2", "--jsonl", f"{work}/json/*.jsonl"
    measure("corpus", ("corpus", *inputs), corpus)
    of_corpus = ("--corpus", str(corpus))
    measure("vocab", ("vocab", *of_corpus, "--vocab_size", "30522"), vocab)
    for factor in dupe_factors:
        given = (*of_corpus, "--vocab", str(vocab), "--set", f"dupe_factor={factor}")
        measure(f"examples, dupe {factor}", ("examples", *given), work / "examples")
        shutil.rmtree(work / "examples")


def main() -> None:
    """Makes the text, or measures the commands on it."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("what", choices=("make", "run"))
    parser.add_argument("--data", type=Path, help="real data sets, for `make`")
    parser.add_argument("--work", type=Path, required=True, help="a directory")
    parser.add_argument("--copies", type=int, default=11)
    parser.add_argument("--dupe_factors", type=int, nargs="+", default=[10])
    args = parser.parse_args()
    if args.what == "make":
        make(args.data, args.work, args.copies)
    else:
        run(args.work, args.dupe_factors)


if __name__ == "__main__":
    main()

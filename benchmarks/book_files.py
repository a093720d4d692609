"""Memory of `corpus` on a large file of many books, and on a book of one long line.

    python -m benchmarks.book_files --data ../shared/data --work DIR [--megabytes N]

Books of Project Gutenberg one after the other, and their words on one line, with two
workers and `--memory_limit 1`, in GB.
"""

import argparse
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks import measuring


def make_files(data: Path, work: Path, num_bytes: int) -> dict[Path, int]:
    """Writes both files; returns the number of books in each."""
    paths = sorted((data / "books" / "gutenberg").glob("*.txt"))
    many, one = work / "many.txt", work / "one_line.txt"
    with open(many, "wb") as file:
        for number, path in enumerate(itertools.cycle(paths)):
            # Later copies differ in every paragraph, or they would be duplicates.
            copy = b"the%d " % (number // len(paths))
            text = path.read_bytes()
            file.write(text.replace(b"the ", copy) if number >= len(paths) else text)
            if file.tell() >= num_bytes:
                break
    one.write_bytes(b" ".join(many.read_bytes().split()))
    return {many: number + 1, one: 1}


def rows(args: argparse.Namespace) -> Iterator[list[object]]:
    args.work.mkdir(parents=True, exist_ok=True)
    output, books = args.work / "corpus", args.megabytes * 1_000_000
    for path, num_books in make_files(args.data, args.work, books).items():
        shutil.rmtree(output, ignore_errors=True)
        limits = ("--workers", "2", "--memory_limit", "1")
        cost = measuring.bert_keras(
            "corpus", "--books", path, "--output", output, *limits
        )
        counters = json.loads((output / "manifest.json").read_text())["counters"]
        numbers = f"{cost.peak_megabytes:.0f}", f"{cost.cpu_seconds:.0f}"
        yield [path.name, num_books, counters["documents"], *numbers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=200)
    header = ["file", "books", "documents", "peak MB", "CPU s"]
    measuring.print_table(header, rows(parser.parse_args()))


if __name__ == "__main__":
    main()

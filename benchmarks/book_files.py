"""Memory of `corpus` on a large file of many books, and on a book of one long line.

    python benchmarks/book_files.py --data ../shared/data --work DIR [--megabytes N]

Books of Project Gutenberg one after the other, and their words on one line. Prints the
peak over all processes with two workers and `--memory_limit 1`, in GB.
"""

import argparse
import itertools
import json
import shutil
import sys
from pathlib import Path

import process_tree


def make_files(data: Path, work: Path, num_bytes: int) -> dict[str, int]:
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
    return {str(many): number + 1, str(one): 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=200)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    found = make_files(args.data, args.work, args.megabytes * 1_000_000)
    for path, num_books in found.items():
        output = args.work / "corpus"
        shutil.rmtree(output, ignore_errors=True)
        measured = process_tree.run(
            [
                *(sys.executable, "-m", "bert_keras.cli", "corpus", "--books", path),
                *("--output", str(output), "--workers", "2", "--memory_limit", "1"),
            ]
        )
        counters = json.loads((output / "manifest.json").read_text())["counters"]
        print(
            f"{path}: {num_books} books, {counters['documents']} documents, "
            f"{measured.peak_megabytes:.0f} MB, {measured.cpu_seconds:.0f} CPU seconds"
        )


if __name__ == "__main__":
    main()

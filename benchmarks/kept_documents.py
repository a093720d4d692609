"""Documents that are long enough, with words counted by white space and by script.

    python benchmarks/kept_documents.py --data ../shared/data \
        --results benchmarks/results/kept_documents.md

Japanese and Chinese: articles of two dumps, and the paragraphs of XQuAD (in English for
comparison: translations of each other). Thai, Lao, Khmer, Burmese and Korean: texts of
the tests. No duplicates are left out.
"""

import argparse
import ast
import datetime
import json
from collections.abc import Callable
from pathlib import Path

from bert_keras.config import CorpusConfig
from bert_keras.pipelines import words
from bert_keras.pipelines.sources import readers

TESTS = Path(__file__).resolve().parents[1] / "tests" / "pipelines" / "test_words.py"


def articles(path: Path) -> list[list[str]]:
    """Paragraphs of each article of a dump."""
    [item] = readers.find_inputs({"wikipedia": [str(path)]})
    return [
        found.paragraphs
        for part in readers.split_input(item)
        for found in readers.read_range(part, lambda _: None, lambda *_: None)
        if isinstance(found, readers.SourceDocument)
    ]


def contexts(path: Path) -> list[list[str]]:
    """Each paragraph of a file in SQuAD's layout."""
    data = json.loads(path.read_text())["data"]
    return [[part["context"]] for article in data for part in article["paragraphs"]]


def texts_of_the_tests() -> dict[str, str]:
    """Article 1 of the Universal Declaration of Human Rights, by language."""
    for node in ast.parse(TESTS.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "ARTICLE":
            return ast.literal_eval(node.value)
    raise ValueError(f"{TESTS}: no ARTICLE")


def kept(documents: list[list[str]], count: Callable[[str], int]) -> tuple[int, int]:
    """Documents of enough words, and the words of all."""
    lengths = [sum(map(count, paragraphs)) for paragraphs in documents]
    least = CorpusConfig().min_document_words
    return sum(length >= least for length in lengths), sum(lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    args = parser.parse_args()
    dumps, xquad = args.data / "wikipedia/other_languages", args.data / "squad/xquad"
    sets = {
        "Japanese: jawiki 2022, excerpt": articles(
            dumps / "jawiki-2022-excerpt-pages-articles.xml.bz2"
        ),
        "Chinese: zhwiki, one article": articles(dumps / "zhwiki-minidump.xml.bz2"),
        "Chinese: paragraphs of XQuAD": contexts(xquad / "xquad.zh.json"),
        "English: the same paragraphs": contexts(xquad / "xquad.en.json"),
    }
    names = {"th": "Thai", "lo": "Lao", "km": "Khmer", "my": "Burmese", "ko": "Korean"}
    found = texts_of_the_tests()
    for language, name in names.items():
        sets[f"{name}: article 1 of the Universal Declaration"] = [[found[language]]]
    lines = [
        "# Documents of at least 20 words",
        "",
        f"`benchmarks/kept_documents.py`, {datetime.date.today()}. Words between white "
        "space (before), and `bert_keras.pipelines.words.count_words` (now).",
        "",
        "| text | documents | kept before | kept now | words before | words now |",
        "|---|---|---|---|---|---|",
    ]
    for name, documents in sets.items():
        before = kept(documents, lambda text: len(text.split()))
        now = kept(documents, words.count_words)
        numbers = len(documents), before[0], now[0], before[1], now[1]
        lines.append(" | ".join([f"| {name}", *(f"{n:,}" for n in numbers)]) + " |")
    args.results.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

"""Documents that are long enough, with words counted by white space and by script.

    python -m benchmarks.kept_documents --data ../shared/data

Japanese and Chinese: articles of two dumps, and the paragraphs of XQuAD (in English for
comparison: translations of each other). Thai, Lao, Khmer, Burmese and Korean: texts of
the tests. No duplicates are left out.
"""

import argparse
import ast
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks import measuring
from bert_keras.core.settings.pipelines import CorpusConfig
from bert_keras.pipelines import words
from bert_keras.pipelines.sources import reading, source

TESTS = Path(__file__).resolve().parents[1] / "tests" / "pipelines" / "test_words.py"
LANGUAGES = {"th": "Thai", "lo": "Lao", "km": "Khmer", "my": "Burmese", "ko": "Korean"}


def articles(path: Path) -> list[list[str]]:
    """Returns the paragraphs of each article of a dump."""
    [item] = reading.find_inputs({"wikipedia": [str(path)]}, allow_cut_dumps=True)
    return [
        found.paragraphs
        for part in reading.split_input(item)
        for found in reading.read_range(part, source.Context())
        if isinstance(found, source.SourceDocument)
    ]


def contexts(path: Path) -> list[list[str]]:
    """Returns each paragraph of a file in SQuAD's layout."""
    data = json.loads(path.read_text())["data"]
    return [[part["context"]] for article in data for part in article["paragraphs"]]


def texts_of_the_tests() -> dict[str, str]:
    """Returns article 1 of the Universal Declaration of Human Rights, by language."""
    for node in ast.parse(TESTS.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "ARTICLE":
            return ast.literal_eval(node.value)
    raise ValueError(f"{TESTS}: no ARTICLE")


def rows(data: Path) -> Iterator[list[str]]:
    dumps, xquad = data / "wikipedia/other_languages", data / "squad/xquad"
    excerpt = articles(dumps / "jawiki-2022-excerpt-pages-articles.xml.bz2")
    sets = {
        "Japanese: jawiki 2022, excerpt": excerpt,
        "Chinese: zhwiki, one article": articles(dumps / "zhwiki-minidump.xml.bz2"),
        "Chinese: paragraphs of XQuAD": contexts(xquad / "xquad.zh.json"),
        "English: the same paragraphs": contexts(xquad / "xquad.en.json"),
    }
    for language, name in LANGUAGES.items():
        text = texts_of_the_tests()[language]
        sets[f"{name}: article 1 of the Universal Declaration"] = [[text]]
    least = CorpusConfig().min_document_words
    for name, documents in sets.items():
        lengths = [
            [sum(map(count, paragraphs)) for paragraphs in documents]
            for count in (lambda text: len(text.split()), words.count_words)
        ]
        numbers = [sum(n >= least for n in way) for way in lengths]
        numbers += map(sum, lengths)
        yield [name, f"{len(documents):,}", *(f"{n:,}" for n in numbers)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    header = ["text", "documents", "kept before", "kept now", "words before"]
    measuring.print_table([*header, "words now"], rows(parser.parse_args().data))


if __name__ == "__main__":
    main()

"""Pairs of texts out of documents."""

import tracemalloc

import pytest

from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.pipelines import pairs
from tests import conftest

LONG = "this sentence number {} has seven words"


def document(number: int, **changes) -> dict:
    texts = [[LONG.format(f"{number}.{m}.{n}") for n in range(3)] for m in range(4)]
    given = {"id": f"d{number}", "source": "x", "title": f"Title {number}"}
    return {**given, "paragraphs": texts, **changes}


def test_pairs_of_one_document():
    given = document(1, paragraphs=[["A b  c d\te.", "Short one."], ["f g h i j k"]])
    first, second = "A b c d e. Short one.", "f g h i j k"
    for changes, kind, expected in (
        ({}, "titles", [("Title 1", first), ("Title 1", second)]),
        ({"title": ""}, "titles", []),
        ({}, "neighbours", [(first, second)]),
        ({}, "sentences", []),  # The rest has two words.
    ):
        made = pairs.pairs_of({**given, **changes}, kind=kind, per_document=9)
        assert made == expected
    given = document(2)
    for kind in pairs.KINDS:
        made = pairs.pairs_of(given, kind=kind, per_document=9)
        assert len(made) == {"neighbours": 3}.get(kind, 4)
        fewer = pairs.pairs_of(given, kind=kind, per_document=2)
        assert len(fewer) == 2 and [p for p in made if p in fewer] == fewer
    for sentence, rest in made:
        assert sorted(f"{sentence} {rest}".split()) in [
            sorted(" ".join(paragraph).split()) for paragraph in given["paragraphs"]
        ]
        assert sentence not in rest


def test_documents_are_held_out_whole(tmp_path, capsys):
    given = [document(number) for number in range(200)]
    # Held out or not, a text of a training pair is in no held-out one.
    given += [document(200 + n, paragraphs=given[n]["paragraphs"]) for n in range(20)]
    corpus = conftest.write_documents(tmp_path / "corpus", given)
    for name in ("pairs", "again"):
        command = f"pairs --corpus {corpus} --output {tmp_path / name} --of neighbours"
        assert cli.main([*command.split(), "--dev_percent", "20"]) == 0
    files = {path.name: path.read_text() for path in (tmp_path / "pairs").iterdir()}
    assert files == {p.name: p.read_text() for p in (tmp_path / "again").iterdir()}
    train, dev = (
        [line.split("\t") for line in files[name].splitlines()]
        for name in ("train.tsv", "dev.tsv")
    )
    assert train[0] == dev[0] == ["text", "text_pair"]
    assert len(train) + len(dev) > 600
    trained, held_out = (
        {text.split()[3].partition(".")[0] for row in rows[1:] for text in row}
        for rows in (train, dev)
    )
    assert not trained & held_out
    assert 20 < len(held_out) < 60


NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "0 pairs to train on and 0 held out of 50"),
        ({"per_document": 0}, "--per_document is 1 or more, got 0"),
        *(({"dev_percent": p}, "--dev_percent is between") for p in (0, 100, NAN)),
        ({"kind": "title"}, "--of"),
        ({"corpus_dir": "none"}, "none: no such directory"),
    ],
)
def test_mistakes(tmp_path, changes, message):
    texts = [document(n, title="") for n in range(50)]
    corpus = conftest.write_documents(tmp_path / "corpus", texts)
    arguments = {"corpus_dir": corpus, "kind": "titles", **changes}
    with pytest.raises(InputError, match=message):
        pairs.write_pairs(output_dir=tmp_path / "pairs", **arguments)
    assert not (tmp_path / "pairs").exists()


def test_some_bytes_are_held_for_each_text(tmp_path):
    texts = [document(number) for number in range(1000)]
    corpus = conftest.write_documents(tmp_path / "corpus", texts)
    tracemalloc.start()
    options = {"kind": "neighbours", "dev_percent": 40.0}
    counts = pairs.write_pairs(corpus, tmp_path / "pairs", **options)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    num_texts = 2 * sum(counts.values())
    assert num_texts == 6_000
    # 8, and while the array grows 17; buffers of files besides. A set has 82.
    assert peak < 20 * num_texts + 200_000

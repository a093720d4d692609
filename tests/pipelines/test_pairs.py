"""Pairs of texts out of documents."""

import json
import tracemalloc
from pathlib import Path

import pytest

from bert_keras.commands import main as cli
from bert_keras.core import manifest
from bert_keras.core.errors import InputError
from bert_keras.pipelines import documents, pairs

LONG = "this sentence number {} has seven words"


def document(number: int, **changes) -> dict:
    paragraphs = [
        [LONG.format(f"{number}.{place}.{n}") for n in range(3)] for place in range(4)
    ]
    given = {"id": f"d{number}", "source": "x", "title": f"Title {number}"}
    return {**given, "paragraphs": paragraphs, **changes}


def write_corpus(directory: Path, given: list[dict]) -> Path:
    directory.mkdir()
    shard = documents.write_shard(
        directory / "documents-00000-of-00001.jsonl.gz",
        (json.dumps(one).encode() for one in given),
    )
    whole = manifest.Manifest(kind="documents", shards=(shard,), config={})
    manifest.write_manifest(directory, whole)
    return directory


def test_pairs_of_one_document():
    given = document(1, paragraphs=[["A b  c d\te.", "Short one."], ["f g h i j k"]])
    assert pairs.pairs_of(given, kind="titles", per_document=9) == [
        ("Title 1", "A b c d e. Short one."),
        ("Title 1", "f g h i j k"),
    ]
    assert pairs.pairs_of(given, kind="neighbours", per_document=9) == [
        ("A b c d e. Short one.", "f g h i j k")
    ]
    # The rest has two words.
    assert pairs.pairs_of(given, kind="sentences", per_document=9) == []
    assert pairs.pairs_of({**given, "title": ""}, kind="titles", per_document=9) == []
    given = document(2)
    for kind in pairs.KINDS:
        found = pairs.pairs_of(given, kind=kind, per_document=9)
        assert len(found) == {"neighbours": 3}.get(kind, 4)
        fewer = pairs.pairs_of(given, kind=kind, per_document=2)
        assert len(fewer) == 2 and [p for p in found if p in fewer] == fewer
    for sentence, rest in found:
        assert " ".join(sorted(f"{sentence} {rest}".split())) in {
            " ".join(sorted(" ".join(paragraph).split()))
            for paragraph in given["paragraphs"]
        }
        assert sentence not in rest


def test_documents_are_held_out_whole(tmp_path, capsys):
    given = [document(number) for number in range(200)]
    # Held out or not, a text of a training pair is in no held-out one.
    given += [document(200 + n, paragraphs=given[n]["paragraphs"]) for n in range(20)]
    corpus = write_corpus(tmp_path / "corpus", given)
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
    trained = {text.split()[3].partition(".")[0] for row in train[1:] for text in row}
    held_out = {text.split()[3].partition(".")[0] for row in dev[1:] for text in row}
    assert not trained & held_out
    assert 20 < len(held_out) < 60


def test_corpora_without_such_pairs(tmp_path):
    corpus = write_corpus(
        tmp_path / "corpus", [document(n, title="") for n in range(50)]
    )
    with pytest.raises(InputError, match="0 pairs to train on and 0 held out of 50"):
        pairs.write_pairs(corpus, tmp_path / "pairs", kind="titles")
    assert not (tmp_path / "pairs").exists()
    with pytest.raises(InputError, match="--per_document is 1 or more, got 0"):
        pairs.write_pairs(corpus, tmp_path / "p", kind="titles", per_document=0)
    for share in (0, 100, float("nan")):
        with pytest.raises(InputError, match="--dev_percent is between 0 and 100,"):
            pairs.write_pairs(corpus, tmp_path / "p", kind="titles", dev_percent=share)
    with pytest.raises(InputError, match="--of"):
        pairs.write_pairs(corpus, tmp_path / "p", kind="title")
    (corpus / "manifest.json").unlink()
    with pytest.raises(InputError, match="not a finished output of `bert-keras"):
        pairs.write_pairs(corpus, tmp_path / "p", kind="titles")


def test_some_bytes_are_held_for_each_text(tmp_path):
    given = (document(number) for number in range(4000))
    tracemalloc.start()
    counts = pairs._write(tmp_path, given, "neighbours", 4, 40.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    num_texts = 2 * sum(counts.values())
    assert num_texts == 24_000
    # 8, and while the array grows 17; buffers of files besides.
    assert peak < 20 * num_texts + 100_000

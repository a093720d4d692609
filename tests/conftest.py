"""Fixtures that several test folders share."""

import gzip
import json
import random
from pathlib import Path

import pytest

from bert_keras import config, files, manifest
from bert_keras.data import features

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real public data sets beside the repository, if it is there."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the real data sets in ../shared/data, which are not here")
    return folder


WORDS = tuple(f"{a}{b}" for a in "bdgklmnprst" for b in ("a", "e", "i", "o"))


def write_documents(directory: Path, documents: list[dict]) -> None:
    """Writes a finished directory of documents, as `bert-keras corpus` does."""
    directory.mkdir()
    path = directory / "documents-00000-of-00001.jsonl.gz"
    lines = [json.dumps(document) + "\n" for document in documents]
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    shard = manifest.Shard(
        name=path.name,
        num_records=len(documents),
        num_bytes=path.stat().st_size,
        sha256=files.sha256(path),
    )
    made = manifest.Manifest(kind="documents", shards=(shard,), config={})
    manifest.write_manifest(directory, made)


@pytest.fixture(scope="session")
def tiny_vocab(tmp_path_factory) -> Path:
    """A `vocab.txt` of the special tokens and 44 short words."""
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join([*features.SPECIAL_TOKENS, *WORDS]) + "\n")
    return path


@pytest.fixture(scope="session")
def tiny_examples(tmp_path_factory, tiny_vocab) -> Path:
    """Examples of 32 tokens in 3 shards, made by the pipeline from 60 documents.

    Each sentence counts up through the words from where the last one ended, so that
    both tasks can be learnt.
    """
    from pipelines import examples
    from pipelines.engine import engines

    directory = tmp_path_factory.mktemp("examples")
    choose = random.Random(0)
    documents = []
    for number in range(60):
        start = choose.randrange(len(WORDS))
        sentences = []
        for _ in range(12):
            length = choose.randint(4, 9)
            ids = [(start + i) % len(WORDS) for i in range(length)]
            sentences.append(" ".join(WORDS[i] for i in ids))
            start += length
        document = {"id": f"d{number}", "source": "t", "title": ""}
        documents.append({**document, "paragraphs": [sentences]})
    write_documents(directory / "corpus", documents)
    examples.build_examples(
        directory / "corpus",
        tiny_vocab,
        directory / "examples",
        config=config.ExamplesConfig(max_seq_length=32, dupe_factor=2),
        do_lower_case=True,
        num_shards=3,
        engine=engines.make_engine(),
    )
    return directory / "examples"

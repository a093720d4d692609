"""Examples: documents in, the same bytes out on every runner, with true labels."""

import gzip
import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from bert_keras.core import manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings.config import ExamplesConfig
from bert_keras.data import features, tokenization
from bert_keras.pipelines import examples, instances, records
from bert_keras.pipelines.engine import engines, passes
from tests.pipelines import example_messages

WORDS = [f"w{i}" for i in range(300)]
CONFIG = ExamplesConfig(max_seq_length=32, dupe_factor=3)


def write_vocabulary(path, words=WORDS):
    path.write_text("\n".join((*features.SPECIAL_TOKENS, *words)) + "\n")
    return path


def write_corpus(directory, documents, *, num_shards=2, mangle=bytes):
    """A directory of documents as `corpus` makes it."""
    directory.mkdir()
    shards = []
    for number in range(num_shards):
        lines = [
            json.dumps(document) + "\n" for document in documents[number::num_shards]
        ]
        data = gzip.compress(mangle("".join(lines).encode()), mtime=0)
        name = f"documents-{number:05d}-of-{num_shards:05d}.jsonl.gz"
        (directory / name).write_bytes(data)
        shards.append(
            manifest.Shard(
                name=name,
                num_records=len(lines),
                num_bytes=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
            )
        )
    made = manifest.Manifest(
        kind="documents",
        shards=tuple(shards),
        config={},
        counters={
            "documents": len(documents),
            **Counter(f"documents/{document['source']}" for document in documents),
        },
    )
    manifest.write_manifest(directory, made)
    return directory


def numbered_documents(number, num_sentences=12):
    """Documents whose sentences all differ: `w<document> w<sentence> w<word> ...`."""
    return [
        {
            "id": f"document {d}",
            "source": "books" if d % 4 == 0 else "wikipedia",
            "title": f"Document {d}",
            "paragraphs": [
                [
                    f"w{d} w{100 + s} " + "w200 " * (s % 3)
                    for s in range(start, start + 3)
                ]
                for start in range(0, num_sentences, 3)
            ],
        }
        for d in range(number)
    ]


@pytest.fixture(scope="module")
def vocab_path(tmp_path_factory):
    return write_vocabulary(tmp_path_factory.mktemp("vocab") / "vocab.txt")


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("corpus") / "documents"
    return write_corpus(directory, numbered_documents(40))


def build(corpus_dir, vocab_path, output_dir, **changed):
    arguments = {
        "config": CONFIG,
        "do_lower_case": True,
        "num_shards": 2,
        "engine": engines.make_engine(),
    }
    return examples.build_examples(
        corpus_dir, vocab_path, output_dir, **(arguments | changed)
    )


def read_all(directory):
    made = manifest.read_manifest(directory, kind="examples", verb="examples")
    manifest.verify_shards(directory, made)
    return [
        example_messages.decode(record)
        for shard in made.shards
        for record in records.read_records(directory / shard.name)
    ]


def contents(directory):
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


@pytest.fixture(scope="module")
def examples_dir(tmp_path_factory, corpus_dir, vocab_path):
    directory = tmp_path_factory.mktemp("examples") / "made"
    build(corpus_dir, vocab_path, directory)
    return directory


# What is made.


def test_a_whole_directory(examples_dir, corpus_dir, vocab_path):
    assert sorted(contents(examples_dir)) == [
        "examples-00000-of-00002.tfrecord",
        "examples-00001-of-00002.tfrecord",
        "inputs.json",
        "manifest.json",
        "vocab.txt",
    ]
    made = manifest.read_manifest(examples_dir, kind="examples", verb="examples")
    vocabulary = tokenization.Vocabulary.load(vocab_path)
    assert made.vocab_sha256 == vocabulary.sha256
    assert made.vocab_size == 305
    assert (examples_dir / "vocab.txt").read_bytes() == vocab_path.read_bytes()
    assert {**CONFIG.model_dump(), "max_predictions_per_seq": 5}.items() <= (
        made.config.items()
    )
    assert made.config["do_lower_case"] is True
    assert made.config["num_shards"] == 2
    assert made.config["vocab_sha256"] == vocabulary.sha256
    inputs = json.loads((examples_dir / "inputs.json").read_text())
    counters = {"documents": 40, "documents/books": 10, "documents/wikipedia": 30}
    assert {**inputs, "corpus": {"counters": counters}} == made.config


def test_counters_are_those_of_the_records(examples_dir):
    counters = manifest.read_manifest(
        examples_dir, kind="examples", verb="examples"
    ).counters
    made = read_all(examples_dir)
    assert counters["documents"] == 40
    assert counters["sentences"] == 480
    assert counters["tokens"] == 480 * 3
    assert counters["unknown_tokens"] == counters["duplicate_documents"] == 0
    assert counters["examples"] == len(made)
    assert counters["example_tokens"] == sum(sum(e["input_mask"]) for e in made)
    assert counters["masked_tokens"] == sum(sum(e["masked_lm_weights"]) for e in made)
    assert counters["random_next_examples"] == sum(
        e["next_sentence_labels"][0] for e in made
    )


def unmasked(example):
    ids = list(example["input_ids"])
    for position, label, weight in zip(
        example["masked_lm_positions"],
        example["masked_lm_ids"],
        example["masked_lm_weights"],
        strict=True,
    ):
        if weight:
            ids[position] = label
    return ids


def test_every_record_is_well_formed(examples_dir):
    for example in read_all(examples_dir):
        ids, length = unmasked(example), sum(example["input_mask"])
        first = 1 + ids.index(3)
        assert ids[0] == 2
        assert [i for i, token in enumerate(ids) if token == 3] == [
            first - 1,
            length - 1,
        ]
        assert ids[length:] == [0] * (32 - length)
        assert example["input_mask"] == [1] * length + [0] * (32 - length)
        assert example["segment_ids"] == (
            [0] * first + [1] * (length - first) + [0] * (32 - length)
        )
        number = min(5, max(1, round(0.15 * length)))
        padding = [0] * (5 - number)
        assert example["masked_lm_weights"] == [1.0] * number + padding
        assert example["masked_lm_positions"][number:] == padding
        assert example["masked_lm_ids"][number:] == padding
        positions = example["masked_lm_positions"][:number]
        assert positions == sorted(set(positions))


def test_labels_are_true_of_the_text(examples_dir):
    """Every sentence names its document and its number."""
    seen = Counter()
    for example in read_all(examples_dir):
        ids, segment_ids = unmasked(example), example["segment_ids"]
        words = [f"w{token - 5}" if token > 4 else "" for token in ids]
        documents, sentences = ({0: [], 1: []} for _ in range(2))
        for word, segment in zip(words, segment_ids, strict=True):
            number = int(word[1:] or 999)
            if number < 100:
                documents[segment].append(number)
            elif number < 200:
                sentences[segment].append(number)
        label = example["next_sentence_labels"][0]
        seen[label] += 1
        if not documents[0] or not documents[1]:
            continue  # Cut down to the end of a sentence.
        (document_a,), (document_b,) = set(documents[0]), set(documents[1])
        assert (document_a != document_b) == label
        # Partners are of the same source.
        assert (document_a % 4 == 0) == (document_b % 4 == 0)
        if not label and sum(example["input_mask"]) < 32:
            assert sentences[1][0] == sentences[0][-1] + 1
        elif not label and sentences[0] and sentences[1]:  # Tokens were cut off.
            assert sentences[1][0] >= sentences[0][-1]
    assert min(seen.values()) > 100


def test_two_documents_become_these_records(tmp_path, vocab_path):
    documents = [
        {
            "id": "a",
            "source": "x",
            "title": "",
            "paragraphs": [["w1 w2", "w3"], ["w4"]],
        },
        {"id": "b", "source": "x", "title": "", "paragraphs": [["W51 unheard"], [" "]]},
    ]
    corpus_dir = write_corpus(tmp_path / "documents", documents, num_shards=1)
    config = ExamplesConfig(max_seq_length=12, dupe_factor=1)
    made = build(corpus_dir, vocab_path, tmp_path / "made", config=config, num_shards=1)
    assert made.counters == {
        "documents": 2,
        "sentences": 4,
        "tokens": 6,
        "unknown_tokens": 1,
        "empty_documents": 0,
        "duplicate_documents": 0,
        "other_source_partners": 0,
        "pairs_without_partner": 0,
        "examples": 4,
        "example_tokens": 26,
        "masked_tokens": 4,
        "random_next_examples": 4,
    }
    assert read_all(tmp_path / "made") == [
        {  # w1 w2 | w51, hidden, and [UNK] of the other document
            "input_ids": [2, 6, 7, 3, 4, 1, 3, 0, 0, 0, 0, 0],
            "input_mask": [1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
            "segment_ids": [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0],
            "masked_lm_positions": [4, 0],
            "masked_lm_ids": [56, 0],
            "masked_lm_weights": [1.0, 0.0],
            "next_sentence_labels": [1],
        },
        {  # w3 | w51, hidden, and [UNK] of the other document
            "input_ids": [2, 8, 3, 4, 1, 3, 0, 0, 0, 0, 0, 0],
            "input_mask": [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0],
            "segment_ids": [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0],
            "masked_lm_positions": [3, 0],
            "masked_lm_ids": [56, 0],
            "masked_lm_weights": [1.0, 0.0],
            "next_sentence_labels": [1],
        },
        {  # w51, replaced by w143, and [UNK] | w3 w4 of the other document
            "input_ids": [2, 148, 1, 3, 8, 9, 3, 0, 0, 0, 0, 0],
            "input_mask": [1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
            "segment_ids": [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0],
            "masked_lm_positions": [1, 0],
            "masked_lm_ids": [56, 0],
            "masked_lm_weights": [1.0, 0.0],
            "next_sentence_labels": [1],
        },
        {  # w4 | w51 and [UNK], hidden, of the other document
            "input_ids": [2, 9, 3, 56, 4, 3, 0, 0, 0, 0, 0, 0],
            "input_mask": [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0],
            "segment_ids": [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0],
            "masked_lm_positions": [4, 0],
            "masked_lm_ids": [1, 0],
            "masked_lm_weights": [1.0, 0.0],
            "next_sentence_labels": [1],
        },
    ]


def test_ids_beyond_two_bytes_survive(tmp_path):
    words = [f"w{i}" for i in range(70_000)]
    vocab_path = write_vocabulary(tmp_path / "vocab.txt", words)
    documents = [
        {
            "id": name,
            "source": "x",
            "title": "",
            "paragraphs": [[f"w{n} w{n + 1}", f"w{n + 2}"]],
        }
        for name, n in (("a", 69_000), ("b", 69_900))
    ]
    corpus_dir = write_corpus(tmp_path / "documents", documents)
    build(corpus_dir, vocab_path, tmp_path / "made", num_shards=1)
    ids = {
        token for example in read_all(tmp_path / "made") for token in unmasked(example)
    }
    expected = {n + i + 5 for n in (69_000, 69_900) for i in range(3)}
    assert ids == {0, 2, 3} | expected


# The same bytes.


def test_two_runs_give_the_same_bytes(tmp_path, examples_dir, corpus_dir, vocab_path):
    build(corpus_dir, vocab_path, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(examples_dir)


ENGINES = {
    "passes": ([], 3, 100),
    "one graph": (["--runner=FnApiRunner"], 1, None),
    "workers of Beam": (["--runner=FnApiRunner"], 3, None),
    "old runner": (["--runner=BundleBasedDirectRunner"], 1, None),
}


@pytest.fixture
def other_engine(request, monkeypatch):
    """The engine of that name in `ENGINES`."""
    arguments, num_workers, pass_bytes = ENGINES[request.param]
    monkeypatch.setattr(passes, "PASS_BYTES", pass_bytes)
    return engines.make_engine(arguments, num_workers=num_workers)


def other_engines(*names):
    """Parametrizes `other_engine`; processes of Beam are slow."""
    slow = {"workers of Beam": pytest.mark.slow}
    cases = [pytest.param(name, marks=slow.get(name, ())) for name in names]
    return pytest.mark.parametrize("other_engine", cases, indirect=True)


@other_engines(*ENGINES)
def test_another_engine_gives_the_same_bytes(
    tmp_path, examples_dir, corpus_dir, vocab_path, other_engine
):
    build(corpus_dir, vocab_path, tmp_path / "again", engine=other_engine)
    assert contents(tmp_path / "again") == contents(examples_dir)


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_a_shard_that_is_done_is_kept(
    tmp_path, corpus_dir, vocab_path, monkeypatch, masking
):
    config = CONFIG.model_copy(update={"masking": masking, "compression": "gzip"})
    build(corpus_dir, vocab_path, tmp_path / "whole", config=config)
    directory = tmp_path / "made"
    with monkeypatch.context() as patched:
        patched.setattr(passes, "PASS_BYTES", 100)
        # Where the second shard is to be written is something else.
        stone = directory / "examples-00001-of-00002.tfrecord.gz"
        stone.mkdir(parents=True)
        (directory / "inputs.json").write_bytes(
            (tmp_path / "whole/inputs.json").read_bytes()
        )
        with pytest.raises(InputError, match="cannot be written: Is a directory"):
            build(corpus_dir, vocab_path, directory, config=config)
    stone.rmdir()
    done = directory / "examples-00000-of-00002.tfrecord.gz"
    before = done.stat().st_mtime_ns
    build(corpus_dir, vocab_path, directory, config=config)
    assert done.stat().st_mtime_ns == before
    assert contents(directory) == contents(tmp_path / "whole")


def test_the_order_of_documents_means_nothing(tmp_path, examples_dir, vocab_path):
    corpus_dir = write_corpus(
        tmp_path / "documents", numbered_documents(40)[::-1], num_shards=5
    )
    build(corpus_dir, vocab_path, tmp_path / "again")
    for shard in examples_dir.glob("*.tfrecord"):
        assert (tmp_path / "again" / shard.name).read_bytes() == shard.read_bytes()


def test_another_seed_gives_other_records(
    tmp_path, examples_dir, corpus_dir, vocab_path
):
    config = CONFIG.model_copy(update={"random_seed": 1})
    build(corpus_dir, vocab_path, tmp_path / "other", config=config)
    for shard in examples_dir.glob("*.tfrecord"):
        assert (tmp_path / "other" / shard.name).read_bytes() != shard.read_bytes()


def test_an_unfinished_directory_is_finished(
    tmp_path, examples_dir, corpus_dir, vocab_path
):
    directory = tmp_path / "made"
    build(corpus_dir, vocab_path, directory)
    (directory / manifest.MANIFEST_NAME).unlink()
    (directory / "examples-00001-of-00002.tfrecord").unlink()
    (directory / ".examples-00001-of-00002.tfrecord.12345678.tmp").write_bytes(b"half")
    build(corpus_dir, vocab_path, directory)
    assert contents(directory) == contents(examples_dir)


# Shards.


@pytest.mark.parametrize(
    ("num_documents", "num_bytes", "expected"),
    [
        (0, 0, 1),
        (1, 100, 1),
        (9, 100_000, 1),
        (20, 100_000, 4),
        (100, 100_000, 20),
        (500, 100_000, 20),
        (10_499, 100_000, 20),
        (10_500, 100_000, 21),
        (15_000, 3_000_000, 30),
        (7_000_000, 9_000_000_000, 1024),
        # 800 long documents: as many shards as there are millions of words.
        (800, 75_000_000, 30),
        (19, 75_000_000, 3),
    ],
)
def test_default_number_of_shards(num_documents, num_bytes, expected):
    shard = manifest.Shard(
        name="s", num_records=num_documents, num_bytes=num_bytes, sha256=""
    )
    corpus = manifest.Manifest(kind="documents", shards=(shard,), config={})
    assert examples.default_num_shards(corpus) == expected


def test_empty_buckets_have_no_file(tmp_path, vocab_path):
    corpus_dir = write_corpus(tmp_path / "documents", numbered_documents(60))
    made = build(corpus_dir, vocab_path, tmp_path / "made", num_shards=20)
    filled = {instances.bucket_of(f"document {i}", 20) for i in range(60)}
    assert len(made.shards) <= len(filled) < 20
    assert {shard.name for shard in made.shards} <= {
        f"examples-{bucket:05d}-of-00020.tfrecord" for bucket in filled
    }


def labels_by_shard(directory):
    return {
        shard.name: {
            example_messages.decode(record)["next_sentence_labels"][0]
            for record in records.read_records(directory / shard.name)
        }
        for shard in manifest.read_manifest(
            directory, kind="examples", verb="examples"
        ).shards
    }


@pytest.mark.parametrize("number", [2, 3, 4, 5, 9, 18, 40])
def test_no_document_is_alone_in_its_shard(tmp_path, vocab_path, number):
    documents = [
        {**document, "source": "books"} for document in numbered_documents(number)
    ]
    corpus_dir = write_corpus(tmp_path / "documents", documents)
    made = build(corpus_dir, vocab_path, tmp_path / "made", num_shards=10)
    assert made.counters["pairs_without_partner"] == 0
    assert made.counters["documents"] == number
    labels = labels_by_shard(tmp_path / "made")
    assert set(map(frozenset, labels.values())) == {frozenset((0, 1))}
    assert (len(labels) > 1) == (number > 3)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_few_long_documents_are_cut(tmp_path, vocab_path, caplog, number):
    """A book of 10 MB has random next sentences, and a part that is evaluated on."""
    caplog.set_level("INFO", logger="bert_keras")
    corpus_dir = write_corpus(
        tmp_path / "documents", numbered_documents(number, num_sentences=1200)
    )
    made = build(corpus_dir, vocab_path, tmp_path / "made", num_shards=10)
    assert made.counters["pairs_without_partner"] == 0
    assert made.counters["other_source_partners"] == 0
    assert made.counters["sentences"] == 1200 * number
    labels = labels_by_shard(tmp_path / "made")
    assert set(map(frozenset, labels.values())) == {frozenset((0, 1))}
    assert len(labels) > 2
    assert (
        f"examples: {number} documents, of sources that have fewer than 4, are cut "
        f"into {12 * number} parts, which count as documents"
    ) in caplog.messages


def test_random_next_sentences_of_few_books_are_of_books(tmp_path, vocab_path, caplog):
    caplog.set_level("INFO", logger="bert_keras")
    documents = numbered_documents(100)
    for number, document in enumerate(documents):
        document["source"] = "books" if number < 9 else "wikipedia"
    corpus_dir = write_corpus(tmp_path / "documents", documents)
    made = build(corpus_dir, vocab_path, tmp_path / "made", num_shards=20)
    assert made.counters["other_source_partners"] == 0
    assert "another source" not in caplog.text
    assert (
        "examples: documents that would be the only one of their source in one of 20 "
        "shards join others, which random next sentences can come from: 2 of books, "
        "2 of wikipedia"
    ) in caplog.messages


def test_the_only_document_of_a_source_is_warned_of(tmp_path, vocab_path, caplog):
    documents = numbered_documents(9)
    for number, document in enumerate(documents):
        document["source"] = "diary" if number == 4 else "https://a.org/{number}"
    corpus_dir = write_corpus(tmp_path / "documents", documents)
    made = build(corpus_dir, vocab_path, tmp_path / "made", num_shards=1)
    num_foreign = made.counters["other_source_partners"]
    share = 100 * num_foreign / made.counters["random_next_examples"]
    assert 5 < share < 20
    assert caplog.messages[-1] == (
        f"{num_foreign} random next sentences ({share:.1f} %) come from another source "
        "than the text before them, so the subject tells that they are random: there "
        "is no other document of the source (one document: diary); give more of it, or "
        "leave it out"
    )


def test_a_document_alone_has_no_random_next(tmp_path, vocab_path, caplog):
    corpus_dir = write_corpus(tmp_path / "documents", numbered_documents(1))
    made = build(corpus_dir, vocab_path, tmp_path / "made", num_shards=1)
    assert made.counters["pairs_without_partner"] == made.num_records > 0
    assert caplog.messages[-1] == (
        f"{made.num_records} examples come from documents that are alone in their "
        "shard, so their B is never random: give more documents, or a larger "
        "--num_shards (20), for which a long one is cut into parts"
    )


def test_documents_with_one_id_are_used_once(tmp_path, vocab_path, caplog):
    documents = numbered_documents(8)
    once = write_corpus(tmp_path / "once", documents)
    twice = write_corpus(tmp_path / "twice", [*documents, *documents[:3]])
    build(once, vocab_path, tmp_path / "made once")
    made = build(twice, vocab_path, tmp_path / "made twice")
    assert made.counters["duplicate_documents"] == 3
    assert "3 documents left out: another one has the same id" in caplog.text
    assert read_all(tmp_path / "made twice") == read_all(tmp_path / "made once")


def test_summary(tmp_path, corpus_dir, vocab_path, caplog):
    caplog.set_level("INFO", logger="bert_keras")
    config = CONFIG.model_copy(update={"next_sentence": "balanced"})
    build(corpus_dir, vocab_path, tmp_path / "made", config=config)
    assert caplog.messages == [
        f"examples: 288 from 40 documents, in 2 files of {tmp_path / 'made'}; 6,938 "
        "tokens, which are WordPieces, [CLS] and [SEP]; 24.7 % of the positions are "
        "padding; B is random in 50.0 %; 0.00 % of the corpus's WordPieces are [UNK]",
        "examples: 34 pairs left out: next_sentence=balanced",
    ]


# Bad input.


def test_fewer_than_one_shard(tmp_path, corpus_dir, vocab_path):
    with pytest.raises(InputError, match="--num_shards must be at least 1, got 0"):
        build(corpus_dir, vocab_path, tmp_path / "made", num_shards=0)


def test_an_unfinished_corpus(tmp_path, vocab_path):
    corpus_dir = write_corpus(tmp_path / "documents", numbered_documents(2))
    (corpus_dir / manifest.MANIFEST_NAME).unlink()
    with pytest.raises(
        InputError, match="not a finished output of `bert-keras corpus`"
    ):
        build(corpus_dir, vocab_path, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_changed_corpus(tmp_path, vocab_path):
    corpus_dir = write_corpus(tmp_path / "documents", numbered_documents(4))
    shard = corpus_dir / "documents-00001-of-00002.jsonl.gz"
    data = bytearray(shard.read_bytes())
    data[20] ^= 1
    shard.write_bytes(data)
    with pytest.raises(InputError, match="documents-00001-of-00002.*changed"):
        build(corpus_dir, vocab_path, tmp_path / "made")
    shard.unlink()
    with pytest.raises(InputError, match=r"documents-00001-of-00002.*missing"):
        build(corpus_dir, vocab_path, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_vocabulary_without_a_special_token(tmp_path, corpus_dir):
    vocab_path = tmp_path / "vocab.txt"
    vocab_path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nw1\n")
    with pytest.raises(InputError, match=r"vocab\.txt: .*\[MASK\]"):
        build(corpus_dir, vocab_path, tmp_path / "made")


@pytest.mark.parametrize(
    ("letters", "do_lower_case", "message"),
    [
        (["a", "B"], True, r"vocab\.txt: the vocabulary is cased"),
        (["a", "b"], False, r"vocab\.txt: the vocabulary is uncased"),
    ],
)
def test_a_vocabulary_of_the_other_casing(
    tmp_path, corpus_dir, letters, do_lower_case, message
):
    vocab_path = write_vocabulary(tmp_path / "vocab.txt", [*WORDS, *letters])
    with pytest.raises(InputError, match=message):
        build(corpus_dir, vocab_path, tmp_path / "made", do_lower_case=do_lower_case)


def test_an_output_of_another_run(tmp_path, examples_dir, corpus_dir, vocab_path):
    whole = contents(examples_dir)
    build(corpus_dir, vocab_path, examples_dir)
    assert contents(examples_dir) == whole
    unfinished = tmp_path / "made"
    build(corpus_dir, vocab_path, unfinished)
    (unfinished / manifest.MANIFEST_NAME).unlink()
    before = contents(unfinished)
    config = CONFIG.model_copy(update={"dupe_factor": 7})
    with pytest.raises(InputError, match="begun by another run, with dupe_factor=3"):
        build(corpus_dir, vocab_path, unfinished, config=config)
    assert contents(unfinished) == before


@pytest.mark.parametrize(
    "documents",
    [
        [],
        [{"id": "a", "source": "x", "title": "", "paragraphs": []}],
        [{"id": "a", "source": "x", "title": "", "paragraphs": [["w1 w2 w3"]]}],
    ],
)
def test_a_corpus_that_is_too_small(tmp_path, vocab_path, documents):
    corpus_dir = write_corpus(tmp_path / "documents", documents, num_shards=1)
    with pytest.raises(InputError, match="no example could be made"):
        build(corpus_dir, vocab_path, tmp_path / "made")
    assert not (tmp_path / "made" / manifest.MANIFEST_NAME).exists()
    assert not list((tmp_path / "made").glob("*.tfrecord"))


@pytest.mark.parametrize(
    ("mangled", "reason"),
    [
        (b'{"id": "a", "source": "x"}\n', "paragraphs is missing"),
        (b"[1, 2]\n", "found a list"),
        (b'{"id": "a", \n', "Expecting"),
        (b"\xff\n", "utf-8"),
    ],
)
def test_a_line_that_is_no_document(tmp_path, vocab_path, mangled, reason):
    check_bad_line(tmp_path, vocab_path, mangled, reason, arguments=[])


@pytest.mark.slow
def test_a_line_that_is_no_document_in_a_worker_of_beam(tmp_path, vocab_path):
    arguments = ["--runner=FnApiRunner"]
    check_bad_line(
        tmp_path, vocab_path, b"[1, 2]\n", "found a list", arguments=arguments
    )


def check_bad_line(tmp_path, vocab_path, mangled, reason, *, arguments):
    corpus_dir = write_corpus(
        tmp_path / "documents",
        numbered_documents(3),
        num_shards=1,
        mangle=lambda lines: lines + mangled,
    )
    engine = engines.make_engine(arguments, num_workers=2)
    with pytest.raises(InputError) as caught:
        build(corpus_dir, vocab_path, tmp_path / "made", engine=engine)
    assert re.fullmatch(
        r".*documents-00000-of-00001\.jsonl\.gz: line \d: expected a document of "
        rf"`bert-keras corpus` .*{reason}.*; recreate the corpus",
        str(caught.value),
    )
    assert not (tmp_path / "made" / manifest.MANIFEST_NAME).exists()


# Other implementations.


@pytest.mark.reference
def test_tensorflow_reads_the_records(examples_dir):
    tf = pytest.importorskip("tensorflow", reason="compares with TensorFlow")
    spec = {
        feature.name: tf.io.FixedLenFeature([feature.length], feature.dtype)
        for feature in features.pretraining_features(32, 5)
    }
    paths = sorted(map(str, examples_dir.glob("*.tfrecord")))
    parsed = tf.data.TFRecordDataset(paths).map(
        lambda record: tf.io.parse_single_example(record, spec)
    )
    read = [
        {name: values.tolist() for name, values in example.items()}
        for example in parsed.as_numpy_iterator()
    ]
    assert read == read_all(examples_dir)


def test_balanced_examples_say_so(tmp_path, corpus_dir, vocab_path, examples_dir):
    config = CONFIG.model_copy(update={"next_sentence": "balanced"})
    made = build(corpus_dir, vocab_path, tmp_path / "made", config=config)
    assert made.config["next_sentence"] == "balanced"
    labels = [e["next_sentence_labels"][0] for e in read_all(tmp_path / "made")]
    assert 2 * sum(labels) == len(labels) == made.num_records
    original = manifest.read_manifest(examples_dir, kind="examples", verb="examples")
    assert original.config["next_sentence"] == "original"


def test_full_sentences_have_no_balance():
    with pytest.raises(ValueError, match="needs `packing=sentence_pairs`, got full_s"):
        ExamplesConfig(packing="full_sentences", next_sentence="balanced")

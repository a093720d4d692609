"""Examples: documents in, the same bytes out on every runner, with true labels."""

import json
import re
import shutil
from pathlib import Path

import pytest

from bert_keras.core import manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import features, tokenization
from bert_keras.pipelines import examples, instances, records
from bert_keras.pipelines.engine import engines, passes
from tests import conftest
from tests.pipelines import example_messages, plain_engine

WORDS = [f"w{i}" for i in range(300)]
CONFIG = ExamplesConfig(max_seq_length=32, dupe_factor=3)


def write_vocabulary(path, words=WORDS):
    path.write_text("\n".join((*features.SPECIAL_TOKENS, *words)) + "\n")
    return path


def document(name, *paragraphs, source="x"):
    return {"id": name, "source": source, "title": "", "paragraphs": paragraphs}


def numbered_documents(number, num_sentences=12, source_of=None):
    """Documents whose sentences all differ: `w<document> w<sentence> w<word> ...`."""
    source_of = source_of or (lambda d: "books" if d % 4 == 0 else "wikipedia")

    def paragraph(d, start):
        numbers = range(start, start + 3)
        return [f"w{d} w{100 + s} " + "w200 " * (s % 3) for s in numbers]

    return [
        document(
            f"document {d}",
            *(paragraph(d, start) for start in range(0, num_sentences, 3)),
            source=source_of(d),
        )
        for d in range(number)
    ]


@pytest.fixture(scope="module")
def vocab_path(tmp_path_factory):
    return write_vocabulary(tmp_path_factory.mktemp("vocab") / "vocab.txt")


@pytest.fixture(scope="module")
def corpus_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("corpus") / "documents"
    return conftest.write_documents(directory, numbered_documents(40), num_shards=2)


def build(corpus_dir, vocab_path, output_dir, **changed):
    arguments = {"config": CONFIG, "do_lower_case": True, "num_shards": 2}
    arguments |= {"engine": plain_engine.PlainEngine(), **changed}
    return examples.build_examples(corpus_dir, vocab_path, output_dir, **arguments)


@pytest.fixture
def build_from(tmp_path, vocab_path):
    """A function that makes `made` of documents."""

    def build_from(texts, num_shards=2, **changed):
        corpus = conftest.write_documents(tmp_path / "documents", texts)
        changed = {"num_shards": num_shards, **changed}
        return build(corpus, vocab_path, tmp_path / "made", **changed)

    return build_from


def read_shards(directory):
    """Returns the examples of each shard, by its name."""
    made = manifest.read_manifest(directory, kind="examples")
    manifest.verify_shards(directory, made)
    return {
        shard.name: [
            example_messages.decode(record)
            for record in records.read_records(
                directory / shard.name, compression=made.config["compression"]
            )
        ]
        for shard in made.shards
    }


def read_all(directory):
    return [example for made in read_shards(directory).values() for example in made]


def label_of(example):
    return example["next_sentence_labels"][0]


def contents(directory):
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


@pytest.fixture(scope="module")
def examples_dir(tmp_path_factory, corpus_dir, vocab_path):
    directory = tmp_path_factory.mktemp("examples") / "made"
    build(corpus_dir, vocab_path, directory)
    return directory


# What is made.


ZEROS = ("unknown_tokens", "duplicate_documents", "empty_documents")
ZEROS += ("other_source_partners", "pairs_without_partner")


def test_a_whole_directory(examples_dir, vocab_path):
    shards = {f"examples-0000{n}-of-00002.tfrecord" for n in (0, 1)}
    names = {"inputs.json", "manifest.json", "vocab.txt"}
    assert set(contents(examples_dir)) == shards | names
    made = manifest.read_manifest(examples_dir, kind="examples")
    vocabulary = tokenization.Vocabulary.load(vocab_path)
    assert (made.vocab_sha256, made.vocab_size) == (vocabulary.sha256, 305)
    assert (examples_dir / "vocab.txt").read_bytes() == vocab_path.read_bytes()
    settings = {"max_predictions_per_seq": 5, "do_lower_case": True, "num_shards": 2}
    expected = CONFIG.model_dump() | settings | {"vocab_sha256": vocabulary.sha256}
    assert made.config.items() >= expected.items()
    inputs = json.loads((examples_dir / "inputs.json").read_text())
    counters = {"documents": 40, "documents/books": 10, "documents/wikipedia": 30}
    assert {**inputs, "corpus": {"counters": counters}} == made.config
    written = read_all(examples_dir)
    assert made.counters == {
        "documents": 40,
        "sentences": 480,
        "tokens": 480 * 3,
        "examples": len(written),
        "example_tokens": sum(sum(e["input_mask"]) for e in written),
        "masked_tokens": sum(sum(e["masked_lm_weights"]) for e in written),
        "random_next_examples": sum(map(label_of, written)),
        **dict.fromkeys(ZEROS, 0),
    }


def unmasked(example):
    ids = list(example["input_ids"])
    columns = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    for position, label, weight in zip(*map(example.get, columns), strict=True):
        if weight:
            ids[position] = label
    return ids


def test_two_documents_become_these_records(tmp_path, build_from):
    texts = [
        document("a", ["w1 w2", "w3"], ["w4"]),
        document("b", ["W51 unheard"], [" "]),
    ]
    config = ExamplesConfig(max_seq_length=12, dupe_factor=1)
    made = build_from(texts, config=config, num_shards=1)
    assert made.counters == {
        **{"documents": 2, "sentences": 4, "tokens": 6},
        **dict.fromkeys(ZEROS, 0),
        **{"unknown_tokens": 1, "examples": 4, "example_tokens": 26},
        **{"masked_tokens": 4, "random_next_examples": 4},
    }
    assert [
        (
            e["input_ids"][: sum(e["input_mask"])],
            e["segment_ids"].index(1),
            e["masked_lm_positions"],
            e["masked_lm_ids"],
            label_of(e),
        )
        for e in read_all(tmp_path / "made")
    ] == [
        # w1 w2 | w51, hidden, and [UNK] of the other document
        ([2, 6, 7, 3, 4, 1, 3], 4, [4, 0], [56, 0], 1),
        # w3 | w51, hidden, and [UNK] of the other document
        ([2, 8, 3, 4, 1, 3], 3, [3, 0], [56, 0], 1),
        # w51, replaced by w143, and [UNK] | w3 w4 of the other document
        ([2, 148, 1, 3, 8, 9, 3], 4, [1, 0], [56, 0], 1),
        # w4 | w51 and [UNK], hidden, of the other document
        ([2, 9, 3, 56, 4, 3], 3, [4, 0], [1, 0], 1),
    ]


def test_ids_beyond_two_bytes_survive(tmp_path):
    words = map("w{}".format, range(70_000))
    vocab_path = write_vocabulary(tmp_path / "vocab.txt", words)
    texts = [document("a", ["w69000 w69001"]), document("b", ["w69900 w69901"])]
    corpus_dir = conftest.write_documents(tmp_path / "documents", texts)
    build(corpus_dir, vocab_path, tmp_path / "made", num_shards=1)
    ids = {token for e in read_all(tmp_path / "made") for token in unmasked(e)}
    assert ids == {0, 2, 3, 69_005, 69_006, 69_905, 69_906}


# The same bytes.


BEAM = ["--runner=FnApiRunner"]


@pytest.mark.parametrize(
    ("arguments", "num_workers"),
    [([], 3), (BEAM, 1), pytest.param(BEAM, 3, marks=pytest.mark.slow)],
)
def test_another_engine_gives_the_same_bytes(
    tmp_path, examples_dir, corpus_dir, vocab_path, monkeypatch, arguments, num_workers
):
    monkeypatch.setattr(passes, "PASS_BYTES", 100)
    engine = engines.make_engine(arguments, num_workers=num_workers)
    build(corpus_dir, vocab_path, tmp_path / "again", engine=engine)
    assert contents(tmp_path / "again") == contents(examples_dir)


# Shards.


def test_default_number_of_shards():
    for num_documents, num_bytes, expected in (
        *((0, 0, 1), (9, 100_000, 1), (20, 100_000, 4), (100, 100_000, 20)),
        *((10_499, 100_000, 20), (10_500, 100_000, 21)),
        (7_000_000, 9_000_000_000, 1024),
        # 800 long documents: as many shards as there are millions of words.
        *((800, 75_000_000, 30), (19, 75_000_000, 3)),
    ):
        sizes = {"num_records": num_documents, "num_bytes": num_bytes}
        shard = manifest.Shard(name="s", sha256="", **sizes)
        corpus = manifest.Manifest(kind="documents", shards=(shard,), config={})
        assert examples.default_num_shards(corpus) == expected


def test_empty_buckets_have_no_file(build_from):
    made = build_from(numbered_documents(60), num_shards=20)
    filled = {instances.bucket_of(f"document {i}", 20) for i in range(60)}
    assert len(made.shards) <= len(filled) < 20
    assert {shard.name for shard in made.shards} <= {
        f"examples-{bucket:05d}-of-00020.tfrecord" for bucket in filled
    }


def check_labels(directory, num_shards):
    """Every shard has random next sentences and real ones."""
    labels = [set(map(label_of, made)) for made in read_shards(directory).values()]
    assert labels == [{0, 1}] * len(labels)
    assert len(labels) in num_shards


@pytest.mark.parametrize("number", [2, 3, 4, 9, 40])
def test_no_document_is_alone_in_its_shard(tmp_path, build_from, number):
    texts = numbered_documents(number, source_of=lambda d: "books")
    made = build_from(texts, num_shards=10)
    assert made.counters["pairs_without_partner"] == 0
    assert made.counters["documents"] == number
    check_labels(tmp_path / "made", range(2, 11) if number > 3 else [1])


@pytest.mark.parametrize("number", [1, 3])
def test_few_long_documents_are_cut(tmp_path, build_from, caplog, number):
    """A book of 10 MB has random next sentences, and a part that is evaluated on."""
    caplog.set_level("INFO", logger="bert_keras")
    made = build_from(numbered_documents(number, num_sentences=600), num_shards=10)
    assert made.counters["pairs_without_partner"] == 0
    assert made.counters["other_source_partners"] == 0
    assert made.counters["sentences"] == 600 * number
    check_labels(tmp_path / "made", range(3, 11))
    assert (
        f"examples: {number} documents, of sources that have fewer than 4, are cut "
        f"into {6 * number} parts, which count as documents"
    ) in caplog.messages


def test_random_next_sentences_of_few_books_are_of_books(build_from, caplog):
    caplog.set_level("INFO", logger="bert_keras")
    source_of = lambda d: "books" if d < 9 else "wikipedia"  # noqa: E731
    made = build_from(numbered_documents(100, source_of=source_of), num_shards=20)
    assert made.counters["other_source_partners"] == 0
    assert "another source" not in caplog.text
    assert (
        "examples: documents that would be the only one of their source in one of 20 "
        "shards go to another shard: 2 of books, 2 of wikipedia"
    ) in caplog.messages


# What is said.


def test_the_only_document_of_a_source_is_warned_of(build_from, caplog):
    source_of = lambda d: "diary" if d == 4 else "https://a.org/x"  # noqa: E731
    made = build_from(numbered_documents(9, source_of=source_of), num_shards=1)
    num_foreign = made.counters["other_source_partners"]
    share = 100 * num_foreign / made.counters["random_next_examples"]
    assert 5 < share < 20
    assert caplog.messages[-1] == (
        f"{num_foreign} random next sentences ({share:.1f} %) come from another source "
        "than the text before them, so the subject tells that they are random: there "
        "is no other document of the source (one document: diary); give more of it, or "
        "leave it out"
    )


def test_a_document_alone_has_no_random_next(build_from, caplog):
    made = build_from(numbered_documents(1), num_shards=1)
    assert made.counters["pairs_without_partner"] == made.num_records > 0
    assert caplog.messages[-1] == (
        f"{made.num_records} examples come from documents that are alone in their "
        "shard, so their B is never random: give more documents, or a larger "
        "--num_shards (20), for which a long one is cut into parts"
    )


def test_documents_of_one_id_are_used_once(tmp_path, examples_dir, build_from, caplog):
    texts = numbered_documents(40)
    made = build_from([*texts, *texts[:3]])
    assert made.counters["duplicate_documents"] == 3
    assert "3 documents left out: another one has the same id" in caplog.text
    assert read_all(tmp_path / "made") == read_all(examples_dir)


def test_balanced_examples_and_the_summary(tmp_path, build_from, caplog):
    caplog.set_level("INFO", logger="bert_keras")
    config = CONFIG.model_copy(update={"next_sentence": "balanced"})
    made = build_from(numbered_documents(40), config=config)
    assert caplog.messages == [
        f"examples: 288 from 40 documents, in 2 files of {tmp_path / 'made'}; 6,938 "
        "tokens, which are WordPieces, [CLS] and [SEP]; 24.7 % of the positions are "
        "padding; B is random in 50.0 %; 0.00 % of the corpus's WordPieces are [UNK]",
        "examples: 34 pairs left out: next_sentence=balanced",
    ]
    assert made.config["next_sentence"] == "balanced"
    assert 2 * sum(map(label_of, read_all(tmp_path / "made"))) == 288


def test_mostly_random_next_sentences_are_warned_of(build_from, caplog):
    """In short targets, many sentences are alone and have no real next one."""
    config = CONFIG.model_copy(update={"short_seq_prob": 1.0})
    texts = [document(f"d{n}", ["w1 w2 w3 w4 " * 4] * 4) for n in range(40)]
    made = build_from(texts, config=config)
    share = made.counters["random_next_examples"] / made.counters["examples"]
    assert share > 0.65
    assert caplog.messages[-1] == (
        f"B is random in {100 * share:.0f} % of the examples, so the next sentence is "
        "rare (short_seq_prob=1 leaves many sentences alone): next_sentence=balanced "
        "leaves the surplus out"
    )


# Bad input.


def change(path):
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


SHARD = "documents-00001-of-00002.jsonl.gz"


@pytest.mark.parametrize(
    ("name", "damage", "words", "changed", "message"),
    [
        ("", None, WORDS, {"num_shards": 0}, "--num_shards must be at least 1, got 0"),
        (SHARD, change, WORDS, {}, "documents-00001-of-00002.*changed"),
        (SHARD, Path.unlink, WORDS, {}, "documents-00001-of-00002.*missing"),
        ("manifest.json", Path.unlink, WORDS, {}, "not a finished .*`bert-keras corp"),
        ("", None, ["a", "B"], {}, r"vocab\.txt: the vocabulary is cased"),
        ("", None, ["a"], {"do_lower_case": False}, "the vocabulary is uncased"),
    ],
)
def test_mistakes_that_leave_no_output(tmp_path, name, damage, words, changed, message):
    texts = numbered_documents(4)
    corpus_dir = conftest.write_documents(tmp_path / "documents", texts, num_shards=2)
    if damage:
        damage(corpus_dir / name)
    vocab_path = write_vocabulary(tmp_path / "vocab.txt", words)
    with pytest.raises(InputError, match=message):
        build(corpus_dir, vocab_path, tmp_path / "made", **changed)
    assert not (tmp_path / "made").exists()


def test_an_output_of_another_run(tmp_path, examples_dir, corpus_dir, vocab_path):
    whole = contents(examples_dir)
    build(corpus_dir, vocab_path, examples_dir)
    unfinished = shutil.copytree(examples_dir, tmp_path / "made")
    (unfinished / manifest.MANIFEST_NAME).unlink()
    config = CONFIG.model_copy(update={"dupe_factor": 7})
    with pytest.raises(InputError, match="begun by another run, with dupe_factor=3"):
        build(corpus_dir, vocab_path, unfinished, config=config)
    build(corpus_dir, vocab_path, unfinished)
    assert contents(unfinished) == contents(examples_dir) == whole


@pytest.mark.parametrize("texts", [[], [document("a")], [document("a", ["w1 w2 w3"])]])
def test_a_corpus_that_is_too_small(tmp_path, build_from, texts):
    with pytest.raises(InputError, match="no example could be made"):
        build_from(texts)
    assert not (tmp_path / "made" / manifest.MANIFEST_NAME).exists()
    assert not list((tmp_path / "made").glob("*.tfrecord"))


def test_sentences_that_are_too_long(build_from, caplog):
    config = CONFIG.model_copy(
        update={"packing": "single_sentences", "max_sentence_length": 2}
    )
    texts = [document(name, ["w1 w2 w3", "w4", "w5 w6"]) for name in "abc"]
    with caplog.at_level("INFO"):
        built = build_from(texts, config=config)
    number = 3 * config.num_duplicates
    assert built.counters["examples"] == 2 * number
    assert built.counters["dropped_long_sentences"] == number
    assert f"{number} sentences left out: over max_sentence_length" in caplog.text


def test_no_sentence_is_short_enough(tmp_path, build_from):
    config = CONFIG.model_copy(
        update={"packing": "single_sentences", "max_sentence_length": 2}
    )
    with pytest.raises(InputError, match="with max_sentence_length, a sentence that"):
        build_from([document("a", ["w1 w2 w3"])], config=config)
    assert not (tmp_path / "made" / manifest.MANIFEST_NAME).exists()


@pytest.mark.parametrize("arguments", [[], pytest.param(BEAM, marks=pytest.mark.slow)])
def test_a_line_that_is_no_document(tmp_path, build_from, arguments):
    engine = engines.make_engine(arguments, num_workers=1 + bool(arguments))
    with pytest.raises(InputError) as caught:
        build_from([*numbered_documents(3), b"[1, 2]"], engine=engine)
    assert re.fullmatch(
        r".*documents-00000-of-00001\.jsonl\.gz: line 4: expected a document of "
        r"`bert-keras corpus` .*found a list.*; recreate the corpus",
        str(caught.value),
    )
    assert not (tmp_path / "made" / manifest.MANIFEST_NAME).exists()


def test_full_sentences_have_no_balance():
    with pytest.raises(ValueError, match="needs `packing=sentence_pairs`, got full_s"):
        ExamplesConfig(packing="full_sentences", next_sentence="balanced")

"""The vocabulary: exact counts in bounded memory, the same bytes on every run."""

import random
import textwrap
from collections import Counter

import pytest

from bert_keras.core.errors import InputError
from bert_keras.data import tokenization
from bert_keras.pipelines import vocabulary, wordpiece
from bert_keras.pipelines.engine import engines, passes
from tests import conftest
from tests.pipelines import plain_engine

# Special tokens and what every uncased vocabulary spells with.
LEAST = 104 + 68 + 36


def write_corpus(directory, texts, *, num_shards=1):
    """Documents as `corpus` writes them, each a list of sentences."""
    documents = [
        {"id": str(number), "source": "books", "paragraphs": [sentences]}
        for number, sentences in enumerate(texts)
    ]
    return conftest.write_documents(directory, documents, num_shards=num_shards)


def zipfian_texts(num_texts):
    """Texts of made-up words from a few syllables, with capitals, accents, commas."""
    rng = random.Random(3)
    syllables = "ba be bi do du ka ke li lo mu na ne ni ro ru sa té ti wa zu".split()
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(900)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    texts = []
    for _ in range(num_texts):
        sentences = [rng.choices(words, weights, k=12) for _ in range(5)]
        texts.append([" ".join(s).capitalize() + ", 中文." for s in sentences])
    return texts


def build(corpus, output, *, vocab_size=500, do_lower_case=True, engine=None):
    vocabulary.build_vocabulary(
        corpus,
        output,
        vocab_size=vocab_size,
        do_lower_case=do_lower_case,
        engine=engine or plain_engine.PlainEngine(),
    )
    return tokenization.Vocabulary.load(output)


# Counting.


def naive_counts(texts):
    words = (
        tokenization.basic_tokenize(sentence, do_lower_case=True)
        for sentences in texts
        for sentence in sentences
    )
    return Counter(word for of_sentence in words for word in of_sentence)


def test_packing_keeps_words_and_counts():
    items = [("中", 2**40), ("é\ud800", 1), ("a" * 300, 3), ("#", 2**63), ("x\r", 4)]
    assert list(vocabulary.unpack(vocabulary.pack(items * 3_000))) == items * 3_000
    assert list(vocabulary.unpack(vocabulary.pack([]))) == []


# The whole command.


def test_same_bytes_however_the_work_is_shared(tmp_path):
    texts = zipfian_texts(60)
    one = write_corpus(tmp_path / "one", texts)
    many = write_corpus(tmp_path / "many", texts[::-1], num_shards=3)
    vocabularies = [build(one, tmp_path / "made/vocab.txt")]
    graph = engines.make_engine(["--runner=FnApiRunner"])
    vocabularies.append(build(many, tmp_path / "made/graph.txt", engine=graph))
    script = """
        import sys
        from bert_keras.pipelines import vocabulary
        from tests.pipelines import plain_engine
        vocabulary.BYTES_PER_PARTITION = 700
        vocabulary.build_vocabulary(
            *sys.argv[1:], vocab_size=500, do_lower_case=True,
            engine=plain_engine.PlainEngine(),
        )
    """
    output = tmp_path / "made/other.txt"
    words = ("-c", textwrap.dedent(script), many, output)
    conftest.run_python(*words, environment={"PYTHONHASHSEED": "2"})
    vocabularies.append(tokenization.Vocabulary.load(output))
    assert vocabularies[1:] == vocabularies[:1] * 2
    assert len(vocabularies[0]) == 500
    # Nothing but the vocabularies is left.
    made = {path.name for path in (tmp_path / "made").iterdir()}
    names = ("graph.txt", "other.txt", "vocab.txt")
    assert made == {*names, *(f".{name}.inputs.json" for name in names)}


@pytest.mark.parametrize(
    ("bytes_per_partition", "max_chunks"), [(1 << 40, 1 << 40), (1000, 1), (50, 50)]
)
def test_learns_from_the_most_frequent_words_and_the_whole_alphabet(
    tmp_path, monkeypatch, bytes_per_partition, max_chunks
):
    """However the counts are shared; many words tie, which the word decides."""
    monkeypatch.setattr(vocabulary, "BYTES_PER_PARTITION", bytes_per_partition)
    monkeypatch.setattr(vocabulary, "_MAX_CHUNKS_IN_MEMORY", max_chunks)
    texts = [*zipfian_texts(60), ["a\x1cb c\x00d", "e f\u2028g \ud800 \ue000"]]
    corpus = write_corpus(tmp_path / "corpus", texts, num_shards=3)
    counts = naive_counts(texts)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    assert ranked[299][1] == ranked[300][1]
    monkeypatch.setattr(vocabulary, "WORDS_PER_ENTRY", 1)
    made = build(corpus, tmp_path / "vocab.txt", vocab_size=300)
    assert made.tokens == tuple(
        wordpiece.learn_vocabulary(
            ranked[:300],
            character_counts=Counter("".join(counts.elements())),
            vocab_size=300,
            do_lower_case=True,
        )
    )
    monkeypatch.setattr(vocabulary, "MAX_WORDS", 10)
    assert build(corpus, tmp_path / "few.txt", vocab_size=300) != made


def test_goes_on_from_finished_counts(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus", zipfian_texts(20))
    expected = build(corpus, tmp_path / "vocab.txt")
    output, engine = tmp_path / "again.txt", engines.make_engine()

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(wordpiece, "learn_vocabulary", stop)
        with pytest.raises(KeyboardInterrupt):
            build(corpus, output, engine=engine)
    assert not output.exists()

    # With counts at hand, documents are not read again.
    def start(waiting, *_):
        assert not waiting

    with monkeypatch.context() as patched:
        patched.setattr(passes, "_supervise", start)
        assert build(corpus, output, engine=engine) == expected
    left = {path.name for path in tmp_path.iterdir()}
    names = ("again.txt", "vocab.txt")
    assert left == {"corpus", *names, *(f".{name}.inputs.json" for name in names)}


def test_counts_are_those_of_the_original_tokenization(tmp_path):
    texts = [["Élan élan,ELAN 中中 a\x1cb", "x " * 7], ["élan"]]
    corpus = write_corpus(tmp_path / "corpus", texts)
    uncased = build(corpus, tmp_path / "uncased.txt", vocab_size=LEAST + 4)
    # "elan" occurs 4 times, "ab" once; "x" and "中" are characters already.
    assert uncased.tokens[LEAST + 1 :] == ("elan", "ab", "[unused99]")
    cased = build(corpus, tmp_path / "cased.txt", do_lower_case=False)
    assert {"Élan", "élan", "ELAN"} <= set(cased.tokens)
    assert "elan" not in cased.tokens
    tokenization.check_casing(uncased, True)
    tokenization.check_casing(cased, False)


def test_an_existing_output_is_left_alone(tmp_path, caplog):
    corpus = write_corpus(tmp_path / "corpus", [["a b"]])
    output = tmp_path / "vocab.txt"
    output.write_text("mine")
    with pytest.raises(InputError, match="vocab.txt: exists already; choose another"):
        build(corpus, output)
    assert output.read_text() == "mine"
    output.unlink()
    caplog.set_level("INFO")
    build(corpus, output)
    assert caplog.messages[-1] == (
        f"vocab: 500 entries in {output}, learnt from the 2 most frequent of 2 "
        "different words"
    )
    made = output.read_bytes(), output.stat().st_mtime_ns
    build(corpus, output)
    assert "vocab.txt: finished already, with the same corpus" in caplog.text
    assert (output.read_bytes(), output.stat().st_mtime_ns) == made
    with pytest.raises(InputError, match="vocab.txt: exists already; choose another"):
        build(corpus, output, do_lower_case=False)


def test_refusals_leave_nothing_behind(tmp_path):
    (tmp_path / "unfinished").mkdir()
    write_corpus(tmp_path / "blank", [[" \t"]])
    write_corpus(tmp_path / "few", [["a b c"]])
    cut = write_corpus(tmp_path / "cut", [["a b c"]])
    next(cut.glob("documents-*")).write_bytes(b"cut")
    for name, vocab_size, message in (
        ("blank", 500, "blank: no words in it"),
        ("few", 100, "vocab_size 100 is too small: .* take 208"),
        ("unfinished", 500, "unfinished: no manifest.json"),
        ("cut", 500, "3 bytes, manifest.json says"),
    ):
        with pytest.raises(InputError, match=message):
            build(tmp_path / name, tmp_path / "vocab.txt", vocab_size=vocab_size)
    assert {p.name for p in tmp_path.iterdir()} == {"blank", "few", "unfinished", "cut"}

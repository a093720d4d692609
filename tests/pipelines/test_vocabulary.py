"""The vocabulary: whole literal outputs, exact sizes, the same bytes on every run."""

import functools
import gzip
import importlib.util
import json
import os
import random
import subprocess
import sys
import textwrap

import pytest

from bert_keras import manifest, tokenization
from bert_keras.errors import InputError
from pipelines import runners, vocabulary

WORDS = {
    "thinking": 3,
    "walking": 4,
    "talking": 3,
    "walk": 9,
    "talk": 7,
    "talked": 2,
    "winked": 2,
    ",": 30,
    "中": 5,
}
LEARNER = vocabulary._load_learner()
# What every uncased vocabulary spells with: 68 characters, 36 of them inside words.
ASCII = sorted({chr(c).lower() for c in range(33, 127)})
ALPHANUMERIC = [c for c in ASCII if c.isalnum()]
INNER_ASCII = [f"##{c}" for c in ALPHANUMERIC]
LEAST = 104 + 68 + 36


def write_corpus(directory, shards):
    """Documents as `corpus` writes them: each shard a list of lists of sentences."""
    directory.mkdir()
    listed = []
    for index, texts in enumerate(shards):
        name = f"documents-{index:05}-of-{len(shards):05}.jsonl.gz"
        lines = [
            json.dumps(
                {
                    "id": f"{index}-{number}",
                    "source": "books",
                    "title": "",
                    "paragraphs": [sentences],
                }
            )
            for number, sentences in enumerate(texts)
        ]
        path = directory / name
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
        listed.append(
            manifest.Shard(
                name=name,
                num_records=len(texts),
                num_bytes=path.stat().st_size,
                sha256=manifest.file_sha256(path),
            )
        )
    made = manifest.Manifest(kind="documents", shards=tuple(listed), config={})
    manifest.write_manifest(directory, made)
    return directory


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


def build(corpus, output, *, vocab_size=500, do_lower_case=True):
    vocabulary.build_vocabulary(
        corpus,
        output,
        vocab_size=vocab_size,
        do_lower_case=do_lower_case,
        options=runners.beam_options(),
    )
    return tokenization.Vocabulary.load(output)


def learn(words, vocab_size):
    return vocabulary.learn_vocabulary(
        words, vocab_size=vocab_size, do_lower_case=True, learner=LEARNER
    )


# Learning.


def test_entries_and_their_order():
    learnt = learn(WORDS, LEAST + 4)
    assert learnt[:104] == list(vocabulary.RESERVED_TOKENS)
    assert learnt[104 : LEAST + 1] == [*ASCII, "中", *INNER_ASCII]
    # 10, 9 and 7 times; two of the words that end in "ing" occur 3 times.
    assert learnt[LEAST + 1 :] == ["##ing", "walk", "talk"]


def test_special_tokens_are_where_berts_are():
    reserved = tokenization.Vocabulary(vocabulary.RESERVED_TOKENS)
    assert (reserved.pad_id, reserved.unk_id, reserved.cls_id) == (0, 100, 101)
    assert (reserved.sep_id, reserved.mask_id, len(reserved)) == (102, 103, 104)
    assert (reserved.ids["[unused0]"], reserved.ids["[unused98]"]) == (1, 99)


def test_reserved_tokens_are_the_published_ones(shared_data):
    path = shared_data / "vocab/uncased_L-12_H-768_A-12/vocab.txt"
    published = tokenization.Vocabulary.load(path)
    assert published.tokens[:104] == vocabulary.RESERVED_TOKENS


@pytest.mark.parametrize("surplus", [1, 2, 3, 8, 13, 500])
def test_size_is_exact(surplus):
    learnt = learn(WORDS, LEAST + surplus)
    # Built as one, so it has no duplicate.
    assert len(tokenization.Vocabulary(tuple(learnt))) == LEAST + surplus


def test_a_small_text_is_filled_with_its_words_then_with_unused_entries(caplog):
    learnt = learn({"ab": 3, "abc": 1, "cb": 1}, LEAST + 10)
    assert learnt[LEAST : LEAST + 3] == ["ab", "abc", "cb"]
    assert learnt[LEAST + 3 :] == [f"[unused{i}]" for i in range(99, 106)]
    assert "only 211 entries; 7 are filled with [unused] ones" in caplog.text


def test_too_small_a_size_names_the_least():
    with pytest.raises(InputError, match="--vocab_size 208 is too small: .* take 209"):
        learn(WORDS, 208)
    assert len(learn(WORDS, 209)) == 209


def test_words_of_rare_characters_and_long_words_teach_nothing():
    words = {"ab": 60_000, "ba": 30_000, "éb": 2, "a" * 60: 1}
    learnt = learn(words, LEAST + 4)
    assert learnt[LEAST:] == ["ab", "ba", "[unused99]", "[unused100]"]


def test_alphabet_covers_the_text_and_leaves_out_what_is_never_inside_words():
    def beyond_ascii(words, do_lower_case=True):
        found = vocabulary.alphabet(words, do_lower_case=do_lower_case)
        assert found.issuperset([*ASCII, *INNER_ASCII])
        return found.difference(ASCII, INNER_ASCII)

    assert beyond_ascii({"é。": 1, "q中": 1}) == {"é", "##é", "。", "中"}
    # 3 in 100,000 are not worth an entry, 7 are.
    assert beyond_ascii({"a": 99_997, "é": 3}) == set()
    assert beyond_ascii({"a": 99_993, "é": 7}) == {"é", "##é"}
    capitals = {chr(c) for c in range(ord("A"), ord("Z") + 1)}
    inner_capitals = {f"##{c}" for c in capitals}
    assert beyond_ascii({"a": 1}, do_lower_case=False) == capitals | inner_capitals


@pytest.mark.parametrize("num_pieces", [0, *range(1, 16_000, 1999)])
def test_finds_a_threshold_that_gives_just_enough(num_pieces):
    counts = [max(1, 2_000_000 // (rank + 1)) for rank in range(10_000)]
    tried = []

    def size_at(threshold):
        # Pieces outnumber words: endings of words are pieces too.
        return int(1.4 * sum(count >= threshold for count in counts))

    def learn(threshold):
        tried.append(threshold)
        return ["piece"] * size_at(threshold)

    found = len(vocabulary.find_pieces(learn, num_pieces=num_pieces, counts=counts))
    sizes = [size_at(threshold) for threshold in {2, *counts} if threshold > 1]
    just_enough = min((s for s in sizes if s >= num_pieces), default=max(sizes))
    assert found <= max(just_enough, num_pieces * 1.02)
    assert found >= min(num_pieces, max(sizes))
    assert len(tried) <= 4


def test_finds_nothing_without_words():
    assert vocabulary.find_pieces(list, num_pieces=5, counts=[]) == []


# The whole command.


def test_keeps_the_most_frequent_words_and_breaks_ties_by_the_word(tmp_path):
    texts = [["a b c d e f g"], ["G f e d"], ["c"], ["g"]]
    for name, shards in (("one", [texts]), ("many", [[t] for t in texts[::-1]])):
        corpus = write_corpus(tmp_path / name, shards)
        words_path = tmp_path / f"{name}.json"
        build = functools.partial(
            vocabulary._add_word_count,
            shards=sorted(map(str, corpus.glob("documents-*"))),
            words_path=str(words_path),
            num_words=3,
            do_lower_case=True,
        )
        options = runners.beam_options()
        runners.run(build, options=options, title="", total=4, unit="documents")
        assert json.loads(words_path.read_bytes()) == [["g", 3], ["f", 2], ["e", 2]]


def test_same_bytes_however_the_work_is_shared(tmp_path):
    texts = zipfian_texts(60)
    one = write_corpus(tmp_path / "one", [texts])
    many = write_corpus(tmp_path / "many", [texts[i::3] for i in (2, 0, 1)])
    vocabularies = [build(one, tmp_path / "made/vocab.txt")]
    script = """
        import sys
        from bert_keras import cli
        code = cli.main(sys.argv[1:])
        sys.exit(99 if "tensorflow" in sys.modules else code)
    """
    for seed, workers in (("1", "1"), ("2", "2")):
        output = tmp_path / f"vocab-{seed}.txt"
        arguments = ["vocab", "--corpus", str(many), "--output", str(output)]
        arguments += ["--vocab_size", "500", "--workers", workers]
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), *arguments],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
        vocabularies.append(tokenization.Vocabulary.load(output))
    assert vocabularies[0] == vocabularies[1] == vocabularies[2]
    assert len(vocabularies[0]) == 500
    # Nothing but the vocabulary is left.
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["vocab.txt"]


def test_counts_are_those_of_the_original_tokenization(tmp_path):
    texts = [["Élan élan,ELAN 中中 a\x1cb", "x " * 7], ["élan"]]
    corpus = write_corpus(tmp_path / "corpus", [texts])
    uncased = build(corpus, tmp_path / "uncased.txt", vocab_size=LEAST + 4)
    # "elan" occurs 4 times, "ab" once; "x" and "中" are characters already.
    assert uncased.tokens[LEAST + 1 :] == ("elan", "ab", "[unused99]")
    cased = build(corpus, tmp_path / "cased.txt", do_lower_case=False)
    assert {"Élan", "élan", "ELAN"} <= set(cased.tokens)
    assert "elan" not in cased.tokens
    tokenization.check_casing(uncased, True)
    tokenization.check_casing(cased, False)


def test_an_existing_output_is_left_alone(tmp_path):
    corpus = write_corpus(tmp_path / "corpus", [[["a b"]]])
    output = tmp_path / "vocab.txt"
    output.write_text("mine")
    with pytest.raises(InputError, match="vocab.txt: exists already; choose another"):
        build(corpus, output)
    assert output.read_text() == "mine"


def test_refusals_leave_nothing_behind(tmp_path):
    blank = write_corpus(tmp_path / "blank", [[[" \t"]]])
    few = write_corpus(tmp_path / "few", [[["a b c"]]])
    (tmp_path / "unfinished").mkdir()
    output = tmp_path / "vocab.txt"
    with pytest.raises(InputError, match="blank: no words in it"):
        build(blank, output)
    with pytest.raises(InputError, match="vocab_size 100 is too small: .* take 208"):
        build(few, output, vocab_size=100)
    with pytest.raises(InputError, match="unfinished: no manifest.json"):
        build(tmp_path / "unfinished", output)
    next(few.glob("documents-*")).write_bytes(b"cut")
    with pytest.raises(InputError, match="3 bytes, manifest.json says"):
        build(few, output)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("blank", "few", "unfinished")
    ]


def test_says_what_to_install_without_the_learner(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus", [[["a b"]]])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'bert-keras\[train\]'"):
        build(corpus, tmp_path / "vocab.txt")

"""An index of texts: its bytes, what is found in it, and what it refuses."""

import contextlib
import importlib
import io
import itertools
import json
import mmap
import os
import resource
import shutil
import sys

import numpy as np
import pytest

import bert_keras
from bert_keras.commands import main
from bert_keras.core import files, ownership
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from bert_keras.labelled import similarity
from bert_keras.search import approximate, building, searching
from tests import conftest, make

WORDS = "the road was covered with snow horse bridge letter post came late".split()
VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *WORDS, ".", "雪", "道", "##st", "po")
)
SETTINGS = finetuning.FinetuningConfig(task="embedding", max_seq_length=10)
LONG = "The road was covered with snow. The horse came late, the post came late. " * 3
TEXTS = (
    "The POST came  late.",
    "snow with the road",
    "",
    "雪道雪",
    "snow with the road",
)


def random_weights(seed):
    def change(network):
        random = np.random.default_rng(seed)
        for weight in network.trainable_weights:
            weight.assign(random.normal(0, 0.3, weight.shape))

    return change


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models for vectors, one that ranks, and files of texts."""
    folder = tmp_path_factory.mktemp("search")
    kinds = {"vectors": "embedding", "other": "embedding", "ranker": "ranking"}
    for seed, (name, kind) in enumerate(kinds.items()):
        settings = SETTINGS.model_copy(update={"task": kind})
        options = {"settings": settings, "change": random_weights(seed)}
        make.make_run(folder / name, VOCABULARY, kind=kind, **options)
    rows = [{"text": text, "n": n} for n, text in enumerate([*TEXTS, LONG])]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "a.jsonl").write_text(lines)
    (folder / "b.txt").write_text("the bridge\nhorse horse\n")
    return folder


@pytest.fixture(scope="module")
def index(folder):
    names = ("a.jsonl", "b.txt")
    building.build(folder / "vectors", [str(folder / n) for n in names], folder / "ab")
    return bert_keras.SearchIndex(folder / "ab")


def vectors_of(index):
    return np.concatenate([shard.vectors for shard in index._shards])


def pieces_of(index):
    """All pieces of an index, in their order."""
    return [index._hit(number, 0.0)[1] for number in range(len(index))]


def test_pieces_are_parts_of_their_texts(index, folder):
    texts = [*TEXTS, LONG]
    hits = pieces_of(index)
    for hit in hits[:-2]:
        name, _, line = hit.document.rpartition(":")
        assert name == str(folder / "a.jsonl")
        assert hit.text == texts[int(line) - 1][hit.start : hit.end]
    assert [(h.text, h.start, h.end) for h in hits[:5]] == [
        ("The POST came  late.", 0, 20),
        ("snow with the road", 0, 18),
        ("雪道雪", 0, 3),
        ("snow with the road", 0, 18),
        ("The road was covered with snow. The", 0, 35),
    ]
    assert [h.text for h in hits[-2:]] == ["the bridge", "horse horse"]
    # Eight tokens each, and four of these in the next piece, to the end of the text.
    long = [hit for hit in hits if hit.document.endswith(":6")]
    assert (long[0].start, long[-1].end) == (0, len(LONG.rstrip()))
    assert all(b.start < a.end < b.end for a, b in zip(long, long[1:], strict=False))


def test_documents_of_a_corpus_are_found_by_their_titles(folder, tmp_path):
    documents = [
        {"id": "a", "source": "s", "title": "The\nbridge", "paragraphs": [["Snow."]]},
        {
            **{"id": "b", "source": "s", "title": " "},
            "paragraphs": [["A horse.", "It is late."], ["雪"]],
        },
        {"id": "c", "source": "s", "title": "x" * 300, "paragraphs": [["The road."]]},
        {"id": "d", "source": "s", "title": "The bridge", "paragraphs": [["A post."]]},
        {"id": "e", "source": "s", "title": "\ud83d", "paragraphs": [["A \ud83d."]]},
    ]
    conftest.write_documents(tmp_path / "corpus", documents)
    inputs = [str(tmp_path / "corpus"), str(folder / "b.txt")]
    building.build(folder / "vectors", inputs, tmp_path / "index")
    hits = pieces_of(index := bert_keras.SearchIndex(tmp_path / "index"))
    assert [(hit.document, hit.text) for hit in hits] == [
        ("The bridge", "Snow."),
        ("b", "A horse. It is late.\n雪"),
        ("x" * 200, "The road."),
        ("The bridge", "A post."),
        ("?", "A ?."),
        (f"{folder}/b.txt:1", "the bridge"),
        (f"{folder}/b.txt:2", "horse horse"),
    ]
    # A pattern of directories is each of them.
    inputs[0] = f"{tmp_path}/corp*"
    building.build(folder / "vectors", inputs, tmp_path / "same")
    assert contents(tmp_path / "same") == contents(tmp_path / "index")
    # Those of one title are several.
    assert {"Snow.", "A post."} < {hit.text for hit in index.search("snow")}
    conftest.write_documents(tmp_path / "empty", [], num_shards=0)
    for name, problem in ((".", "not a finished output of"), ("empty", "has no text")):
        with pytest.raises(InputError, match=problem):
            inputs = [str(tmp_path / name)]
            building.build(folder / "vectors", inputs, tmp_path / "other")


def test_vectors_are_those_of_predict(index, folder):
    hits = pieces_of(index)
    records = bert_keras.load(folder / "vectors").predict([hit.text for hit in hits])
    expected = similarity.unit_length(np.array([r.prediction for r in records]))
    vectors = vectors_of(index)
    assert vectors.dtype == np.float16
    np.testing.assert_allclose(vectors, expected, atol=1e-3)


def test_large_shards_are_mapped_and_small_ones_are_read(index, folder, monkeypatch):
    """Small ones, of many small files, would take all files that may be open."""
    [shard, _] = index._shards
    assert isinstance(shard.vectors.base, bytes)
    monkeypatch.setattr(building, "_MAPPED_BYTES", 1)
    for name in sorted((folder / "ab").glob("shard-*")):
        mapped = building.read_shard(name)
        assert all(isinstance(a.base, mmap.mmap) for a in mapped if a.size)
        assert all(a.flags.aligned and not a.flags.writeable for a in mapped)


def test_more_files_than_may_be_open(folder, tmp_path):
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text(f"the bridge{' snow' * number}\n")
    building.build(folder / "vectors", [str(tmp_path / "*.txt")], tmp_path / "many")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Eight numbers are left for files.
    open_now = {*map(int, os.listdir("/proc/self/fd"))}
    free = (number for number in itertools.count() if number not in open_now)
    limit = next(itertools.islice(free, 8, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        hits = searching.SearchIndex(tmp_path / "many").search("bridge", by="words")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert hits[0].document == str(tmp_path / "00.txt:1")


# What is found.


def test_ranks_are_fused():
    assert searching.fused([[3, 1], [1, 2]]) == pytest.approx(
        {1: 1 / 62 + 1 / 61, 3: 1 / 61, 2: 1 / 62}
    )
    assert [*searching.fused([[3, 1], [1, 2]])] == [1, 3, 2]


def first_of_each(hits):
    """Hits without those that say what a better one says."""
    kept = []
    for hit in hits:
        overlaps = any(
            k.document == hit.document and k.start < hit.end and hit.start < k.end
            for k in kept
        )
        if not overlaps and hit.text not in [k.text for k in kept]:
            kept.append(hit)
    return kept


def test_a_search_is_that_of_each_piece(index, folder, monkeypatch):
    """By the model's answers to each piece, and by bm25s."""
    hits = pieces_of(index)
    model = bert_keras.load(folder / "vectors")
    [asked] = model.predict(["horse on snow"])
    asked = similarity.unit_length(np.array(asked.prediction)).astype(np.float16)
    vectors = vectors_of(index).astype(np.float64)
    cosines = vectors @ asked.astype(np.float64)
    unk, tokens = model.tokenizer.vocabulary.unk_id, VOCABULARY.tokens
    words = [
        [tokens[n] for n in model.tokenizer.encode(hit.text) if n != unk]
        for hit in hits
    ]
    words = [[word for word in piece if word != "."] for piece in words]
    # Where JAX is installed, bm25s would start it, and later tests cannot fork.
    monkeypatch.setitem(sys.modules, "jax", None)
    reference = importlib.import_module("bm25s").BM25()
    reference.index(words, show_progress=False)
    counts = reference.get_scores(["horse", "snow"])
    by_cosine = np.argsort(-cosines, kind="stable")
    by_words = [n for n in np.argsort(-counts, kind="stable") if counts[n] > 0]
    orders = {"vectors": [*by_cosine], "words": by_words}
    orders["both"] = [*searching.fused([by_words, by_cosine])]
    for by, order in orders.items():
        expected = first_of_each([hits[n] for n in order])
        found = index.search("horse on snow", by=by)
        assert [h.text for h in found] == [h.text for h in expected][:10], by
    found = index.search("horse on snow", 1, by="vectors")
    assert [h.score for h in found] == pytest.approx([cosines.max()], abs=1e-3)
    for question in ("horse snow", "snow horse snow"):
        counts = reference.get_scores(question.split())
        found = index.search(question, 1, by="words")
        assert [h.score for h in found] == pytest.approx([counts.max()])


def test_no_word_is_found(index):
    assert index.search("zebra ???", by="words") == []
    assert len(index.search("zebra ???", 3)) == 3
    assert [hit.text for hit in index.search("雪", by="words")] == ["雪道雪"]


def test_a_reranker_orders_the_first(index, folder):
    ranked = bert_keras.SearchIndex(folder / "ab", reranker=folder / "ranker")
    texts = [hit.text for hit in index.search("late snow", 20)]
    [answer] = bert_keras.load(folder / "ranker").predict([("late snow", texts)])
    found = ranked.search("late snow", 3)
    assert [h.text for h in found] == [texts[n] for n in answer.prediction[:3]]
    scores = [answer.scores[n] for n in answer.prediction[:3]]
    assert [h.score for h in found] == pytest.approx(scores, abs=1e-5)


def test_commands(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    words = ["--model", "vectors", "--input", "?.txt", "--output", str(tmp_path / "i")]
    assert main.main(["index", *words]) == 0
    capsys.readouterr()
    ask = ["search", "--index", str(tmp_path / "i"), "horse", "--by", "words"]
    assert main.main(ask) == 0
    out = capsys.readouterr().out
    assert out == (" 1  0.3961  b.txt:2  characters 0 to 11\n    horse horse\n\n")
    assert main.main([*ask, "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        **{"question": "horse", "rank": 1, "text": "horse horse"},
        **{"document": "b.txt:2", "start": 0, "end": 11},
        "score": pytest.approx(0.3961, abs=1e-4),
    }
    # Questions of a pipe, and texts that would colour a terminal and name its window.
    (tmp_path / "red.txt").write_text("snow \x1b[31mroad\x1b]0;x\x07\x9b\n")
    output = str(tmp_path / "red")
    words = ["--model", "vectors", "--input", str(tmp_path / "red.txt")]
    assert main.main(["index", *words, "--output", output]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("\nsnow\n \n"))
    capsys.readouterr()
    assert main.main(["search", "--index", output, "--by", "words"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "    snow \ufffd[31mroad\ufffd]0;x",
        "",
    ]


# What is written.


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_killed_and_resumed_again_and_again(folder, tmp_path, monkeypatch):
    """Each command writes one file, and is killed before the next one."""
    monkeypatch.setattr(building, "_SHARD_CHARACTERS", 600)
    names = [str(folder / "a.jsonl"), str(folder / "b.txt")]
    building.build(folder / "vectors", names, tmp_path / "whole")
    write, left = files.write_atomically, 0

    def write_or_die(path, data):
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        write(path, data)

    monkeypatch.setattr(files, "write_atomically", write_or_die)
    num_killed = 0
    while True:
        left = 1
        try:
            building.build(folder / "vectors", names, tmp_path / "killed")
            break
        except KeyboardInterrupt:
            num_killed += 1
            (tmp_path / "killed/.shard-0.01234567.tmp").write_text("half of it")
            with pytest.raises(InputError, match=r"not a finished output of `bert-ker"):
                searching.SearchIndex(tmp_path / "killed")
    assert num_killed == len(list((tmp_path / "whole").glob("shard-*"))) == 3
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_file_that_changes_meanwhile(folder, tmp_path, monkeypatch):
    """The shards that are named for its first bytes may have others."""
    path, cut = tmp_path / "a.txt", building._cut
    path.write_text("the bridge\n")

    def change_and_cut(*arguments):
        path.write_text("the horse\n")
        return cut(*arguments)

    arguments = folder / "vectors", [str(path)], tmp_path / "index"
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(building, "_cut", change_and_cut)
        with pytest.raises(InputError, match="a.txt: has changed while it was indexed"):
            building.build(*arguments)
    assert not any((tmp_path / "index").glob("shard-*"))
    building.build(*arguments)
    assert pieces_of(bert_keras.SearchIndex(tmp_path / "index"))[0].text == "the horse"


def test_files_that_are_added(folder, tmp_path, index):
    first, both = [str(folder / "a.jsonl")], [str(folder / "b.txt")]
    both = [*first, *both]
    output = tmp_path / "added"
    building.build(folder / "vectors", first, output)
    earlier = searching.SearchIndex(output)
    # A copy is the same file, and a killed command with other files leaves nothing.
    shutil.copy(folder / "a.jsonl", tmp_path / "copy.jsonl")
    (output / "shard-0-10-0-00000").write_bytes(b"")
    added = [str(tmp_path / "copy.jsonl"), *both]
    building.build(folder / "vectors", added, output, add=True)
    assert contents(output) == contents(folder / "ab")
    building.build(folder / "vectors", both, output)
    building.build(folder / "vectors", both[1:], output, add=True)
    assert contents(output) == contents(folder / "ab")
    # An index that was open stays what it was.
    assert len(earlier) == len(index) - 2
    assert earlier.search("horse", by="words")[0].document.endswith("a.jsonl:6")


@contextlib.contextmanager
def limited_files(num_bytes):
    """A limit on the size of files fails writing as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk(folder, tmp_path):
    names = [str(folder / "a.jsonl"), str(folder / "b.txt")]
    message = r"cannot be written: File too large; mak"
    with limited_files(300), pytest.raises(InputError, match=message):
        building.build(folder / "vectors", names, tmp_path / "full")
    assert not (tmp_path / "full/manifest.json").exists()
    building.build(folder / "vectors", names, tmp_path / "full")
    assert contents(tmp_path / "full") == contents(folder / "ab")


# Clusters of many vectors.


def neighbours(vectors, questions, count):
    """The nearest vectors of each question, by NumPy."""
    scores = questions.astype(np.float64) @ np.concatenate(vectors).T.astype(np.float64)
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def interrupt(*args):
    raise KeyboardInterrupt


def clusters_of(directory):
    [path] = directory.glob("clusters-*")
    return path


def test_clusters_of_vectors(tmp_path):
    random = np.random.default_rng(0)
    vectors = (
        random.normal(0, 0.4, (4000, 24))
        + random.normal(size=(50, 24))[random.integers(50, size=4000)]
    )
    vectors = similarity.unit_length(vectors).astype(np.float16)
    blocks = [vectors[:1500], vectors[1500:]]
    path = tmp_path / "clusters"
    approximate.write(path, blocks)
    # The sum of scores in another order may differ in its last digit.
    every, questions = approximate.read(path, 4000), vectors[::100].astype(np.float32)
    scores, numbers = every(questions, 10)
    expected = neighbours(blocks, questions, 10)
    assert (numbers == expected).mean() > 0.99
    cosines = np.sort(questions @ vectors.T.astype(np.float32))[:, :-11:-1]
    np.testing.assert_allclose(scores, cosines, atol=1e-5)
    # The recall is that of all of the sample's neighbours.
    facts = approximate.measure(path, blocks)
    sample = vectors[:: 4000 // 200].astype(np.float32)
    found = [{*row} for row in neighbours(blocks, sample, 11)[:, 1:]]
    for num_clusters in (facts["num_clusters"] // 2, facts["num_clusters"]):
        _, numbers = approximate.read(path, num_clusters)(sample, 11)
        pairs = zip(found, numbers[:, 1:], strict=True)
        recall = np.mean([len(nearest & {*row}) / 10 for nearest, row in pairs])
        is_enough = num_clusters == facts["num_clusters"]
        assert (recall >= approximate.LEAST_RECALL) == is_enough
    assert facts["recall_at_10"] == pytest.approx(recall, abs=0.002)
    assert 2 < facts["num_clusters"] < 64
    first = path.read_bytes()
    approximate.write(path, [vectors])
    assert path.read_bytes() == first
    with (
        limited_files(100_000),
        pytest.raises(InputError, match="cannot be written: F"),
    ):
        approximate.write(path, blocks)
    assert path.read_bytes() == first


def test_an_index_with_clusters(folder, index, tmp_path, monkeypatch, caplog):
    """Killed while it writes them; found with them; with files that are added."""
    monkeypatch.setattr(approximate, "LEAST_VECTORS", 10)
    first, both = [str(folder / "a.jsonl")], [str(folder / "b.txt")]
    both, output = [*first, *both], tmp_path / "whole"
    with caplog.at_level("INFO"):
        finished = building.build(folder / "vectors", both, output)
    facts = finished.config["approximate"]
    assert facts["recall_at_10"] >= 0.95
    assert f"finds {facts['recall_at_10']:.1%} of the ten nearest" in caplog.text
    clustered = bert_keras.SearchIndex(output)
    assert finished.num_records == len(index) == len(clustered)
    every = approximate.read(clusters_of(output), 99)
    monkeypatch.setattr(clustered, "_nearest", every)
    hits = clustered.search("horse on snow", by="vectors")
    expected = index.search("horse on snow", by="vectors")
    assert [h.text for h in hits] == [h.text for h in expected]
    assert [h.score for h in hits] == pytest.approx(
        [h.score for h in expected], abs=1e-3
    )
    for name in ("write", "measure"):
        with monkeypatch.context() as killed:
            killed.setattr(approximate, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                building.build(folder / "vectors", both, tmp_path / "killed")
        assert not (tmp_path / "killed/manifest.json").exists()
    building.build(folder / "vectors", both, tmp_path / "killed")
    building.build(folder / "vectors", first, tmp_path / "added")
    building.build(folder / "vectors", both, tmp_path / "added", add=True)
    for name in ("killed", "added"):
        assert contents(tmp_path / name) == contents(output)


# What is refused.


def huge_weights(network):
    for weight in network.trainable_weights:
        weight.assign(np.full(weight.shape, 3e38))


def test_what_cannot_be_indexed(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.txt"):
        shutil.copy(folder / name, tmp_path)
    options = {"settings": SETTINGS, "kind": "embedding"}
    make.make_run(tmp_path / "huge", VOCABULARY, change=huge_weights, **options)
    building.build(folder / "vectors", ["b.txt"], "done")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "marks.txt").write_text(". ...\n\u200b\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/novel.txt").write_text("the road")
    (tmp_path / "c.tsv").write_text("title\tn\nsnow\t1\n")
    cases = [
        ("vectors", ["c.txt"], "out", {}, "c.txt: no such file: expected files of te"),
        ("vectors", ["empty.txt"], "out", {}, "empty.txt: holds no rows, expected at"),
        ("vectors", ["marks.txt"], "out", {}, "out: the files have no word: nothing"),
        ("vectors", ["c.tsv"], "out", {}, "c.tsv: no column 'text' .there: title, n"),
        ("ranker", ["b.txt"], "out", {}, "ranker: a model for ranking, expected one f"),
        ("huge", ["b.txt"], "out", {}, "the model's vectors are not finite, so noth"),
        ("vectors", ["b.txt"], "mine", {}, "mine: has 'novel.txt', which is of no in"),
        ("vectors", ["b.txt"], "gs://b/i", {}, "gs://b/i: an index needs a directory"),
        ("vectors", ["b.txt"], "/proc/i", {}, "/proc/i: cannot be made: "),
        ("vectors", ["b.txt"], "new", {"add": True}, "new: no manifest.json, so this"),
        (
            "vectors",
            ["a.jsonl"],
            "done",
            {},
            "done: an index of other files: add files",
        ),
        ("other", ["b.txt"], "done", {}, "done: an index of another model: choose ano"),
        *(
            ("vectors", ["b.txt"], "done", {"max_seq_length": n, "add": True}, message)
            for n, message in (
                (8, "done: an index of other pieces: give --max_seq_length 10"),
                (0, "--max_seq_length is from 3 to 10, the longest input of "),
                (11, "--max_seq_length is from 3 to 10, the longest input of "),
            )
        ),
    ]
    for model, inputs, output, named, message in cases:
        path = (tmp_path if model == "huge" else folder) / model
        with pytest.raises(InputError, match=message):
            building.build(path, inputs, output, **named)
        assert not (tmp_path / "out/manifest.json").exists()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    (tmp_path / "b.txt").write_text("the bridge\n")
    message = "done: b.txt has changed since it was indexed: index all files into a new"
    for add in (False, True):
        with pytest.raises(InputError, match=message):
            building.build(folder / "vectors", ["b.txt"], "done", add=add)
    with ownership.owned("done"), pytest.raises(InputError, match="done: in use by pr"):
        building.build(folder / "vectors", ["a.jsonl"], "done", add=True)


def test_an_index_that_is_truncated_while_it_is_open(
    index, folder, tmp_path, monkeypatch
):
    """A map that has no file below it would end the process."""
    monkeypatch.setattr(building, "_MAPPED_BYTES", 1)
    shutil.copytree(folder / "ab", tmp_path / "open")
    opened = searching.SearchIndex(tmp_path / "open")
    first, second = sorted((tmp_path / "open").glob("shard-*"))
    first.unlink()
    assert opened.search("horse")
    os.truncate(second, 0)
    with pytest.raises(OSError, match="truncated while the index was open: make") as e:
        opened.search("horse")
    assert e.value.filename == str(second)


def test_what_cannot_be_searched(index, folder, tmp_path):
    openings = [
        (
            {"model": folder / "other"},
            "ab: an index of another model than .*other: give t",
        ),
        ({"model": folder / "gone"}, "gone: the model of the index .*ab is not there"),
        ({"reranker": folder / "vectors"}, "vectors: a model for embedding, expected "),
    ]
    for named, message in openings:
        with pytest.raises(InputError, match=message):
            searching.SearchIndex(folder / "ab", **named)
    damaged = shutil.copytree(folder / "ab", tmp_path / "damaged")
    name = min(damaged.glob("shard-*"))
    name.write_bytes(name.read_bytes()[:-1])
    with pytest.raises(InputError, match="00000: .* bytes, manifest.json says"):
        searching.SearchIndex(damaged)
    for asked, message in (
        (("  ",), "expected a question and a number of hits from 1, got '  ' and 10"),
        (("snow", 0), "expected a question and a number of hits from 1, got 'snow' a"),
    ):
        with pytest.raises(InputError, match=message):
            index.search(*asked)
    with pytest.raises(InputError, match="by is one of words, vectors, both, got 'x'"):
        index.search("snow", by="x")


def test_the_activation_is_part_of_a_model(index, folder, tmp_path):
    """Equal weights give other vectors with it."""
    model = shutil.copytree(folder / "vectors", tmp_path / "model")
    config = json.loads((model / "bert_config.json").read_text())
    changed = config | {"hidden_act": "relu"}
    assert changed != config
    (model / "bert_config.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match="an index of another model"):
        bert_keras.SearchIndex(folder / "ab", model=model)

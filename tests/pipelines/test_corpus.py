"""The corpus pipeline from files to documents, whole outputs compared."""

import bz2
import gzip
import itertools
import json
import os
import random
from pathlib import Path

import pytest

from bert_keras.core import manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings.pipelines import CorpusConfig
from bert_keras.pipelines import corpus, document_records, instances
from bert_keras.pipelines.engine import engines, passes
from bert_keras.pipelines.sources import reading, source
from tests.pipelines.sources import test_dump_pages

pytestmark = pytest.mark.usefixtures("in_process")

page_xml = test_dump_pages.page_xml
DEMO = Path(__file__).resolve().parents[2] / "bert_keras" / "demo_articles.xml"
HEAD = "<mediawiki><siteinfo><dbname>xwiki</dbname></siteinfo>"
END = "</mediawiki>"


def dump(*pages):
    return "".join([HEAD, *pages, END])


def write(folder, name, data):
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


SHORT = {"min_document_words": 1}
KINDS = ("wikipedia", "books", "sentences", "jsonl")


def build(output, *, engine=None, config=SHORT, **options):
    sources = {kind: options.pop(kind) for kind in KINDS if kind in options}
    return corpus.build_corpus(
        str(output),
        sources=sources,
        config=CorpusConfig(**config),
        engine=engine or engines.make_engine(),
        **options,
    )


def documents(output):
    found = []
    for shard in manifest.read_manifest(output, kind="documents").shards:
        lines = gzip.decompress((output / shard.name).read_bytes()).splitlines()
        assert len(lines) == shard.num_records
        found += [json.loads(line) for line in lines]
    return {document["id"]: document for document in found}


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    old = [page_xml(1, "One", "Ancient.", year=2010), page_xml(5, "Five", "Only.")]
    new = [
        page_xml(1, "One", "New text. It has two.\n\n* list\n\nEnd."),
        page_xml(2, "Two", "#REDIRECT [[One]]"),
        page_xml(3, "Talk:One", "Hi.", ns=1),
        page_xml(4, "Style", "a {}").replace("<text>", "<model>css</model><text>"),
        page_xml(6, "Six", "{{nothing}}"),
    ]
    write(folder, "old.xml.bz2", bz2.compress(dump(*old).encode()))
    write(folder, "new.xml", dump(*new))
    write(folder, "book.txt", "Title page\n\nIt was dark. It was\nlate.\n\n“No!”\n")
    write(folder, "more.txt", "é is here, in Windows' code.\n".encode("cp1252"))
    lines = [
        {"id": "a", "text": "First. Second.\n\nThird.", "title": "T", "source": "s"},
        {"id": "b", "text": "x y"},
        {"id": "b", "text": "x z", "title": None},
        {"id": 7, "text": "Seven."},
        {"id": "c", "text": " \n"},
    ]
    write(folder, "lines.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return {
        "wikipedia": [f"{folder}/*.xml*"],
        "books": [f"{folder}/*.txt"],
        "jsonl": [f"{folder}/lines.jsonl"],
        "max_bad_fraction": 0.1,
        "encoding": ["more.txt=cp1252"],
    }


def test_whole_output(sources, tmp_path):
    result = build(tmp_path / "out", **sources)
    found = documents(tmp_path / "out")
    (book,) = [key for key in found if key.startswith("book.txt:")]
    for values in [
        ("xwiki:1:One", "wikipedia", "One", [["New text.", "It has two."], ["End."]]),
        ("a", "s", "T", [["First.", "Second."], ["Third."]]),
        ("b", "jsonl", "", [["x y"]]),
        (book, "books", "book", [["It was dark.", "It was late."], ["“No!”"]]),
    ]:
        assert tuple(found[values[0]].values()) == values
    assert len(found) == 7
    assert result.counters == {
        **{"cleaned/headings": 1, "cleaned/lists": 1, "cleaned/templates": 1},
        **{"documents": 7, "documents/books": 2, "documents/jsonl": 2},
        **{"documents/s": 1, "documents/wikipedia": 2, "dropped/duplicate": 1},
        **{"dropped/id of another document": 1, "dropped/no running text": 2},
        **{"dropped/not wikitext": 1, "dropped/other namespace": 1},
        **{"dropped/redirect": 1, "encoding/cp1252": 1, "encoding/utf-8-sig": 1},
        **{"items_read": 14, "sentences": 13, "words": 26, "words/books": 13},
        **{"words/jsonl": 3, "words/s": 3, "words/wikipedia": 7},
    }
    manifest.verify_shards(tmp_path / "out", result)
    # No document falls into the last of the four.
    shards = [f"documents-0000{n}-of-00004.jsonl.gz" for n in range(3)]
    assert [shard.name for shard in result.shards] == shards
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [*shards, "inputs.json", "manifest.json", "rejects.jsonl"]
    # Neither order nor repetition of patterns change anything.
    folder = tmp_path / "in"
    paths = [f"{folder}/new.xml", f"{folder}/old.xml.bz2", f"{folder}/../in/new.xml"]
    again = build(tmp_path / "again", **(sources | {"wikipedia": paths}))
    assert again == result


def test_counters_of_many_sources(tmp_path):
    """The counters name the sites of URLs, and only the largest of 153 sources."""

    def name(n):
        return ("large", f"https://Site{n % 2}.org/{n}", f"s{n // 2}")[n // 300]

    lines = [
        json.dumps({"id": str(n), "source": name(n), "text": f"Text of {n}."})
        for n in range(900)
    ]
    path = write(tmp_path, "many.jsonl", "\n".join(lines))
    result = build(tmp_path / "out", jsonl=[path])
    expected = {"large": 300, "site0.org": 150, "site1.org": 150, "other sources": 106}
    for group, num_words in (("documents", 1), ("words", 3)):
        sums = {
            key.split("/")[1]: amount // num_words
            for key, amount in result.counters.items()
            if key.startswith(f"{group}/")
        }
        assert expected.items() <= sums.items()
        assert (sum(sums.values()), len(sums)) == (900, 101)
    found = documents(tmp_path / "out").values()
    assert {document["source"] for document in found} == set(map(name, range(900)))


BEAM = [f"--runner={name}Runner" for name in ("FnApi", "BundleBasedDirect")]


@pytest.mark.parametrize(
    "arguments", [[], BEAM[:1], pytest.param(BEAM[1:], marks=pytest.mark.slow)]
)
def test_same_bytes_on_every_engine(sources, tmp_path, monkeypatch, arguments):
    sources["wikipedia"].append(str(DEMO))
    first = build(tmp_path / "1", **sources)
    assert first.num_records == 7 + 30
    monkeypatch.undo()
    monkeypatch.setattr(passes, "PASS_BYTES", 1000)
    engine = engines.make_engine(arguments, num_workers=1 if arguments else 3)
    assert build(tmp_path / "2", engine=engine, **sources) == first
    for name in ["manifest.json", "rejects.jsonl"]:
        one, two = ((tmp_path / run / name).read_bytes() for run in "12")
        assert one == two


def test_books_that_are_not_utf_8(tmp_path, caplog):
    text = "Все люди рождаются свободными и равными.\n" * 9
    paths = [write(tmp_path, "a.txt", text.encode("koi8-r"))]
    caplog.set_level("INFO")
    options = {"books": paths, "sentences": paths}
    found = build(tmp_path / "found", encoding=["auto"], **options)
    assert found.counters["encoding/koi8-r"] == 2
    assert "corpus: texts that are not UTF-8: 2 in koi8-r" in caplog.text
    assert found.config["encodings"] == [["a.txt", "koi8-r", False]] * 2
    assert build(tmp_path / "given", encoding=["koi8-r"], **options) == found
    with pytest.raises(InputError, match="given: begun with another --encoding; choo"):
        build(tmp_path / "given", encoding=["cp1251"], **options)
    message = r"a\.txt.*: not UTF-8, and no header .* may be koi8-r \('Все люди"
    with pytest.raises(InputError, match=message):
        build(tmp_path / "refused", **options)


def test_html_in_json_lines_is_warned_of_with_its_share(tmp_path, caplog):
    path = write(tmp_path, "a.jsonl", '{"id": 1, "text": "A <b>bold</b> word."}\n' * 4)
    build(tmp_path / "out", jsonl=[path])
    assert "HTML tags in 4 texts of --jsonl, 100.00 % of the items read" in caplog.text


@pytest.mark.parametrize("kind", ["jsonl", "sentences"])
def test_a_file_that_is_cut_while_it_is_read(tmp_path, kind):
    line = {"jsonl": '{"id": 1, "text": "Words."}\n', "sentences": "Words.\n"}[kind]
    path = write(tmp_path, "a.jsonl", line * 9)
    [item] = reading.find_inputs({kind: [path]})
    [part] = reading.split_input(item)
    os.truncate(path, item.num_bytes // 3)
    with pytest.raises(InputError, match=r"a\.jsonl: was truncated while it was be"):
        list(reading.read_range(part, source.Context()))
    os.remove(path)
    with pytest.raises(FileNotFoundError) as error:
        list(reading.read_range(part, source.Context()))
    assert error.value.filename == path


PARAGRAPH = "A paragraph of more than ten words that several documents have in common."


def jsonl(folder, texts):
    lines = [json.dumps({"id": key, "text": text}) for key, text in texts.items()]
    return [write(folder, "texts.jsonl", "".join(f"{line}\n" for line in lines))]


def paragraphs(output):
    found = documents(output)
    return {key: [" ".join(p) for p in d["paragraphs"]] for key, d in found.items()}


def test_a_paragraph_stays_in_one_document(tmp_path, caplog):
    caplog.set_level("INFO")
    texts = {
        "a": f"{PARAGRAPH}\n\nOnly in a.",
        "b": f"Only in b.\n\n{PARAGRAPH}\n\nShort and twice.\n\nShort and twice.",
        "c": PARAGRAPH,
        "d": f"Twice in d.\n\n{PARAGRAPH} No.\n\n{PARAGRAPH} No.",
    }
    lines = jsonl(tmp_path, texts)
    keeper = min("abc", key=instances.document_hash)
    result = build(tmp_path / "out", jsonl=lines)
    found = paragraphs(tmp_path / "out")
    expected = {
        "a": [PARAGRAPH] * (keeper == "a") + ["Only in a."],
        "b": ["Only in b."] + [PARAGRAPH] * (keeper == "b") + ["Short and twice."] * 2,
        "c": [PARAGRAPH],
        "d": ["Twice in d.", f"{PARAGRAPH} No."],
    }
    if keeper != "c":
        del expected["c"]
        assert result.counters["dropped/too short without duplicates"] == 1
    assert found == expected
    reason = "(deduplicate_paragraphs=true)"
    message = f"dropped paragraphs: in another document {reason} 2, repeated {reason} 1"
    assert caplog.messages[-1] == f"corpus: {message}"
    config = SHORT | {"deduplicate_paragraphs": False}
    build(tmp_path / "all", jsonl=lines, config=config)
    expected = {key: text.split("\n\n") for key, text in texts.items()}
    assert paragraphs(tmp_path / "all") == expected


def test_no_shared_paragraph_vanishes(tmp_path):
    """The document that keeps it may be too short without its other paragraphs."""
    shared = [f"{PARAGRAPH} Number {n}." for n in range(30)]
    rng = random.Random(0)
    texts = {
        f"d{n}": "\n\n".join(rng.sample(shared, rng.randrange(2, 5)))
        for n in range(200)
    }
    config = {"min_document_words": 30}
    result = build(tmp_path / "out", jsonl=jsonl(tmp_path, texts), config=config)
    found = [text for texts in paragraphs(tmp_path / "out").values() for text in texts]
    assert set(found) == set(shared)
    assert len(found) < 2 * len(shared)
    assert result.counters["dropped/too short without duplicates"] > 150
    kept = paragraphs(tmp_path / "out").values()
    assert min(len(" ".join(texts).split()) for texts in kept) >= 30


def test_an_older_version_keeps_no_paragraph_for_others(tmp_path):
    """Eight pairs of documents, in either order of their hashes."""
    old, new, expected = [], [], {}
    for n in range(8):
        text = f"{PARAGRAPH} Number {n}."
        old.append(page_xml(n, "One", f"{text}\n\nOld is this.", year=2010))
        new.append(page_xml(n, "One", f"New is {n}."))
        old.append(page_xml(n + 8, "Other", f"{text}\n\nMore."))
        expected[f"xwiki:{n}:One"] = [f"New is {n}."]
        expected[f"xwiki:{n + 8}:Other"] = [text, "More."]
    # Two versions of a document are no duplicates of each other.
    old.append(page_xml(16, "Two", PARAGRAPH, year=2010))
    new.append(page_xml(16, "Two", f"{PARAGRAPH}\n\nNew is this."))
    expected["xwiki:16:Two"] = [PARAGRAPH, "New is this."]
    paths = [write(tmp_path, "0.xml", dump(*old)), write(tmp_path, "1.xml", dump(*new))]
    build(tmp_path / "out", wikipedia=paths)
    assert paragraphs(tmp_path / "out") == expected


def test_what_is_filtered(tmp_path, caplog):
    caplog.set_level("INFO")
    texts = {
        "List of ships": PARAGRAPH,
        "Mercury (disambiguation)": PARAGRAPH,
        "Ships": f"{PARAGRAPH} So it goes.",
        "Short": "Nine words are not enough for a document, surely.",
        "Test": "What is the name of the ship that sank in 1912? Titanic.",
    }
    pages = [page_xml(n, *page) for n, page in enumerate(texts.items(), 1)]
    path = write(tmp_path, "a.xml", dump(*pages))
    question = "What is the name of the ship that sank in 1912?\tTitanic\n"
    build(
        tmp_path / "out",
        wikipedia=[path],
        config={"min_document_words": 10},
        exclude_overlap_with=[write(tmp_path, "dev.tsv", question)],
    )
    assert caplog.messages[-1] == (
        "corpus: dropped of 5 read: disambiguation page (drop_lists=true) 1, list page "
        "(drop_lists=true) 1, overlap with evaluation data (--exclude_overlap_with) 1, "
        "too short (min_document_words=10) 1"
    )
    assert set(documents(tmp_path / "out")) == {"xwiki:3:Ships"}
    config = SHORT | {"drop_lists": False, "deduplicate_paragraphs": False}
    assert build(tmp_path / "all", wikipedia=[path], config=config).num_records == 5


def test_rejects_are_listed_with_file_page_and_reason(tmp_path):
    good = "".join(page_xml(n, f"T{n}", "Text.") for n in range(20))
    cut = HEAD + good + "<page><title>Cut &amp; off</title><id>77</id><revision>"
    path = write(tmp_path, "a.xml", cut)
    lines = write(tmp_path, "a.jsonl", '{"id": true}\n\n[]\n')
    binary = write(tmp_path, "a.txt", b"a \x00 b c d e f")
    sources = {"wikipedia": [path], "jsonl": [lines], "books": [binary]}
    options = {"max_bad_fraction": 0.3, "allow_cut_dumps": True}
    result = build(tmp_path / "out", **sources, **options)
    text = (tmp_path / "out" / "rejects.jsonl").read_text()
    rejects = [tuple(json.loads(line).values()) for line in text.splitlines()]
    assert rejects == [
        (lines, "line 1", "", "expected a string or integer 'id', found True"),
        (lines, "line 3", "", "not an object"),
        (binary, "", "", "not plain text: it holds NUL characters"),
        (path, "77", "Cut & off", "cut off: the dump ends before </page>"),
    ]
    assert result.counters["rejected/cut off"] == 1
    assert result.counters["items_read"] == 24
    assert result.num_records == 20


def test_too_many_rejects(tmp_path):
    cut = HEAD + page_xml(1, "T", "Text.") * 3 + "<page><title>x</title>"
    path = write(tmp_path, "a.xml", cut)
    message = (
        r"1 of 4 items .25\.00%. could not be read, the limit is 10\.00%: "
        r".*a\.xml: cut off: the dump ends before </page>; all are in .*rejects\.jsonl"
        ": mend the input, or get it again; to leave them out, raise --max_bad_frac"
    )
    options = {"wikipedia": [path], "allow_cut_dumps": True}
    with pytest.raises(InputError, match=message):
        build(tmp_path / "out", max_bad_fraction=0.1, **options)
    assert not (tmp_path / "out" / "manifest.json").exists()
    # The same directory may be used again, with a higher limit.
    build(tmp_path / "out", max_bad_fraction=0.25, **options)


def test_the_newest_version_is_the_same_in_any_order():
    """Workers end in any order; two of the newest are equal, one has other text."""
    versions = [
        document_records.pack(
            document_records.make_record(
                {"id": "a", "source": "s", "paragraphs": [[text]]}, rank=rank, facts=()
            )
        )
        for rank, text in (("1", "Old."), ("2", "B."), ("2", "A."), ("2", "A."))
    ]
    for order in itertools.permutations(versions):
        kept, num_left_out, shared_ids = document_records.newest(order)
        assert [*map(document_records.pack, kept)] == [versions[2]]
        assert (num_left_out, shared_ids) == (3, ["a"])


def test_two_files_numbered_from_0(tmp_path):
    """Half of the documents would go, since each id is there twice."""
    for name in "ab":
        lines = [json.dumps({"id": n, "text": f"{name} {n}."}) for n in range(10)]
        write(tmp_path, f"{name}.jsonl", "\n".join(lines))
    paths = [f"{tmp_path}/*.jsonl"]
    message = (
        "10 documents (50.00% of the items read) have the id of another document with "
        "other text, such as '0'; the limit is 1.00%: give each an 'id' of its own, "
        "for example with the name of its file; to keep only one for each id, raise "
        "--max_bad_fraction"
    )
    with pytest.raises(InputError) as error:
        build(tmp_path / "out", jsonl=paths)
    assert str(error.value) == message
    result = build(tmp_path / "out", jsonl=paths, max_bad_fraction=0.5)
    assert result.counters["dropped/id of another document"] == 10
    assert result.counters["dropped/duplicate"] == 0
    # The same file twice is no fault.
    write(tmp_path, "b.jsonl", (tmp_path / "a.jsonl").read_bytes())
    result = build(tmp_path / "same", jsonl=paths)
    assert result.counters["dropped/duplicate"] == 10


def test_no_document(tmp_path):
    path = write(tmp_path, "a.xml", dump(page_xml(1, "T", "#REDIRECT [[x]]")))
    with pytest.raises(InputError, match="no document in 1 items read.*redirect 1"):
        build(tmp_path / "1", wikipedia=[path])
    with pytest.raises(InputError, match="no document in 0 items read"):
        build(tmp_path / "2", jsonl=[write(tmp_path, "a.jsonl", "")])
    assert not (tmp_path / "1" / "manifest.json").exists()


def test_bad_input_is_refused_before_anything_is_written(tmp_path):
    book = write(tmp_path, "a.txt", "It was dark.\n")
    cut = write(tmp_path, "cut.xml.bz2", bz2.compress(DEMO.read_bytes())[:-50])
    output = tmp_path / "out"
    for sources, message in [
        ({}, "nothing to read: give at least one of --wikipedia"),
        ({"wikipedia": [cut]}, "truncated"),
        ({"books": [book], "max_bad_fraction": 1.5}, "expected 0 to 1"),
    ]:
        with pytest.raises(InputError, match=message):
            build(output, **sources)
    assert not output.exists()


def test_output_directory_of_another_run(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"id": 1, "text": "old text"}\n')
    other = write(tmp_path, "b.jsonl", '{"id": 1, "text": "other text"}\n')
    first = build(tmp_path / "out", jsonl=[path])

    before = [p.stat().st_mtime_ns for p in sorted((tmp_path / "out").iterdir())]
    assert build(tmp_path / "out", jsonl=[path]) == first
    after = [p.stat().st_mtime_ns for p in sorted((tmp_path / "out").iterdir())]
    assert before == after
    for _ in range(2):
        with pytest.raises(InputError, match="begun by another run, with input: jsonl"):
            build(tmp_path / "out", jsonl=[other])
        (tmp_path / "out" / "manifest.json").unlink(missing_ok=True)
    # An input that changed is not mixed with the old one.
    write(tmp_path, "a.jsonl", '{"id": 1, "text": "new text"}\n')
    message = "with input: jsonl a.jsonl: sha256='.*' where this one has '.*'; ch"
    with pytest.raises(InputError, match=message):
        build(tmp_path / "out", jsonl=[path])
    # A copy of the old one, with another time, is the old one.
    write(tmp_path, "a.jsonl", '{"id": 1, "text": "old text"}\n')
    os.utime(path, ns=(0, 0))
    assert build(tmp_path / "out", jsonl=[path]) == first


def test_number_of_shards_follows_the_amount_of_text(monkeypatch, tmp_path):
    monkeypatch.setattr(corpus, "_BYTES_PER_SHARD", 5_000)
    packed = bz2.compress(DEMO.read_bytes())
    path = write(tmp_path, "d.xml.bz2", packed)
    plain = build(tmp_path / "plain", wikipedia=[str(DEMO)])
    assert plain.config["num_shards"] == -(-DEMO.stat().st_size // 5_000)
    compressed = build(tmp_path / "packed", wikipedia=[path])
    assert compressed.config["num_shards"] == max(4, -(-4 * len(packed) // 5_000))

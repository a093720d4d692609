"""Files -> ranges -> documents: literal small files, bad ones, and the real ones."""

import bz2
import gzip
import hashlib
import json
import logging
import lzma
import os
import pickle
import types

import pytest
import zstandard

from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import (
    book_cutter,
    json_lines,
    multistream,
    reading,
    source,
    text_lines,
    wikipedia,
)

PAGES = [
    ("Bread", 0, "", "", "'''Bread''' is eaten in the morning.\n\nIt is old."),
    ("Talk:Bread", 1, "", "", "I do not like it."),
    ("Loaf", 0, '<redirect title="Bread"/>', "", "#REDIRECT [[Bread]]"),
    ("Bread.js", 0, "", "<model>javascript</model>", "x = 1;"),
    ("List of breads", 0, "", "", "There are many breads in the world."),
    ("Roll (disambiguation)", 0, "", "", "A roll is one of these things."),
    ("Empty", 0, "", "", "{{stub}}"),
    ("Bad", 0, "", "", "<b>"),
]
DUMP = (
    "<mediawiki><siteinfo><dbname>xxwiki</dbname></siteinfo>"
    + "".join(
        f"<page><title>{title}</title><ns>{ns}</ns><id>{number}</id>{extra}<revision>"
        f"<timestamp>2020-01-0{number}T00:00:00Z</timestamp>{model}"
        f"<text>{text}</text></revision></page>"
        for number, (title, ns, extra, model, text) in enumerate(PAGES, 1)
    )
    + "</mediawiki>"
)
BREAD = source.SourceDocument(
    id="xxwiki:1:Bread",
    rank="2020-01-01T00:00:00Z",
    source="wikipedia",
    title="Bread",
    paragraphs=["Bread is eaten in the morning.", "It is old."],
)


def read(path, kind, *, start=0, stop=None, **options):
    """All that a reader yields, what it counts, and the bytes that it reports."""
    consumed = []
    [item] = reading.find_inputs({kind: [str(path)]})
    stop = item.num_bytes if stop is None else stop
    part = source.Range(item, start, stop)
    context = source.Context(**options, advance=consumed.append)
    found = list(reading.read_range(part, context))
    assert sum(consumed) == stop - start
    return found, dict(context.counts)


def write(tmp_path, data, name="file"):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_progress_counts_the_range_only(tmp_path, monkeypatch):
    for last, expected in ((50, [5, 25, 10]), (80, [5, 35])):
        places, steps = (10, 25, 25, 24, last), []
        reader = types.SimpleNamespace(read=lambda _, to, p=places: map(to.reach, p))
        monkeypatch.setitem(reading.SOURCES, "books", reader)
        path = str(write(tmp_path, bytes(100)))
        item = source.Input(kind="books", path=path, num_bytes=100)
        context = source.Context(advance=steps.append)
        assert len([*reading.read_range(source.Range(item, 20, 60), context)]) == 5
        assert steps == expected


# What is read.

ZSTD = zstandard.ZstdCompressor().compress
PACKS = (bytes, bz2.compress, gzip.compress, lzma.compress, ZSTD)


@pytest.mark.parametrize("pack", PACKS)
def test_a_dump_literally(tmp_path, pack):
    path = write(tmp_path, pack(DUMP.encode()))
    (bread, bad), counts = read(path, "wikipedia")
    assert bread == BREAD
    assert bad._replace(reason=bad.reason[:38]) == source.Reject(
        str(path), "8", "Bad", "not well-formed XML: mismatched tag: l"
    )
    assert counts == {
        **{"items_read": 8, "dropped/other namespace": 1, "dropped/redirect": 1},
        **{"dropped/not wikitext": 1, "dropped/list page": 1},
        **{"dropped/disambiguation page": 1, "dropped/no running text": 1},
        "cleaned/templates": 1,
    }


JSONL = [
    '{"id": 7, "text": "One.\\nTwo.\\n\\n\\r\\n Three. ", "title": "T", "source": "s"}',
    "",
    '{"id": "b", "text": "  "}',
    '{"id": "c"}',
    "{",
    '{"id": true, "text": "x"}',
    '{"id": "\\ud800", "text": "a"}',
    '{"id": "e", "text": "a\\u0000"}',
    "[" * 100_000,
    '{"id": "f", "text": "Last."}',
]


@pytest.mark.parametrize("pack", PACKS)
def test_json_lines_literally(tmp_path, pack):
    path = write(tmp_path, pack("\n".join(JSONL).encode()))
    found, counts = read(path, "jsonl")
    rejects = {
        4: "expected a string 'text', found none",
        5: "not JSON: Expecting property name enclosed in double quotes: line 1 column "
        "2 (char 1)",
        6: "expected a string or integer 'id', found True",
        7: "not plain text: it holds lone surrogates",
        8: "not plain text: it holds NUL characters",
        9: found[6].reason,
    }
    assert found == [
        source.SourceDocument("7", "s", "T", ["One. Two.", "Three."]),
        *(source.Reject(str(path), f"line {n}", "", rejects[n]) for n in rejects),
        source.SourceDocument("f", "jsonl", "", ["Last."]),
    ]
    assert rejects[9].startswith("not JSON: maximum recursion depth")
    assert counts == {"items_read": 9, "dropped/no running text": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One.\n \nTwo.", ["One.", "Two."]),
        ("One.\r\rTwo.", ["One.", "Two."]),
        ("One.\rTwo.", ["One.", "Two."]),
        ("One.\n\n\nTwo\u00a0x.", ["One.", "Two x."]),
        # A paragraph a line, with and without a title, with long lines and headings.
        ("It is. So is it.\nIt was.\nIt will be.", 3),
        ("Title\n\nIt is.\nIt was.", 3),
        ("Heading\n" + "word " * 60 + "\n" + "word " * 60, 3),
        ("一。\n二。\n三", 3),
        # Hard-wrapped lines, and paragraphs of sentences on lines of their own.
        ("It is a very long\nstory that goes on.\nAnd then it ends\nhere.", 1),
        ("It is.\nIt was.\n\nIt will be.\nIt is.", 2),
        ("Roses are red\nviolets are blue", 1),
    ],
)
def test_paragraphs_of_json_lines(text, expected):
    found = json_lines.divide(text)
    assert expected in (found, len(found))


def test_html_and_mojibake_are_counted(tmp_path):
    texts = ["<p>One</p>", "a &lt;br /&gt; b", "cafÃ©", "donâ€™t", "1 < 2", "É Â Ã Ñ"]
    lines = [json.dumps({"id": n, "text": text}) for n, text in enumerate(texts)]
    _, counts = read(write(tmp_path, "\n".join(lines)), "jsonl")
    assert counts == {"items_read": 6, "faults/HTML tags": 2, "faults/mojibake": 2}


def test_json_lines_in_every_range(tmp_path, monkeypatch):
    lines = [*JSONL[:8], "\u6587" * 9, *JSONL[9:]]
    path = write(tmp_path, "\n".join(lines) + "\n")
    whole, _ = read(path, "jsonl")
    for cut in range(1, path.stat().st_size):
        monkeypatch.setattr(multistream, "CHUNK_BYTES", (1, 7, 1000)[cut % 3])
        left, left_counts = read(path, "jsonl", stop=cut)
        right, right_counts = read(path, "jsonl", start=cut)
        assert [found[0] for found in left + right] == [found[0] for found in whole]
        sides = (left_counts, right_counts)
        assert sum(counts.get("items_read", 0) for counts in sides) == 9, cut
    place = path.read_bytes().index(b"{\n")
    assert read(path, "jsonl", start=place)[0][0].item == f"byte {place}"


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(multistream, "CHUNK_BYTES", 300)
    long = json.dumps({"id": "a", "text": "x" * 5000})
    path = write(tmp_path, "\n".join([JSONL[0], long, JSONL[-1]]))
    first, bad, last = read(path, "jsonl")[0]
    assert (first.id, last.id) == ("7", "f")
    assert bad == source.Reject(str(path), "line 2", "", "longer than 64 MiB")


@pytest.mark.parametrize(
    ("encoding", "name"), [("utf-8", "utf-8-sig"), ("utf-16", "utf-16")]
)
def test_books_in_any_encoding(tmp_path, encoding, name):
    text = "Größe und “Maß”."
    for pack in PACKS:
        path = write(tmp_path, pack(text.encode(encoding)), "Das Maß.txt")
        [book], counts = read(path, "books")
        assert book[1:] == ("books", "Das Maß", [text], "")
        assert book.id.startswith("Das Maß.txt:")
        assert counts == {"items_read": 1, f"encoding/{name}": 1}


def test_a_file_of_many_books_and_a_bad_one(tmp_path):
    path = write(tmp_path, MANY_BOOKS.replace(b"book 4", b"book \0"), "all.txt")
    found, counts = read(path, "books")
    place = MANY_BOOKS.index(b"Licence.", MANY_BOOKS.index(b"book 3"))
    reason = "not plain text: it holds NUL characters"
    assert found.pop(4) == source.Reject(str(path), f"byte {place}", "", reason)
    assert [(book.title, *book.paragraphs) for book in found] == [
        (str(number), f"It was book {number}.") for number in (0, 1, 2, 3, 5, 6, 7, 8)
    ]
    assert len({book.id for book in found}) == 8
    expected = {"items_read": 9, "encoding/utf-8-sig": 8, "cleaned/licences": 8}
    assert counts == expected


def test_parts_of_a_long_book_have_its_title_and_all_of_its_text(tmp_path, monkeypatch):
    monkeypatch.setattr(book_cutter, "MAX_PIECE_BYTES", 1000)
    monkeypatch.setattr(book_cutter, "_WINDOW_BYTES", 200)
    # Like lines of a title page, which are dropped at the beginning of a book.
    paragraphs = [f"London was day {number} of this story." for number in range(200)]
    head = (
        b"Title: Days\n*** START OF THE PROJECT GUTENBERG EBOOK ***\n\nIt began so.\n\n"
    )
    end = b"\n*** END OF THE PROJECT GUTENBERG EBOOK\n\nLicence.\n"
    data = head + "\n\n".join(paragraphs).encode() + end
    found, counts = read(write(tmp_path, data, "days.txt"), "books")
    assert len(found) == counts["items_read"] == 7
    assert {book.title for book in found} == {"Days"}
    assert len({book.id for book in found}) == 7
    texts = [text for book in found for text in book.paragraphs]
    assert texts[0] == "It began so."
    assert texts[-190:] == paragraphs[-190:]


# Which files there are.


def test_inputs_are_sorted_and_each_is_there_once(tmp_path, monkeypatch):
    (tmp_path / "AA").mkdir()
    for name in ("AA/wiki_01", "AA/wiki_00"):
        write(tmp_path, JSONL[0], name)
    book = write(tmp_path, "A book.", "b[1].txt")
    (tmp_path / "link.txt").symlink_to(book)
    monkeypatch.chdir(tmp_path)
    pattern = str(tmp_path / "*" / "wiki_*")
    books = ["b[1].txt", str(tmp_path / "*.txt")]
    jsonl = [pattern, str(tmp_path / "AA" / "wiki_01")]
    found = reading.find_inputs({"books": books, "jsonl": jsonl})
    assert [(item.kind, item.path, item.num_bytes) for item in found] == [
        ("books", "b[1].txt", 7),
        *(
            ("jsonl", str(tmp_path / name), len(JSONL[0]))
            for name in ("AA/wiki_00", "AA/wiki_01")
        ),
    ]


HTML = b"\xef\xbb\xbf\n<!DOCTYPE HTML><html><body>404</body></html>"
CSV = b"text,label\n" + b'"It was good, I think.",pos\nBad.,neg\n' * 3
OTHERS = {
    "an HTML page": HTML,
    "JSON lines: give it to --jsonl": b'{"id": 1, "text": "x"}\n',
    "JSON over several lines: write one object on each line (jq -c .)": b'{\n "id": 1}',
    "a JSON array: write one object on each line (jq -c '.[]')": b'[\n{"id": 1}]',
    "a MediaWiki dump: give it to --wikipedia": DUMP.encode(),
    "the <doc> form of WikiExtractor: extract the dump again": b'<doc id="1">',
    "a PDF: extract its text": b"%PDF-1.7\n%\xe2\xe3",
    "RTF: save it as plain text": b"{\\rtf1\\ansi",
    "mail: extract the bodies": b"From: a@b.c\nSubject: x\n\nHello.\n",
    "mail: ": b"From a@b.c Sat Jan  3 01:05:34 1996\nX: y\n",
    "a ZIP archive, such as .docx": b"PK\x03\x04\x14\0\6\0",
    "packed: unpack it first": b"7z\xbc\xaf\x27\x1c",
    "a table: write its text column as JSON lines": CSV,
    "a table: ": b'x1\t0\tIt was "good.\nx2\t1\tBad.\n' * 3,
}


@pytest.mark.parametrize("start", OTHERS)
def test_the_first_bytes_tell_the_option(tmp_path, start):
    expected = {"books": "a plain-text book", "sentences": "lines of text"}
    expected["jsonl"] = "lines of JSON"
    for kind, what in expected.items():
        for pack in (bytes, gzip.compress):
            path = write(tmp_path, pack(OTHERS[start]))
            message = f"{path}: --{kind}: expected {what}, but this is {start}"
            if "--jsonl" in start and kind == "jsonl" and "it to" in start:
                reading.find_inputs({kind: [str(path)]})
                continue
            with pytest.raises(InputError) as error:
                reading.find_inputs({kind: [str(path)]})
            assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "text",
    [
        "Roses are red, violets are blue\n" * 5,
        "From London, in 1832\nhe wrote.\n",
        "To: my friend\n\nI write this.\n",
        "[Illustration]\n\nIt was so.\n",
        "a cat , a dog\nthe cat , the dog\n" * 9,
    ],
)
def test_plain_text_is_not_taken_for_something_else(tmp_path, text):
    path = write(tmp_path, text)
    inputs = reading.find_inputs({"books": [str(path)], "sentences": [str(path)]})
    assert [item.kind for item in inputs] == ["books", "sentences"]


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("wikipedia", HTML, "expected a MediaWiki export .*, but this is an HTML page"),
        ("jsonl", bz2.compress(b"{}")[:-9], r"has no end \(truncated\)"),
        ("jsonl", '{"id": 1}'.encode("utf-16"), "this is UTF-16: convert it with `ic"),
        ("sentences", "Größe.".encode("utf-16"), "this is UTF-16: convert it with"),
        ("wikipedia", b"BZh9nonsense", "the compressed file is damaged"),
        ("wikipedia", b"", "but the file is empty"),
    ],
)
def test_files_that_are_something_else(tmp_path, kind, data, message):
    path = write(tmp_path, data)
    with pytest.raises(InputError, match=message) as error:
        reading.find_inputs({kind: [str(path)]})
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_nothing_to_read(tmp_path):
    message = "nothing to read: give at least one of --wikipedia, --books, --sentences,"
    with pytest.raises(InputError, match=message):
        reading.find_inputs({"wikipedia": [], "books": ()})
    with pytest.raises(InputError, match=r"^--books: no file matches '.*x\*'$"):
        reading.find_inputs({"books": [str(tmp_path / "x*")]})
    for kind, names in (
        ("books", "*.txt"),
        ("jsonl", "*.jsonl"),
        ("wikipedia", "*.bz2"),
    ):
        with pytest.raises(InputError) as error:
            reading.find_inputs({kind: [f"{tmp_path}/"]})
        message = f"is a directory: give its files, --{kind} '{tmp_path}/{names}'"
        assert str(error.value) == f"{tmp_path}/: {message}"


def test_directories_and_names_that_are_not_utf_8(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    good = write(tmp_path, "It was dark.", "a.txt")
    pattern = str(tmp_path / "*.txt")
    [item] = reading.find_inputs({"books": [pattern]})
    assert item.path == str(good)
    write(tmp_path, "It was late.", os.fsdecode(b"\xe9.txt"))
    with pytest.raises(InputError, match="xe9.txt': expected a file name in UTF-8"):
        reading.find_inputs({"books": [pattern]})


# How they are divided.


def streams(num_streams):
    text = DUMP.encode()
    step = -(-len(text) // num_streams)
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    return b"".join(map(bz2.compress, pieces))


MANY_BOOKS = b"".join(
    b"Title: %d\n*** START OF THE PROJECT GUTENBERG EBOOK ***\nIt was book %d.\n"
    b"*** END OF THE PROJECT GUTENBERG EBOOK ***\nLicence.\n" % (number, number)
    for number in range(9)
)


@pytest.mark.parametrize(
    ("kind", "data", "is_divided"),
    [
        ("wikipedia", DUMP.encode(), True),
        ("wikipedia", streams(4), True),
        ("wikipedia", streams(1), False),
        ("wikipedia", gzip.compress(DUMP.encode(), mtime=0), False),
        ("jsonl", "\n".join(JSONL).encode(), True),
        ("jsonl", gzip.compress("\n".join(JSONL).encode(), mtime=0), False),
        ("books", MANY_BOOKS, True),
    ],
)
def test_ranges(tmp_path, kind, data, is_divided, caplog):
    [item] = reading.find_inputs({kind: [str(write(tmp_path, data))]})
    ranges = reading.split_input(item, max_bytes=150)
    assert (len(ranges) > 1) == is_divided
    assert (ranges[0].start, ranges[-1].stop) == (0, len(data))
    assert all(a.stop == b.start for a, b in zip(ranges, ranges[1:], strict=False))
    if is_divided:
        assert max(part.stop - part.start for part in ranges) <= 150
    assert pickle.loads(pickle.dumps(ranges)) == ranges
    assert reading.split_input(item) == [source.Range(item, 0, len(data))]
    found = [one for p in ranges for one in reading.read_range(p, source.Context())]
    whole = read(item.path, kind)[0]
    assert [one[:1] for one in found] == [one[:1] for one in whole]
    assert not caplog.records


def test_fingerprints_of_files_of_one_name(tmp_path):
    for name in ("AA", "AB"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, name, "wiki_00")
    inputs = reading.find_inputs({"books": [str(tmp_path / "*" / "wiki_00")]})
    found = reading.fingerprints(inputs)
    assert list(found) == ["books wiki_00", "books wiki_00 (2)"]
    for name, facts in zip((b"AA", b"AB"), found.values(), strict=True):
        digest = hashlib.sha256(name).hexdigest()
        assert (facts["bytes"], facts["sha256"]) == (2, digest)


def test_an_empty_file_is_one_range(tmp_path):
    path = write(tmp_path, b"")
    [item] = reading.find_inputs({"jsonl": [str(path)]})
    assert len(reading.split_input(item)) == 1
    assert read(path, "jsonl") == ([], {})
    assert read(path, "sentences") == ([], {})


def test_a_long_dump_of_one_stream_is_warned_of(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(wikipedia, "_LONG_BYTES", 100)
    for data in (streams(4), DUMP.encode(), streams(1)):
        assert not caplog.records
        [item] = reading.find_inputs({"wikipedia": [str(write(tmp_path, data))]})
        with caplog.at_level(logging.WARNING):
            reading.split_input(item, max_bytes=300)
    [record] = caplog.records
    assert record.getMessage().startswith(f"{item.path}: 0.0 GB that cannot be divided")

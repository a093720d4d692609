"""Sources in a store, here one in memory."""

import bz2
import time

import pytest
from obstore import store as object_stores

from bert_keras.core import files, stores
from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import reading, source
from tests.pipelines.sources import test_dump_pages

page_xml = test_dump_pages.page_xml
PAGES = [page_xml(n, f"T{n}", f"Number {n} is a number.").encode() for n in (1, 2, 3)]
STREAMS = [b"<mediawiki>", PAGES[0] + PAGES[1], PAGES[2], b"</mediawiki>"]
LINES = b"Nine is a number .\nit is one more .\n"


@pytest.fixture
def bucket(monkeypatch) -> str:
    scheme = {"ram": lambda bucket, **_: object_stores.MemoryStore()}
    monkeypatch.setattr(stores, "_STORES", stores._STORES | scheme)
    bucket = f"ram://sources{time.monotonic_ns()}"
    for name, data in {
        "dumps/a.xml.bz2": b"".join(map(bz2.compress, STREAMS)),
        "text/AA/nine.txt": LINES,
        "text/AB/nine.txt.bz2": bz2.compress(LINES),
        "books/Ten.txt": b"Ten is a number, and no more.",
        "l.jsonl": b'{"id": 11, "text": "Eleven is one more."}\n',
    }.items():
        files.write_atomically(f"{bucket}/{name}", data)
    return bucket


def test_every_kind_from_a_store(bucket):
    inputs = reading.find_inputs(
        {
            "wikipedia": [f"{bucket}/dumps/*.bz2"],
            "sentences": [f"{bucket}/text/*/nine*"],
            "books": [f"{bucket}/books/Ten.txt"],
            "jsonl": [f"{bucket}/l.jsonl"],
        }
    )
    ranges = [r for item in inputs for r in reading.split_input(item, max_bytes=99)]
    assert len(ranges) > len(inputs)
    found = [
        (document.title, document.paragraphs)
        for part in ranges
        for document in reading.read_range(part, source.Context())
    ]
    assert found == [
        ("Ten", ["Ten is a number, and no more."]),
        ("", ["Eleven is one more."]),
        ("nine", [["Nine is a number .", "it is one more ."]]),
        ("nine.txt", [["Nine is a number .", "it is one more ."]]),
        *((f"T{n}", [f"Number {n} is a number."]) for n in (1, 2, 3)),
    ]


def test_a_changed_file_has_another_fingerprint(bucket):
    inputs = reading.find_inputs({"jsonl": [f"{bucket}/l.jsonl"]})
    before = reading.fingerprints(inputs)
    assert before["jsonl l.jsonl"]["bytes"] == 42
    changed = b'{"id": 12, "text": "Eleven is one more."}\n'
    files.write_atomically(f"{bucket}/l.jsonl", changed)
    assert reading.fingerprints(inputs) != before


def test_a_file_that_is_replaced_while_it_is_read_ends_the_reading(bucket):
    path = f"{bucket}/long.jsonl"
    line = b'{"id": %d, "text": "Eleven is one more."}\n'
    first = b"".join(line % number for number in range(100_000))
    files.write_atomically(path, first)
    [item] = reading.find_inputs({"jsonl": [path]})
    documents = reading.read_range(*reading.split_input(item), source.Context())
    next(documents)
    files.write_atomically(path, first.replace(b"Eleven", b"Twelve"))
    with pytest.raises(InputError, match="long.jsonl: was replaced while it was being"):
        list(documents)


def test_nothing_there(bucket):
    with pytest.raises(InputError, match="--books: no file matches 'ram://sources"):
        reading.find_inputs({"books": [f"{bucket}/novels/*"]})

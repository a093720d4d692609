"""Sources in a store that only Beam's file systems can reach."""

import bz2
import hashlib
import io

import pytest
from apache_beam.io import filesystem

from bert_keras.errors import InputError
from bert_keras.pipelines.sources import readers

STORE: dict[str, bytes] = {}


class StoreFileSystem(filesystem.FileSystem):
    """Files of the scheme `teststore`, held in a dictionary."""

    @classmethod
    def scheme(cls):
        return "teststore"

    def _list(self, dir_or_prefix):
        for path, data in STORE.items():
            if path.startswith(dir_or_prefix):
                yield filesystem.FileMetadata(path, len(data))

    def has_dirs(self):
        return False

    def open(self, path, mime_type="", compression_type="auto"):
        assert compression_type == filesystem.CompressionTypes.UNCOMPRESSED
        if path not in STORE:
            raise filesystem.BeamIOError("not there", {path: KeyError(path)})
        return io.BufferedReader(io.BytesIO(STORE[path]))

    def exists(self, path):
        return path in STORE

    def size(self, path):
        return len(STORE[path])

    def metadata(self, path):
        return filesystem.FileMetadata(path, len(STORE[path]))

    def split(self, path):
        return tuple(path.rsplit("/", 1))

    def _unsupported(self, *_):
        raise NotImplementedError

    def checksum(self, path):
        return hashlib.md5(STORE[path]).hexdigest()

    copy = create = delete = join = last_updated = _unsupported
    mkdirs = rename = _unsupported


def page_xml(number):
    return (
        f"<page><title>T{number}</title><ns>0</ns><id>{number}</id><revision>"
        f"<text>Number {number} is a number.</text></revision></page>"
    ).encode()


STREAMS = [b"<mediawiki>", page_xml(1) + page_xml(2), page_xml(3)]
DOC = (
    b'<doc id="9" url="?curid=9" title="Nine">\nNine\n\nNine is a number too.\n</doc>\n'
)


@pytest.fixture(autouse=True)
def store():
    STORE.clear()
    STORE["teststore://bucket/dumps/a.xml.bz2"] = b"".join(map(bz2.compress, STREAMS))
    STORE["teststore://bucket/text/AA/wiki_00"] = DOC
    STORE["teststore://bucket/text/AB/wiki_00.bz2"] = bz2.compress(DOC)
    STORE["teststore://bucket/books/Ten.txt"] = b"Ten is a number, and no more."
    STORE["teststore://bucket/l.jsonl"] = b'{"id": 11, "text": "Eleven is one more."}\n'


def test_every_kind_from_a_store():
    inputs = readers.find_inputs(
        {
            "wikipedia": ["teststore://bucket/dumps/*.bz2"],
            "wikiextractor": ["teststore://bucket/text/*/wiki_*"],
            "books": ["teststore://bucket/books/Ten.txt"],
            "jsonl": ["teststore://bucket/l.jsonl"],
        }
    )
    ranges = [
        part for item in inputs for part in readers.split_input(item, max_bytes=99)
    ]
    assert len(ranges) > len(inputs)
    found = [
        (document.title, document.paragraphs)
        for part in ranges
        for document in readers.read_range(part, lambda _: None, lambda *_: None)
    ]
    assert found == [
        ("Ten", ["Ten is a number, and no more."]),
        ("", ["Eleven is one more."]),
        ("Nine", ["Nine is a number too."]),
        ("Nine", ["Nine is a number too."]),
        *((f"T{n}", [f"Number {n} is a number."]) for n in (1, 2, 3)),
    ]


def test_a_changed_file_has_another_fingerprint():
    inputs = readers.find_inputs({"jsonl": ["teststore://bucket/l.jsonl"]})
    before = readers.fingerprints(inputs)
    assert before["jsonl l.jsonl"]["bytes"] == 42
    STORE["teststore://bucket/l.jsonl"] = b'{"id": 12, "text": "Eleven is one more."}\n'
    assert readers.fingerprints(inputs) != before


def test_nothing_there():
    with pytest.raises(InputError, match="--books: no file matches 'teststore://buc"):
        readers.find_inputs({"books": ["teststore://bucket/novels/*"]})

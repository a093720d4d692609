import errno
import gzip
import io
import json

import pytest

from bert_keras.core import files
from bert_keras.core.errors import InputError, Unavailable
from bert_keras.data import corpora
from bert_keras.pipelines import records

DOCUMENT = {"id": "a", "source": "s", "title": "é", "paragraphs": [["One.", "Two."]]}
LINE = json.dumps(DOCUMENT, ensure_ascii=False).encode()


def test_round_trip(tmp_path):
    path = tmp_path / "d.jsonl.gz"
    shard = records.write_hashed(path, iter([LINE + b"\n"] * 2), level=4)
    assert list(corpora.read_shard(path)) == [DOCUMENT, DOCUMENT]
    assert gzip.decompress(path.read_bytes()) == LINE + b"\n" + LINE + b"\n"
    again = records.write_hashed(tmp_path / "b", [LINE + b"\n"] * 2, level=4)
    assert again.sha256 == shard.sha256


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"plain text", "line 0: expected a document of .*corpus"),
        (gzip.compress(LINE + b"\n", mtime=0)[:-9], "line [01]: expected a document"),
        (gzip.compress(LINE + b"\n{\n", mtime=0), "line 2: expected a document"),
        (gzip.compress(b"[1]\n", mtime=0), "line 1: .*found a list"),
        (b"\x1f\x8b\x08" + bytes(7) + b"\xff", "invalid block type; recreate the corp"),
        (gzip.compress(b'{"id": 1, "source": 2}\n', mtime=0), "paragraphs is missing"),
        (gzip.compress(b"\xff\n", mtime=0), "line 1: expected a document"),
        (gzip.compress(b"[" * 100_000, mtime=0), "line 1: .* recursion depth"),
        *(
            # A time would give the test another name in each process.
            (
                gzip.compress(json.dumps(DOCUMENT | change).encode(), mtime=0),
                f"line 1: .*{why}",
            )
            for change, why in (
                ({"id": 5}, "int found"),
                ({"title": 5}, "int found"),
                ({"paragraphs": None}, "not iterable"),
                ({"paragraphs": "One. Two."}, "are not lists of sentences"),
                ({"paragraphs": ["One. Two."]}, "are not lists of sentences"),
                ({"paragraphs": [[1]]}, "int found"),
            )
        ),
    ],
)
def test_a_shard_that_is_none(data, message, tmp_path):
    path = tmp_path / "d.jsonl.gz"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        list(corpora.read_shard(path))


@pytest.mark.parametrize(
    "error", [OSError(errno.ESTALE, "Stale file handle", "d"), Unavailable("d: down")]
)
def test_a_disk_or_store_that_does_not_answer(error, monkeypatch):
    """The corpus is well, and no reason to make it again."""

    class Failing(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            raise error

    monkeypatch.setattr(files, "open_to_read", lambda path: Failing())
    with pytest.raises(type(error)) as caught:
        list(corpora.read_shard("d"))
    assert caught.value is error

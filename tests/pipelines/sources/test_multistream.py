"""bzip2 files as events, literally."""

import bz2
import gzip
import io
import random

import pytest

from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import multistream

TEXTS = (b"one", b"", b"two" * 100, b"three")
PACKED = tuple(map(bz2.compress, TEXTS))
FILE = b"".join(PACKED)
GZIP = gzip.compress(b"x", mtime=0)
STARTS = [sum(map(len, PACKED[:n])) for n in range(len(PACKED))]


def test_has_streams(monkeypatch):
    assert multistream.has_streams(io.BytesIO(FILE))
    assert not multistream.has_streams(io.BytesIO(PACKED[2]))
    long = bz2.compress(random.Random(0).randbytes(10_000))
    assert multistream.has_streams(io.BytesIO(long + FILE))
    monkeypatch.setattr(multistream, "_SEARCHED_BYTES", 10_000)
    assert not multistream.has_streams(io.BytesIO(long + FILE))


def test_read_all(caplog):
    for data, name, expected in (
        *((FILE, "bz2", b"".join(TEXTS)), (GZIP, "gz", b"x")),
        *((GZIP + bytes(99) + GZIP + bytes(99), "gz", b"xx"), (b"x", None, b"x")),
        (b"", None, b""),
    ):
        file = io.BytesIO(data)
        assert multistream.compression(file) == name
        assert b"".join(multistream.read_all(file, "f")) == expected
    assert not caplog.text
    # Bytes that are no further member of a gzip file are ignored.
    file = io.BytesIO(GZIP + bytes(9) + b"rubbish")
    assert b"".join(multistream.read_all(file, "f")) == b"x"
    assert "ignores the bytes after the last gzip member, as gunzip" in caplog.text


TRUNCATED = "f: the compressed file ends in the middle (truncated); copy or"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (FILE[:-1], TRUNCATED),
        (b"BZh9nonsense", "damaged (it does not begin as a bzip2 file does)"),
        (PACKED[0] + b"x" + PACKED[3], "damaged (bytes that are no bzip2 stream, at"),
        (
            PACKED[0] + b"\0\0rubbish" + PACKED[3],
            f"damaged (bytes that are no bzip2 stream, at byte {STARTS[1]})",
        ),
        (
            FILE[: STARTS[2] + 20] + b"?" + FILE[STARTS[2] + 21 :],
            f"damaged (Invalid data stream, in the stream at byte {STARTS[2]})",
        ),
        (b"\x1f\x8b" + bytes(99), "damaged (Unknown compression method)"),
        (GZIP[:-1], TRUNCATED),
        (GZIP + GZIP[:10] + b"\xff" * 9, "damaged (Error -3 while decompressing"),
    ],
)
def test_a_bad_file(data, message):
    message = message.replace("damaged (", "f: the compressed file is damaged (")
    with pytest.raises(InputError) as error:
        list(multistream.read_all(io.BytesIO(data), "f"))
    assert str(error.value).startswith(message)
    assert str(error.value).endswith("copy or download it again")


def test_the_end_is_found_at_any_bit(caplog):
    """With texts of many lengths, streams end at each bit of a byte."""
    choose = random.Random(1)
    for number in range(30):
        data = PACKED[0] + bz2.compress(choose.randbytes(100 + number))
        multistream.check_end(io.BytesIO(data + bytes(5)), "a")
        assert not caplog.records
        multistream.check_end(io.BytesIO(data + b"rubbish"), "a")
        assert caplog.messages[0].startswith("a: ignores the last 7 bytes")
        caplog.clear()
        with pytest.raises(InputError, match="truncated"):
            multistream.check_end(io.BytesIO(data[:-11]), "a")

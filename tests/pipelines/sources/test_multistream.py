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
STARTS = [sum(map(len, PACKED[:n])) for n in range(len(PACKED))]


def read(data, start=0, stop=None):
    stop = len(data) if stop is None else stop
    return list(multistream.read_streams(io.BytesIO(data), "f", start, stop))


def events(first):
    found = []
    for start, text in list(zip(STARTS, TEXTS, strict=True))[first:]:
        found += [multistream.StreamStart(start), *([text] if text else [])]
    return found


@pytest.mark.parametrize("chunk", [1, 9, 10, 1 << 18])
def test_streams_are_found_from_any_byte_on(monkeypatch, chunk):
    monkeypatch.setattr(multistream, "CHUNK_BYTES", chunk)
    for start in range(len(FILE)):
        first = sum(begin < start for begin in STARTS)
        assert merged(read(FILE, start)) == events(first), start


def merged(found):
    """Joins what was handed out in small chunks."""
    result = []
    for event in found:
        if isinstance(event, bytes) and result and isinstance(result[-1], bytes):
            result[-1] += event
        else:
            result.append(event)
    return result


def test_no_stream_is_looked_for_beyond_the_stop():
    for stop in range(STARTS[2] + 1):
        assert read(FILE, STARTS[1] + 1, stop) == []
    assert read(FILE, STARTS[1] + 1, STARTS[2] + 1) == events(2)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (
            [*PACKED[:2], PACKED[2][:20] + b"?" + PACKED[2][21:], PACKED[3]],
            f"Invalid data stream, in the stream at byte {STARTS[2]}",
        ),
        (
            [PACKED[0], b"\0\0rubbish", PACKED[3]],
            f"bytes that are no bzip2 stream, at byte {len(PACKED[0]) + 2}",
        ),
    ],
)
def test_damage(parts, reason):
    with pytest.raises(InputError) as error:
        read(b"".join(parts))
    assert str(error.value) == (
        f"f: the compressed file is damaged ({reason}); copy or download it again"
    )


def test_a_file_that_ends_within_a_stream():
    with pytest.raises(InputError, match="ends in the middle"):
        read(FILE[:-1])


def test_has_streams(monkeypatch):
    assert multistream.has_streams(io.BytesIO(FILE))
    assert not multistream.has_streams(io.BytesIO(PACKED[2]))
    long = bz2.compress(random.Random(0).randbytes(10_000))
    assert multistream.has_streams(io.BytesIO(long + FILE))
    monkeypatch.setattr(multistream, "_SEARCHED_BYTES", 10_000)
    assert not multistream.has_streams(io.BytesIO(long + FILE))


@pytest.mark.parametrize(
    ("data", "name"),
    [(FILE, "bz2"), (gzip.compress(b"x", mtime=0), "gz"), (b"x", None), (b"", None)],
)
def test_read_all(data, name):
    file = io.BytesIO(data)
    expected = {"bz2": b"".join(TEXTS), "gz": b"x", None: data}[name]
    assert multistream.compression(file) == name
    assert b"".join(multistream.read_all(file, "f")) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (FILE[:-1], "f: the compressed file ends in the middle (truncated); copy or "),
        (b"BZh9nonsense", "f: the compressed file is damaged (it does not begin as a "),
        (
            PACKED[0] + b"x" + PACKED[3],
            "f: the compressed file is damaged (bytes that are no bzip2",
        ),
        (
            b"\x1f\x8b" + bytes(99),
            "f: the compressed file is damaged (Error -3 while decompressing",
        ),
        (
            gzip.compress(b"x", mtime=0)[:-1],
            "f: the compressed file ends in the middle (trunc",
        ),
    ],
)
def test_read_all_of_a_bad_file(data, message):
    with pytest.raises(InputError) as error:
        list(multistream.read_all(io.BytesIO(data), "f"))
    assert str(error.value).startswith(message)
    assert str(error.value).endswith("copy or download it again")


def test_progress_counts_the_range_only():
    file, steps = io.BytesIO(bytes(100)), []
    progress = multistream.Progress(file, 20, 60, steps.append)
    for position in (10, 25, 25, 50, 80):
        file.seek(position)
        progress.update()
    progress.finish()
    assert steps == [5, 25, 10]


def test_the_end_is_found_at_any_bit(caplog):
    """With texts of many lengths, streams end at each bit of a byte."""
    choose = random.Random(1)
    for number in range(40):
        data = PACKED[0] + bz2.compress(choose.randbytes(100 + number))
        multistream.check_end(io.BytesIO(data + bytes(5)), "a")
        assert not caplog.records
        multistream.check_end(io.BytesIO(data + b"rubbish"), "a")
        assert caplog.messages[0].startswith("a: ignores the last 7 bytes")
        caplog.clear()
        with pytest.raises(InputError, match="truncated"):
            multistream.check_end(io.BytesIO(data[:-11]), "a")

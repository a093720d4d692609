"""Lines from any byte on, against `splitlines` by hand."""

import random

from bert_keras.pipelines.sources import multistream, text_lines


def lines_by_hand(data):
    lines = data.split(b"\n")
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line) + 1)
    found = list(zip(offsets, lines, strict=False))
    return found if lines[-1] else found[:-1]


def read(path, start):
    with open(path, "rb") as file:
        return list(text_lines.read_lines(file, str(path), start))


def test_lines_from_every_byte_on(tmp_path, monkeypatch):
    rng = random.Random(0)
    path = tmp_path / "lines"
    for end in (b"", b"\n", b"\n\n"):
        data = bytes(rng.choice(b"ab\r\n\n") for _ in range(60)) + b"c" + end
        path.write_bytes(data)
        for chunk in (1, 7, 1000):
            monkeypatch.setattr(multistream, "CHUNK_BYTES", chunk)
            for start in range(len(data) + 1):
                expected = [line for line in lines_by_hand(data) if line[0] >= start]
                assert read(path, start) == expected


def test_a_long_line_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", 100)
    path = tmp_path / "lines"
    for chunk in (1, 30, 1000):
        monkeypatch.setattr(multistream, "CHUNK_BYTES", chunk)
        path.write_bytes(
            b"a\n" + b"x" * 99 + b"\n" + b"y" * 200 + b"\nb\n" + b"z" * 101
        )
        assert read(path, 0) == [
            *((0, b"a"), (2, b"x" * 99), (102, None), (303, b"b"), (305, None)),
        ]

import io

import pytest

from bert_keras.data import tfrecords


def test_frame_bytes():
    expected = "0500000000000000 eab2043e 746f6b656e d7cd7bc9"
    assert tfrecords.frame(b"token") == bytes.fromhex(expected)


def test_damage_and_a_cut_are_told_apart():
    data = tfrecords.frame(b"first") + tfrecords.frame(b"second")
    assert list(tfrecords.read_frames(io.BytesIO(data))) == [b"first", b"second"]
    for length in set(range(len(data))) - {0, 21}:
        with pytest.raises(tfrecords.DamagedRecord) as raised:
            list(tfrecords.read_frames(io.BytesIO(data[:length])))
        assert raised.value.is_cut
        assert raised.value.offset == (0 if length < 21 else 21)
    for position, reason in (
        (21, "no record begins there"),
        (21 + 8, "no record begins there"),
        (21 + 12, "its checksum differs"),
        (len(data) - 1, "its checksum differs"),
    ):
        damaged = bytearray(data)
        damaged[position] ^= 1
        frames = tfrecords.read_frames(io.BytesIO(damaged))
        assert next(frames) == b"first"
        with pytest.raises(tfrecords.DamagedRecord, match=reason) as raised:
            next(frames)
        assert (raised.value.offset, raised.value.is_cut) == (21, False)

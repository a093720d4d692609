import errno
import os

import pytest

from bert_keras.core import errors


def test_a_long_message_of_several_lines_becomes_a_short_line():
    assert errors.one_line(ValueError("a\n  b\tc ")) == "a b c"
    assert errors.one_line(ValueError("ab " * 200)) == ("ab " * 100)


def test_a_message_is_one_line_whatever_a_file_holds():
    error = errors.InputError("no 'a\nb\r\x1b[2J\x85\u2028', there: é 好")
    assert str(error) == r"no 'a\nb\r\x1b[2J\x85\u2028', there: é 好"


def test_the_nearest_name():
    for name, known, expected in (
        ("hiden", ("hidden", "width"), "; did you mean 'hidden'?"),
        ("x", ("hidden", "width"), ""),
        # The dashes of options are no likeness.
        ("--gpu", ("--log", "--quiet"), ""),
        ("--quite", ("--log", "--quiet"), "; did you mean '--quiet'?"),
    ):
        assert errors.nearest(name, known) == expected


@pytest.mark.parametrize(
    ("number", "way_out"),
    [
        (errno.ENOSPC, "make room, or choose another place"),
        (errno.EACCES, "get the right to write there, or choose another place"),
        (errno.EROFS, "get the right to write there, or choose another place"),
        (errno.ENOTDIR, "choose another place"),
    ],
)
def test_room_is_asked_for_where_it_is_missing(number, way_out):
    reason = os.strerror(number)
    assert str(errors.not_writable("x", OSError(number, reason))) == (
        f"x: cannot be written: {reason}; {way_out}, and run the same command again"
    )

from bert_keras.core import errors


def test_a_long_message_of_several_lines_becomes_a_short_line():
    assert errors.one_line(ValueError("a\n  b\tc ")) == "a b c"
    assert errors.one_line(ValueError("ab " * 200)) == ("ab " * 100)


def test_a_message_is_one_line_whatever_a_file_holds():
    error = errors.InputError("no 'a\nb\r\x1b[2J\x85\u2028', there: é 好")
    assert str(error) == r"no 'a\nb\r\x1b[2J\x85\u2028', there: é 好"


def test_the_nearest_name():
    assert errors.nearest("hiden", ("hidden", "width")) == "; did you mean 'hidden'?"
    assert errors.nearest("x", ("hidden", "width")) == ""

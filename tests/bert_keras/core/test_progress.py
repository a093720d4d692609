import json
import logging
import time

import pytest

from bert_keras.core import messages, progress


@pytest.mark.parametrize(
    ("done", "total", "unit", "expected"),
    [
        (0, 1000, "words", "starting, 0:00:10"),
        (250, 1000, "words", " 25%  250 words  25 words/s  0:00:30 left"),
        (1, 1000, "words", "  0%  1 words  6 words/min  2:46:30 left"),
        # More than was foreseen is all of it.
        (1200, 1000, "words", "100%  1,200 words  120 words/s  0:00:00 left"),
        (2_500_000, 5_000_000, "bytes", " 50%  2.5 MB  0.2 MB/s  0:00:10 left"),
        (9_000, 10_000, "bytes", " 90%  9.0 kB  0.9 kB/s  0:00:01 left"),
    ],
)
def test_line(done, total, unit, expected):
    made = progress.Progress("read", total=total, unit=unit, read=lambda: done)
    assert made.line(done, 10) == f"read: {expected}"


def test_time_left_is_that_of_the_last_minute():
    made = progress.Progress("read", total=1000, unit="pages", read=lambda: 0)
    assert made.line(0, 300) == "read: starting, 0:05:00"
    assert made.line(10, 310) == "read:   1%  10 pages  1 pages/s  0:16:30 left"
    for seconds in range(320, 400, 10):
        made.line(100 + seconds, seconds)
    # From 430 pages after 330 seconds.
    assert made.line(730, 390) == "read:  73%  730 pages  5 pages/s  0:00:54 left"
    made = progress.Progress("read", total=1000, unit="pages", read=lambda: 0)
    made.line(500, 10)
    for seconds in range(20, 90, 10):
        last = made.line(500, seconds)
    assert last == "read:  50%  500 pages  waiting"


def work():
    with progress.Progress("vocab", total=1, unit="words", read=lambda: 1):
        logging.getLogger("bert_keras.pipelines.x").info("as it was")
        logging.getLogger("bert_keras.pipelines.x").warning("look")


@pytest.fixture
def as_before():
    yield
    messages.configure()


def test_quiet(capsys, as_before):
    messages.configure(quiet=True, as_json=True)
    work()
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "look"
    messages.configure(quiet=True)
    work()
    assert "vocab" not in capsys.readouterr().err


def test_json(capsys, as_before):
    messages.configure(as_json=True)
    work()
    messages.print_final_error("bert-keras: error: no")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [
        ("info", "as it was"),
        ("warning", "look"),
        ("info", "vocab: done in 0:00:00"),
        ("error", "bert-keras: error: no"),
    ]
    assert abs(lines[0]["time"] - time.time()) < 60


def test_durations():
    for seconds, text in ((0.4, "0:00:00"), (59.6, "0:01:00"), (93662, "26:01:02")):
        assert progress.duration(seconds) == text


def test_nothing_is_said_of_what_failed(capsys):
    with pytest.raises(ValueError):
        with progress.Progress("vocab", total=1, unit="words", read=lambda: 1):
            raise ValueError
    assert "done" not in capsys.readouterr().err

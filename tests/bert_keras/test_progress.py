import io

from bert_keras import progress


def line(done, seconds, *, total=1000, unit="documents"):
    made = progress.Progress("examples", total=total, unit=unit, read=lambda: done)
    return made.line(done, seconds)


def test_line():
    assert line(0, 3) == "examples: starting, 0:00:03"
    assert (
        line(250, 10) == "examples:  25%  250 documents  25 documents/s  0:00:30 left"
    )
    assert line(2_500_000, 10, total=5_000_000, unit="bytes") == (
        "examples:  50%  2.5 MB  0.2 MB/s  0:00:10 left"
    )
    assert line(1, 10) == "examples:   0%  1 documents  0 documents/s  2:46:30 left"


def test_durations():
    assert progress.duration(0.4) == "0:00:00"
    assert progress.duration(59.6) == "0:01:00"
    assert progress.duration(26 * 3600 + 62) == "26:01:02"


def test_more_work_than_was_foreseen_is_all_of_it():
    assert "100%" in line(1200, 10)


def test_nothing_is_said_of_what_failed(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    try:
        with progress.Progress("vocab", total=1, unit="words", read=lambda: 1):
            raise ValueError
    except ValueError:
        pass
    assert "done" not in stream.getvalue()
    with progress.Progress("vocab", total=1, unit="words", read=lambda: 1):
        pass
    assert "vocab: done in 0:00:00" in stream.getvalue()

"""A job of three steps, on both engines, killed and run again."""

import errno
import functools
import os
import pickle
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from bert_keras.core.errors import InputError, Unavailable
from bert_keras.pipelines.engine import engines, passes, steps
from tests.pipelines import plain_engine

TEXTS = ("to be or not to be", "that is the question", "be that as it may", "")
NUM_KEYS = 5
BEAM = ["--runner=FnApiRunner"]


class Split(steps.Step):
    """A text -> its words, by length; and its length, by parity."""

    writes = ("words", "lengths")

    def process(self, text):
        self._job(text)
        words = text.split()
        for word in words:
            key = len(word) % NUM_KEYS
            yield steps.Send("words", key, word.encode())
        yield steps.Send("lengths", len(words) % 2, b"%d" % len(words))
        self._heartbeat.add(len(text))
        yield steps.counted({"texts": 1, "words": len(words)})


class Sum(steps.Step):
    """Lengths of one parity -> their sum, into another shuffle."""

    reads, writes = ("lengths",), ("sums",)

    def process(self, element):
        parity, groups = element
        total = sum(map(int, groups["lengths"]))
        yield steps.Send("sums", total % NUM_KEYS, b"%d" % total)
        yield steps.counted({}, parity=parity)


class Count(steps.Step):
    """Words of one length, and sums -> their counts."""

    reads = ("words", "sums")

    def process(self, element):
        key, groups = element
        counts = Counter(word.decode() for word in groups["words"])
        sums = sorted(map(int, groups["sums"]))
        yield steps.counted(
            {"distinct": len(counts)}, key=key, counts=counts, sums=sums
        )


def nothing(text):
    pass


def make_job(work_dir, before=nothing, texts=TEXTS):
    return steps.Job(
        title="count",
        items=[steps.Item(value=text, num_bytes=len(text) + 1) for text in texts],
        steps=(Split, Sum, Count),
        settings=before,
        shuffles={"words": NUM_KEYS, "lengths": 2, "sums": NUM_KEYS},
        work_dir=str(work_dir),
    )


def digest(results):
    """What a run gave, whatever the order."""
    counted = {r["key"]: (r["counts"], r["sums"]) for r in results if "key" in r}
    parities = sorted(r["parity"] for r in results if "parity" in r)
    return counted, parities, steps.sum_counters(results)


EXPECTED = (
    {
        2: ({"to": 2, "be": 3, "or": 1, "is": 1, "as": 1, "it": 1}, []),
        3: ({"not": 1, "the": 1, "may": 1, "question": 1}, []),
        4: ({"that": 2}, []),
        # Texts of 6, 4 and 0 words, and one of 5.
        0: ({}, [5, 10]),
    },
    [0, 1],
    {"distinct": 11, "texts": 4, "words": 15},
)


@pytest.mark.parametrize(
    "runner", ["FnApi", pytest.param("BundleBasedDirect", marks=pytest.mark.slow)]
)
def test_every_runner_gives_the_same(runner, tmp_path):
    plain = plain_engine.PlainEngine()
    assert digest(plain.run(make_job(tmp_path / "plain"))) == EXPECTED
    engine = engines.make_engine([f"--runner={runner}Runner"])
    assert digest(engine.run(make_job(tmp_path / "w"))) == EXPECTED


def test_heartbeats_add_up(tmp_path):
    (tmp_path / "another process").write_text("7")
    original = steps.Heartbeat(str(tmp_path))
    for _ in range(3):
        copy = pickle.loads(pickle.dumps(original))
        copy.add(5)
    copy.flush()
    assert steps.sum_of_heartbeats(tmp_path) == 7 + 5 * 3


def test_many_small_passes_give_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(passes, "PASS_BYTES", 1)
    assert digest(run(make_job(tmp_path), num_workers=3)) == EXPECTED
    assert len(list(tmp_path.glob("Split/*.done"))) == len(TEXTS)
    lines = capsys.readouterr().err.splitlines()
    names = [line.rpartition(" done in ")[0] for line in lines]
    assert names == ["count: split:", "count: sum:", "count: count:"]
    assert type("_FindDuplicates", (Sum,), {})(None, None).title == "find duplicates"


def run(job, *, num_workers=1, memory_limit=4 * 10**9):
    return passes.Passes(num_workers=num_workers, memory_limit=memory_limit).run(job)


def die_once(flag, text):
    if text.startswith("that") and not os.path.exists(flag):
        Path(flag).touch()
        os._exit(137)


def test_a_pass_whose_process_dies_is_tried_again(tmp_path):
    job = make_job(tmp_path / "w", functools.partial(die_once, f"{tmp_path}/flag"))
    assert digest(run(job)) == EXPECTED
    assert (tmp_path / "flag").exists()


def die(text):
    os._exit(137)


@pytest.mark.slow
def test_a_worker_of_beam_that_dies_ends_the_job(tmp_path):
    """Beam would wait for ever."""
    program = (
        "from bert_keras.core import errors\n"
        "from tests.pipelines.engine import test_jobs as t\n"
        "try: t.engines.make_engine(t.BEAM, num_workers=2).run(\n"
        f"  t.make_job({str(tmp_path / 'w')!r}, t.die))\n"
        "except errors.InputError as error: print(error, flush=True)\n"
        "t.os._exit(2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, '')\n{program}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert re.fullmatch(
        r"a worker process died \(.* return code 137\), perhaps for want of memory: "
        r"use fewer --workers\n",
        done.stdout,
    ), done.stderr


def test_a_pass_that_dies_again_and_again(tmp_path):
    with pytest.raises(InputError) as caught:
        run(make_job(tmp_path, die, texts=TEXTS[:1]))
    assert str(caught.value) == (
        "a worker process died 3 times at the same place (Split, exit code 137), "
        "perhaps for want of memory: use fewer --workers, then run the same command "
        "again"
    )


def fail_with(error, text):
    raise error


STALE = OSError(errno.ESTALE, "Stale file handle", "book-\udce9.txt")


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (InputError("expected verse"), InputError, "^expected verse$"),
        (ZeroDivisionError("x"), RuntimeError, "(?s)Traceback.*fail_with.*Zero.*: x"),
        (Unavailable("no answer"), Unavailable, "^no answer$"),
        (STALE, OSError, "Stale file handle: 'book-.*txt'"),
    ],
)
def test_what_is_raised_in_a_pass(tmp_path, error, raised, message):
    job = make_job(tmp_path, functools.partial(fail_with, error))
    with pytest.raises(raised, match=message) as caught:
        run(job)
    if raised is OSError:
        assert caught.value.filename == "book-\udce9.txt"
    if raised is RuntimeError:
        with pytest.raises(ZeroDivisionError, match="^x .while running 'Split"):
            engines.make_engine(BEAM).run(job)


def note(path, stop_at, text):
    with open(path, "a") as file:
        file.write(f"{text}\n")
    if text.startswith(stop_at):
        raise InputError("stop")


def test_a_job_that_was_stopped_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "PASS_BYTES", 1)
    log, work = tmp_path / "log", tmp_path / "w"
    with pytest.raises(InputError, match="stop"):
        run(make_job(work, functools.partial(note, str(log), "be that")))
    assert log.read_text().splitlines() == list(TEXTS[:3])
    monkeypatch.setattr(passes, "PASS_BYTES", 1000)  # other passes than before
    log.unlink()
    job = make_job(work, functools.partial(note, str(log), "never"))
    assert digest(run(job, num_workers=2)) == EXPECTED
    assert sorted(log.read_text().splitlines()) == sorted(TEXTS[2:])


def test_passes_of_another_job_with_the_same_remote_output(tmp_path, monkeypatch):
    """The first was stopped, its output deleted, and the second has other settings."""
    stored = {}

    def read(path):
        if path not in stored:
            raise FileNotFoundError(path)
        return stored[path]

    monkeypatch.setattr(passes.files, "read_bytes", read)
    monkeypatch.setattr(passes.files, "write_atomically", stored.__setitem__)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = passes._local_directory("gs://bucket/out/.work")
    assert passes._local_directory("gs://bucket/out/.work") == first
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    (name,) = stored
    assert name == "gs://bucket/out/.work/token"
    stored.clear()  # the output was deleted
    assert passes._local_directory("gs://bucket/out/.work") != first


def test_progress_counts_what_is_done_and_what_is_read(tmp_path):
    """Whole passes by their size, those that run by what they have read."""
    planned = [
        passes.Pass(make_job(tmp_path), "Split", units, {}, str(tmp_path))
        for units in ((0, 1), (2,), (3,))
    ]
    sizes = {0: 10, 1: 20, 2: 40, 3: 80}
    heartbeats = tmp_path / "000002-000002.heartbeats"
    heartbeats.mkdir()
    assert passes._bytes_read(planned, sizes) == 0
    for path, text, expected in (
        (heartbeats / "1", "7", 7),
        (tmp_path / "000000-000001.done", "", 37),
        (tmp_path / "000002-000002.done", "", 70),
    ):
        path.write_text(text)
        assert passes._bytes_read(planned, sizes) == expected


def test_what_a_killed_pass_had_read_counts_no_more(tmp_path):
    heartbeats = tmp_path / "000000-000000.heartbeats"
    heartbeats.mkdir()
    (heartbeats / "1").write_text("7")
    passes._do(passes.Pass(make_job(tmp_path), "Split", (0,), {}, str(tmp_path)))
    assert steps.sum_of_heartbeats(heartbeats) == sum(map(len, TEXTS))


def test_memory_that_is_not_enough(tmp_path, monkeypatch):
    with pytest.raises(InputError) as caught:
        run(make_job(tmp_path), num_workers=4, memory_limit=5 * 10**8)
    assert str(caught.value) == (
        "--memory_limit 0.5 GB is too little for 4 workers: give at least 0.8 GB, or "
        "fewer --workers"
    )
    monkeypatch.setattr(passes, "_LEAST_WORK_BYTES", 50)
    monkeypatch.setattr(passes, "_PROCESS_BYTES", 0)
    with pytest.raises(InputError) as caught:
        run(make_job(tmp_path), memory_limit=50)
    assert str(caught.value) == (
        "shard 2 of Count would take 0.0 GB of memory, a worker may take 0.0 GB: give "
        "more --memory_limit, fewer --workers or more --num_shards"
    )


SCRIPT = """\
from bert_keras.core import errors
from bert_keras.core.settings import pipelines
from bert_keras.pipelines import corpus
from bert_keras.pipelines.engine import engines

def work():
    try:
        corpus.build_corpus(
            "corpus",
            sources={"books": ["book.txt"]},
            config=pipelines.CorpusConfig(),
            engine=engines.make_engine(num_workers=2),
        )
    except errors.InputError as error:
        raise SystemExit(str(error))

"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    """A worker process imports the script that started it, as multiprocessing does."""

    def run_script(last_lines):
        (tmp_path / "script.py").write_text(SCRIPT + last_lines)
        return subprocess.run(
            [sys.executable, "script.py"],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    (tmp_path / "book.txt").write_text("It was the best of times, it was so.\n" * 9)
    bare = run_script("work()\n")
    assert bare.returncode == 1
    assert bare.stderr.splitlines()[-1] == (
        "a worker process began to run this program's script again instead of its "
        'share of the work: put the calls of the script under `if __name__ == "'
        '__main__":`'
    )
    assert "Traceback" not in bare.stderr
    guarded = run_script('if __name__ == "__main__":\n    work()\n')
    assert guarded.returncode == 0, guarded.stderr
    assert (tmp_path / "corpus/manifest.json").exists()


def wait(path, text):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(60)


@pytest.mark.slow
def test_workers_end_with_their_supervisor(tmp_path):
    """Even when it is killed and can tell nobody."""
    program = (
        "import sys; sys.path.insert(0, '')\n"
        "from tests.pipelines.engine import test_jobs as t\n"
        f"job = t.make_job({str(tmp_path / 'w')!r},\n"
        f"  t.functools.partial(t.wait, {str(tmp_path / 'pids')!r}))\n"
        "if __name__ == '__main__': t.run(job, num_workers=2)\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", program])
    wait_for(lambda: (tmp_path / "pids").exists())
    time.sleep(1)
    supervisor.kill()
    supervisor.wait()
    pids = (tmp_path / "pids").read_text().split()
    assert pids
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def wait_for(is_true):
    deadline = time.monotonic() + 50
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.1)

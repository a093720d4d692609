"""Sweeps at work, with a program that only pretends to fine-tune."""

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError, Stopped
from bert_keras.core.settings import sweeps
from bert_keras.lab.sweep import planning, running, summary

FAKE = (sys.executable, str(Path(__file__).with_name("fake_finetune.py")))


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text(f"text\tlabel\n{name}\ta\nother\tb\n")
    (tmp_path / "init").write_text("weights")
    return tmp_path


def command_in(folder: Path, *, train="train.tsv", dev="dev.tsv", **changes):
    files = planning.Fold(None, str(folder / train), (str(folder / dev),))
    common = {"folds": (files,), "overrides": ("seed=7",), "init": str(folder / "init")}
    return planning.Command(**(common | changes))


def run(folder: Path, rates, *, num_jobs=2, runner=FAKE, **changes):
    keys = {"grid", "num_restarts", "metric"} & changes.keys()
    settings = {"grid": {"learning_rate": rates}} | {k: changes.pop(k) for k in keys}
    command, output_dir = command_in(folder, **changes), folder / "out"
    options = {"output_dir": output_dir, "num_jobs": num_jobs, "runner": runner}
    state = running.run_sweep(sweeps.SweepConfig(**settings), command, **options)
    return summary.lines(state)


def calls(folder: Path) -> list[str]:
    """The runs that were begun since this was last asked."""
    path = folder / "calls.txt"
    names = path.read_text().splitlines() if path.is_file() else []
    path.unlink(missing_ok=True)
    return sorted(names)


def rows(folder: Path) -> list[dict[str, str]]:
    header, *lines = (folder / "out/results.tsv").read_text().splitlines()
    return [dict(zip(header.split("\t"), x.split("\t"), strict=True)) for x in lines]


def test_the_metric_is_that_of_the_tags(folder):
    """The program answers as plain tags do: without F1."""
    (folder / "dev.txt").write_text("x O\n")
    files = {"train": "train.txt", "dev": "dev.txt"}
    (folder / "train.txt").write_text("x NN\nx VB\n")
    assert "accuracy" in run(folder, [5e-5], task="tagging", **files)[-1]
    shutil.rmtree(folder / "out")
    (folder / "train.txt").write_text("x B-PER\nx O\n")
    with pytest.raises(InputError, match="`metric` is one of loss, acc.* 'f1'"):
        run(folder, [5e-5], task="tagging", **files)


def test_all_that_can_become_of_runs(folder, caplog, monkeypatch):
    monkeypatch.undo()
    caplog.set_level(logging.INFO)
    lines = run(folder, [5e-5, 3e-5, 1.0, 2.0, 3.0, 5.0, 6.0])
    name = "learning_rate={},seed=7"
    chosen = name.format("3e-05")
    assert lines[2:] == [
        "| 5e-05 | 1 | 0.5800 |  | 0.5800 | 0 | 0 | 2 | 0:00:20 |",
        "| **3e-05** | **1** | **0.9800** |  | **0.9800** | **0** | **0** | **2** | "
        "**0:00:20** |",
        "| 1 | 0 |  |  |  | 1 | 0 |  |  |",
        "| 2 | 0 |  |  |  | 1 | 0 |  |  |",
        "| 3 | 1 | 0.6000 |  | 0.6000 | 0 | 1 | 2 | 0:00:20 |",
        "| 5 | 0 |  |  |  | 1 | 0 |  |  |",
        "| 6 | 0 |  |  |  | 1 | 0 |  |  |",
        f"Chosen: {chosen}, accuracy 0.9800 on dev, the best single run.",
    ]
    cells = [(r["learning_rate"], r["state"], r["note"]) for r in rows(folder)]
    assert cells == [
        ("5e-05", "finished", ""),
        ("3e-05", "finished", ""),
        ("1", "failed", "exit code 1: RuntimeError: exploded"),
        ("2", "failed", "loss on dev is not finite"),
        ("3", "majority", 'always "a"'),
        ("5", "failed", "ended by SIGKILL: step 1/4 loss 0.7"),
        ("6", "failed", "exit code 0: stopped by SIGTERM at step 1"),
    ]
    out = folder / "out"
    best = json.loads((out / "sweep.json").read_text())["chosen"]
    assert (best["run"], best["point"]) == (f"runs/{chosen}", {"learning_rate": 3e-5})
    assert (out / "best/results.json").samefile(out / best["run"] / "results.json")
    assert (out / "scores.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "report.md").read_text()
    assert "7 of 7 runs have ended, 4 of them failed and 1 at the majority" in page
    assert (out / f"logs/{name.format(1)}.log").read_text() == (
        f"$ bert-keras finetune --train {folder}/train.tsv --init {folder}/init "
        f"--strategy auto --output_dir {out}/runs/{name.format(1)} "
        f"--dev {folder}/dev.tsv --set seed=7 --set learning_rate=1.0 --set seed=7\n"
        "step 1/4  loss 0.7\nTraceback\nRuntimeError: exploded\n\n"
    )
    assert caplog.messages[0] == "7 runs, 0 finished already"
    assert re.fullmatch(r"\[7/7\] .*; 0:00:0\d", caplog.messages[-2])


def test_only_what_is_not_finished_is_run_again(folder, caplog):
    caplog.set_level(logging.INFO)
    run(folder, [3e-5, 1.0])
    assert len(calls(folder)) == 2
    first = (folder / "out/results.tsv").read_text()
    assert run(folder, [3e-5, 1.0])[-1].startswith("Chosen: learning_rate=3e-05")
    assert calls(folder) == ["learning_rate=1,seed=7"]
    assert "2 runs, 1 finished already" in caplog.messages
    assert (folder / "out/results.tsv").read_text() == first
    (folder / "out/runs/learning_rate=3e-05,seed=7/results.json").unlink()
    run(folder, [3e-5])
    assert calls(folder) == ["learning_rate=3e-05,seed=7"]


@pytest.mark.slow
def test_another_grid_goes_on_with_its_new_points(folder, caplog):
    caplog.set_level(logging.INFO)
    run(folder, [5e-5, 3e-5, 1.0])
    calls(folder)
    # 32 is the default, with which the runs above were made.
    run(folder, (), grid={"batch_size": [16, 32], "learning_rate": [5e-5]})
    assert calls(folder) == ["batch_size=16,learning_rate=5e-05,seed=7"]
    assert (
        "resuming with another grid: of 2 other runs 1 are finished, and compared with "
        "the new ones"
    ) in caplog.messages
    cells = [(r["learning_rate"], r["batch_size"], r["state"]) for r in rows(folder)]
    points = (("3e-05", "32"), ("5e-05", "16"), ("5e-05", "32"))
    assert cells == [(*point, "finished") for point in points]
    # More restarts of the first grid: nothing is made twice.
    run(folder, [5e-5, 3e-5], num_restarts=2)
    assert calls(folder) == ["learning_rate=3e-05,seed=8", "learning_rate=5e-05,seed=8"]
    # So are other seeds.
    run(folder, [3e-5], overrides=("seed=9",))
    assert calls(folder) == ["learning_rate=3e-05,seed=9"]
    assert len(rows(folder)) == 6


def test_another_sweep_is_refused(folder):
    run(folder, [3e-5])
    (folder / "other.tsv").write_text("text\tlabel\nother\ta\n")
    for changes, message in (
        ({"init": "other"}, "out: begun by another run, with init="),
        ({"from_scratch": True}, "with from_scratch="),
        ({"overrides": ("seed=7", "max_seq_length=64")}, "with max_seq_length="),
        ({"dev": "other.tsv"}, "with dev_sha256="),
        ({"train": "no.tsv"}, r"no\.tsv: .* No such file"),
    ):
        with pytest.raises(InputError, match=message):
            run(folder, [3e-5], **changes)


def test_a_checkpoint_that_was_replaced_is_noticed(folder):
    run(folder, [3e-5])
    (folder / "init").write_text("weights changed")
    message = (
        "out: `init_sha256` of learning_rate=5e-05,seed=7 is not that of "
        "learning_rate=3e-05,seed=7: the data or the checkpoint has changed since"
    )
    for _ in range(2):
        with pytest.raises(InputError, match=message):
            run(folder, [3e-5, 5e-5])


def test_what_the_first_run_is_refused_for_ends_all(folder):
    with pytest.raises(InputError, match="none: no such checkpoint .from the first"):
        run(folder, [3e-5, 4e-5, 5e-5], init=str(folder / "none"), num_jobs=1)
    assert calls(folder) == ["learning_rate=3e-05,seed=7"]


def test_a_later_refusal_is_a_failed_run(folder):
    run(folder, [3e-5])
    (folder / "init").rename(folder / "elsewhere")
    run(folder, [3e-5, 4e-5])
    assert [row["state"] for row in rows(folder)] == ["finished", "failed"]
    assert rows(folder)[1]["note"] == f"exit code 2: {folder}/init: no such checkpoint"


def test_no_run_with_a_score(folder):
    with pytest.raises(InputError, match="no run has a score: .*report.html says"):
        run(folder, [1.0, 2.0])
    page = (folder / "out/report.md").read_text()
    assert "No run has a score." in page
    assert "- `learning_rate=1,seed=7`: exit code 1: RuntimeError: exploded\n" in page
    assert not (folder / "out/sweep.json").exists()
    assert not (folder / "out/best").exists()


def test_damaged_files_are_refused(folder):
    run(folder, [3e-5])
    path = folder / "out/plan.json"
    plan, whole = json.loads(path.read_text()), path.read_text()
    for name in ("../../other=1", "seed=" + "7" * 300, "seed=7\n", ""):
        plan["runs"][0]["name"] = name
        path.write_text(json.dumps(plan))
        with pytest.raises(InputError, match=r"plan\.json: .*runs\.0\.name"):
            run(folder, [3e-5])
    path.write_text(whole)
    path = folder / "out/runs/learning_rate=3e-05,seed=7/dev_answers.jsonl"
    for line in ('{"prediction": "a"}', '{"label": ["a"], "prediction": "a"}', "[]"):
        path.write_text(line)
        with pytest.raises(InputError, match="line 1: expected an answer as `finetune"):
            run(folder, [3e-5])


def test_an_unknown_metric_loses_no_run(folder):
    message = "`metric` is one of loss, accuracy, total, got 'acuracy'"
    with pytest.raises(InputError, match=message):
        run(folder, [3e-5, 5e-5], metric="acuracy", num_jobs=1)
    assert calls(folder) == ["learning_rate=3e-05,seed=7"]
    run(folder, [3e-5, 5e-5], metric="loss")
    assert calls(folder) == ["learning_rate=5e-05,seed=7"]
    assert json.loads((folder / "out/sweep.json").read_text())["goal"] == "min"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--sweep", "sweep_papr"], "did you mean 'sweep_paper'"),
        (["--sweep_set", "num_restart=2"], "did you mean 'num_restarts'"),
        (["--sweep_set", "grid.batch_size=16"], "`grid.batch_size` is a list of"),
        (["--set", "batch_sice=16"], "did you mean 'batch_size'"),
        (["--data", "glue"], "give the files with --train and --dev, or the folder"),
        (["--task", "txt"], "did you mean 'text'"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
    ],
)
def test_a_mistake_on_the_command_line_makes_nothing(folder, changes, message, capsys):
    command = "sweep --sweep sweep_paper --init {0}/init --train {0}/train.tsv "
    command += "--dev {0}/dev.tsv --output_dir {0}/out"
    assert cli.main([*command.format(folder).split(), *changes]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not (folder / "out").exists()


def test_jobs_share_the_machine(folder):
    run(folder, [3e-5], num_jobs=1)
    run(folder, [3e-5, 5e-5], num_jobs=64)
    for rate, threads in (("3e-05", None), ("5e-05", "1")):
        path = folder / f"out/runs/learning_rate={rate},seed=7/environ.json"
        assert json.loads(path.read_text()).get("TF_NUM_INTRAOP_THREADS") == threads


def test_environment_of_a_job(monkeypatch):
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    limits = dict.fromkeys(names, "2") | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    devices = "CUDA_VISIBLE_DEVICES"
    for own, slots, num_cores, seen, expected in (
        ({"A": "1"}, (2, 3), 8, [], {"A": "1", **limits}),
        ({"A": "1"}, (0, 1), 8, [], {"A": "1"}),
        ({}, (2, 3), 2, [], limits | dict.fromkeys(names, "1")),
        ({"OMP_NUM_THREADS": "5"}, (2, 3), 8, [], limits | {"OMP_NUM_THREADS": "5"}),
        ({devices: "4,5"}, (2, 3), 8, ["4", "5"], limits | {devices: "4"}),
        ({}, (1, 3), 8, ["0", "1"], limits | {devices: "1"}),
        ({}, (0, 1), 8, ["0", "1"], {}),
        ({devices: ""}, (2, 3), 8, [], limits | {devices: ""}),
    ):
        cores = {"sched_getaffinity.return_value": range(num_cores)}
        machine = mock.Mock(environ=own, **cores)
        monkeypatch.setattr(running, "os", machine)
        monkeypatch.setattr(running.chips, "visible_gpus", mock.Mock(return_value=seen))
        assert running.job_environment(*slots) == expected


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 120
    while not (path.is_file() and path.read_text()):
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.05)
    return path.read_text()


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.is_file() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def default_handlers():
    """Those of a foreground process; one in the background may ignore some."""
    handlers = dict.fromkeys((signal.SIGTERM, signal.SIGHUP), signal.SIG_DFL)
    handlers[signal.SIGINT] = signal.default_int_handler
    previous = {number: signal.signal(number, h) for number, h in handlers.items()}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def sending(number: int, *paths: Path):
    """Sends this process a signal when files are there."""

    def send():
        for path in paths:
            wait_for(path)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    yield
    sender.join()


@pytest.mark.usefixtures("default_handlers")
@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGTERM, Stopped),
        pytest.param(signal.SIGHUP, Stopped, marks=pytest.mark.slow),
        (signal.SIGINT, KeyboardInterrupt),
    ],
)
def test_a_signal_ends_the_runs(folder, caplog, number, error):
    caplog.set_level(logging.INFO)
    before, out = signal.getsignal(number), folder / "out"
    pid_path = out / "runs/learning_rate=4,seed=7/pid"
    ready = sending(number, pid_path, out / "results.tsv")
    with ready, pytest.raises(error) as raised:
        run(folder, [3e-5, 4.0])
    message = f"stopped by {number.name} with 1 of 2 runs ended; run the same command"
    assert f"{message} again for the others" in (str(raised.value), *caplog.messages)
    if error is Stopped:
        assert raised.value.exit_code == 128 + number
    assert not is_running(int(pid_path.read_text()))
    log = (out / "logs/learning_rate=4,seed=7.log").read_text()
    assert log.endswith("told to stop\n") and signal.getsignal(number) is before
    assert [row["state"] for row in rows(folder)] == ["finished"]
    for name in ("report.md", "report.html"):
        assert "1 of 2 runs have ended" in (out / name).read_text()
    calls(folder)
    # The same command, where it is now quick.
    source = Path(FAKE[1]).read_text().replace("time.sleep(600)", "rate = 3e-5")
    run(folder, [3e-5, 4.0], runner=(sys.executable, "-c", source))
    assert (calls(folder), len(rows(folder))) == (["learning_rate=4,seed=7"], 2)


def test_a_signal_that_is_ignored_stays_so():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with running.Processes(FAKE, num_slots=1, lock=0) as jobs:
            os.kill(os.getpid(), signal.SIGHUP)
            assert jobs.received is None
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.usefixtures("default_handlers")
def test_a_process_that_does_not_listen_is_killed(folder, monkeypatch):
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.5)
    stubborn = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(folder / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    ready = sending(signal.SIGTERM, folder / "pid")
    with ready, pytest.raises(Stopped, match="with 0 of 1 runs ended"):
        run(folder, [3e-5], runner=(sys.executable, "-c", stubborn))
    assert not is_running(int((folder / "pid").read_text()))


def test_runs_of_a_killed_sweep_end_with_it(folder):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_sweep_runs\n"
        f"test_sweep_runs.run(Path({str(folder)!r}), [4.0])\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        pid = int(wait_for(folder / "out/runs/learning_rate=4,seed=7/pid"))
        with pytest.raises(InputError, match=f"out: in use by process {parent.pid} on"):
            run(folder, [3e-5])
        parent.kill()
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run(folder, [3e-5])


def test_progress_is_told(folder, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(running, "PROGRESS_SECONDS", 0.0)
    run(folder, [3e-5, 4e-5], num_jobs=1)
    whole = "\n".join(caplog.messages)
    assert re.search("^sweep:  +[0-9]+%  [01]/2 runs  ", whole, re.MULTILINE)
    job = "^  learning_rate=.e-05,seed=7: (no output|step 1/4  )"
    assert re.search(job, whole, re.MULTILINE)


def test_progress_counts_epochs():
    epochs = dict.fromkeys("abcdefghijkl", 2.0)
    for tail, ended, seconds, expected in (
        ("step 6/10  x", "abc", 3600.0, " 30%  3/12 runs  3.6 runs/h  2:20:00 left"),
        ("no step", "", 61.0, "  0%  0/12 runs  starting, 0:01:01"),
    ):
        lines = running.progress_lines({"d": tail}, epochs, ended, seconds=seconds)
        assert [*lines] == [f"sweep: {expected}", f"  d: {tail}"]


NOISE = "2026-11-21 22:33:57.949809: W tensorflow/core/x.cc:110] finalizing\n"
NOISE += "\t [[{{node PyFunc}}]]\n"


@pytest.mark.parametrize(
    ("said", "share", "last"),
    [
        ("", 0, "no output"),
        ("$ bert-keras finetune\n", 0, "no output"),
        ("step 1/8  x\nstep 6/8  x\nevaluating: 3%\n \n", 0.75, "evaluating: 3%"),
        ("step 9/8  loss", 1, "step 9/8  loss"),
        ("bert-keras finetune: error: no\n", 0, "no"),
        ("bert-keras finetune: stopped\n", 0, "stopped"),
        (f"ValueError: no\n{NOISE}", 0, "ValueError: no"),
    ],
)
def test_what_a_log_says(said, share, last):
    assert running.share_done(said) == share
    assert running.last_line(said) == last


def test_the_end_of_a_log_is_read(tmp_path):
    (tmp_path / "log").write_bytes(b"x" * 5000 + b"\xff\nlast")
    said = running.read_tail(tmp_path / "log")
    assert len(said) == 4096 and said.endswith("x\ufffd\nlast")


def test_names_of_signals():
    assert running.signal_name(9) == "SIGKILL"
    assert running.signal_name(63) in ("signal 63", "SIGRTMAX-1")

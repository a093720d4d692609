"""Machines that are rented, taken away and given back: stand-ins, and a real bash."""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bert_keras import chips
from bert_keras.errors import InputError
from bert_keras.tpu import launch
from bert_keras.tpu.launch import commands, script

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
RUN = "gs://b/runs/base"

# `python3.12` of the machine: an environment whose packages are those of this test.
PYTHON = """#!/bin/bash
[ "$1 $2" = "-m venv" ] || exit 9
mkdir -p "$3/bin"
cp "$CLOUD/installer" "$3/bin/python"
cp "$CLOUD/trainer" "$3/bin/bert-keras"
chmod +x "$3/bin/python" "$3/bin/bert-keras"
"""
INSTALLER = """#!/bin/bash
echo "$@" >>"$CLOUD/pip.txt"
exit $(cat "$CLOUD/pip.code" 2>/dev/null || echo 0)
"""


class Cloud:
    """A folder that stands for Google's cloud, and the programs on its machines."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.work = folder / "disk"
        for name in ("bin", "store", "machines"):
            (folder / name).mkdir()
        self.program("gcloud", f'exec {sys.executable} {HERE / "gcloud.py"} "$@"')
        self.program("curl", "exit 22")
        self.program("shutdown", 'echo "$@" >>"$CLOUD/shutdown.txt"')
        (folder / "installer").write_text(INSTALLER)
        (folder / "bin/python3.12").write_text(PYTHON)
        (folder / "bin/python3.12").chmod(0o755)
        self.trainer("exit 1")

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def trainer(self, text: str) -> None:
        """What `bert-keras` does on a machine."""
        (self.folder / "trainer").write_text(f"#!/bin/bash\n{text}\n")

    def stored(self, path: str) -> Path:
        return self.folder / "store" / path.removeprefix("gs://")

    @property
    def machines(self) -> list[Path]:
        return list((self.folder / "machines").iterdir())

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked.txt").read_text().splitlines()

    def count(self, words: str) -> int:
        return sum(line.startswith(words) for line in self.asked)

    def pull_the_plug(self) -> None:
        """What a preemption is: the machine is gone, without a word."""
        (machine,) = self.machines
        session = (machine / "pid").read_text()
        subprocess.run(
            [sys.executable, HERE / "gcloud.py", "kill", session], check=True
        )
        # A new machine has a new disk.
        shutil.rmtree(self.work)
        # At once: there is no moment without its number.
        machine.rename(self.folder / f"gone.{session}")


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    made = Cloud(tmp_path)
    monkeypatch.setenv("CLOUD", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("RETRY_SECONDS", "0")
    monkeypatch.setattr(launch, "_DELETE_TRIES", 2)
    (tmp_path / "w.whl").touch()
    (tmp_path / "constraints.txt").touch()
    (tmp_path / "tpu.txt").touch()
    yield made
    for machine in made.machines:
        subprocess.run(
            [sys.executable, HERE / "gcloud.py", "kill", (machine / "pid").read_text()]
        )


def rental(arguments: str = f"pretrain --output_dir {RUN}", **more) -> commands.Rental:
    values = {
        "project": "p",
        "zone": "z",
        "staging": "gs://b/launch",
        "max_hours": 0.5,
        "arguments": tuple(shlex.split(arguments)),
    } | more
    return commands.Rental(device=chips.parse_device("v5e-8"), **values)


def run(cloud: Cloud, found: commands.Rental | None = None) -> None:
    launch.run(
        found or rental(),
        wheel=str(cloud.folder / "w.whl"),
        requirements=[str(cloud.folder / n) for n in ("constraints.txt", "tpu.txt")],
        poll_seconds=0.2,
        work=str(cloud.work),
    )


DONE = (
    f'mkdir -p "$CLOUD/store/b/runs/base"; touch "$CLOUD/store/{RUN[5:]}/results.json"'
)


def test_a_run_from_an_empty_machine_to_none(cloud):
    cloud.trainer(f'echo "$@" >"$CLOUD/args"; echo step 1; {DONE}')
    run(cloud)
    assert not cloud.machines
    given = (cloud.folder / "args").read_text()
    assert given == f"pretrain --output_dir {RUN} --strategy tpu\n"
    installed = (cloud.folder / "pip.txt").read_text().splitlines()
    assert installed == [
        "-m pip install --constraint constraints.txt ./w.whl[tpu,gcp] --requirement "
        "tpu.txt",
        "-m pip install --constraint constraints.txt --no-deps tensorflow-text",
    ]
    assert cloud.count("compute instances create") == 1


def test_the_log_is_shown_and_kept(cloud, caplog):
    cloud.trainer(f"echo step 1 of 9; {DONE}; sleep 2")
    caplog.set_level("INFO")
    run(cloud)
    log = cloud.stored(f"{rental().folder}/log.txt")
    for _ in range(50):
        if log.is_file():
            break
        time.sleep(0.1)
    if log.is_file():
        assert "step 1 of 9" in log.read_text()
    assert "created" in caplog.text


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("install", "the installation failed"),
        ("data", "bert-keras pretrain: error: no examples"),
        (
            "training",
            "training ended 5 times without results, the last time with code 1",
        ),
    ],
)
def test_nothing_stays_rented_after_a_failure_of(broken, message, cloud):
    if broken == "install":
        (cloud.folder / "pip.code").write_text("1")
    if broken == "data":
        cloud.trainer('echo "bert-keras pretrain: error: no examples" >&2; exit 2')
    with pytest.raises(InputError, match=message):
        run(cloud)
    assert not cloud.machines
    assert cloud.count("compute instances create") == 1


def test_a_machine_whose_driver_is_gone_deletes_itself(cloud):
    """Nobody watches: the script alone, to its end."""
    cloud.trainer(DONE)
    create_alone(cloud, seconds=600)
    wait_for(lambda: not cloud.machines)
    assert cloud.count("compute instances delete") == 1


def create_alone(cloud: Cloud, *, seconds: float) -> None:
    found = rental()
    folder = cloud.stored(found.folder)
    folder.mkdir(parents=True)
    for name in ("w.whl", "constraints.txt", "tpu.txt"):
        (folder / name).touch()
    text = script.startup_script(
        found, wheel="w.whl", seconds=seconds, work=str(cloud.work)
    )
    path = cloud.folder / "startup.sh"
    path.write_text(text)
    subprocess.run(commands.create(found, script=str(path), seconds=60), check=True)


def wait_for(condition, *, tries: int = 300) -> None:
    for _ in range(tries):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def test_the_budget_ends_a_machine_that_nobody_watches(cloud):
    """Training is asked to end first, so that it saves its last step."""
    cloud.trainer(
        "trap 'touch \"$CLOUD/saved\"; exit 143' TERM; sleep 600 & wait $!; exit 1"
    )
    create_alone(cloud, seconds=1)
    wait_for(lambda: not cloud.machines)
    assert (cloud.folder / "saved").exists()


def test_a_machine_that_may_not_delete_itself_is_shut_down(cloud):
    (cloud.folder / "refuse").write_text("instances delete")
    cloud.program("sleep", "exit 0")
    cloud.trainer(DONE)
    create_alone(cloud, seconds=600)
    wait_for((cloud.folder / "shutdown.txt").exists)
    assert (cloud.folder / "shutdown.txt").read_text() == "-h now\n"


def test_another_host_of_a_slice_leaves_the_end_to_the_first_one(cloud):
    cloud.program("curl", "echo 1")
    cloud.trainer(f'echo trains >"$CLOUD/trained"; {DONE}')
    create_alone(cloud, seconds=600)
    (machine,) = cloud.machines
    number = int((machine / "pid").read_text())
    wait_for(lambda: is_over(number))
    assert (cloud.folder / "trained").exists()
    assert cloud.machines == [machine]
    assert not cloud.count("compute instances delete")
    assert not cloud.stored(f"{rental().folder}/log.txt").exists()


def is_over(number: int) -> bool:
    """Whether a process has ended, be it that nobody has asked how."""
    try:
        return (
            Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
            == "Z"
        )
    except FileNotFoundError:
        return True


def test_the_budget_ends_the_watch(cloud, monkeypatch):
    cloud.trainer("sleep 600")
    found = rental(max_hours=0.05)
    object.__setattr__(found, "max_hours", 2 / 3600)
    with pytest.raises(InputError, match="are over: the machine is deleted"):
        run(cloud, found)
    assert not cloud.machines


def test_an_interrupted_watch_deletes(cloud, monkeypatch):
    cloud.trainer("sleep 600")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(launch.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(cloud)
    assert not cloud.machines


def test_a_second_launch_leaves_the_first_one_alone(cloud):
    cloud.trainer("sleep 600")
    create_alone(cloud, seconds=600)
    with pytest.raises(InputError, match="runs already: --do watch"):
        run(cloud)
    assert len(cloud.machines) == 1
    launch.delete(rental())
    assert not cloud.machines


def test_the_network_is_gone_for_a_while(cloud, caplog):
    """A machine that cannot be asked for is not one that is gone."""
    cloud.trainer(f"sleep 3; {DONE}; sleep 3")
    refuse = cloud.folder / "refuse"
    threading.Timer(1, refuse.write_text, ["instances describe"]).start()
    threading.Timer(2.5, refuse.unlink).start()
    run(cloud)
    assert "cannot be asked for" in caplog.text
    assert cloud.count("compute instances create") == 1
    assert not cloud.machines


def test_a_run_that_is_done_rents_nothing(cloud):
    subprocess.run(["bash", "-c", DONE], check=True)
    with pytest.raises(InputError, match="is there already: the run is done"):
        run(cloud)
    assert not cloud.count("compute instances create")


def test_no_capacity_is_waited_for(cloud):
    cloud.trainer(DONE)
    cloud.program(
        "gcloud",
        'case "$*" in *instances\\ create*) if [ ! -e "$CLOUD/once" ]; then touch '
        '"$CLOUD/once"; echo ZONE_RESOURCE_POOL_EXHAUSTED >&2; exit 1; fi;; esac\n'
        f'exec {sys.executable} {HERE / "gcloud.py"} "$@"',
    )
    run(cloud)
    assert cloud.count("compute instances create") == 1
    assert not cloud.machines


# The real thing, on the processor.

TRAINER = """
args=(); for word in "$@"; do args+=("${word//gs:\\/\\//$CLOUD/store/}"); done
args[-1]=cpu
exec PYTHON -W ignore -m bert_keras.cli "${args[@]}"
"""
TRAINING = (
    "pretrain --config bert_tiny --examples gs://b/examples --set num_train_steps=900 "
    "--set optimizer.warmup_steps=2 --set global_batch_size=4 --set num_eval_steps=1 "
    "--set save_checkpoint_steps=20 --set num_checkpoints=2 --set draw_steps=9999 "
    "--set precision=float32 --set model.hidden_size=32 "
    "--set model.num_hidden_layers=1 --set model.intermediate_size=64 "
    "--set evaluate_steps=300"
)


@pytest.mark.slow
def test_three_preemptions_end_with_the_bits_of_one_run(cloud, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    make_examples(cloud)
    cloud.trainer(TRAINER.replace("PYTHON", sys.executable))
    whole = f"{TRAINING} --output_dir gs://b/runs/whole --strategy tpu"
    subprocess.run(["bash", cloud.folder / "trainer", *shlex.split(whole)], check=True)
    checkpoints = cloud.stored(f"{RUN}/checkpoints")
    pulled = []

    def last_step() -> int:
        names = os.listdir(checkpoints) if checkpoints.is_dir() else []
        return max(
            (int(n) for name in names for n in re.findall(r"\d+", name)), default=0
        )

    def preempt() -> None:
        for step in (60, 260, 460):
            wait_for(lambda step=step: last_step() >= step, tries=3000)
            cloud.pull_the_plug()
            pulled.append(last_step())

    thread = threading.Thread(target=preempt)
    thread.start()
    run(cloud, rental(f"{TRAINING} --output_dir {RUN}"))
    thread.join()
    assert len(pulled) == 3 and pulled[-1] < 900, pulled
    assert cloud.count("compute instances create") == 4
    assert not cloud.machines
    weights = [
        cloud.stored(f"gs://b/runs/{name}/model.weights.h5").read_bytes()
        for name in ("base", "whole")
    ]
    assert weights[0] == weights[1]


def make_examples(cloud: Cloud) -> None:
    folder = cloud.stored("gs://b")
    folder.mkdir(parents=True, exist_ok=True)
    words = "snow road letter lamp horse bridge river winter".split()
    lines = []
    for number in range(30):
        sentences = [
            " ".join(words[(number + place + n) % 8] for n in range(6)).capitalize()
            + "."
            for place in range(12)
        ]
        lines.append(f'{{"id": "{number}", "text": "{" ".join(sentences)}"}}\n')
    (folder / "text.jsonl").write_text("".join(lines))
    for command in (
        f"corpus --jsonl {folder}/text.jsonl --output {folder}/corpus "
        "--set min_document_words=5 --set deduplicate_paragraphs=false",
        f"vocab --corpus {folder}/corpus --vocab_size 300 --output {folder}/vocab.txt",
        f"examples --corpus {folder}/corpus --vocab {folder}/vocab.txt "
        f"--max_seq_length 32 --output {folder}/examples",
    ):
        subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "bert_keras.cli",
                *shlex.split(command),
            ],
            check=True,
        )

"""`bert-keras doctor` on machines that are broken in one way each, and whole ones."""

import fcntl
import json
import os
import re
from pathlib import Path

import pytest

from bert_keras.commands import main as cli
from bert_keras.tpu import doctor


def distribution(site: Path, name: str, version: str, requires: str = "") -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n{requires}")


# Broken environments, through the command line, and what each is told;
# `tests/engines/test_on_a_store.py` has buckets without rights.


def run(arguments: str, capsys) -> tuple[int, dict[str, dict[str, str]]]:
    code = cli.main(["doctor", "--json", *arguments.split()])
    rows = json.loads(capsys.readouterr().out)
    return code, {row["name"]: row for row in rows}


def test_broken_packages(tmp_path, monkeypatch, capsys):
    for package in ("keras 3.9.0", "tensorflow-tpu 2.20.0"):
        distribution(tmp_path, *package.split())
    monkeypatch.syspath_prepend(tmp_path)
    code, found = run("--for cpu", capsys)
    assert code == 2
    for name, message, fix in (
        (
            *("packages", "keras 3.9.0, expected <3.16,>=3.15"),
            "pip install --no-deps 'keras<3.16,>=3.15'",
        ),
        (
            *("tensorflow", " 2.20.0 share one folder"),
            "pip uninstall --yes tensorflow tensorflow-tpu && make install",
        ),
    ):
        assert found[name]["state"] == "problem"
        assert message in found[name]["found"]
        assert found[name]["fix"] == fix


@pytest.mark.parametrize("lock", [fcntl.flock, fcntl.lockf])
def test_broken_a_tpu_that_a_process_holds(lock, tmp_path, monkeypatch, capsys):
    """With a lock of either kind, as /proc/locks has them: FLOCK and POSIX."""
    path = tmp_path / "lock"
    monkeypatch.setattr(doctor, "LOCK_FILE", str(path))
    with open(path, "w") as file:
        lock(file, fcntl.LOCK_EX)
        code, found = run("--for tpu", capsys)
    assert code == 2
    assert found["tpu lock"]["state"] == "problem"
    assert f"process {os.getpid()} holds the TPU" in found["tpu lock"]["found"]
    assert found["tpu lock"]["fix"] == f"kill {os.getpid()}"
    # The file stays behind, and is no lock.
    assert path.exists()
    assert run("--for tpu", capsys)[1]["tpu lock"]["state"] == "ok"


# Parts of the doctor, with a folder for the machine's `/dev` and `/proc`.


def test_a_disk_that_is_full_or_read_only(tmp_path, monkeypatch):
    path = str(tmp_path / "runs/mine")
    usage = doctor.shutil.disk_usage(tmp_path)._replace(free=4_000_000_000)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    disk = doctor.look("disk", doctor.check_disk, path)
    assert disk.found == "4.0 GB free, 5 GB are needed"
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    disk = doctor.look("disk", doctor.check_disk, path)
    assert disk.fix == f"sudo chown $USER {tmp_path}"


def test_gpus_that_are_hidden_missing_or_without_a_driver(tmp_path, monkeypatch):
    (tmp_path / "dev").mkdir()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def told(check):
        return doctor.look("", check, tmp_path).found

    assert "no NVIDIA GPU" in told(doctor._gpu_devices)
    for name in ("nvidia0", "nvidia1"):
        (tmp_path / "dev" / name).touch()
    assert told(doctor._gpu_devices) == "2 of 2 GPUs visible"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert told(doctor._gpu_devices).endswith("hidden by CUDA_VISIBLE_DEVICES='-1'")
    hidden = doctor.look("", doctor._gpu_devices, tmp_path)
    assert hidden.fix == "unset CUDA_VISIBLE_DEVICES"
    assert told(doctor._driver) == "NVIDIA's driver is not loaded"
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Oct 25 2023\n"
    (folder / "version").write_text(line.format("470.223.02"))
    expected = "470.223.02, CUDA 12 needs 525.60.13 or later"
    assert told(doctor._driver) == expected
    (folder / "version").write_text(line.format("550.54.15"))
    assert told(doctor._driver).startswith("550.54.15")


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there are GPUs")
@pytest.mark.slow
def test_tensorflow_itself_says_why_it_lists_no_gpu():
    """In a process of its own, here without a driver."""
    with pytest.raises(doctor.Problem) as raised:
        doctor.gpus_of_tensorflow()
    told = raised.value.args[0]
    assert re.match("TensorFlow lists none: .*(cuda|GPU)", told, re.IGNORECASE)


def test_a_whole_tpu_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "LOCK_FILE", str(tmp_path / "lock"))
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    (tmp_path / "dev/vfio").mkdir(parents=True)
    for name in ("0", "1", "vfio"):
        (tmp_path / "dev/vfio" / name).touch()
    assert doctor._tpu_devices(tmp_path) == "2 in /dev, v5litepod-8"
    assert doctor._lock(tmp_path) == "no process holds the TPU"


def test_extras_that_the_installed_metadata_does_not_know(tmp_path, monkeypatch):
    distribution(tmp_path, "bert-keras", "0.1.0", "Provides-Extra: train\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(doctor.Problem, match="knows no extra tpu"):
        doctor._versions("tpu")


def test_the_table_for_people(capsys, monkeypatch, tmp_path):
    # The machine of the tests may have a full disk.
    usage = doctor.shutil.disk_usage(tmp_path)._replace(free=10**11)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert cli.main(["doctor", "--path", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert [line.split()[:2] for line in printed.out.splitlines()] == [
        ["ok", name] for name in ("python", "packages", "tensorflow", "disk")
    ]
    distribution(tmp_path, "keras", "3.9.0")
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["doctor"]) == 2
    printed = capsys.readouterr()
    assert "-> pip install --no-deps 'keras" in printed.out
    assert printed.err == "bert-keras doctor: error: 1 problem: packages\n"

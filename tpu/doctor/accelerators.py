"""TPUs and GPUs of this machine: devices, drivers, libraries; none is loaded."""

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bert_keras.core import gpus, provenance
from bert_keras.tpu.doctor.findings import Finding, Problem, look

LOCK_FILE = "/tmp/libtpu_lockfile"
"""Held by the one process that uses the TPU."""

_MIN_DRIVER = (525, 60, 13)
"""Of NVIDIA, for CUDA 12 (its release notes, table of minor version compatibility)."""


def examine_tpu(root: Path = Path("/")) -> Iterator[Finding]:
    """Examines the TPU's device files, and finds the process that holds it."""
    yield look("tpu devices", _tpu_devices, root)
    yield look("tpu lock", _lock, root)


def _tpu_devices(root: Path) -> str:
    kind = os.environ.get("TPU_ACCELERATOR_TYPE")
    dev = root / "dev"
    numbers = [*dev.glob("accel[0-9]*"), *(dev / "vfio").glob("[0-9]*")]
    if not numbers:
        raise Problem(
            "neither /dev/accel0 nor /dev/vfio/0: no TPU machine, or its driver is "
            "missing"
        )
    return f"{len(numbers)} in /dev{f', {kind}' if kind else ''}"


def _lock(root: Path) -> str:
    free = "no process holds the TPU"
    try:
        status = os.stat(LOCK_FILE)
    except FileNotFoundError:
        return free
    held = re.compile(rf"\S+ (\d+) [0-9a-f]+:[0-9a-f]+:{status.st_ino} ")
    locks = root / "proc/locks"
    text = locks.read_text() if locks.is_file() else ""
    if holder := held.search(text):
        found = f"process {holder[1]} holds the TPU ({LOCK_FILE})"
        raise Problem(found, f"kill {holder[1]}")
    if not os.access(LOCK_FILE, os.R_OK | os.W_OK):
        found = f"{LOCK_FILE} is another user's, left by a process that is gone"
        raise Problem(found, f"sudo rm {LOCK_FILE}")
    return free


def examine_gpus(root: Path = Path("/")) -> Iterator[Finding]:
    """Lists GPUs that TensorFlow can use, or says why it cannot."""
    findings = [
        look("gpus", _gpu_devices, root),
        look("driver", _driver, root),
        look("cuda", _cuda),
    ]
    yield from findings
    # It takes seconds: asked only where nothing simpler is wrong.
    if all(finding.state == "ok" for finding in findings):
        yield look("gpus of tensorflow", gpus_of_tensorflow)


def gpus_of_tensorflow() -> str:
    """Lists TensorFlow's GPUs in a process of its own, or raises its own reason."""
    program = (
        "import tensorflow as tf; "
        "print('GPUS', len(tf.config.list_physical_devices('GPU')))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"},
    )
    count = re.search(r"^GPUS (\d+)$", done.stdout, re.MULTILINE)
    if count and int(count[1]):
        return f"{count[1]} listed"
    told = [line for line in done.stderr.splitlines() if _GPU_WORDS.search(line)]
    reason = told[-1] if told else done.stderr.strip().rpartition("\n")[2]
    # Behind the date, the level and the place in TensorFlow's source.
    reason = reason.rpartition("] ")[2]
    raise Problem(f"TensorFlow lists none: {reason[:200]}", "make install-gpu")


_GPU_WORDS = re.compile("cuda|cuInit|GPU|dlopen", re.IGNORECASE)


def _gpu_devices(root: Path) -> str:
    present = gpus.visible({}, devices=root / "dev")
    shown = gpus.visible(devices=root / "dev")
    if not present:
        found = "no /dev/nvidia0: no NVIDIA GPU here, or its driver is missing"
        raise Problem(found, "sudo apt-get install nvidia-driver-550")
    if not shown:
        hidden = os.environ["CUDA_VISIBLE_DEVICES"]
        found = f"{len(present)} GPUs are hidden by CUDA_VISIBLE_DEVICES={hidden!r}"
        raise Problem(found, "unset CUDA_VISIBLE_DEVICES")
    return f"{len(shown)} of {len(present)} GPUs visible"


def _driver(root: Path) -> str:
    install = "sudo apt-get install nvidia-driver-550 && sudo reboot"
    path = root / "proc/driver/nvidia/version"
    text = path.read_text() if path.is_file() else ""
    if not (version := re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", text)):
        raise Problem("NVIDIA's driver is not loaded", install)
    if tuple(map(int, version[1].split("."))) < _MIN_DRIVER:
        least = ".".join(map(str, _MIN_DRIVER))
        raise Problem(f"{version[1]}, CUDA 12 needs {least} or later", install)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        found = (
            f"{version[1]}, but libcuda.so.1 cannot be loaded: not in this container?"
        )
        raise Problem(found, "docker run --gpus all ...") from None
    return version[1]


def _cuda() -> str:
    """Finds CUDA's libraries as packages; TensorFlow's own metadata names them."""
    fix = "make install-gpu"
    spec = importlib.util.find_spec("tensorflow")
    if spec and spec.origin:
        built = Path(spec.origin).parent / "python/platform/build_info.py"
        if "'is_cuda_build', True" not in built.read_text(encoding="utf-8"):
            raise Problem("this build of TensorFlow has no CUDA in it", fix)
    try:
        lines = importlib.metadata.requires("tensorflow") or []
    except importlib.metadata.PackageNotFoundError:
        raise Problem("the package tensorflow is not installed", fix) from None
    names = [re.split(r"[<>=!~ ;\[]", line)[0] for line in lines if "and-cuda" in line]
    missing = [name for name in names if not provenance.installed_version(name)]
    if missing:
        counts = f"{len(missing)} of {len(names)}"
        raise Problem(f"{counts} CUDA packages missing: {missing[0]}, ...", fix)
    return f"{len(names)} packages of CUDA's libraries"

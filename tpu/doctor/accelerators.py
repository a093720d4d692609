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

from bert_keras.core import gpus
from bert_keras.tpu.doctor.findings import Finding

LOCK_FILE = "/tmp/libtpu_lockfile"
"""Held by the one process that uses the TPU."""

_MIN_DRIVER = (525, 60, 13)
"""Of NVIDIA, for CUDA 12 (its release notes, table of minor version compatibility)."""


def examine_tpu(root: Path = Path("/")) -> Iterator[Finding]:
    """Examines the TPU's device files, and finds the process that holds it."""
    yield _tpu_devices(root)
    yield _lock(root)


def _tpu_devices(root: Path) -> Finding:
    kind = os.environ.get("TPU_ACCELERATOR_TYPE")
    dev = root / "dev"
    numbers = [*dev.glob("accel[0-9]*"), *(dev / "vfio").glob("[0-9]*")]
    if numbers:
        named = f", {kind}" if kind else ""
        return Finding("tpu devices", "ok", f"{len(numbers)} in /dev{named}")
    return Finding(
        "tpu devices",
        "problem",
        "neither /dev/accel0 nor /dev/vfio/0: no TPU machine, or its driver is missing",
    )


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def _lock(root: Path) -> Finding:
    try:
        status = os.stat(LOCK_FILE)
    except FileNotFoundError:
        return Finding("tpu lock", "ok", "no process holds the TPU")
    held = re.compile(rf"\S+ (\d+) [0-9a-f]+:[0-9a-f]+:{status.st_ino} ")
    locks = root / "proc/locks"
    text = locks.read_text() if locks.is_file() else ""
    if found := held.search(text):
        return Finding(
            "tpu lock",
            "problem",
            f"process {found[1]} holds the TPU ({LOCK_FILE})",
            f"kill {found[1]}",
        )
    if not os.access(LOCK_FILE, os.R_OK | os.W_OK):
        return Finding(
            "tpu lock",
            "problem",
            f"{LOCK_FILE} is another user's, left by a process that is gone",
            f"sudo rm {LOCK_FILE}",
        )
    return Finding("tpu lock", "ok", "no process holds the TPU")


def examine_gpus(root: Path = Path("/")) -> Iterator[Finding]:
    """Lists GPUs that TensorFlow can use, or says why it cannot."""
    found = [_gpu_devices(root), _driver(root), _cuda()]
    yield from found
    # It takes seconds: asked only where nothing simpler is wrong.
    if all(finding.state == "ok" for finding in found):
        yield gpus_of_tensorflow()


def gpus_of_tensorflow() -> Finding:
    """Lists TensorFlow's GPUs in a process of its own, or returns its own reason."""
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
        return Finding("gpus of tensorflow", "ok", f"{count[1]} listed")
    told = [line for line in done.stderr.splitlines() if _GPU_WORDS.search(line)]
    reason = told[-1] if told else done.stderr.strip().rpartition("\n")[2]
    # Behind the date, the level and the place in TensorFlow's source.
    reason = reason.rpartition("] ")[2]
    found = f"TensorFlow lists none: {reason[:200]}"
    return Finding("gpus of tensorflow", "problem", found, "make install-gpu")


_GPU_WORDS = re.compile("cuda|cuInit|GPU|dlopen", re.IGNORECASE)


def _gpu_devices(root: Path) -> Finding:
    there = gpus.visible({}, devices=root / "dev")
    shown = gpus.visible(devices=root / "dev")
    if not there:
        found = "no /dev/nvidia0: no NVIDIA GPU here, or its driver is missing"
        return Finding(
            "gpus", "problem", found, "sudo apt-get install nvidia-driver-550"
        )
    if not shown:
        hidden = os.environ["CUDA_VISIBLE_DEVICES"]
        found = f"{len(there)} GPUs are hidden by CUDA_VISIBLE_DEVICES={hidden!r}"
        return Finding("gpus", "problem", found, "unset CUDA_VISIBLE_DEVICES")
    return Finding("gpus", "ok", f"{len(shown)} of {len(there)} GPUs visible")


def _driver(root: Path) -> Finding:
    install = "sudo apt-get install nvidia-driver-550 && sudo reboot"
    path = root / "proc/driver/nvidia/version"
    text = path.read_text() if path.is_file() else ""
    if not (found := re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", text)):
        return Finding("driver", "problem", "NVIDIA's driver is not loaded", install)
    version = tuple(map(int, found[1].split(".")))
    if version < _MIN_DRIVER:
        least = ".".join(map(str, _MIN_DRIVER))
        told = f"{found[1]}, CUDA 12 needs {least} or later"
        return Finding("driver", "problem", told, install)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        told = f"{found[1]}, but libcuda.so.1 cannot be loaded: not in this container?"
        return Finding("driver", "problem", told, "docker run --gpus all ...")
    return Finding("driver", "ok", found[1])


def _cuda() -> Finding:
    """Finds CUDA's libraries as packages; TensorFlow's own metadata names them."""
    folder = _folder("tensorflow")
    built = folder and folder / "python/platform/build_info.py"
    if built and "'is_cuda_build', True" not in built.read_text(encoding="utf-8"):
        found = "this build of TensorFlow has no CUDA in it"
        return Finding("cuda", "problem", found, "make install-gpu")
    try:
        lines = importlib.metadata.requires("tensorflow") or []
    except importlib.metadata.PackageNotFoundError:
        found = "the package tensorflow is not installed"
        return Finding("cuda", "problem", found, "make install-gpu")
    names = [re.split(r"[<>=!~ ;\[]", line)[0] for line in lines if "and-cuda" in line]
    missing = [name for name in names if not _is_installed(name)]
    if missing:
        found = (
            f"{len(missing)} of {len(names)} CUDA packages missing: {missing[0]}, ..."
        )
        return Finding("cuda", "problem", found, "make install-gpu")
    return Finding("cuda", "ok", f"{len(names)} packages of CUDA's libraries")


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True

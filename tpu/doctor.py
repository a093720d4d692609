"""`bert-keras doctor`: is this machine ready to train?

The checks load no TensorFlow here: what only TensorFlow can tell is asked in a process
of its own. Apart from a probe in remote stores, they change nothing.
"""

import contextlib
import ctypes
import errno
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging import requirements, utils

from bert_keras.core import chips, files, provenance
from bert_keras.core.errors import InputError


@dataclass(frozen=True)
class Finding:
    name: str
    """Of what was looked at; the same on every machine, for programs."""
    state: Literal["ok", "problem"]
    """`problem`: a run would fail, or train on other devices than those asked for."""
    found: str
    fix: str | None = None
    """Command to run; `None` if all is well, or no command is known to help."""


class Problem(Exception):
    """Raised by a check: `found` is what is wrong, and `fix` the command that mends it,
    `None` if none is known."""

    def __init__(self, found: str, fix: str | None = None):
        super().__init__(found, fix)


def look(
    name: str, check: Callable[..., str], *arguments: object, fix: str | None = None
) -> Finding:
    """Runs a check, which returns what is well or raises a `Problem`; `fix` mends the
    problems that have no command of their own."""
    try:
        return Finding(name, "ok", check(*arguments))
    except Problem as problem:
        found, own_fix = problem.args
        return Finding(name, "problem", found, own_fix or fix)


def examine(purpose: str, paths: Sequence[str] = ()) -> Iterator[Finding]:
    """Examines this machine. `paths` are directories, local or remote, that a run will
    read or write."""
    root, install = Path("/"), _INSTALL[purpose]
    yield look("python", _python, purpose, fix=install)
    yield look("packages", _versions, purpose, fix=install)
    if purpose != "dataflow":
        yield look("tensorflow", _build, purpose, fix=install)
    if purpose == "gpu":
        findings = [
            look("gpus", _gpu_devices, root),
            look("driver", _driver, root),
            look("cuda", _cuda, fix=install),
        ]
        yield from findings
        # It takes seconds: asked only where nothing simpler is wrong.
        if all(finding.state == "ok" for finding in findings):
            yield look("gpus of tensorflow", gpus_of_tensorflow, fix=install)
    if purpose == "tpu":
        yield look("tpu devices", _tpu_devices, root)
        yield look("tpu lock", _lock, root)
    for path in paths:
        if not files.is_remote(path):
            yield look(f"disk {path}", check_disk, path)
            continue
        yield look(f"rights {path}", _rights, path)
        # On `gs://` training reads its examples with TensorFlow, which looks for
        # credentials, certificates and proxies in other places.
        is_read = path.startswith("gs://") and purpose != "dataflow"
        if is_read and importlib.util.find_spec("tensorflow") is not None:
            yield look(f"reading of TensorFlow {path}", _reading_of_tensorflow, path)


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yields a line for each finding, and below it the command that fixes it."""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        yield f"{finding.state:8} {finding.name:{width}}  {finding.found}"
        if finding.fix:
            yield f"{'':8} {'':{width}}  -> {finding.fix}"


def problems(findings: Sequence[Finding]) -> str | None:
    """Returns the names of the problems, for the last line; `None` if all is well."""
    names = [finding.name for finding in findings if finding.state == "problem"]
    if not names:
        return None
    noun = "problem" if len(names) == 1 else "problems"
    return f"{len(names)} {noun}: {', '.join(names)}"


# === Versions of Python and its packages, compared with our requirements ===

EXTRAS = {"cpu": "train", "gpu": "train gpu", "tpu": "tpu", "dataflow": "gcp"}
"""Extras of setup.cfg that each purpose needs."""

_US = "bert-keras"
_INSTALL = {
    "cpu": "make install",
    "gpu": "make install-gpu",
    "tpu": "make install-tpu PYTHON=python3.12",
    "dataflow": "pip install '.[gcp]' -c constraints.txt",
}
_BUILDS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly")
"""Packages that own the folder `tensorflow`: of two, files of both lie in it."""


def _python(purpose: str) -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    last = 12 if purpose == "tpu" else 13
    if not (3, 11) <= sys.version_info[:2] <= (3, last):
        raise Problem(f"{version}, expected 3.11 to 3.{last}")
    return version


def _versions(purpose: str) -> str:
    """Compares the installed versions with the requirements of our own metadata."""
    extras = EXTRAS[purpose].split()
    try:
        known = importlib.metadata.metadata(_US).get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        found = f"{_US} is not installed: the versions it needs are not known"
        raise Problem(found) from None
    if older := sorted(set(extras) - set(known)):
        found = f"the {_US} that is installed is older, it knows no extra {older[0]}"
        raise Problem(found)
    # An extra may stand for others of ours, which are then looked up too.
    needs: dict[str, requirements.Requirement] = {}
    for extra in extras:
        for line in importlib.metadata.requires(_US) or []:
            need = requirements.Requirement(line)
            name = utils.canonicalize_name(need.name)
            if need.marker and not need.marker.evaluate({"extra": extra}):
                continue
            if name == _US:
                extras += sorted(need.extras - set(extras))
            else:
                needs[name] = need
    # Without its dependencies, a package cannot bring another build of TensorFlow; one
    # that is missing needs them.
    wrong: list[str] = []
    fix: str | None = "pip install --no-deps"
    for need in needs.values():
        version = provenance.installed_version(need.name)
        if not version or not need.specifier.contains(version, prereleases=True):
            expected = need.specifier or "any"
            wrong.append(f"{need.name} {version or 'missing'}, expected {expected}")
            fix = f"{fix} '{need.name}{need.specifier}'" if fix and version else None
    if wrong:
        raise Problem("; ".join(wrong), fix)
    return f"{len(needs)} packages of the right version"


def _build(purpose: str) -> str:
    versions = {name: provenance.installed_version(name) for name in _BUILDS}
    builds = [f"{name} {version}" for name, version in versions.items() if version]
    expected = "tensorflow-tpu" if purpose == "tpu" else "tensorflow"
    if len(builds) > 1:
        names = " ".join(name.partition(" ")[0] for name in builds)
        raise Problem(
            f"{' and '.join(builds)} share one folder: files of both lie in it",
            f"pip uninstall --yes {names} && {_INSTALL[purpose]}",
        )
    if not builds or importlib.util.find_spec("tensorflow") is None:
        raise Problem(f"not installed, expected {expected}")
    if builds[0].startswith("tensorflow-tpu ") != (purpose == "tpu"):
        raise Problem(f"{builds[0]}, expected {expected}")
    return builds[0]


# === TPUs and GPUs: devices, drivers, libraries; `root` has `/dev` and `/proc` ===

LOCK_FILE = "/tmp/libtpu_lockfile"
"""Held by the one process that uses the TPU."""

_MIN_DRIVER = (525, 60, 13)
"""Of NVIDIA, for CUDA 12 (its release notes, table of minor version compatibility)."""


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
    # A line of /proc/locks: `1: FLOCK  ADVISORY  WRITE 4242 08:01:131 0 EOF`, where
    # process, device and inode come after WRITE.
    held = re.compile(rf"\S+ (\d+) [0-9a-f]+:[0-9a-f]+:{status.st_ino} ")
    locks = root / "proc/locks"
    if holder := held.search(locks.read_text() if locks.is_file() else ""):
        found = f"process {holder[1]} holds the TPU ({LOCK_FILE})"
        raise Problem(found, f"kill {holder[1]}")
    if not os.access(LOCK_FILE, os.R_OK | os.W_OK):
        found = f"{LOCK_FILE} is another user's, left by a process that is gone"
        raise Problem(found, f"sudo rm {LOCK_FILE}")
    return free


def _gpu_devices(root: Path) -> str:
    present = chips.visible_gpus({}, devices=root / "dev")
    shown = chips.visible_gpus(devices=root / "dev")
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
    spec = importlib.util.find_spec("tensorflow")
    if spec and spec.origin:
        built = Path(spec.origin).parent / "python/platform/build_info.py"
        if "'is_cuda_build', True" not in built.read_text(encoding="utf-8"):
            raise Problem("this build of TensorFlow has no CUDA in it")
    try:
        lines = importlib.metadata.requires("tensorflow") or []
    except importlib.metadata.PackageNotFoundError:
        raise Problem("the package tensorflow is not installed") from None
    names = [re.split(r"[<>=!~ ;\[]", line)[0] for line in lines if "and-cuda" in line]
    missing = [name for name in names if not provenance.installed_version(name)]
    if missing:
        counts = f"{len(missing)} of {len(names)}"
        raise Problem(f"{counts} CUDA packages missing: {missing[0]}, ...")
    return f"{len(names)} packages of CUDA's libraries"


def gpus_of_tensorflow() -> str:
    """Lists TensorFlow's GPUs in a process of its own, or raises its own reason."""
    program = "print('GPUS', len(tf.config.list_physical_devices('GPU')))"
    done = _run_in_tensorflow(program, log_level=0)
    count = re.search(r"^GPUS (\d+)$", done.stdout, re.MULTILINE)
    if count and int(count[1]):
        return f"{count[1]} listed"
    about_gpus = re.compile("cuda|cuInit|GPU|dlopen", re.IGNORECASE)
    told = [line for line in done.stderr.splitlines() if about_gpus.search(line)]
    reason = told[-1] if told else done.stderr.strip().rpartition("\n")[2]
    # Behind the date, the level and the place in TensorFlow's source.
    reason = reason.rpartition("] ")[2]
    raise Problem(f"TensorFlow lists none: {reason[:200]}")


def _run_in_tensorflow(
    program: str, *arguments: str, log_level: int, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    program = f"import sys; import tensorflow as tf\n{program}"
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": str(log_level)},
        timeout=timeout,
    )


# === The directories of a run: room on disks, rights in stores ===

_MIN_DISK = 5e9
"""Two checkpoints of BASE with its optimizer's state are 2.6 GB."""

_ANSWERS_SECONDS = 120
"""Time for TensorFlow to load, and for a store to answer it."""


def check_disk(path: str) -> str:
    """Checks room and the right to write at a local path, or in its nearest parent."""
    there = os.path.abspath(path)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    if not os.access(there, os.W_OK):
        raise Problem(f"{there} cannot be written to", f"sudo chown $USER {there}")
    free = shutil.disk_usage(there).free
    room = f"{free / 1e9:.1f} GB free"
    if free < _MIN_DISK:
        fix = f"du --max-depth=1 {there} | sort -n"
        raise Problem(f"{room}, {_MIN_DISK / 1e9:.0f} GB are needed", fix)
    return room


def _rights(path: str) -> str:
    """Writes, lists, reads and deletes a small file in a directory of a remote store,
    with the credentials that a run would use."""
    probe = files.join(path, f".doctor-{uuid.uuid4().hex}")
    doing = "write"
    try:
        files.write_atomically(probe, b"bert-keras doctor\n")
        doing = "list"
        if files.name_of(probe) not in files.list_directory(path):
            raise Problem("a file just written is not listed")
        doing = "read"
        files.read_bytes(probe)
        doing = "delete"
        files.delete(probe)
    except (OSError, InputError) as error:
        # The file may not exist; if it cannot be deleted, it stays.
        with contextlib.suppress(OSError, InputError):
            files.delete(probe)
        reason = getattr(error, "strerror", None) or str(error)
        found = f"cannot {doing}: {reason:.200}"
        raise Problem(found, _fix_of_store(path, error)) from None
    return "write, list, read, delete"


def _reading_of_tensorflow(path: str) -> str:
    """Lists the directory in a process that loads TensorFlow."""
    # Not `tf.io.gfile.listdir`, which finds no directory where a store refuses to
    # answer.
    program = (
        "from tensorflow.python.lib.io import _pywrap_file_io as io\n"
        "try: io.GetChildren(sys.argv[1])\n"
        "except tf.errors.NotFoundError: pass"
    )
    try:
        done = _run_in_tensorflow(program, path, log_level=3, timeout=_ANSWERS_SECONDS)
    except subprocess.TimeoutExpired:
        fix = "curl --head https://storage.googleapis.com"
        raise Problem(f"no answer in {_ANSWERS_SECONDS} s", fix) from None
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        is_refused = "PermissionDeniedError" in done.stderr
        error = OSError(errno.EACCES if is_refused else errno.EIO, reason)
        raise Problem(f"cannot list: {reason:.200}", _fix_of_store(path, error))
    return "list"


def _fix_of_store(path: str, error: Exception) -> str | None:
    if not path.startswith("gs://"):
        return None
    bucket = "/".join(path.split("/")[:3])
    # An error of writing says so as one of the user's.
    if isinstance(cause := error.__cause__, OSError):
        error = cause
    if getattr(error, "errno", None) == errno.EACCES and "401" not in str(error):
        return (
            f"gcloud storage buckets add-iam-policy-binding {bucket} "
            "--member=user:YOU@EXAMPLE.COM --role=roles/storage.objectUser"
        )
    if isinstance(error, FileNotFoundError):
        return f"gcloud storage buckets create {bucket} --location=REGION"
    return "gcloud auth application-default login"

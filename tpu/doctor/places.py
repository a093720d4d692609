"""The directories of a run: room on disks, rights in stores."""

import contextlib
import errno
import importlib.util
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.tpu.doctor.findings import Finding

_MIN_DISK = 5e9
"""Two checkpoints of BASE with its optimizer's state are 2.6 GB."""


def examine_disk(path: str) -> Finding:
    """Checks room and the right to write at a local path, or in its nearest parent."""
    there = os.path.abspath(path)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    name = f"disk {path}"
    free = shutil.disk_usage(there).free
    told = f"{free / 1e9:.1f} GB free"
    if not os.access(there, os.W_OK):
        fix = f"sudo chown $USER {there}"
        return Finding(name, "problem", f"{there} cannot be written to", fix)
    if free < _MIN_DISK:
        told = f"{told}, {_MIN_DISK / 1e9:.0f} GB are needed"
        return Finding(name, "problem", told, f"du --max-depth=1 {there} | sort -n")
    return Finding(name, "ok", told)


_ANSWERS_SECONDS = 120
"""Time for TensorFlow to load, and for a store to answer it."""


def examine_store(path: str, *, is_trained_on: bool) -> Iterator[Finding]:
    """Writes, lists, reads and deletes a small file in a directory of a remote store,
    with the credentials that a run would use.

    On `gs://` training reads its examples with TensorFlow, which looks for credentials,
    certificates and proxies in other places.
    """
    yield rights(path)
    if (
        is_trained_on
        and path.startswith("gs://")
        and importlib.util.find_spec("tensorflow")
    ):
        yield _reading_of_tensorflow(path)


def _reading_of_tensorflow(path: str) -> Finding:
    """Lists the directory in a process that loads TensorFlow."""
    name = f"reading of TensorFlow {path}"
    program = (
        "import sys; import tensorflow as tf; "
        "from tensorflow.python.lib.io import _pywrap_file_io as io\n"
        "try: io.GetChildren(sys.argv[1])\n"
        "except tf.errors.NotFoundError: pass"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program, path],
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            timeout=_ANSWERS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        told = f"no answer in {_ANSWERS_SECONDS} s"
        return Finding(
            name, "problem", told, "curl --head https://storage.googleapis.com"
        )
    if done.returncode:
        told = done.stderr.strip().rpartition("\n")[2]
        is_refused = "PermissionDeniedError" in done.stderr
        number = errno.EACCES if is_refused else errno.EIO
        fix = _fix(path, OSError(number, told))
        return Finding(name, "problem", f"cannot list: {told:.200}", fix)
    return Finding(name, "ok", "list")


def rights(path: str) -> Finding:
    name, probe = f"rights {path}", files.join(path, f".doctor-{uuid.uuid4().hex}")
    doing = "reach"
    try:
        doing = "write"
        files.write_atomically(probe, b"bert-keras doctor\n")
        doing = "list"
        if files.name_of(probe) not in files.list_directory(path):
            return Finding(name, "problem", "a file just written is not listed")
        doing = "read"
        files.read_bytes(probe)
        doing = "delete"
        files.delete(probe)
    except (OSError, InputError) as error:
        # The file may not exist; if it cannot be deleted, it stays.
        with contextlib.suppress(OSError, InputError):
            files.delete(probe)
        told = getattr(error, "strerror", None) or str(error)
        return Finding(
            name, "problem", f"cannot {doing}: {told:.200}", _fix(path, error)
        )
    return Finding(name, "ok", "write, list, read, delete")


def _fix(path: str, error: Exception) -> str | None:
    bucket = "/".join(path.split("/")[:3])
    if not path.startswith("gs://"):
        return None
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

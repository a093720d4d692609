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
from bert_keras.tpu.doctor.findings import Finding, Problem, look

_MIN_DISK = 5e9
"""Two checkpoints of BASE with its optimizer's state are 2.6 GB."""


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


_ANSWERS_SECONDS = 120
"""Time for TensorFlow to load, and for a store to answer it."""


def examine_store(path: str, *, is_trained_on: bool) -> Iterator[Finding]:
    """Writes, lists, reads and deletes a small file in a directory of a remote store,
    with the credentials that a run would use.

    On `gs://` training reads its examples with TensorFlow, which looks for credentials,
    certificates and proxies in other places.
    """
    yield look(f"rights {path}", _rights, path)
    has_tensorflow = importlib.util.find_spec("tensorflow") is not None
    if is_trained_on and path.startswith("gs://") and has_tensorflow:
        yield look(f"reading of TensorFlow {path}", _reading_of_tensorflow, path)


def _reading_of_tensorflow(path: str) -> str:
    """Lists the directory in a process that loads TensorFlow."""
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
        fix = "curl --head https://storage.googleapis.com"
        raise Problem(f"no answer in {_ANSWERS_SECONDS} s", fix) from None
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        is_refused = "PermissionDeniedError" in done.stderr
        error = OSError(errno.EACCES if is_refused else errno.EIO, reason)
        raise Problem(f"cannot list: {reason:.200}", _fix(path, error))
    return "list"


def _rights(path: str) -> str:
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
        raise Problem(found, _fix(path, error)) from None
    return "write, list, read, delete"


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

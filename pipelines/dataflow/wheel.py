"""This package as a wheel, for remote workers.

The wheel holds the files that are imported here, from a checkout or installed, so that
the same code runs there. It needs no build tool and no network; the same files give the
same bytes.
"""

import base64
import hashlib
import importlib.metadata
import io
import os
import zipfile
from pathlib import Path

import bert_keras
from bert_keras import __version__
from bert_keras.core import files
from bert_keras.core.errors import InputError

DISTRIBUTION = "bert-keras"
NAME = f"bert_keras-{__version__}-py3-none-any.whl"

_INFO = f"bert_keras-{__version__}.dist-info"


def write_wheel(directory: str | os.PathLike[str]) -> str:
    """Writes the wheel into a directory; returns its absolute path."""
    members = {**_package_files(), **_metadata_files()}
    record = "".join(f"{name},{_digest(data)}\n" for name, data in members.items())
    members[f"{_INFO}/RECORD"] = f"{record}{_INFO}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            member = zipfile.ZipInfo(name)  # dated 1980
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o644 << 16
            archive.writestr(member, data)
    path = os.path.join(os.path.abspath(directory), NAME)
    files.make_directory(os.path.dirname(path))
    files.write_atomically(path, buffer.getvalue())
    return path


def _package_files() -> dict[str, bytes]:
    root = Path(bert_keras.__file__).parent
    members = {}
    # `pipelines` and `tpu` are links in a checkout, which `rglob` does not follow.
    for directory, _, names in os.walk(root, followlinks=True):
        if not directory.endswith("__pycache__"):
            for path in (Path(directory, name) for name in names):
                members[path.relative_to(root.parent).as_posix()] = path.read_bytes()
    return dict(sorted(members.items()))


def _metadata_files() -> dict[str, bytes]:
    try:
        installed = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise InputError(
            f"{DISTRIBUTION} is not installed, so its requirements are not known: "
            "pip install --editable ."
        ) from None
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {DISTRIBUTION}",
        f"Version: {__version__}",
        *(f"Requires-Dist: {line}" for line in installed.requires or ()),
    ]
    wheel = "Wheel-Version: 1.0\nGenerator: bert-keras\nRoot-Is-Purelib: true\n"
    return {
        f"{_INFO}/METADATA": ("\n".join(lines) + "\n").encode(),
        f"{_INFO}/WHEEL": f"{wheel}Tag: py3-none-any\n".encode(),
        f"{_INFO}/entry_points.txt": (
            b"[console_scripts]\nbert-keras = bert_keras.commands.main:entry_point\n"
        ),
    }


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()},{len(data)}"

"""This package as a wheel, for remote workers.

The wheel holds the files that are imported here, from a checkout or installed, so that
the same code runs there. `pip wheel` would need a checkout, setuptools and, to isolate
its build, a network, and would add what earlier builds left in `build/`. The same files
give the same bytes.
"""

import base64
import hashlib
import importlib.metadata
import io
import os
import zipfile
from pathlib import Path

import bert_keras
from bert_keras.core import files
from bert_keras.core.errors import InputError

DISTRIBUTION = "bert-keras"


def write_wheel(directory: str | os.PathLike[str]) -> str:
    """Writes the wheel into a directory; returns its absolute path."""
    try:
        installed = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise InputError(
            f"{DISTRIBUTION} is not installed, so its requirements are not known: "
            "pip install --editable ."
        ) from None
    # 1. The package.
    root = Path(bert_keras.__file__).parent
    members = {}
    # `pipelines` and `tpu` are links in a checkout, which `rglob` does not follow.
    for folder, _, names in os.walk(root, followlinks=True):
        if not folder.endswith("__pycache__"):
            for path in (Path(folder, name) for name in names):
                members[path.relative_to(root.parent).as_posix()] = path.read_bytes()
    members = dict(sorted(members.items()))
    # 2. What `pip` knows of it here. In a checkout that is run with `python -m`, this
    # is the `.egg-info` that setuptools left there, where METADATA is called PKG-INFO.
    info = f"bert_keras-{installed.version}.dist-info"
    metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO") or ""
    members[f"{info}/METADATA"] = metadata.encode()
    entry_points = installed.read_text("entry_points.txt") or ""
    members[f"{info}/entry_points.txt"] = entry_points.encode()
    members[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: bert-keras\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n"
    )
    # 3. The list of all members.
    record = ""
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
        record += f"{name},sha256={digest.decode()},{len(data)}\n"
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            member = zipfile.ZipInfo(name)  # dated 1980
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o644 << 16
            archive.writestr(member, data)
    path = os.path.join(
        os.path.abspath(directory), f"bert_keras-{installed.version}-py3-none-any.whl"
    )
    files.make_directory(os.path.dirname(path))
    files.write_atomically(path, buffer.getvalue())
    return path

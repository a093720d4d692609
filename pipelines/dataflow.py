"""Data jobs on Dataflow: the command that starts one, and our wheel for its workers.

A command is a list of words, made by a pure function: the printed command is the one
that runs, without a shell in between.
"""

import base64
import hashlib
import importlib.metadata
import io
import itertools
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bert_keras
from bert_keras.core import files
from bert_keras.core.errors import InputError, nearest
from bert_keras.pipelines import sources
from bert_keras.pipelines.engine import runner_options

MACHINE_TYPES = {
    "corpus": "n2-standard-4",
    "vocab": "n2-standard-4",
    # A worker holds all documents of a shard, and their examples, in memory.
    "examples": "n2-highmem-4",
}

SETTINGS = (
    *("project", "region", "temp_location", "machine_type", "max_num_workers"),
    *("number_of_worker_harness_threads", "sdk_container_image"),
)
"""Options of Beam that the verb sets. There are two threads for each process, of which
there is one per core: Python computes in one thread at a time, the second works while
the first waits for files, and more would only hold more shards in memory."""

DISTRIBUTION = "bert-keras"


def make_command(
    arguments: Sequence[str], settings: Mapping[str, Any], *, wheel: str | None
) -> list[str]:
    """Returns the command that runs a verb on Dataflow and waits for its end.

    Args:
        arguments: a verb and its arguments, and after a `--` more options for Beam,
            which override `settings`.
        settings: values of `SETTINGS`; the machine type may be `None`, which is by the
            verb, and so may the image, which is Beam's, with our wheel staged.
        wheel: path of this package's wheel, to be staged; `None`: it is in the image.
    """
    if not arguments:
        raise InputError(
            "give the command to run after `--`, such as -- corpus --wikipedia gs://..."
        )
    verb, *verb_arguments = arguments
    if verb not in MACHINE_TYPES:
        raise InputError(
            f"Dataflow runs one of {', '.join(MACHINE_TYPES)}, got {verb!r}"
            f"{nearest(verb, MACHINE_TYPES)}"
        )
    beam_arguments: list[str] = []
    if "--" in verb_arguments:
        position = verb_arguments.index("--")
        beam_arguments = verb_arguments[position + 1 :]
        del verb_arguments[position:]
    for option in ("--workers", "--memory_limit"):
        if _value_of(option, verb_arguments) is not None:
            raise InputError(
                f"{option} is for processes of this machine: leave it out, and give "
                "Dataflow's machines before the first `--`, by --max_num_workers and "
                "--machine_type"
            )
    if _value_of("--runner", beam_arguments) is not None:
        raise InputError(
            "`launch dataflow` runs on Dataflow: leave --runner out, or for another "
            f"runner give `bert-keras {verb} ... -- --runner ...` itself"
        )
    values = {
        "runner": "DataflowRunner",
        # These and [4:6] below are all but the machine type, which depends on the verb,
        # and the image, which comes with another option.
        **{name: settings[name] for name in SETTINGS[:3]},
        "job_name": job_name(verb, verb_arguments),
        "machine_type": settings["machine_type"] or MACHINE_TYPES[verb],
        **{name: settings[name] for name in SETTINGS[4:6]},
    }
    options = [w for name, v in values.items() for w in (f"--{name}", str(v))]
    options.append("--no_save_main_session")
    if image := settings["sdk_container_image"]:
        options += ["--sdk_container_image", image, "--sdk_location", "container"]
    if wheel:
        options += ["--extra_package", wheel]
    options += beam_arguments
    # Only for its errors, before anything is started.
    runner_options.parse(options)
    return ["bert-keras", verb, *verb_arguments, "--", *options]


def check_paths(parsed: Mapping[str, Any]) -> None:
    options = runner_options.parse(parsed["beam_arguments"])
    inputs = [path for kind in sources.SOURCES for path in parsed.get(kind, ())]
    others = [parsed[name] for name in ("corpus", "output") if name in parsed]
    runner_options.check_paths(options, [*inputs, *others])


def job_name(verb: str, verb_arguments: Sequence[str]) -> str:
    """Returns a name derived from the job's output. Dataflow refuses a second running
    job of the same name, so two jobs can never write to one directory at the same
    time."""
    output = _value_of("--output", verb_arguments)
    if output is None:
        raise InputError(f"{verb}: --output gs://BUCKET/... is needed")
    digest = hashlib.blake2b(output.rstrip("/").encode(), digest_size=4).hexdigest()
    return f"bert-keras-{verb}-{digest}"


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    value = None
    for word, following in itertools.zip_longest(arguments, arguments[1:]):
        if word == option:
            value = following
        elif word.startswith(option + "="):
            value = word.partition("=")[2]
    return value


def write_wheel(directory: files.Path) -> str:
    """Writes this package as a wheel into a directory; returns its absolute path.

    The wheel holds the files that are imported here, from a checkout or installed, so
    that the same code runs there. `pip wheel` would need a checkout, setuptools and, to
    isolate its build, a network, and would add what earlier builds left in `build/`.
    The same files give the same bytes.
    """
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

"""Commands that start a data job on Dataflow.

A command is a list of words, made by a pure function: the printed command is the one
that runs, without a shell in between.
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from bert_keras.core.errors import InputError, nearest
from bert_keras.pipelines import sources
from bert_keras.pipelines.engine import runner_options

VERBS = ("corpus", "vocab", "examples")

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


def dataflow_command(
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
    if verb not in VERBS:
        raise InputError(
            f"Dataflow runs one of {', '.join(VERBS)}, got {verb!r}"
            f"{nearest(verb, VERBS)}"
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
    runner_options.parse(options)
    return ["bert-keras", verb, *verb_arguments, "--", *options]


def check_paths(parsed: Mapping[str, Any]) -> None:
    options = runner_options.parse(parsed["beam_arguments"])
    inputs = [path for kind in sources.SOURCES for path in parsed.get(kind, ())]
    others = [parsed[name] for name in ("corpus", "output") if name in parsed]
    runner_options.check_paths(options, [*inputs, *others])


def job_name(verb: str, verb_arguments: Sequence[str]) -> str:
    """Returns a name derived from the job's output.

    Dataflow refuses a second running job of the same name, so two jobs can never write
    to one directory at the same time.
    """
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

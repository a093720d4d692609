"""Commands that start a data job elsewhere: on Dataflow, at once or as a template.

A command is a list of words, made by a pure function; what is printed is what is run,
and no shell is between.
"""

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bert_keras.errors import InputError, nearest
from pipelines.engine import runner_options

VERBS = ("corpus", "vocab", "examples")
"""What Beam does."""

MACHINE_TYPES = {
    "corpus": "n2-standard-4",
    "vocab": "n2-standard-4",
    # A worker holds all documents of a shard, and their examples, in memory.
    "examples": "n2-highmem-4",
}


@dataclass(frozen=True, kw_only=True)
class Dataflow:
    """Where a job runs, and on what."""

    project: str
    """Id, not number."""
    region: str
    """Such as `europe-west4`; that of the bucket, or reading costs money."""
    temp_location: str
    """`gs://` folder for what is staged."""
    machine_type: str | None = None
    """`None`: by the verb, see `MACHINE_TYPES`."""
    max_num_workers: int = 16
    """Machines, at most."""
    number_of_worker_harness_threads: int = 2
    """In each process; there is one process for each core. Python computes in one
    thread at a time: the second one is for the time that the first waits for files,
    more would only hold more shards in memory."""
    sdk_container_image: str | None = None
    """Image with this package in it; `None`: Beam's image, with our wheel staged."""


def dataflow_command(
    arguments: Sequence[str], settings: Dataflow, *, wheel: str | None
) -> list[str]:
    """The command that runs a verb on Dataflow and waits for its end.

    Args:
        arguments: a verb and what it takes, and after a `--` more options for Beam,
            which win over those of `settings`.
        wheel: path of this package's wheel, to be staged; `None`: it is in the image.

    Raises:
        InputError: no data verb, or anything that Dataflow would refuse.
    """
    verb, verb_arguments, beam_arguments = _split(arguments)
    options = [
        *("--runner", "DataflowRunner"),
        *("--project", settings.project),
        *("--region", settings.region),
        *("--temp_location", settings.temp_location),
        *("--job_name", job_name(verb, verb_arguments)),
        *("--machine_type", settings.machine_type or MACHINE_TYPES[verb]),
        *("--max_num_workers", str(settings.max_num_workers)),
        "--number_of_worker_harness_threads",
        str(settings.number_of_worker_harness_threads),
        "--no_save_main_session",
    ]
    if settings.sdk_container_image:
        options += ["--sdk_container_image", settings.sdk_container_image]
        options += ["--sdk_location", "container"]
    if wheel:
        options += ["--extra_package", wheel]
    options += beam_arguments
    runner_options.parse(options)
    return ["bert-keras", verb, *verb_arguments, "--", *options]


def job_name(verb: str, verb_arguments: Sequence[str]) -> str:
    """A name that says what the job writes.

    Dataflow refuses a second running job of one name, so two jobs can never write one
    directory at the same time.

    Raises:
        InputError: there is no `--output`.
    """
    output = _value_of("--output", verb_arguments)
    if output is None:
        raise InputError(f"{verb}: --output gs://BUCKET/... is needed")
    digest = hashlib.blake2b(output.rstrip("/").encode(), digest_size=4).hexdigest()
    return f"bert-keras-{verb}-{digest}"


def _split(arguments: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """A verb, its arguments, and what stands after a `--` of its own."""
    if not arguments:
        raise InputError(
            "give what is to be run after `--`, such as -- corpus --wikipedia gs://..."
        )
    verb, *rest = arguments
    if verb not in VERBS:
        raise InputError(
            f"Dataflow runs one of {', '.join(VERBS)}, got {verb!r}"
            f"{nearest(verb, VERBS)}"
        )
    if "--" not in rest:
        return verb, rest, []
    position = rest.index("--")
    return verb, rest[:position], rest[position + 1 :]


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    value = None
    for word, following in zip(arguments, [*arguments[1:], None], strict=True):
        if word == option:
            value = following
        elif word.startswith(option + "="):
            value = word.partition("=")[2]
    return value


# A template: a job that others start without this package.


def flex_template_metadata() -> dict[str, Any]:
    """What Dataflow asks of someone who starts a job from the template.

    Two parameters, so that they hold for every verb; see `flex_template.py`.
    """
    return {
        "name": "bert-keras",
        "description": "Data for BERT: raw dumps and books to documents, documents to "
        "a vocabulary, and both to masked TFRecords",
        "parameters": [
            {
                "name": "verb",
                "label": "Verb",
                "helpText": f"One of {', '.join(VERBS)}",
                "regexes": [f"^({'|'.join(VERBS)})$"],
            },
            {
                "name": "arguments",
                "label": "Arguments",
                "helpText": "What the verb takes, as on the command line, such as "
                "--wikipedia gs://BUCKET/dump.xml.bz2 --output gs://BUCKET/corpus",
                "regexes": [r"^.*--output[= ]gs://.+$"],
            },
        ],
    }


def flex_template_commands(
    arguments: Sequence[str],
    settings: Dataflow,
    *,
    template: str,
    metadata_path: str,
) -> list[list[str]]:
    """Google's commands that make the template and start a job from it.

    Args:
        arguments: a verb and what it takes.
        settings: with a `sdk_container_image`: the template's own image.
        template: `gs://` path of the template to write.
        metadata_path: file with `flex_template_metadata()`.

    Raises:
        InputError: no image, a template that is not on Cloud Storage, no data verb,
            options for Beam, which a template cannot take.
    """
    verb, verb_arguments, beam_arguments = _split(arguments)
    if beam_arguments:
        raise InputError("a template's job takes no second `--`")
    if not template.startswith("gs://"):
        raise InputError(f"--template expects gs://BUCKET/NAME.json, got {template!r}")
    if settings.sdk_container_image is None:
        raise InputError(
            "a template needs --sdk_container_image, an image with this package and "
            "Dataflow's template launcher"
        )
    image = settings.sdk_container_image
    parameters = {
        "verb": verb,
        "arguments": _quoted(verb_arguments),
        "sdk_container_image": image,
        "sdk_location": "container",
        "number_of_worker_harness_threads": str(
            settings.number_of_worker_harness_threads
        ),
    }
    joined = _SEPARATOR.join(f"{name}={value}" for name, value in parameters.items())
    flex = ["gcloud", "dataflow", "flex-template"]
    return [
        [
            *(*flex, "build", template),
            *("--project", settings.project),
            *("--image", image),
            *("--sdk-language", "PYTHON"),
            *("--metadata-file", metadata_path),
        ],
        [
            *(*flex, "run", job_name(verb, verb_arguments)),
            *("--project", settings.project),
            *("--region", settings.region),
            *("--template-file-gcs-location", template),
            *("--staging-location", settings.temp_location),
            *("--temp-location", settings.temp_location),
            *("--worker-machine-type", settings.machine_type or MACHINE_TYPES[verb]),
            *("--max-workers", str(settings.max_num_workers)),
            # gcloud splits at commas unless told of another separator.
            *("--parameters", f"^{_SEPARATOR}^{joined}"),
        ],
    ]


_SEPARATOR = "~"


def _quoted(arguments: Sequence[str]) -> str:
    joined = shlex.join(arguments)
    if _SEPARATOR in joined:
        raise InputError(f"a template's arguments cannot hold {_SEPARATOR!r}: {joined}")
    return joined

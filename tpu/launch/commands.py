"""Commands of `gcloud` that rent a TPU, look at it and give it back.

A command is a list of words, made by a pure function: the printed command is the one
that runs, without a shell in between. Flags are those of Google's pages of November
2026; tests compare them with a table.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from bert_keras import chips, files, run_directory
from bert_keras.errors import InputError

_MACHINE_TYPES = {"v5e": "ct5lp-hightpu", "v6e": "ct6e-standard"}
"""Compute Engine's, by chip: `-8t` has eight of them."""
_IMAGE_FAMILY = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
_IMAGE_PROJECT = "ubuntu-os-accelerator-images"
_RUNTIMES = {
    "v4": "tpu-ubuntu2204-base",
    "v5e": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
"""Software of machines that the Cloud TPU API makes, by chip."""
_DISK_GB = 200


@dataclass(frozen=True, kw_only=True)
class Rental:
    """A TPU to rent, and the run that it is for."""

    device: chips.Device
    project: str
    """Id, not number."""
    zone: str
    """Such as `us-central1-a`; the bucket should be in its region."""
    staging: str
    """`gs://` folder for the code, the machine's log and its last words."""
    arguments: tuple[str, ...]
    """`pretrain` and its arguments, with `--output_dir gs://...`."""
    max_hours: float
    """Hours after which everything ends, waiting for a machine included."""
    spot: bool = True
    """Whether the machine may be taken away: a quarter of the price, often less."""
    service_account: str | None = None
    """That the machine acts as; `None`: the project's default."""

    def __post_init__(self):
        if self.device.chip.kind != "tpu":
            raise InputError(f"--on: expected a TPU slice, got {self.device.name}")
        if not self.staging.startswith("gs://"):
            raise InputError(f"--staging expects gs://BUCKET/..., got {self.staging!r}")
        if not 0.05 <= self.max_hours <= 24 * 120:
            raise InputError(
                "--max_hours: expected 0.05 to 2,880 (120 days, which Compute Engine "
                f"allows), got {self.max_hours:g}"
            )
        if not self.arguments or self.arguments[0] != "pretrain":
            raise InputError(
                "give the command to run after `--`, such as -- pretrain --config "
                "bert_base --examples gs://... --output_dir gs://..."
            )
        if "--strategy" in self.arguments:
            raise InputError("--strategy is `tpu` on a TPU: leave it out")
        if not self.output_dir.startswith("gs://"):
            raise InputError(
                "--output_dir expects gs://BUCKET/..., since the machine's disk goes "
                f"with it, got {self.output_dir!r}"
            )

    @property
    def output_dir(self) -> str:
        """Run directory of the command."""
        words = list(self.arguments)
        for place, word in enumerate(words):
            if word.startswith("--output_dir="):
                return word.partition("=")[2]
            if word == "--output_dir" and place + 1 < len(words):
                return words[place + 1]
        return ""

    @property
    def name(self) -> str:
        """Name of the machine, from the run directory.

        Google refuses two machines of one name, so two can never write to one run.
        """
        path = self.output_dir.rstrip("/").encode()
        digest = hashlib.blake2b(path, digest_size=4).hexdigest()
        return f"bert-keras-pretrain-{digest}"

    @property
    def is_queued(self) -> bool:
        """Whether Cloud TPU's queue makes the machines: v4, v5p, and several hosts."""
        return self.device.chip.name not in _MACHINE_TYPES or self.device.num_hosts > 1

    @property
    def results(self) -> str:
        """The file that a finished run has."""
        return files.join(self.output_dir, run_directory.RESULTS_NAME)

    @property
    def folder(self) -> str:
        """Of this run, in the staging folder."""
        return files.join(self.staging, self.name)

    def staged(self, name: str) -> str:
        """Path of a file of this run in the staging folder."""
        return files.join(self.folder, name)


def create(rental: Rental, *, script: str, seconds: float) -> list[str]:
    """Makes the machine, with the script that it runs at every start.

    Args:
        rental: what to rent.
        script: path of the start-up script.
        seconds: that are left of `max_hours`.
    """
    labels = f"tool=bert-keras,run={rental.name}"
    account = _options({"service-account": rental.service_account})
    shared = {"labels": labels, "metadata-from-file": f"startup-script={script}"}
    shared["scopes"] = "cloud-platform"
    if rental.is_queued:
        chip = rental.device.chip.name
        words = ["gcloud", "compute", "tpus", "queued-resources", "create"]
        words += [rental.name, *_place(rental)]
        values = {
            "node-id": rental.name,
            "accelerator-type": accelerator_type(rental.device),
            "runtime-version": _RUNTIMES[chip],
            # A request that waits too long is given up; a machine that runs is not.
            "valid-until-duration": f"{math.ceil(seconds)}s",
            **shared,
        }
        spot = ["--spot"] if rental.spot else []
        return [*words, *_options(values), *account, *spot, "--async"]
    words = ["gcloud", "compute", "instances", "create", rental.name, *_place(rental)]
    kind = _MACHINE_TYPES[rental.device.chip.name]
    values = {
        "machine-type": f"{kind}-{rental.device.num_chips}t",
        "image-family": _IMAGE_FAMILY,
        "image-project": _IMAGE_PROJECT,
        "boot-disk-size": f"{_DISK_GB}GB",
        "maintenance-policy": "TERMINATE",
        "provisioning-model": "SPOT" if rental.spot else "STANDARD",
        # The second line of defence: Google deletes it, whatever runs on it.
        "instance-termination-action": "DELETE",
        "max-run-duration": f"{math.ceil(seconds)}s",
        **shared,
    }
    return [*words, *_options(values), *account, "--no-restart-on-failure"]


def accelerator_type(device: chips.Device) -> str:
    """A slice as the Cloud TPU API names it: `v5litepod-16`, `v4-8`."""
    return device.name.replace("v5e-", "v5litepod-")


def delete(rental: Rental) -> list[str]:
    """Gives the machine back, and everything on it."""
    if rental.is_queued:
        words = ["gcloud", "compute", "tpus", "queued-resources", "delete"]
        # With its node.
        return [*words, rental.name, *_place(rental), "--force", "--quiet"]
    words = ["gcloud", "compute", "instances", "delete"]
    return [*words, rental.name, *_place(rental), "--quiet"]


def describe(rental: Rental) -> list[str]:
    """Prints the machine's state; fails if there is none."""
    if rental.is_queued:
        words = ["gcloud", "compute", "tpus", "queued-resources", "describe"]
        return [*words, rental.name, *_place(rental), "--format=value(state.state)"]
    words = ["gcloud", "compute", "instances", "describe"]
    return [*words, rental.name, *_place(rental), "--format=value(status)"]


def copy(sources: Sequence[str], target: str) -> list[str]:
    """Copies files to a folder of the store."""
    return ["gcloud", "storage", "cp", *sources, files.join(target, "")]


def read(path: str) -> list[str]:
    """Prints a file of the store; fails if there is none."""
    return ["gcloud", "storage", "cat", path]


def remove(path: str) -> list[str]:
    """Removes a file of the store."""
    return ["gcloud", "storage", "rm", path]


def exists(path: str) -> list[str]:
    """Fails if there is no such file in the store."""
    return ["gcloud", "storage", "ls", path]


def _place(rental: Rental) -> list[str]:
    return _options({"project": rental.project, "zone": rental.zone})


def _options(values: dict[str, str | None]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items() if value is not None]

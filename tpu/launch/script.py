"""The start-up script of a rented machine: settings, and `machine.sh` behind them."""

import shlex
from importlib import resources

from bert_keras.tpu.launch import commands

WORK = "/var/lib/bert-keras"
"""Folder on the machine."""


def startup_script(
    rental: commands.Rental, *, wheel: str, seconds: float, work: str = WORK
) -> str:
    """The script, for one machine.

    Args:
        rental: the machine and its run.
        wheel: name of the staged wheel.
        seconds: after which the machine ends itself.
        work: folder on the machine for the installation and the log.
    """
    settings = {
        "NAME": rental.name,
        "FOLDER": rental.folder,
        "RESULTS": rental.results,
        "WHEEL": wheel,
        "MAX_SECONDS": f"{seconds:.0f}",
        "WORK": work,
    }
    lines = ["#!/bin/bash"]
    lines += [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    lines.append(f"delete_machine() {{ {shlex.join(commands.delete(rental))}; }}")
    command = ["env/bin/bert-keras", *rental.arguments, "--strategy", "tpu"]
    # `exec`: the signal to end goes to training itself.
    lines.append(
        f"train() {{ exec {shlex.join(command)} > >(tee log-of-training.txt) 2>&1; }}"
    )
    body = (resources.files("bert_keras.tpu.launch") / "machine.sh").read_text(
        encoding="utf-8"
    )
    return "\n".join(lines) + "\n" + body

"""Prices of machines and storage, from a dated file."""

import datetime
from importlib import resources
from pathlib import Path

from bert_keras import config_files
from bert_keras.strict_model import StrictModel


class Hourly(StrictModel):
    """Price of one chip, or of two cores, for an hour."""

    on_demand: float
    """In US dollars, for a machine that stays."""
    spot: float | None
    """For one that may be taken away at any time; null: not known."""
    region: str
    """Where it is that much."""
    source: str
    """Who says so."""


class Storage(StrictModel):
    """Price of a GB for a month."""

    monthly: float
    region: str
    source: str


class Prices(StrictModel):
    """A table of prices."""

    date: datetime.date
    """When it was looked up."""
    hourly: dict[str, Hourly]
    """By name of the chip, and `cpu`."""
    storage: Storage


def load(path: str | Path | None) -> Prices:
    """The prices of a YAML file, by default those of the package.

    Raises:
        InputError: no such file, or not a table of prices.
    """
    if path is None:
        with resources.as_file(
            resources.files("bert_keras.tpu.plan") / "prices.yaml"
        ) as own:
            return config_files.load(Prices, own, [])
    return config_files.load(Prices, path, [])

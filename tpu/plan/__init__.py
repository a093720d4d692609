"""`bert-keras plan`: what a run takes on several devices, before one is rented."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bert_keras import chips
from bert_keras.tpu.plan import data, prices, speed, work

MONTH_HOURS = 730
RESTART_SECONDS = {"tpu": 420, "gpu": 300, "cpu": 35}
"""From a preemption to the next step: a machine, packages, compilation. Of `cpu`
measured without a machine to wait for; the others are assumed."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A run on one device."""

    device: str
    speed: speed.Speed
    hours: float
    """Of training, evaluations included."""
    lost: float
    """Share of the time that one preemption an hour costs: the machine's restart, and
    half of the steps between two checkpoints."""
    num_chips: int
    hourly: prices.Hourly | None
    """Price of one chip; `None`: not known."""

    @property
    def on_demand(self) -> float | None:
        """US dollars for `hours`; `None`: no price is known."""
        if self.hourly is None:
            return None
        return self.hours * self.num_chips * self.hourly.on_demand

    @property
    def spot(self) -> float | None:
        """US dollars for `spot_hours`; `None`: no price is known."""
        if self.hourly is None or self.hourly.spot is None:
            return None
        return self.spot_hours * self.num_chips * self.hourly.spot

    @property
    def spot_hours(self) -> float:
        """Hours with one preemption in each; infinite: it would never be done."""
        return self.hours / (1 - self.lost) if self.lost < 1 else math.inf


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, its data, and what devices make of it."""

    work: work.Work
    data: data.Data | None
    offers: tuple[Offer, ...]
    prices: prices.Prices

    @property
    def data_dollars(self) -> float:
        """Of the processors that prepare the data."""
        if self.data is None:
            return 0.0
        cores = sum(self.data.core_hours.values())
        return cores / 2 * self.prices.hourly["cpu"].on_demand

    @property
    def bytes(self) -> float:
        """On disk at once: data, and the checkpoints that are kept."""
        kept = (self.work.num_checkpoints + 1) * self.work.checkpoint_bytes
        return kept + (self.data.bytes if self.data else 0.0)

    @property
    def storage_dollars(self) -> float:
        """Of a month."""
        return self.bytes / 1e9 * self.prices.storage.monthly


def make(
    found: work.Work,
    prepared: data.Data | None,
    devices: Sequence[str],
    table: prices.Prices,
    *,
    measured: Mapping[str, float],
) -> Plan:
    """A plan for some devices.

    Args:
        found: the run.
        prepared: its data, if that is to be made too.
        devices: names, see `speed.of_device`.
        table: of prices.
        measured: FLOPs a second of devices where they are known.

    Raises:
        InputError: no such device.
    """
    offers = tuple(_offer(found, name, table, measured) for name in devices)
    return Plan(work=found, data=prepared, offers=offers, prices=table)


def _offer(
    found: work.Work, name: str, table: prices.Prices, measured: Mapping[str, float]
) -> Offer:
    rate = speed.of_device(name, found.model, measured)
    seconds = sum(s.flops / rate.at(s.max_seq_length) for s in found.stages)
    kind, chip, count = "cpu", name, 1
    if name != speed.CPU:
        device = chips.parse_device(name)
        kind, chip, count = device.chip.kind, device.chip.name, device.num_chips
    between = seconds / found.num_steps * found.save_checkpoint_steps
    between = min(between, found.save_checkpoint_seconds, seconds)
    lost = min((RESTART_SECONDS[kind] + between / 2) / 3600, 1.0)
    hours = seconds / 3600
    return Offer(
        device=name,
        speed=rate,
        hours=hours,
        lost=lost,
        hourly=table.hourly.get(chip),
        num_chips=count,
    )

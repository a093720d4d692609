"""The largest batch that fits a chip, and what makes a step fit that does not.

Memory grows with the examples that are computed at once, in a line as far as it shows.
Two compilations give the line, a further one verifies what follows from it.
"""

import dataclasses
import typing
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bert_keras import config
from bert_keras.tpu.preflight import compiling, steps

Compile = Callable[[steps.Step], compiling.Compiled]

_MAX_COMPILATIONS = 5
_GRANULE = 8
"""Rows that a TPU pads to: batches in between need no less."""


class Point(NamedTuple):
    """A compiled step of some examples at once."""

    num_rows: int
    compiled: compiling.Compiled


class Remedy(NamedTuple):
    """Settings with which a step fits."""

    settings: str
    step: steps.Step
    compiled: compiling.Compiled


def fits(compiled: compiling.Compiled, usable: float) -> bool:
    """Whether a step compiles into a memory of so many bytes."""
    return not (compiled.refused or compiled.is_too_large) and (
        compiled.memory <= usable
    )


def largest_batch(
    step: steps.Step, compiled: compiling.Compiled, *, usable: float, compile_: Compile
) -> Point | None:
    """The most examples of a chip that fit, verified by compiling it.

    Args:
        step: a step; its parts stay.
        compiled: that step.
        usable: bytes of the chip's memory for a program.
        compile_: compiles another batch.

    Returns:
        The largest that was found to fit, at most 5 compilations on, which is a
        multiple of 8 where it is more than 8 examples a part; `None`: not even one
        example of a part fits.
    """
    points = [Point(step.batch_size // step.num_parts, compiled)]
    while len(points) <= _MAX_COMPILATIONS:
        num_rows = _next_guess(points, usable)
        if num_rows < 1 or num_rows in [point.num_rows for point in points]:
            break
        other = dataclasses.replace(step, batch_size=num_rows * step.num_parts)
        points.append(Point(num_rows, compile_(other)))
    good = [point for point in points if fits(point.compiled, usable)]
    if not good:
        return None
    best = max(good, key=lambda point: point.num_rows)
    return Point(best.num_rows * step.num_parts, best.compiled)


def _next_guess(points: list[Point], usable: float) -> int:
    """The rows to compile next: more than fit so far, fewer than do not."""
    num_rows = _granular(rows_that_fit(points, usable))
    fit = [p.num_rows for p in points if fits(p.compiled, usable)]
    too_many = [p.num_rows for p in points if not fits(p.compiled, usable)]
    if too_many and num_rows >= min(too_many):
        num_rows = _granular(min(too_many) - 1)
    return max(num_rows, max(fit, default=0))


def rows_that_fit(points: list[Point], usable: float) -> int:
    """Examples at once that fit, by a line through what was compiled.

    With one point alone the line begins at the memory of variables, their gradients
    and the program.
    """
    points = sorted(points)
    last = points[-1]
    if len(points) > 1:
        before = points[-2]
        more = last.compiled.memory - before.compiled.memory
        slope = more / (last.num_rows - before.num_rows)
        constant = last.compiled.memory - slope * last.num_rows
    else:
        # Weights and two moments, and a gradient of each.
        gradients = last.compiled.state_bytes / 3
        slope = max(last.compiled.temporary_bytes - gradients, 0.0) / last.num_rows
        constant = last.compiled.memory - slope * last.num_rows
    if slope <= 0:
        return 2 * last.num_rows
    return int((usable - constant) / slope)


def _granular(num_rows: int) -> int:
    return num_rows if num_rows < _GRANULE else num_rows // _GRANULE * _GRANULE


def remedies(
    step: steps.Step, compiled: compiling.Compiled, *, usable: float, compile_: Compile
) -> Iterator[Remedy]:
    """Settings with which a step fits that does not, each verified by compiling it.

    The fewest parts that fit, as each reads all weights again; and the least that is
    computed again in the backward pass.
    """
    point = Point(step.batch_size // step.num_parts, compiled)
    for other in _in_parts(step, rows_that_fit([point], usable)):
        if fits(found := compile_(other), usable):
            yield Remedy(f"gradient_accumulation_steps={other.num_parts}", other, found)
            break
    ways = typing.get_args(typing.get_args(config.Recompute)[0])
    for way in ways[ways.index(step.recompute) + 1 :]:
        other = dataclasses.replace(step, recompute=way)
        if fits(found := compile_(other), usable):
            yield Remedy(f"recompute={way}", other, found)
            break


def _in_parts(step: steps.Step, most: int) -> Iterator[steps.Step]:
    """The step in ever more parts; not in so few that the line has it far too large.

    Args:
        step: a step.
        most: rows that fit by the line.
    """
    rows = step.batch_size // step.num_parts
    sizes = [n for n in range(rows - 1, 0, -1) if step.batch_size % n == 0]
    for size in [n for n in sizes if n <= 1.25 * most] or sizes[-1:]:
        yield dataclasses.replace(step, num_parts=step.batch_size // size)

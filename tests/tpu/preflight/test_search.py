import dataclasses

import pytest

from bert_keras.tpu import preflight
from bert_keras.tpu.preflight import compiling, search
from tests.tpu.preflight import test_preflight

USABLE = 16e9


class Chip:
    """Compiles without a compiler: so many bytes, and so many for each row at once."""

    def __init__(self, *, per_row=1e8, constant=4e9, bend=0.0):
        self.per_row, self.constant, self.bend = per_row, constant, bend
        self.compiled = []

    def __call__(self, step):
        rows = step.batch_size // step.num_parts
        self.compiled.append((rows, step.num_parts))
        temporary = self.per_row * rows + self.bend * rows**2
        if step.recompute == "layers":
            temporary /= 4
        return compiling.Compiled(
            seconds=1.0,
            state_bytes=3e9,
            argument_bytes=self.constant - 1e9,
            # The gradients.
            temporary_bytes=1e9 + temporary,
            is_too_large=self.constant + temporary > USABLE,
        )


def step(num_rows, num_parts=1):
    planned, _ = preflight.plan(test_preflight.request("v5e-1"))
    return dataclasses.replace(planned, batch_size=num_rows, num_parts=num_parts)


def largest(chip, *args):
    asked = step(*args)
    return search.largest_batch(asked, chip(asked), usable=USABLE, compile_=chip)


@pytest.mark.parametrize("start", [1, 32, 120, 128, 512])
def test_the_largest_batch_of_a_line_takes_few_compilations(start):
    chip = Chip()
    # 120 rows of 0.1 GB fit beside 4 GB.
    assert largest(chip, start).num_rows == 120
    assert len(chip.compiled) <= 3


@pytest.mark.parametrize("bend", [2e5, -1e5])
def test_the_largest_batch_is_verified_where_the_line_is_none(bend):
    chip = Chip(bend=bend)
    found = largest(chip, 32)
    assert search.fits(found.compiled, USABLE)
    true = max(
        rows for rows in range(8, 400, 8) if 4e9 + 1e8 * rows + bend * rows**2 <= USABLE
    )
    assert true - 16 <= found.num_rows <= true


def test_parts_stay_as_they_are():
    assert largest(Chip(), 64, 4).num_rows == 480


def test_small_batches_are_exact():
    assert largest(Chip(per_row=4e9), 1).num_rows == 3
    assert largest(Chip(per_row=2e10), 1) is None


def test_a_step_that_does_not_fit_gets_the_fewest_parts():
    chip, asked = Chip(), step(512)
    (remedy,) = search.remedies(asked, chip(asked), usable=USABLE, compile_=chip)
    # 128 rows at once need 16.8 GB, 64 fit.
    assert remedy.settings == "gradient_accumulation_steps=8"
    assert (remedy.step.batch_size, remedy.step.num_parts) == (512, 8)
    assert search.fits(remedy.compiled, USABLE)
    assert chip.compiled == [(512, 1), (128, 4), (64, 8), (512, 1), (512, 1)]


def test_a_step_that_does_not_fit_may_compute_again():
    chip, asked = Chip(), step(256)
    parts, again = search.remedies(asked, chip(asked), usable=USABLE, compile_=chip)
    assert parts.settings == "gradient_accumulation_steps=4"
    assert (again.settings, again.step.recompute) == ("recompute=layers", "layers")
    asked = dataclasses.replace(asked, recompute="layers", batch_size=1024)
    found = search.remedies(asked, chip(asked), usable=USABLE, compile_=chip)
    assert [remedy.settings for remedy in found] == ["gradient_accumulation_steps=4"]


def test_a_model_that_is_too_large_has_no_remedy():
    chip, asked = Chip(constant=20e9), step(4)
    found = search.remedies(asked, chip(asked), usable=USABLE, compile_=chip)
    assert list(found) == []

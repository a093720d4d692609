"""Batches of labelled examples, several of them in a row.

A packed batch has the examples of an unpacked one in fewer rows: `data.packing` says
how examples share rows, and `model.packed_rows` has the model's part. No TensorFlow.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_keras.core.settings.config import ExamplesConfig
from bert_keras.data import features, packing

ROW_NUMBERS = "row_numbers"
"""Name of the examples' numbers in a batch, -1 in an empty slot."""

SHORTEST = 16
"""Least tokens of a row."""

_MAX_SHAPES = 8
"""Numbers of rows that batches of fixed shapes may have."""


class Plan(NamedTuple):
    row_of: np.ndarray
    """`(examples,)` the row of each."""
    num_rows: int
    """All rows, including empty rows that give every replica the same number."""
    length: int
    """Tokens of a row."""


@dataclass(frozen=True, kw_only=True)
class Packer:
    """Distributes the examples of a batch over rows, alike in every process."""

    lengths: Sequence[int]
    """Possible tokens of a row, ascending. The length with the fewest positions in all
    is taken, the shortest of equally good ones."""
    num_replicas: int = 1
    """Replicas of all processes; each computes equally many rows."""
    row_multiple: int = 1
    """Each replica's number of rows is a multiple of this number."""

    def plan(self, lengths: np.ndarray) -> Plan:
        """Plans rows for examples of `lengths` tokens, at most the last of
        `self.lengths`."""
        multiple = self.num_replicas * self.row_multiple
        plans = []
        for length in (n for n in self.lengths if n >= lengths.max()):
            none_masked = np.zeros(len(lengths), np.int64)
            row_of = packing.plan_rows(lengths, none_masked, _rows_of(length))
            num_rows = -(-(int(row_of.max()) + 1) // multiple) * multiple
            plans.append(Plan(row_of, num_rows, length))
        return min(plans, key=lambda plan: plan.num_rows * plan.length)

    def batch(
        self,
        make_batch: Callable[[np.ndarray], Mapping[str, np.ndarray]],
        rows: np.ndarray,
        lengths: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Makes the rows of a batch of examples, the `(examples,)` numbers `rows`.

        Returns the arrays of `make_batch`, see `dataset.Inputs.batch`, as from
        `packing.join_tokens`; `ROW_NUMBERS` and `features.EXAMPLE_WEIGHTS`, `(rows,
        slots)`, the latter 0 in empty slots.
        """
        plan = self.plan(lengths)
        in_order = np.argsort(plan.row_of, kind="stable")
        alone = {**make_batch(rows[in_order]), ROW_NUMBERS: rows[in_order]}
        shape = plan.num_rows, plan.length
        batch = packing.join_tokens(alone, plan.row_of[in_order], shape)
        is_there = batch[ROW_NUMBERS] >= 0
        own = batch.get(features.EXAMPLE_WEIGHTS, np.float32(1))
        weights = np.where(is_there, own, np.float32(0))
        return batch | {features.EXAMPLE_WEIGHTS: weights}


def row_lengths(max_length: int) -> tuple[int, ...]:
    """Returns `Packer.lengths` for free shapes: powers of 2 up to a length."""
    powers = (SHORTEST << power for power in range(max_length.bit_length()))
    return (*(length for length in powers if length < max_length), max_length)


def fixed_multiple(batch_size: int, num_replicas: int, num_parts: int) -> int:
    """Returns a `Packer.row_multiple` that gives batches few different numbers of rows.
    `num_parts` are the equal parts in which a replica computes its rows."""
    return -(-batch_size // (_MAX_SHAPES * num_replicas * num_parts)) * num_parts


@functools.cache
def _rows_of(length: int) -> ExamplesConfig:
    return ExamplesConfig(max_seq_length=length, pack_instances=True)

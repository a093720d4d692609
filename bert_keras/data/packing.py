"""Several instances in one row: which instances, and their features end to end.

`plan_rows` chooses by lengths alone, so the same instances in the same order fill the
same rows everywhere. `join_rows` lays their features out; `model.packed_rows` has the
model's part. `row_of` is `(n,)` the row of each instance, ascending.
"""

from collections.abc import Mapping

import numpy as np

from bert_keras.core.errors import InputError
from bert_keras.core.settings.pipelines import ExamplesConfig, instances_per_row

WINDOW = 2048
"""Instances that are distributed over rows together; a row lies within a window."""

_PER_TOKEN = ("input_ids", "segment_ids")
_PER_PREDICTION = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def plan_rows(
    lengths: np.ndarray, num_masked: np.ndarray, config: ExamplesConfig
) -> np.ndarray:
    """Distributes a window of instances over rows: best fit, the longest ones first.

    Returns the row of each instance, `(n,)`; rows are numbered in the order of their
    first instances. Lengths, in tokens, and numbers of predictions are `(n,)` each, at
    most `config.max_seq_length` and `config.num_predictions`.
    """
    room = config.max_seq_length
    num_slots, num_predictions = instances_per_row(room), config.num_row_predictions
    # Rows with equally many tokens of room; bit `r` of `has_room` is set if there is
    # one.
    rows_by_room: list[list[int]] = [[] for _ in range(room + 1)]
    has_room = 0
    counts: list[int] = []
    predictions: list[int] = []
    row_of = np.empty(len(lengths), np.int64)
    sizes, masked = lengths.tolist(), num_masked.tolist()
    for index in np.argsort(-lengths, kind="stable").tolist():
        size, row, left = sizes[index], -1, room
        fitting = has_room >> size
        while fitting:
            left = size + (fitting & -fitting).bit_length() - 1
            found = rows_by_room[left][-1]
            if predictions[found] + masked[index] <= num_predictions:
                row = found
                rows_by_room[left].pop()
                has_room ^= (not rows_by_room[left]) << left
                break
            fitting = has_room >> (left + 1) << (left + 1 - size)
        if row < 0:
            row, left = len(counts), room
            counts.append(0)
            predictions.append(0)
        left -= size
        counts[row] += 1
        predictions[row] += masked[index]
        row_of[index] = row
        if left and counts[row] < num_slots:
            rows_by_room[left].append(row)
            has_room |= 1 << left
    _, firsts, numbered = np.unique(row_of, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(firsts))[numbered]


def join_rows(
    instances: Mapping[str, np.ndarray], row_of: np.ndarray, config: ExamplesConfig
) -> dict[str, np.ndarray]:
    """Joins the features of instances to `features.batch_features` of their rows.

    Args:
        instances: `features.pretraining_features`, `(n, length)` each, features per
            token padded at their end. The features of masked tokens and
            `next_sentence_labels` are optional. Additional features with a number for
            each instance become `(rows, slots)`, -1 for an empty slot.
    """
    shape = (int(row_of[-1]) + 1 if len(row_of) else 0, config.max_seq_length)
    # The tokens of an instance follow those of the instance before it.
    is_token = instances["input_mask"] > 0
    slots, starts = places_in_rows(row_of), places_in_rows(row_of, is_token.sum(axis=1))
    rows, columns = np.nonzero(is_token)
    at = row_of[rows], starts[rows] + columns
    joined: dict[str, np.ndarray] = {"instance_ids": np.zeros(shape, np.int32)}
    joined["instance_ids"][at] = slots[rows] + 1
    for name, values in instances.items():
        if name in _PER_TOKEN:
            joined[name] = np.zeros(shape, np.int32)
            joined[name][at] = values[rows, columns]
        elif name not in (*_PER_PREDICTION, "input_mask"):
            slots_shape = shape[0], instances_per_row(shape[1])
            joined[name] = np.full(slots_shape, -1, values.dtype)
            joined[name][row_of, slots] = values.reshape(-1)
    if "masked_lm_weights" in instances:
        # So do its predictions, whose positions count from the beginning of the row.
        is_masked = instances["masked_lm_weights"] > 0
        firsts = places_in_rows(row_of, is_masked.sum(axis=1))
        rows, columns = np.nonzero(is_masked)
        ranks = np.cumsum(is_masked, axis=1)[rows, columns] - 1
        at = row_of[rows], firsts[rows] + ranks
        for name in _PER_PREDICTION:
            values = instances[name][rows, columns]
            if name == "masked_lm_positions":
                values = values + starts[rows]
            dtype = np.float32 if name == "masked_lm_weights" else np.int32
            joined[name] = np.zeros((shape[0], config.num_row_predictions), dtype)
            joined[name][at] = values
    return joined


def split_rows(
    rows: Mapping[str, np.ndarray], config: ExamplesConfig
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Splits packed rows, some or all `features.batch_features`, into instances.

    Returns `features.pretraining_features` of the instances, row by row; the row of
    each, and its slot in the row, `(n,)` each. Fails if a prediction is outside of
    every instance, or an instance has more than `config.num_predictions`.
    """
    ids = rows["instance_ids"]
    is_first = (ids > 0) & (np.diff(ids, axis=1, prepend=0) != 0)
    row_of, starts = np.nonzero(is_first)
    # The instance of each place of each row.
    instance_at = np.cumsum(is_first).reshape(ids.shape) - 1
    at, columns = np.nonzero(ids > 0)
    here = instance_at[at, columns]
    places = here, columns - starts[here]
    shape = len(row_of), config.max_seq_length
    split = {"input_mask": np.zeros(shape, np.int64)}
    split["input_mask"][places] = 1
    for name in (name for name in _PER_TOKEN if name in rows):
        split[name] = np.zeros(shape, np.int64)
        split[name][places] = rows[name][at, columns]
    if "masked_lm_weights" in rows:
        at, columns = np.nonzero(rows["masked_lm_weights"] > 0)
        positions = rows["masked_lm_positions"][at, columns]
        here = instance_at[at, positions]
        slots = places_in_rows(here)
        if (ids[at, positions] == 0).any() or (np.diff(here) < 0).any():
            raise InputError(
                "expected predictions in the order of the instances, found others: "
                "recreate the examples"
            )
        if slots.max(initial=0) >= config.num_predictions:
            limit = config.num_predictions
            raise InputError(
                f"expected {limit} predictions of an instance at most, found "
                f"{slots.max() + 1}: recreate the examples"
            )
        for name in _PER_PREDICTION:
            values = rows[name][at, columns]
            if name == "masked_lm_positions":
                values = values - starts[here]
            split[name] = np.zeros((shape[0], config.num_predictions), values.dtype)
            split[name][here, slots] = values
    slots = places_in_rows(row_of)
    if "next_sentence_labels" in rows:
        labels = rows["next_sentence_labels"][row_of, slots]
        split["next_sentence_labels"] = labels[:, np.newaxis]
    return split, row_of, slots


def places_in_rows(row_of: np.ndarray, sizes: np.ndarray | int = 1) -> np.ndarray:
    """Sums the `sizes` before each instance in its row, `(n,)`: its slot, of ones."""
    ends = np.cumsum(np.broadcast_to(sizes, row_of.shape))
    starts = ends - sizes
    is_first = np.diff(row_of, prepend=-1) > 0
    return starts - np.maximum.accumulate(np.where(is_first, starts, 0))

"""Shapes of batches: fixed lengths, fixed numbers of rows, shares of replicas."""

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


def padded(batch: dict[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Pads arrays whose shape begins like `input_mask`'s to `length` tokens. A batch
    that has more tokens stays as it is."""
    *axes, now = shape = batch["input_mask"].shape
    more = [*((0, 0) for _ in axes), (0, max(0, length - now))]

    def pad(name: str, array: np.ndarray) -> np.ndarray:
        if array.shape[: len(shape)] != shape:
            return array
        widths = more + [(0, 0)] * (array.ndim - len(shape))
        # A label below 0 does not count.
        return np.pad(array, widths, constant_values=-(name == "label_ids"))

    return {name: pad(name, array) for name, array in batch.items()}


def multiple_length(multiple: int, max_length: int) -> Callable[[int], int] | None:
    """Returns a `padded_length` that raises to a multiple, or `None` for 1."""
    if multiple == 1:
        return None
    return lambda longest: max(
        longest, min(-(-longest // multiple) * multiple, max_length)
    )


def ladder_length(ladder: Sequence[int]) -> Callable[[int], int]:
    """Returns a `padded_length` that gives the least sufficient length."""
    return lambda longest: ladder[bisect.bisect_left(ladder, longest)]


def pad_rows(rows: np.ndarray, num_rows: int) -> np.ndarray:
    """Returns the rows of a batch, and its first row again up to `num_rows`."""
    return np.append(rows, np.repeat(rows[:1], num_rows - len(rows)))


@dataclass(frozen=True, kw_only=True)
class ReplicaShare:
    """The rows of every batch that one process computes, where all batches are alike.

    A batch with too few rows is filled up with its first row, which then has no weight.
    The batch is cut into equal parts, one for each replica of all processes.
    """

    num_rows: int
    """Rows of a replica."""
    num_replicas: int = 1
    """Replicas of all processes."""
    begin: int = 0
    """Number of this process's first replica."""
    end: int = 1
    """Number after this process's last replica."""

    def rows(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields rows and their weights for each replica of this process, in turn. A
        batch has `(n,)` numbers of rows, `num_rows * num_replicas` at most."""
        every = pad_rows(rows, self.num_rows * self.num_replicas)
        weights = (np.arange(len(every)) < len(rows)).astype(np.float32)
        for replica in range(self.begin, self.end):
            part = slice(replica * self.num_rows, (replica + 1) * self.num_rows)
            yield every[part], weights[part]

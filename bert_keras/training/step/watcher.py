"""Watchers of a run: curves, lines of progress, panels, limits."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_keras.core.errors import InputError


class Watcher:
    """Follows a run from one event to the next; each method may do nothing.

    Steps are the optimizer's, counted from 1.
    """

    def resume(self) -> None:
        """Notes that steps follow, after time that was spent on something else."""

    def before_steps(self, step: int) -> None:
        """Prepares for the execution of steps that follows `step`."""

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        """Takes the scalars of the last step of an execution."""

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of an evaluation."""

    def send(self) -> None:
        """Sends to a store what is written so far; called from another thread, too."""

    def close(self) -> None:
        """Writes what is left; not called where a run is interrupted."""


class SkipLimit(Watcher):
    """Ends a run that has skipped more than `max_skipped_steps` updates in a row.

    `skipped_in_a_row` is the variable that counts them. `describe` says where the
    batches of the first to the last of these steps, from 1, came from.
    """

    def __init__(
        self,
        skipped_in_a_row: Any,
        max_skipped_steps: int,
        describe: Callable[[int, int], str],
    ):
        self._skipped_in_a_row = skipped_in_a_row
        self._max_skipped_steps = max_skipped_steps
        self._describe = describe
        self._num_skipped = 0

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        if (num_skipped := int(logs["skipped_steps"])) == self._num_skipped:
            return
        self._num_skipped = num_skipped
        count = int(np.asarray(self._skipped_in_a_row))
        if count > self._max_skipped_steps:
            raise InputError(
                f"step {step}: the loss or a gradient was not finite in {count} steps "
                f"in a row{self._describe(step - count + 1, step)}"
            )

"""Watchers of a run: curves, lines of progress, panels, limits."""

from collections.abc import Mapping


class Watcher:
    """Follows a run from one event to the next; each method may do nothing.

    Steps are the optimizer's, counted from 1.
    """

    def go_on(self) -> None:
        """Notes that steps follow, after time that was spent on something else."""

    def before_steps(self, step: int) -> None:
        """Prepares for the execution of steps that follows `step`."""

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        """Takes the scalars of the last step of an execution."""

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of an evaluation."""

    def close(self) -> None:
        """Writes what is left; not called where a run is interrupted."""

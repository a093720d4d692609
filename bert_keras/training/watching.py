"""Opens what watches every training: curves, lines of progress, the limit of skips."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_keras.training import run
from bert_keras.training.step import learner, watcher
from bert_keras.training.tensorboard import curves, progress_line


def open_watchers(
    loop: run.Loop,
    trained: learner.Learner,
    *,
    logs: Path,
    num_train_steps: int,
    batch_size: int,
    max_skipped_steps: int,
    describe_skipped: Callable[[int, int], str],
    tokens_per_example: int | None = None,
    **speeds: Any,
) -> list[watcher.Watcher]:
    """Opens them for the steps after the loop's; only the chief writes.

    `describe_skipped` is `describe` of `SkipLimit`, and `speeds` are arguments of
    `curves.Curves`.
    """
    limit = watcher.SkipLimit(
        trained.skipped_in_a_row, max_skipped_steps, describe_skipped
    )
    if not loop.is_chief:
        return [limit]
    return [
        curves.Curves(
            logs,
            loop.step,
            batch_size=batch_size,
            tokens_per_example=tokens_per_example,
            repeats_evaluation="evaluate" in loop.due,
            **speeds,
        ),
        progress_line.ProgressLine(
            num_train_steps=num_train_steps,
            batch_size=batch_size,
            tokens_per_example=tokens_per_example,
            start_line=trained.describe(batch_size),
        ),
        limit,
    ]

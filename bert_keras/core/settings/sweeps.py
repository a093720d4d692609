"""Settings of a sweep of fine-tuning runs; unknown keys are refused."""

from typing import Any, Literal

import pydantic

from bert_keras.core.settings.strict import StrictModel

_PLAIN_VALUE = int | float | str | None


class SweepConfig(StrictModel):
    """Fine-tuning runs of a sweep, and how it chooses among them."""

    grid: dict[str, tuple[Any, ...]] = {}
    """Values for keys of `finetune`, nested ones with dots, such as `learning_rate:
    [5e-5, 3e-5]`; each combination is a point of the grid."""
    num_restarts: int = pydantic.Field(default=1, gt=0)
    """Runs of each point: with `seed`, `seed` + 1, ..., so with other shuffles and
    other initial weights of the head, from the same encoder (paper, section 4.1)."""
    metric: str | None = None
    """Metric to choose by, a key of `eval` in results.json; null: the task's usual."""
    goal: Literal["max", "min"] | None = None
    """Best value of the metric; null: `min` of a loss, `max` of all others."""
    folds: int | None = pydantic.Field(default=None, ge=2)
    """Parts of the training file, by a hash of what its examples are about: each point
    is trained as often, and evaluated on the part held out; null: on `--dev`."""
    choose: Literal["best", "mean"] | None = None
    """`best`: the best single run, as the paper does; `mean`: the best run of the point
    with the best mean over restarts and folds; null: `mean` with folds, else `best`."""

    @pydantic.field_validator("grid", mode="before")
    @classmethod
    def _has_lists_of_values(cls, grid: Any) -> Any:
        for key, values in grid.items() if isinstance(grid, dict) else ():
            is_list = isinstance(values, list | tuple) and len(values) > 0
            if not is_list or not all(isinstance(v, _PLAIN_VALUE) for v in values):
                raise ValueError(
                    f"`grid.{key}` is a list of values, such as [16, 32], got "
                    f"{values!r}"
                )
        return grid

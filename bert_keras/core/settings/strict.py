"""The base of all configurations, a type that two share, and errors for people."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import pydantic

from bert_keras.core.errors import InputError
from bert_keras.core.settings import fields


class StrictModel(pydantic.BaseModel):
    """Base of all configurations: immutable, no unknown keys, no silent casts.

    The docstring below a field is its description, which `bert-keras config` prints.
    """

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def _problems(self) -> Iterator[str]:
        """Yields why valid values do not fit together; the first is reported."""
        yield from ()

    @pydantic.model_validator(mode="after")
    def _fit_together(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self


def _ascending(lengths: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if lengths and (lengths[0] < 1 or list(lengths) != sorted(set(lengths))):
        raise ValueError(
            "`lengths` are ascending numbers of tokens or words, such as [64, 128, "
            f"384], got {list(lengths)}"
        )
    return lengths


FixedLengths = Annotated[tuple[int, ...] | None, pydantic.AfterValidator(_ascending)]
"""Lengths that batches may have; null: as suits the devices."""


Config = TypeVar("Config", bound=StrictModel)


def build_config(
    config_type: type[Config],
    values: Mapping[str, Any],
    *,
    origin: str | Path | None = None,
) -> Config:
    """Builds a configuration from plain values, with errors for people."""
    try:
        return config_type.model_validate(values)
    except pydantic.ValidationError as error:
        prefix = f"{origin}: " if origin else ""
        problems = [fields.explain(config_type, problem) for problem in error.errors()]
        raise InputError(prefix + "; ".join(problems)) from None

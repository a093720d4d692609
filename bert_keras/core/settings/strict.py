"""The base class of all configurations, and the function that builds one.

`FixedLengths` is a type of a field that two configurations share.
"""

import typing
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

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        # pydantic would read `true` as 1.
        types = _types_in(cls.model_fields[str(info.field_name)].annotation)
        items = value if isinstance(value, list | tuple) else (value,)
        if types & {int, float} and bool not in types:
            if any(isinstance(item, bool) for item in items):
                raise ValueError("expected a number, not true or false")
        return value

    def _problems(self) -> Iterator[str]:
        """Yields a message for each group of settings that contradict each other; only
        the first message is shown."""
        yield from ()

    @pydantic.model_validator(mode="after")
    def _fit_together(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self


def _types_in(annotation: Any) -> set[Any]:
    parts = typing.get_args(annotation)
    return {annotation}.union(*map(_types_in, parts))


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

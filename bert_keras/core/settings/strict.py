"""The base class of all configurations, their keys, and errors that name the keys.

Nested keys have dots.
"""

import typing
from collections.abc import Iterator, Mapping
from typing import Any, Self, TypeVar

import pydantic
from pydantic.fields import FieldInfo

from bert_keras.core.errors import InputError, nearest

Model = type[pydantic.BaseModel]

_COMMON_NAMES = {
    **dict.fromkeys(("epochs", "num_epochs"), "num_train_epochs"),
    **dict.fromkeys(("steps", "max_steps"), "num_train_steps"),
    **dict.fromkeys(("train_batch_size", "per_device_train_batch_size"), "batch_size"),
    **dict.fromkeys(("max_length", "max_len"), "max_seq_length"),
    **dict.fromkeys(("fp16", "bf16"), "precision"),
    "lr": "learning_rate",
    "warmup_ratio": "warmup_proportion",
    "weight_decay": "weight_decay_rate",
    "dropout": "dropout_prob",
    "gradient_accumulation": "gradient_accumulation_steps",
}
"""Names of settings in other programs, and ours."""


class StrictModel(pydantic.BaseModel):
    """Base of all configurations: immutable, no unknown keys, no silent casts. The
    docstring below a field is its description, which `bert-keras config` prints."""

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        # pydantic would read `true` as 1.
        types = _types_in(cls.model_fields[str(info.field_name)].annotation)
        if types & {int, float} and bool not in types:
            items = value if isinstance(value, list | tuple) else (value,)
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


def model_in(annotation: Any) -> Model | None:
    """Returns the configuration that a field holds, or a tuple of them; else `None`."""
    for part in (annotation, *typing.get_args(annotation)):
        if isinstance(part, type) and issubclass(part, pydantic.BaseModel):
            return part
    return None


def walk(model: Model, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yields all keys of a configuration and their fields, parents first."""
    for name, field in model.model_fields.items():
        yield prefix + name, field
        if nested := model_in(field.annotation):
            yield from walk(nested, f"{prefix}{name}.")


def keys_named(model: Model, name: str) -> list[str]:
    """Returns the keys of a configuration that end in `name`, or in our name for it."""
    names = {name, _COMMON_NAMES.get(name, name)}
    return [key for key, _ in walk(model) if key.rpartition(".")[2] in names]


Config = TypeVar("Config", bound=StrictModel)


def build_config(
    config_type: type[Config], values: Mapping[str, Any], *, origin: object = None
) -> Config:
    """Builds a configuration from plain values, with errors for people."""
    try:
        return config_type.model_validate(values)
    except pydantic.ValidationError as error:
        prefix = f"{origin}: " if origin else ""
        problems = [_explain(config_type, problem) for problem in error.errors()]
        raise InputError(prefix + "; ".join(problems)) from None


def _explain(model: Model, problem: Mapping[str, Any]) -> str:
    """Writes a problem of pydantic's as a line with the key and the value."""
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] != "extra_forbidden":
        message = problem["msg"].removeprefix("Value error, ")
        if not key or "got" in message:
            return message
        return f"`{key}`: {message[0].lower()}{message[1:]}, got {problem['input']!r}"
    # An unknown key: the same name elsewhere is meant, or the nearest.
    *parents, name = location
    if same := keys_named(model, name):
        return f"no key {key!r}; did you mean {' or '.join(map(repr, same))}?"
    keys = [known for known, _ in walk(model)]
    for parent in parents:
        # An item of a tuple has a number for a name.
        if parent in model.model_fields:
            model = model_in(model.model_fields[parent].annotation) or model
    here = list(model.model_fields)
    hint = nearest(name, here) or nearest(name, keys)
    return f"no key {key!r}{hint} (keys here: {', '.join(here)})"

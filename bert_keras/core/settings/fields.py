"""Keys of configurations, nested ones with dots, and errors that name them."""

import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pydantic
from pydantic.fields import FieldInfo

from bert_keras.core.errors import nearest

Model = type[pydantic.BaseModel]


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


_COMMON_NAMES = {
    **dict.fromkeys(("epochs", "num_epochs"), "num_train_epochs"),
    **dict.fromkeys(("steps", "max_steps"), "num_train_steps"),
    **dict.fromkeys(("train_batch_size", "per_device_train_batch_size"), "batch_size"),
    **dict.fromkeys(("max_length", "max_len"), "max_seq_length"),
    **dict.fromkeys(("fp16", "bf16"), "precision"),
    "lr": "learning_rate",
    "warmup_ratio": "warmup_proportion",
    "warmup_steps": "num_warmup_steps",
    "weight_decay": "weight_decay_rate",
    "dropout": "dropout_prob",
    "gradient_accumulation": "gradient_accumulation_steps",
}
"""Names of settings in other programs, and ours."""


def keys_named(model: Model, name: str) -> list[str]:
    """Returns the keys of a configuration that end in `name`, or in our name for it."""
    names = {name, _COMMON_NAMES.get(name, name)}
    return [key for key, _ in walk(model) if key.rpartition(".")[2] in names]


def explain(model: Model, problem: Mapping[str, Any]) -> str:
    """Writes a problem of pydantic's as a line with the key and the value."""
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] == "extra_forbidden":
        return f"no key {key!r}{_meant(model, location)}"
    message = problem["msg"].removeprefix("Value error, ")
    if not key or "got" in message:
        return message
    return f"`{key}`: {message[0].lower()}{message[1:]}, got {problem['input']!r}"


def _meant(model: Model, location: Sequence[str]) -> str:
    """Suggests a key: one of the same name elsewhere, or the nearest."""
    *parents, name = location
    root = model
    keys = [key for key, _ in walk(model)]
    for parent in parents:
        # An item of a tuple has a number for a name.
        if parent in model.model_fields:
            model = model_in(model.model_fields[parent].annotation) or model
    if same := keys_named(root, name):
        return f"; did you mean {' or '.join(map(repr, same))}?"
    here = list(model.model_fields)
    hint = nearest(name, here) or nearest(name, keys)
    return f"{hint} (keys here: {', '.join(here)})"

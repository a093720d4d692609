"""Configurations from YAML files, recipes and `--set`.

A name without a slash or a suffix is a recipe in `bert_keras/recipes/`.
"""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml

from bert_keras import files
from bert_keras.config import StrictModel, build_config
from bert_keras.errors import InputError, nearest, one_line

Config = TypeVar("Config", bound=StrictModel)


def load(
    config_type: type[Config],
    source: str | Path | None = None,
    overrides: Iterable[str] = (),
) -> Config:
    """Reads a configuration and applies overrides to it.

    Args:
        config_type: the model to build.
        source: a YAML file, the name of a recipe, or `None` for the defaults.
        overrides: `"dotted.key=value"` strings; a value is written as in YAML.

    Raises:
        InputError: no such file or recipe, an unknown key (with the nearest known
            one), a value of the wrong type or out of range.
    """
    values = {} if source is None else _read_source(source)
    for override in overrides:
        _apply_override(values, override)
    return build_config(config_type, values, origin=source)


def save(config: StrictModel, path: str | Path) -> None:
    """Writes a configuration as YAML that `load` reads back unchanged."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    files.write_atomically(path, text.encode())


def recipe_names() -> list[str]:
    """The names of the recipes that come with the package."""
    folder = resources.files("bert_keras") / "recipes"
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml"))


def recipe_text(name: str) -> str:
    """The YAML of a recipe, with its comments."""
    path = resources.files("bert_keras") / f"recipes/{name}.yaml"
    return path.read_text(encoding="utf-8")


def _read_source(source: str | Path) -> dict[str, Any]:
    name = str(source)
    if name in recipe_names():
        return yaml.safe_load(recipe_text(name)) or {}
    if Path(name).is_file():
        return read_yaml(source)
    raise InputError(
        f"no configuration {name!r}: neither a file nor one of the recipes "
        + ", ".join(recipe_names())
        + nearest(name, recipe_names())
    )


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The keys and values of a YAML file; none of an empty one.

    Raises:
        InputError: it cannot be read, is not YAML, or is YAML of another kind.
    """
    try:
        values = yaml.safe_load(files.read_text(path, expected="YAML")) or {}
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {one_line(error)}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected keys and values, found {values!r:.80}")
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(f"--set takes key=value, got {override!r}")
    *parents, leaf = key.strip().split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise InputError(f"--set {override!r}: {parent!r} holds no further keys")
    try:
        values[leaf] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"--set {override!r}: {text!r} is not a YAML value") from None

"""Configurations from YAML files, recipes and `--set`.

A name without a slash or a suffix is a recipe in `bert_keras/recipes/`.
"""

import itertools
import math
import re
from collections.abc import Iterable
from importlib import resources
from typing import Any

import yaml

from bert_keras.core import files
from bert_keras.core.errors import InputError, nearest, one_line
from bert_keras.core.settings.architecture import BertConfig
from bert_keras.core.settings.strict import Config, StrictModel, build_config

_MAX_TEXT = 200_000
_MAX_VALUES = 10_000
_MAX_NESTING = 50
_TOO_MUCH = (
    f"expected {_MAX_VALUES} values at most, those of aliases included, and "
    f"{_MAX_NESTING} lists in each other"
)

_PUNCTUATION = re.compile(r"""[^\w\[\]{}"'~]+""")
"""Text such as a separator of columns: YAML reads `|` as the beginning of a block, `#`
as a comment, and `-` as a list."""

# Present in some published bert_config.json files, read by no released code.
_UNUSED_GOOGLE_KEYS = {
    *("directionality", "pooler_fc_size", "pooler_num_attention_heads"),
    *("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
}


def load(
    config_type: type[Config],
    source: files.Path | None = None,
    overrides: Iterable[str] = (),
) -> Config:
    """Reads a configuration: a YAML file, a recipe by its name, or with `None` the
    defaults. Then `overrides`, such as `"dotted.key=value"`, apply: a value is written
    as in YAML, but punctuation alone is text as it is typed."""
    name, recipes = str(source), recipe_names()
    if source is None:
        values: dict[str, Any] = {}
    elif name in recipes:
        values = yaml.safe_load(recipe_text(name)) or {}
    elif files.path(name).is_file():
        values = read_yaml(name)
    else:
        raise InputError(
            f"no configuration {name!r}: neither a file nor one of the recipes "
            f"{', '.join(recipes)}{nearest(name, recipes)}"
        )
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise InputError(f"--set takes key=value, got {override!r}")
        *parents, leaf = key.strip().split(".")
        inner = values
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise InputError(
                    f"--set {override!r}: {parent!r} holds no further keys"
                )
        try:
            inner[leaf] = text if _PUNCTUATION.fullmatch(text) else _parse(text)
        except ValueError as error:
            raise InputError(
                f"--set {override!r:.80}: {text!r:.80} is not a YAML value: "
                f"{one_line(error)}"
            ) from None
    return build_config(config_type, values, origin=source)


def save(config: StrictModel, path: files.Path) -> None:
    """Writes a configuration as YAML that `load` reads back unchanged."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    files.write_atomically(path, text.encode())


def recipe_names() -> list[str]:
    """Returns the names of the recipes that come with the package."""
    folder = resources.files("bert_keras") / "recipes"
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml"))


def recipe_text(name: str) -> str:
    """Returns the YAML of a recipe, with its comments."""
    path = resources.files("bert_keras") / f"recipes/{name}.yaml"
    return path.read_text(encoding="utf-8")


def read_yaml(path: files.Path) -> dict[str, Any]:
    """Reads the keys and values of a YAML file; {} from an empty one."""
    text = files.read_text(path, expected="YAML")
    try:
        values = _parse(text) or {}
    except ValueError as error:
        raise InputError(f"{path}: not YAML: {one_line(error)}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected keys and values, found {values!r:.80}")
    return values


def _parse(text: str) -> Any:
    """Parses YAML; raises `ValueError` for more than settings can be."""
    if len(text) > _MAX_TEXT:
        raise ValueError(f"expected {_MAX_TEXT} characters at most, got {len(text)}")
    # Before PyYAML, which looks for a colon after each bracket of a line.
    if files.num_open_brackets(text) > _MAX_NESTING:
        raise ValueError(_TOO_MUCH)
    try:
        return yaml.load(text, Loader=_Loader)
    # A tag such as `!!bool x` is whatever Python's own types and dictionaries raise.
    except (yaml.YAMLError, LookupError, AttributeError, TypeError) as error:
        raise ValueError(one_line(error)) from None


class _Loader(yaml.SafeLoader):
    """A loader that refuses integers above 64 bits, a key that comes twice, lists in
    each other without end, and aliases that stand for millions of values."""

    _num_open = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        is_alias = self.check_event(yaml.AliasEvent)
        self._num_open += 1
        if self._num_open > _MAX_NESTING:
            raise ValueError(_TOO_MUCH)
        node: Any = super().compose_node(parent, index)
        self._num_open -= 1
        if not is_alias:
            values = node.value if isinstance(node, yaml.CollectionNode) else ()
            parts = itertools.chain.from_iterable(
                part if isinstance(part, tuple) else [part] for part in values
            )
            size = 1 + sum(part.num_values for part in parts)
            node.num_values = size  # pyright: ignore
        # An alias within the collection that it stands for has no number: it is
        # endless.
        if getattr(node, "num_values", math.inf) > _MAX_VALUES:
            raise ValueError(_TOO_MUCH)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            line = key.start_mark.line + 1
            if key.value in lines:
                raise ValueError(
                    f"the key {key.value!r} is there twice, in lines "
                    f"{lines[key.value]} and {line}: keep one of them"
                )
            lines[key.value] = line
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = super().construct_yaml_int(node)
        if value.bit_length() > 63:
            raise ValueError("expected integers of 64 bits")
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def read_json(config_type: type[Config], path: files.Path) -> Config | None:
    """Reads a model that was dumped to a JSON file; `None`: there is no such file."""
    if not files.path(path).is_file():
        return None
    return build_config(config_type, files.read_json(path), origin=path)


def read_bert_config(path: files.Path) -> BertConfig:
    """Reads a `bert_config.json`; keys that Google's own files add are left out."""
    values = files.read_json(path)
    values = {key: v for key, v in values.items() if key not in _UNUSED_GOOGLE_KEYS}
    return build_config(BertConfig, values, origin=path)

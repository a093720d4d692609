"""Keys of all configurations with values, units and meanings: `bert-keras config`."""

import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import pydantic
import yaml
from pydantic.fields import FieldInfo

from bert_keras.core.settings import features as feature_settings
from bert_keras.core.settings import (
    finetuning,
    loading,
    pipelines,
    pretraining,
    strict,
    sweeps,
)

CONFIGURATIONS: dict[str, type[strict.StrictModel]] = {
    "corpus": pipelines.CorpusConfig,
    "examples": pipelines.ExamplesConfig,
    "pretrain": pretraining.PretrainingConfig,
    "finetune": finetuning.FinetuningConfig,
    "sweep": sweeps.SweepConfig,
    "features": feature_settings.FeaturesConfig,
}
"""Verbs with a configuration."""


_INTRODUCTION = """\
# Configuration

Six verbs take settings from a YAML file or a recipe (`--config`) and from the
command line (`--set KEY=VALUE`, repeatable; nested keys with dots). Settings that are
not given have the defaults below; an unknown key is an error that names the nearest
one. `sweep` reads its own from `--sweep` and `--sweep_set`, and hands `--config` and
`--set` on to `finetune`. `distill` reads those of `finetune`.

<!-- run -->
```
bert-keras config list
bert-keras config pretrain --config bert_base --set optimizer.learning_rate=2e-5
```

`config list` prints the recipes. `config VERB` prints all settings with the values in
force, as YAML that `--config` reads back. `bert-keras config page` writes this page.
"""

_BOUNDS = {
    "exclusiveMinimum": ">",
    "minimum": ">=",
    "exclusiveMaximum": "<",
    "maximum": "<=",
}
_WORDS = {
    "integer": ["integer"],
    "number": ["number"],
    "string": ["text"],
    "boolean": ["true", "false"],
    "null": ["null"],
}


def describe(settings: strict.StrictModel, *, indent: str = "") -> Iterator[str]:
    """Yields the lines of a YAML file, settings below their meanings."""
    values = settings.model_dump(mode="json")
    for name, field in type(settings).model_fields.items():
        yield ""
        nested = getattr(settings, name)
        if isinstance(nested, strict.StrictModel):
            yield from _comment(str(field.description), indent=indent)
            yield f"{indent}{name}:"
            yield from describe(nested, indent=indent + "  ")
            continue
        yield from _comment(_meaning(field), indent=indent)
        if item := strict.model_in(field.annotation):
            for key, part in item.model_fields.items():
                meaning = f"{key}: {_meaning(part)}"
                yield from _comment(meaning, indent=indent, hanging="  ")
        yield f"{indent}{name}: {_yaml(values[name])}"


def _meaning(field: FieldInfo) -> str:
    return f"{_kind(field)}. {field.description}"


def _comment(text: str, *, indent: str, hanging: str = "") -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        width=88,
        initial_indent=f"{indent}# {hanging}",
        subsequent_indent=f"{indent}# {hanging}{hanging}",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _yaml(value: Any) -> str:
    flow: dict[str, Any] = {"default_flow_style": True, "width": math.inf}
    text = yaml.safe_dump(value, sort_keys=False, **flow)
    return text.removesuffix("...\n").strip()


def summary(model: type[strict.StrictModel]) -> str:
    return (model.__doc__ or "").partition("\n\n")[0]


def _kind(field: FieldInfo) -> str:
    """Returns a field's values in words: `integer > 0 or null`, `static or dynamic`."""
    typed: Any = Annotated[field.annotation, field]  # pyright: ignore
    *first, last = _kinds(pydantic.TypeAdapter(typed).json_schema())
    return f"{', '.join(first)} or {last}" if first else last


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    """Returns the values that a JSON schema allows, each in words."""
    if "anyOf" in schema:
        return [kind for part in schema["anyOf"] for kind in _kinds(part)]
    if "const" in schema or "enum" in schema:
        return schema.get("enum") or [schema["const"]]
    if schema["type"] == "object":
        values = schema["additionalProperties"]["type"]
        return ["lists of values by key" if values == "array" else f"{values}s by name"]
    if schema["type"] == "array":
        parts = schema.get("prefixItems", [])
        items = parts[0] if parts else schema["items"]
        if "$ref" in items:
            return ["list of groups of keys"]
        count = f"{len(parts)} " if parts else ""
        return [f"list of {count}{_WORDS[items['type']][0]}s"]
    signs = (f" {s} {schema[name]:g}" for name, s in _BOUNDS.items() if name in schema)
    bounds = ",".join(signs)
    return [word + bounds for word in _WORDS[schema["type"]]]


def verb_of_recipe(name: str) -> str:
    """Returns the first verb that has all keys of a recipe."""
    keys = set(yaml.safe_load(loading.recipe_text(name)))
    models = CONFIGURATIONS.items()
    return next(verb for verb, model in models if keys <= set(model.model_fields))


def recipes() -> Iterator[tuple[str, str, str]]:
    """Yields each recipe's name, the verb that takes it, and its first line."""
    for name in loading.recipe_names():
        first_line = loading.recipe_text(name).partition("\n")[0]
        yield name, verb_of_recipe(name), first_line.removeprefix("# ")


def page() -> Iterator[str]:
    yield from _INTRODUCTION.splitlines()
    for verb, model in CONFIGURATIONS.items():
        yield from ("", f"## `{verb}`", "", summary(model), "")
        yield from ("| key | default | values | meaning |", "|---|---|---|---|")
        for key, field in strict.walk(model):
            if isinstance(field.default, strict.StrictModel):
                continue
            annotation: Any = field.annotation
            default = ""
            if not field.is_required():
                # Without the unset keys of a tuple's items.
                plain = pydantic.TypeAdapter(annotation).dump_python(
                    field.default, mode="json", exclude_unset=True
                )
                default = f"`{_yaml(plain)}`"
            meaning = " ".join((field.description or "").split())
            cells = (f"`{key}`", default, _kind(field), meaning)
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield from ("", "## Recipes", "", "| name | verb | |", "|---|---|---|")
    for name, verb, first_line in recipes():
        yield f"| `{name}` | `{verb}` | {first_line} |"

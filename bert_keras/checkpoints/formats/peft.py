"""Adapters of peft: `adapter_config.json` and `adapter_model.safetensors`.

The package is not used. The names are Hugging Face's behind `base_model.model.`.
"""

from collections.abc import Iterator
from pathlib import Path

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.checkpoints.formats import hugging_face
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.core.settings.architecture import BertConfig
from bert_keras.kinds import registry
from bert_keras.model import weight_shapes

ACTIVATIONS = hugging_face.ACTIVATIONS

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_DIGEST = "sha256 of base"
"""Metadata of a file that was written here."""
_PREFIX = "base_model.model."
_CLASSES = {
    "SEQ_CLS": "BertForSequenceClassification",
    "TOKEN_CLS": "BertForTokenClassification",
    "QUESTION_ANS": "BertForQuestionAnswering",
    "FEATURE_EXTRACTION": "BertModel",
}
_EMPTY = (None, False, "", [], {})
_ONLY_VALUES = {"peft_type": ("LORA",), "bias": ("none",)}
_ONLY_VALUES["init_lora_weights"] = (True, False, "gaussian")
_HARMLESS = {
    *("r", "lora_alpha", "lora_dropout", "target_modules", "modules_to_save"),
    *("base_model_name_or_path", "revision", "task_type", "auto_mapping"),
    *("exclude_modules", "layers_to_transform", "layers_pattern", "inference_mode"),
    *("peft_version", "megatron_core", "qalora_group_size", "ensure_weight_tying"),
}
"""Keys that the tensors show, or that change no output. Those in neither table have to
be empty, such as `rank_pattern` and `use_dora`."""


def recognizes(path: Path) -> bool:
    return (path / _CONFIG).is_file()


def read_adapter(path: Path) -> tasks.Adapter:
    """Reads rank, alpha and base; the tensors tell the targets."""
    path = path / _CONFIG
    values = files.read_json(path)
    for key, value in values.items():
        known = _ONLY_VALUES.get(key, _EMPTY)
        if key not in _HARMLESS and value not in known:
            raise InputError(
                f'{path}: "{key}" is {value!r}, only {known[0]!r} is known here: such '
                "an adapter computes something else"
            )
    rank, alpha = values.get("r", 8), values.get("lora_alpha", 8)
    if not (isinstance(rank, int) and rank > 0 and isinstance(alpha, int | float)):
        raise InputError(f'{path}: expected numbers "r" and "lora_alpha"')
    base = values.get("base_model_name_or_path") or "a base without a name"
    return tasks.Adapter(base=str(base), rank=rank, alpha=alpha, targets=())


def read(path: Path, base: weights.Checkpoint) -> weights.Checkpoint:
    """Opens an adapter of a base, which tells sizes, vocabulary and perhaps labels."""
    # 1. The tensors, under the names of a model with or without a head.
    adapter = read_adapter(path)
    if not (path / _WEIGHTS).is_file():
        raise InputError(
            f"{path}: expected {_WEIGHTS}; a .bin is a pickle, which can run any code"
        )
    source = safetensors_files.SafetensorsFile(path / _WEIGHTS)
    task = _read_task(path / _CONFIG, base, source)
    every = adapter.model_copy(update={"targets": tuple(weight_shapes.LORA_PLACES)})
    is_bare = not any(name.startswith(f"{_PREFIX}bert.") for name in source.shapes)
    rows = [*_rows(base.bert_config, task, every, is_bare=is_bare)]
    # 2. Nothing is left out, and nothing is missing.
    arrays = weights.open_arrays(source, rows, path=source.path)
    for name in weights.unused(source, rows, str):
        raise InputError(
            f"{source.path}: {name!r} has no place here: expected `lora_A` and `lora_B`"
            f" of {', '.join(every.targets)}, and the head"
        )
    is_same, pairs = task == base.task, ("/lora_kernel_a", "/lora_kernel_b")
    missing = [n.replace(*p) for p in (pairs, pairs[::-1]) for n in arrays if p[0] in n]
    heads = [row.ours for row in rows if row.ours.startswith("head/")]
    missing += [name for name in heads if not (is_same and name in base.arrays)]
    if missing := [name for name in missing if name not in arrays]:
        raise InputError(f"{source.path}: has no {missing[0]}, nor has its base")
    # 3. What it changes.
    places = {name.split("/", 2)[-1].removesuffix("/lora_kernel_a") for name in arrays}
    facts = {
        "base_sha256": source.metadata.get(_DIGEST),
        "targets": tuple(
            t for t, p in weight_shapes.LORA_PLACES.items() if p in places
        ),
        "has_pooler": "encoder/pooler/kernel" in arrays,
    }
    return weights.Checkpoint(
        bert_config=base.bert_config,
        task=task,
        arrays=arrays,
        vocabulary=base.vocabulary,
        do_lower_case=base.do_lower_case,
        max_seq_length=base.max_seq_length,
        adapter=adapter.model_copy(update=facts),
    )


def _read_task(
    path: Path, base: weights.Checkpoint, source: weights.Source
) -> tasks.Task:
    """Returns the base's task if it has the class and the size of the adapter's."""
    values = files.read_json(path)
    own = registry.find(base.task.kind).names.hugging_face
    mapping = values.get("auto_mapping")
    named = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    named = str(values.get("task_type") or named or own)
    named = _CLASSES.get(named, named)
    if named not in hugging_face.KINDS:
        raise InputError(f'{path}: "task_type" is {named!r}, not one of a BERT here')
    [num_labels, *_] = source.shapes.get(f"{_PREFIX}classifier.bias") or [None]
    if named == own and num_labels in (None, base.task.num_labels):
        return base.task
    return registry.numbered_task(hugging_face.KINDS[named], num_labels or 2)


def _rows(
    bert_config: BertConfig, task: tasks.Task, adapter: tasks.Adapter, *, is_bare: bool
) -> Iterator[weights.Row]:
    shapes = weight_shapes.factor_shapes(bert_config, adapter)
    for row in hugging_face.all_rows(bert_config, task):
        theirs = _PREFIX + row.theirs.removeprefix("bert." if is_bare else "")
        if row.ours.startswith(("head/", "encoder/pooler/")):
            yield row._replace(theirs=theirs)
        for part in "ab":
            ours = row.ours.replace("/kernel", f"/lora_kernel_{part}")
            name = theirs.replace(".weight", f".lora_{part.upper()}.weight")
            if ours in shapes:
                yield weights.Row(ours, name, shapes[ours], shapes[ours][::-1], True)


def write(checkpoint: weights.Checkpoint, directory: Path) -> dict[str, str]:
    """Writes the changes that a model was merged from."""
    changes, names = checkpoint.changes, registry.find(checkpoint.task.kind).names
    if changes is None:
        raise InputError("peft keeps changes: expected a run with `lora_rank`")
    adapter, bert_config = changes.adapter, changes.bert_config
    is_bare = names.hugging_face == "BertModel"
    rows = _rows(bert_config, changes.task, adapter, is_bare=is_bare)
    rows = [row for row in rows if row.ours in changes.arrays]
    tensors = dict(weights.write_rows(rows, changes.arrays))
    safetensors_files.write(
        directory / _WEIGHTS,
        safetensors_files.layouts_of(tensors),
        tensors.items(),
        has_hashes=False,
        metadata={_DIGEST: adapter.base_sha256} if adapter.base_sha256 else None,
    )
    saved = (row.theirs for row in rows if ".lora_" not in row.theirs)
    saved = (name.removeprefix(_PREFIX).removeprefix("bert.") for name in saved)
    targets = [*adapter.targets]
    if "output.dense" in targets and "attention.output.dense" not in targets:
        # The plain name is the end of the other's, too.
        targets.remove("output.dense")
        num_layers = range(bert_config.num_hidden_layers)
        targets += [f"layer.{index}.output.dense" for index in num_layers]
    types = {name: task_type for task_type, name in _CLASSES.items()}
    values = {
        "peft_type": "LORA",
        "task_type": types.get(names.hugging_face),
        "auto_mapping": {
            "base_model_class": names.hugging_face,
            "parent_library": "transformers.models.bert.modeling_bert",
        },
        "base_model_name_or_path": adapter.base,
        "r": adapter.rank,
        "lora_alpha": int(a) if (a := adapter.alpha).is_integer() else a,
        "target_modules": targets,
        "modules_to_save": sorted({name.split(".")[0] for name in saved}) or None,
        "bias": "none",
        "inference_mode": True,
    }
    files.write_json(directory / _CONFIG, values)
    return {}

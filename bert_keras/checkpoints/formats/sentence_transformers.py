"""Directories of sentence-transformers: a Hugging Face directory with further steps.

`modules.json` lists the steps. Three are known here: the encoder, its pooling
(`1_Pooling/config.json`), and vectors of length 1 (`2_Normalize`, without a file). All
versions from 2.0 on read the names that are written. Their package is not used.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.formats import companions, hugging_face
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks

ACTIVATIONS = hugging_face.ACTIVATIONS

_POOLING, _ENCODER_CONFIG = "1_Pooling/config.json", "sentence_bert_config.json"
_MODES: Mapping[str, tasks.TextPooling] = {"mean_tokens": "mean", "cls_token": "cls"}
"""Their names in old files to ours; in new ones they are the same."""


def recognizes(path: Path) -> bool:
    has_steps = (path / hugging_face.MODULES_NAME).is_file()
    return has_steps and hugging_face.has_weights(path)


def read(path: Path) -> weights.Checkpoint:
    steps = _read_steps(path / hugging_face.MODULES_NAME)
    pooling = _read_pooling(path / steps["Pooling"] / "config.json")
    task = tasks.Task(kind="embedding", pooling=pooling, normalize="Normalize" in steps)
    checkpoint = hugging_face.read(path)
    values, tokenizer = (
        files.read_json(path / name) if (path / name).is_file() else {}
        for name in (_ENCODER_CONFIG, companions.TOKENIZER_CONFIG_NAME)
    )
    if values.get("do_lower_case") and not checkpoint.do_lower_case:
        raise InputError(
            f'{path / _ENCODER_CONFIG}: "do_lower_case" is true, but the tokenizer '
            "keeps case: its tokenizer_config.json should say it"
        )
    length = values.get("max_seq_length")
    if length is None:
        # Since version 6; without a limit it is a number of 30 digits.
        length = tokenizer.get("model_max_length")
    longest = checkpoint.bert_config.max_position_embeddings
    if length is not None and (not isinstance(length, int | float) or length < 4):
        raise InputError(
            f"{path}: the longest input has {length!r} tokens, expected 4 or more"
        )
    length = None if length is None else int(min(length, longest))
    return dataclasses.replace(checkpoint, task=task, max_seq_length=length)


def _read_steps(path: Path) -> dict[str, str]:
    """Returns the folders of the steps, by the last part of their class's name."""
    listed = files.read_json_value(path)
    steps, unknown = {}, None
    for step in listed if isinstance(listed, list) else []:
        if isinstance(step, dict) and isinstance(step.get("type"), str):
            steps[step["type"].rpartition(".")[2]] = str(step.get("path", ""))
        else:
            unknown = unknown or str(step)
    order = [name for name in ("Transformer", "Pooling", "Normalize") if name in steps]
    if unknown or list(steps) != order or order[:2] != ["Transformer", "Pooling"]:
        raise InputError(
            f"{path}: expected the steps Transformer, Pooling and maybe Normalize, got "
            f"{unknown or ', '.join(steps)}: to read the encoder alone, remove this "
            "file"
        )
    for folder in steps.values():
        # A link can lead out as well.
        place = (path.parent / folder).resolve()
        if not place.is_relative_to(path.parent.resolve()):
            raise InputError(
                f"{path}: the path {folder!r} leaves the directory: expected a folder "
                "in it"
            )
    if steps["Transformer"]:
        raise InputError(
            f"{path}: the encoder is in {steps['Transformer']!r}, expected next to it"
        )
    return steps


def _read_pooling(path: Path) -> tasks.TextPooling:
    values = files.read_json(path)
    if "pooling_mode" in values:
        named = values["pooling_mode"]
        modes = [named] if isinstance(named, str) else named
    else:
        prefix = "pooling_mode_"
        modes = [
            _MODES.get(key.removeprefix(prefix), key)
            for key, value in values.items()
            if key.startswith(prefix) and value is True
        ]
    for known in _MODES.values():
        if modes == [known]:
            return known
    raise InputError(
        f"{path}: expected the pooling mean or cls, got {modes}: to read the encoder "
        f"alone, remove {hugging_face.MODULES_NAME}"
    )


def write(checkpoint: weights.Checkpoint, directory: Path) -> dict[str, str]:
    task = checkpoint.task
    if task.kind != "embedding":
        raise InputError(
            f"a model for {task.kind} does not say what a text's vector is: tune it "
            "with `finetune --task embedding` first"
        )
    if checkpoint.vocabulary is None:
        raise InputError(
            "sentence-transformers needs a tokenizer: put vocab.txt next to the input"
        )
    left_out = hugging_face.write(checkpoint, directory)
    length = checkpoint.max_seq_length or checkpoint.bert_config.max_position_embeddings
    # Their tokenizer lower-cases as its own file says; this key does it once more.
    inputs = {"max_seq_length": length, "do_lower_case": False}
    pooling = {"word_embedding_dimension": checkpoint.bert_config.hidden_size}
    # All are written: a `pooling_mode_mean_tokens` that is missing counts as true.
    for name in (*_MODES, "max_tokens", "mean_sqrt_len_tokens"):
        pooling[f"pooling_mode_{name}"] = _MODES.get(name) == task.pooling
    folders = {"Transformer": "", "Pooling": "1_Pooling"}
    if task.normalize:
        folders["Normalize"] = "2_Normalize"
    for folder in folders.values():
        (directory / folder).mkdir(exist_ok=True)
    for name, values in (
        (_ENCODER_CONFIG, inputs),
        (_POOLING, pooling),
        ("config_sentence_transformers.json", {"similarity_fn_name": "cosine"}),
    ):
        files.write_json(directory / name, values)
    steps = [
        {
            "idx": number,
            "name": str(number),
            "path": folder,
            "type": f"sentence_transformers.models.{name}",
        }
        for number, (name, folder) in enumerate(folders.items())
    ]
    path = directory / hugging_face.MODULES_NAME
    files.write_atomically(path, f"{files.to_json(steps, indent=2)}\n".encode())
    return left_out

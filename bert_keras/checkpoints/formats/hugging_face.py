"""Hugging Face's BERTs: `config.json`, `model.safetensors` or its shards, a tokenizer.

Only their package safetensors is used; nothing that the files name is imported or run.
`config.json` names the model's class; otherwise the tensors tell as far as they can.
"""

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.checkpoints.formats import (
    google_tf1,
    hugging_face_config,
    hugging_face_tokenizer,
)
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.core.settings.architecture import BertConfig
from bert_keras.kinds import registry

logger = logging.getLogger(__name__)

ACTIVATIONS = hugging_face_config.ACTIVATIONS

_SAFETENSORS = (safetensors_files.NAME, safetensors_files.INDEX_NAME)
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

_ENCODER = {
    ours: theirs.replace("/", ".").replace("layer_{i}", "layer.{i}")
    + (".weight" if theirs.endswith("_embeddings") else "")
    for ours, theirs in google_tf1.ENCODER.items()
}

_DECODER = "cls.predictions.decoder.weight"


def recognizes(path: Path) -> bool:
    """Whether there are Hugging Face weights, of any model, readable or not. The same
    files in a directory of sentence-transformers do not count."""
    return not (path / MODULES_NAME).is_file() and has_weights(path)


MODULES_NAME = "modules.json"
"""File of sentence-transformers, next to the rest."""


def has_weights(path: Path) -> bool:
    has_config = (path / hugging_face_config.NAME).is_file()
    names = (*_SAFETENSORS, *_PICKLES)
    return has_config and any((path / name).is_file() for name in names)


def read(path: Path) -> weights.Checkpoint:
    """Opens a directory; logs that weights of other precisions become float32."""
    # 1. The model's class, which must be a BERT as published.
    config_path = path / hugging_face_config.NAME
    values = files.read_json(config_path)
    architecture = hugging_face_config.named_architecture(values, config_path)
    if not any((path / name).is_file() for name in _SAFETENSORS):
        raise _no_safetensors(path, architecture or "BertModel")
    source = safetensors_files.SafetensorsFiles(path)
    shapes = source.shapes
    if architecture is None:
        architecture = hugging_face_config.architecture_by_tensors(shapes, config_path)
    # 2. Its sizes and its task.
    bert_config = hugging_face_config.read_bert_config(values, config_path)
    # Before making as many rows as the configuration claims.
    layer = r"(?:bert\.)?encoder\.layer\.(\d+)\."
    weights.check_num_layers(shapes, layer, bert_config, source.path)
    task = hugging_face_config.read_task(values, architecture, shapes, config_path)
    # 3. The weights, under whatever names the file has for them.
    rows, copies = _resolve(_rows(bert_config, task), shapes)

    def why_unused(name: str) -> str:
        if name in copies:
            is_table = name == _DECODER
            return f"a copy of {'the word embeddings' if is_table else copies[name]}"
        if name.endswith(("embeddings.position_ids", "embeddings.token_type_ids")):
            return "numbers of positions, not a weight"
        if name.startswith(("cls.", "classifier.", "qa_outputs.")):
            return f"a {architecture} has no such head"
        return "not part of BERT"

    vocabulary, do_lower_case, longest = hugging_face_tokenizer.read(
        path, bert_config.max_position_embeddings
    )
    checkpoint = weights.Checkpoint(
        bert_config=bert_config,
        task=task,
        arrays=weights.open_arrays(source, rows, path=source.path),
        vocabulary=vocabulary,
        do_lower_case=do_lower_case,
        max_seq_length=longest,
        unused=weights.unused(source, rows, why_unused),
    )
    dtypes = source.dtypes([*(row.theirs for row in rows), *copies]) - {"float32"}
    if dtypes:
        logger.warning(
            "%s: weights are %s, read as float32", path, " and ".join(sorted(dtypes))
        )
    for name, original in copies.items():
        arrays = source.read(name), source.read(original)
        if not np.array_equal(*arrays, equal_nan=True):
            raise InputError(
                f"{source.path}: {name!r} and {original!r} differ, but are one weight "
                "of a BERT: a model that was trained with them apart cannot be "
                "represented here"
            )
    return checkpoint


def _no_safetensors(path: Path, architecture: str) -> InputError:
    pickles = [name for name in _PICKLES if (path / name).is_file()]
    if not pickles:
        expected = " or ".join(_SAFETENSORS)
        return InputError(f"{path}: expected {expected}, found neither")
    return InputError(
        f"{path}: the weights are in {pickles[0]}, a pickle, which can run any code "
        "when it is read; if you trust it, convert it where transformers is installed: "
        f'python -c "from transformers import {architecture} as M; '
        f'M.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"'
    )


def _rows(bert_config: BertConfig, task: tasks.Task) -> list[weights.Row]:
    heads = registry.find(task.kind).names.heads.get("hugging_face", {})
    variables = {"kernel": ".weight", "bias": ".bias"}
    variables |= {"gamma": ".weight", "beta": ".bias"}
    names = {**_ENCODER, **heads}
    return weights.rows(names, variables, bert_config, task, kernels="transposed")


def _resolve(
    rows: Collection[weights.Row], theirs: Iterable[str]
) -> tuple[list[weights.Row], dict[str, str]]:
    """Replaces names in the table by names in a file; returns the rows with a tensor,
    and the originals by the names of tensors that must be copies."""
    # A head that the class does not have may be anything.
    has_cls = any(row.theirs.startswith("cls.") for row in rows)
    theirs = {name for name in theirs if has_cls or not name.startswith("cls.")}
    resolved, copies = [], {}
    for row in rows:
        # All names of the tensor, today's first. A file has one of them, or several if
        # it was made from copies.
        names = [row.theirs]
        for new, old in (
            ("LayerNorm.weight", "LayerNorm.gamma"),
            ("LayerNorm.bias", "LayerNorm.beta"),
            ("cls.predictions.bias", "cls.predictions.decoder.bias"),
        ):
            names += [name.replace(new, old) for name in names if new in name]
        names += [n.removeprefix("bert.") for n in names if n.startswith("bert.")]
        if row.theirs == "bert.embeddings.word_embeddings.weight":
            names.append(_DECODER)
        if present := [name for name in names if name in theirs]:
            resolved.append(row._replace(theirs=present[0]))
            copies |= dict.fromkeys(present[1:], present[0])
    return resolved, copies


def write(checkpoint: weights.Checkpoint, directory: Path) -> dict[str, str]:
    """Writes a directory for `from_pretrained`. A `BertModel` always has a pooler,
    because transformers initializes one if it is missing."""
    values = hugging_face_config.to_theirs(checkpoint)
    [architecture] = values["architectures"]
    # Prefixes of weights that a class lacks although its kind of task has them.
    no_place = {
        "BertForMaskedLM": ("encoder/pooler/", "next_sentence_head/"),
        "BertForNextSentencePrediction": ("masked_lm_head/",),
        "BertForTokenClassification": ("encoder/pooler/",),
        "BertForQuestionAnswering": ("encoder/pooler/",),
    }.get(architecture, ())
    arrays, rows = checkpoint.arrays, _rows(checkpoint.bert_config, checkpoint.task)
    rows = [row for row in rows if not row.ours.startswith(no_place)]
    if lacking := [row.ours for row in rows if row.ours not in arrays]:
        logger.warning(
            "%s: a %s has weights that the checkpoint lacks; transformers will "
            "initialize them: %s",
            directory,
            architecture,
            ", ".join(lacking),
        )
    hugging_face_tokenizer.write(checkpoint, directory)
    float32 = np.dtype(np.float32)
    safetensors_files.write(
        directory / safetensors_files.NAME,
        {
            row.theirs: safetensors_files.Layout(float32, row.their_shape)
            for row in rows
            if row.ours in arrays
        },
        weights.write_rows(rows, arrays),
        has_hashes=False,
    )
    files.write_json(directory / hugging_face_config.NAME, values)
    return weights.left_out(checkpoint, rows, f"a {architecture} has no such weight")

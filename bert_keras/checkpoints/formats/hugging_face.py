"""Hugging Face's BERTs: `config.json`, weights in one file or in shards, a tokenizer.

None of their packages is used; nothing that the files name is imported or run.
`config.json` has the sizes and the task, and names the model's class.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.containers import safetensors_files, sharded_files
from bert_keras.checkpoints.formats import (
    google_tf1,
    hugging_face_tensorflow,
    hugging_face_tokenizer,
)
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import strict, tasks
from bert_keras.core.settings.architecture import BertConfig
from bert_keras.kinds import registry

logger = logging.getLogger(__name__)

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
"""Our names to theirs; `gelu_new` is their oldest name for the tanh form."""

_OUR_ACTIVATIONS = {
    **{theirs: ours for ours, theirs in ACTIVATIONS.items()},
    "gelu_python": "gelu",
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"), "gelu_tanh"),
}

KINDS: dict[str, tasks.TaskKind] = {
    "BertForMaskedLM": "pretraining",
    # The same network, unless it is a decoder.
    "BertLMHeadModel": "pretraining",
    "BertForNextSentencePrediction": "pretraining",
    # The first kind of a class comes last, so it stays.
    **{
        kind.names.hugging_face: kind.name
        for kind in reversed(registry.KINDS.values())
        if kind.names.hugging_face
    },
}
"""Kind of task, by their class; their classification may be a regression, or of several
labels."""

_ONLY_VALUES: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "quantization_config": None,
}
"""Config values that our network implements. Any other value would compute something
else and is refused."""

_CONFIG = "config.json"
_SAFETENSORS, _PICKLE = "model.safetensors", "pytorch_model.bin"
_OPENERS = {
    _SAFETENSORS: hugging_face_tensorflow.open_safetensors,
    hugging_face_tensorflow.NAME: hugging_face_tensorflow.open_h5,
}
"""What opens each file of weights, the first choice first."""

_ENCODER = {
    ours: theirs.replace("/", ".").replace("layer_{i}", "layer.{i}")
    + (".weight" if theirs.endswith("_embeddings") else "")
    for ours, theirs in google_tf1.ENCODER.items()
}

MODULES_NAME = "modules.json"
"""File of sentence-transformers, next to the rest."""

# The masked LM's output matrix is the table of word embeddings, which some files hold
# under both names.
_DECODER = "cls.predictions.decoder.weight"


def recognizes(path: Path) -> bool:
    """Whether there are Hugging Face weights, of any model, readable or not. The same
    files in a directory of sentence-transformers do not count."""
    return not (path / MODULES_NAME).is_file() and has_weights(path)


def has_weights(path: Path) -> bool:
    return (path / _CONFIG).is_file() and bool(_weights_in(path))


def reads_tensorflow(path: Path) -> bool:
    """Whether the weights that are read are those of a TensorFlow class."""
    is_there = has_weights(path)
    return is_there and _open_weights(path, "BertModel").metadata.get("format") == "tf"


def _weights_in(path: Path) -> list[str]:
    endings = ("", sharded_files.INDEX)
    names = (file + end for file in (*_OPENERS, _PICKLE) for end in endings)
    return [name for name in names if (path / name).is_file()]


def read(path: Path) -> weights.Checkpoint:
    """Opens a directory; logs that weights of other precisions become float32, and
    which of several files of weights is read."""
    # 1. The model's class, which must be a BERT as published.
    config_path = path / _CONFIG
    values = files.read_json(config_path)
    architecture = _named_architecture(values, config_path)
    source = _open_weights(path, architecture or "BertModel")
    shapes = source.shapes
    if architecture is None:
        named = source.metadata.get("class")
        architecture = next((known for known in KINDS if known.lower() == named), None)
    if architecture is None:
        raise InputError(
            f'{config_path}: does not name the class of the weights: put "architectures'
            f'": ["{next(iter(KINDS))}"] there, or another of {", ".join(KINDS)}'
        )
    # 2. Its sizes and its task.
    bert_config = _read_bert_config(values, config_path)
    # Before making as many rows as the configuration claims.
    layer = r"(?:bert\.)?encoder\.layer\.(\d+)\."
    weights.check_num_layers(shapes, layer, bert_config, source.path)
    task = _read_task(values, architecture, shapes, config_path)
    # 3. The weights, under whatever names the file has for them.
    rows, copies = _resolve(all_rows(bert_config, task), shapes)

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


def _named_architecture(values: Mapping[str, Any], path: Path) -> str | None:
    """Returns the class of a model, `None` if the file does not tell it; refuses any
    model but BERT as published."""
    model_type = values.get("model_type", "bert")
    if model_type != "bert":
        raise InputError(f"{path}: the model is of the type {model_type!r}, not a BERT")
    for key, expected in _ONLY_VALUES.items():
        if values.get(key) not in (None, expected):
            raise InputError(
                f'{path}: "{key}" is {values[key]!r}, only {expected!r} is '
                "known here: such a model computes something else"
            )
    if not (named := values.get("architectures")):
        return None
    for known in KINDS:
        if named in ([known], [f"TF{known}"]):
            return known
    raise InputError(
        f'{path}: "architectures" is {named!r}, expected one of {", ".join(KINDS)}'
    )


def _read_bert_config(values: Mapping[str, Any], path: Path) -> BertConfig:
    # They have defaults, but no tensor would reveal a wrong number of heads.
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    sizes += ("intermediate_size", "max_position_embeddings")
    if lacking := [key for key in sizes if key not in values]:
        raise InputError(f"{path}: expected the keys {', '.join(lacking)} too")
    # Ours is 1e-12. With 1e-8 the outputs of a trained model of 6 layers and 384 units
    # move by 3e-6, with 1e-7 by 2e-5, and with 1e-5 by 2e-3.
    epsilon, largest = values.get("layer_norm_eps", 1e-12), 1e-8
    if not isinstance(epsilon, float | int) or not 0 <= epsilon <= largest:
        raise InputError(
            f'{path}: "layer_norm_eps" is {epsilon!r}, here it is 1e-12, and above '
            f"{largest} the outputs would be others"
        )
    hidden_act = values.get("hidden_act", "gelu")
    if not isinstance(hidden_act, str) or hidden_act not in _OUR_ACTIVATIONS:
        raise InputError(
            f'{path}: "hidden_act" is {hidden_act!r}, expected one of '
            + ", ".join(_OUR_ACTIVATIONS)
        )
    known = BertConfig.model_fields.keys() - {"attention"}
    ours = {key: value for key, value in values.items() if key in known}
    ours["hidden_act"] = _OUR_ACTIVATIONS[hidden_act]
    return strict.build_config(BertConfig, ours, origin=path)


def _read_task(
    values: Mapping[str, Any],
    architecture: str,
    shapes: Mapping[str, Sequence[int]],
    path: Path,
) -> tasks.Task:
    kind, labels = KINDS[architecture], None
    problem_type = values.get("problem_type")
    has_several = problem_type == "multi_label_classification"
    if registry.find(kind).has_labels:
        labels = _read_labels(values, shapes, path)
        tasks.check_labels(labels, path=path, has_several=has_several)
    if architecture == "BertForSequenceClassification":
        if has_several:
            return tasks.Task(kind="multi_label", labels=labels)
        if problem_type == "regression" and len(labels) > 1:
            raise InputError(f"{path}: a regression of {len(labels)} numbers, not one")
        # Without `problem_type`, transformers decides like this.
        if len(labels) == 1 and problem_type != "single_label_classification":
            kind, labels = "regression", None
    has_text_pair = registry.find(kind).has_text_pair
    return tasks.Task(kind=kind, labels=labels, has_text_pair=has_text_pair)


def _read_labels(
    values: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], path: Path
) -> tuple[str, ...]:
    """Reads `id2label` in the order of the logits; `LABEL_0`, ... if it is missing."""
    id2label = values.get("id2label")
    if id2label is None:
        num_labels, *size = shapes.get("classifier.weight", (2,))
        # Only then does the file have to be as long as the shape claims.
        num_labels = num_labels if size == [values["hidden_size"]] else 2
        return tuple(f"LABEL_{i}" for i in range(num_labels))
    if isinstance(id2label, dict):
        numbers = [str(i) for i in range(len(id2label))]
        is_named = all(type(label) in (str, int) for label in id2label.values())
        if numbers and is_named and id2label.keys() == set(numbers):
            return tuple(str(id2label[number]) for number in numbers)
    raise InputError(
        f'{path}: expected "id2label" from "0", "1" and so on to the names of labels, '
        "each a string or a whole number"
    )


def _open_weights(path: Path, architecture: str) -> sharded_files.ShardedFiles:
    if not (names := _weights_in(path)):
        raise InputError(
            f"{path}: expected {' or '.join(_OPENERS)} or an index of their shards, "
            "found none"
        )
    name, *others = names
    if name.startswith(_PICKLE):
        raise InputError(
            f"{path}: the weights are in {name}, a pickle, which can run any code when "
            "it is read; if you trust it, convert it where transformers is installed: "
            f'python -c "from transformers import {architecture} as M; '
            f'M.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"'
        )
    if others:
        logger.info("%s: reads %s, not %s", path, name, " or ".join(others))
    open_file = _OPENERS[name.removesuffix(sharded_files.INDEX)]
    # No name of a PyTorch class is taken for one of TensorFlow's.
    tensor_name = hugging_face_tensorflow.tensor_name
    return sharded_files.ShardedFiles(path / name, open_file, tensor_name=tensor_name)


def all_rows(bert_config: BertConfig, task: tasks.Task) -> list[weights.Row]:
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
    values = config_of(checkpoint)
    [architecture] = values["architectures"]
    # Prefixes of weights that a class lacks although its kind of task has them.
    no_place = {
        "BertForMaskedLM": ("encoder/pooler/", "next_sentence_head/"),
        "BertForNextSentencePrediction": ("masked_lm_head/",),
        "BertForTokenClassification": ("encoder/pooler/",),
        "BertForQuestionAnswering": ("encoder/pooler/",),
    }.get(architecture, ())
    arrays, rows = checkpoint.arrays, all_rows(checkpoint.bert_config, checkpoint.task)
    rows = [row for row in rows if not row.ours.startswith(no_place)]
    if lacking := [row.ours for row in rows if row.ours not in arrays]:
        logger.warning(
            "%s: a %s has weights that the checkpoint lacks; transformers will "
            "initialize them: %s",
            *(directory, architecture, ", ".join(lacking)),
        )
    hugging_face_tokenizer.write(checkpoint, directory)
    float32 = np.dtype(np.float32)
    safetensors_files.write(
        directory / _SAFETENSORS,
        {
            row.theirs: safetensors_files.Layout(float32, row.their_shape)
            for row in rows
            if row.ours in arrays
        },
        weights.write_rows(rows, arrays),
        has_hashes=False,
    )
    files.write_json(directory / _CONFIG, values)
    return weights.left_out(checkpoint, rows, f"a {architecture} has no such weight")


def config_of(checkpoint: weights.Checkpoint) -> dict[str, Any]:
    """Returns the configuration of a checkpoint, with the class that has a place for
    most of its weights."""
    names = registry.find(checkpoint.task.kind).names
    architecture = names.hugging_face
    if architecture is None:
        raise InputError(
            f"transformers has no class for {checkpoint.task.kind}: `convert --to "
            "native` or `export` keep this model"
        )
    if architecture == "BertForPreTraining":
        pair_head = {"encoder/pooler/kernel", "next_sentence_head/classifier/kernel"}
        if not pair_head <= checkpoint.arrays.keys():
            architecture = "BertForMaskedLM"
        elif "masked_lm_head/transform/kernel" not in checkpoint.arrays:
            architecture = "BertForNextSentencePrediction"
    values = checkpoint.bert_config.model_dump(exclude={"attention"})
    values |= {
        "model_type": "bert",
        "architectures": [architecture],
        "hidden_act": ACTIVATIONS[checkpoint.bert_config.hidden_act],
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "pad_token_id": 0,
    }
    labels = checkpoint.task.labels
    if labels is not None:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    if names.problem_type:
        values["problem_type"] = names.problem_type
        if labels is None:
            # Else transformers makes two outputs.
            values["id2label"] = {"0": "LABEL_0"}
    return values

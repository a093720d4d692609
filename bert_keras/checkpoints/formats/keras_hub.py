"""Presets of KerasHub's `BertBackbone`: directories with `config.json`,
`model.weights.h5`, `tokenizer.json` and `assets/tokenizer/vocabulary.txt`.

A preset holds the encoder and the head that classifies texts: a `BertTextClassifier`
around the backbone. `task.json` describes it, `preprocessor.json` how texts become its
inputs, and `task.weights.h5` has the head. KerasHub has no names of labels:
`labels.txt`, a line for each, is ours. KerasHub has no next-sentence head, and its
masked-LM head computes another function.

Read and written with h5py alone: nothing that the files name is imported or called.
"""

import collections
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import keras

from bert_keras.checkpoints import native, weights
from bert_keras.checkpoints.containers import keras_files
from bert_keras.checkpoints.formats import companions
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, strict, tasks
from bert_keras.data import tokenization
from bert_keras.kinds import registry

logger = logging.getLogger(__name__)

ACTIVATIONS = {"gelu_tanh": "gelu_approximate"}
"""KerasHub has only this one, whose name no file contains."""

_CONFIG, _TOKENIZER, _WEIGHTS = "config.json", "tokenizer.json", "model.weights.h5"
_VOCABULARY = "assets/tokenizer/vocabulary.txt"
_TASK, _PREPROCESSOR, _LABELS = "task.json", "preprocessor.json", "labels.txt"
_HEAD_WEIGHTS = "task.weights.h5"

_OURS, _THEIRS = "encoder/layer_{i}", "layers/transformer_encoder_{i}"
_ATTENTION = f"{_THEIRS}/_self_attention_layer"
_EMBEDDINGS = "encoder/embeddings"

_NAMES = {
    f"{_EMBEDDINGS}/word_embeddings": "layers/reversible_embedding/vars/0",
    f"{_EMBEDDINGS}/position_embeddings": "layers/position_embedding/vars/0",
    f"{_EMBEDDINGS}/type_embeddings": "layers/embedding/vars/0",
    f"{_EMBEDDINGS}/layer_norm": "layers/layer_normalization",
    f"{_OURS}/self_attention/query": f"{_ATTENTION}/query_dense",
    f"{_OURS}/self_attention/key": f"{_ATTENTION}/key_dense",
    f"{_OURS}/self_attention/value": f"{_ATTENTION}/value_dense",
    f"{_OURS}/self_attention/output_dense": f"{_ATTENTION}/output_dense",
    f"{_OURS}/attention_layer_norm": f"{_THEIRS}/_self_attention_layer_norm",
    f"{_OURS}/feed_forward/intermediate_dense": (
        f"{_THEIRS}/_feedforward_intermediate_dense"
    ),
    f"{_OURS}/feed_forward/output_dense": f"{_THEIRS}/_feedforward_output_dense",
    f"{_OURS}/output_layer_norm": f"{_THEIRS}/_feedforward_layer_norm",
    "encoder/pooler": "layers/dense",
}
_HEAD = {"head/classifier": "layers/dense"}

# Their keys -> ours.
_KEYS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}

# With other values, it would split text differently from our tokenizer.
_TOKENIZER_SETTINGS = {"split": True, "suffix_indicator": "##", "oov_token": "[UNK]"}

OTHER_HEAD = (
    "KerasHub's masked-LM head computes the exact GELU and a norm with epsilon 1e-5"
)


def recognizes(path: Path) -> bool:
    if not any((path / n).is_file() for n in (_WEIGHTS, "model.weights.json")):
        return False
    try:
        registered_name = str(files.read_json(path / _CONFIG).get("registered_name"))
    except InputError:
        return False
    return registered_name.startswith(("keras_hub>", "keras_nlp>"))


def read(path: Path) -> weights.Checkpoint:
    """Reads a preset, with the head of a `BertTextClassifier`. `vocab.txt` and
    `tokenizer_config.json` replace missing tokenizer files of KerasHub."""
    # 1. The backbone.
    bert_config, weights_path = _read_bert_config(path / _CONFIG), path / _WEIGHTS
    if not weights_path.is_file():
        raise InputError(
            f"{path}: expected {_WEIGHTS}, found weights in several files: save the "
            "preset again with max_shard_size=None"
        )
    source = keras_files.WeightsFile(weights_path)
    layer = r"layers/transformer_encoder(_\d+)?/"
    weights.check_num_layers(source.shapes, layer, bert_config, weights_path)
    task, max_seq_length = tasks.Task(kind="encoder"), None
    rows = _rows(_NAMES, bert_config, task)
    arrays = weights.open_arrays(source, rows, path=weights_path)
    unused = weights.unused(source, rows, lambda name: "not part of BERT")
    # 2. How text is split.
    vocabulary, do_lower_case = companions.read_tokenizer(path)
    if (path / _VOCABULARY).is_file():
        vocabulary = tokenization.Vocabulary.load(path / _VOCABULARY)
    if (path / _TOKENIZER).is_file():
        do_lower_case = _read_lowercase(path / _TOKENIZER)
    # 3. The head, if it has a place here.
    head_path = path / _HEAD_WEIGHTS
    if head_path.is_file():
        task, max_seq_length = _read_task(path)
        source = keras_files.WeightsFile(head_path)
        has_place = registry.find(task.kind).names.keras_hub is not None
        rows = _rows(_HEAD, bert_config, task) if has_place else []
        if missing := sorted({row.theirs for row in rows} - source.shapes.keys()):
            raise InputError(f"{head_path}: expected a tensor {missing[0]!r}")
        head = weights.open_arrays(source, rows, path=head_path)
        arrays = collections.ChainMap(arrays, head)
        others = weights.unused(source, rows, _why_not_in_head)
        unused |= {f"{_HEAD_WEIGHTS}: {name}": why for name, why in others.items()}
    return weights.Checkpoint(
        bert_config=bert_config,
        task=task,
        arrays=arrays,
        vocabulary=vocabulary,
        do_lower_case=do_lower_case,
        max_seq_length=max_seq_length,
        unused=unused,
    )


def _why_not_in_head(name: str) -> str:
    if name.startswith("optimizer/"):
        return "optimizer slot"
    if "/masked_lm_head/" in name:
        return OTHER_HEAD
    return "of a head that is not known here"


def _rows(
    names: Mapping[str, str], bert_config: architecture.BertConfig, task: tasks.Task
) -> list[weights.Row]:
    # Keras names groups after the classes of layers, and numbers their datasets.
    variables = {"kernel": "/vars/0", "bias": "/vars/1"}
    variables |= {"gamma": "/vars/0", "beta": "/vars/1"}
    rows = weights.rows(names, variables, bert_config, task, kernels="heads")
    # The first layer of a class has no number.
    first = "transformer_encoder_0/", "transformer_encoder/"
    return [row._replace(theirs=row.theirs.replace(*first)) for row in rows]


def _read_bert_config(path: Path) -> architecture.BertConfig:
    description = files.read_json(path)
    name, values = description.get("class_name"), description.get("config")
    if name != "BertBackbone" or not isinstance(values, dict):
        raise InputError(f"{path}: expected a BertBackbone of KerasHub, found {name!r}")
    # `dtype` is that of the computation; the arrays have their own.
    known = {*_KEYS, "name", "trainable", "dtype"}
    if unknown := sorted(values.keys() - known):
        raise InputError(
            f"{path}: a BertBackbone with {unknown[0]!r}, which is not known here and "
            "may change what it computes"
        )
    # Defaults of `BertBackbone`: its configuration need not hold them.
    defaults = {"dropout": 0.1, "max_sequence_length": 512, "num_segments": 2}
    values = {**defaults, **values}
    if missing := [key for key in _KEYS if key not in values]:
        raise InputError(f"{path}: expected a key {missing[0]!r} in its `config`")
    converted = {ours: values[theirs] for theirs, ours in _KEYS.items()}
    # Their one rate is both of ours.
    rates = {"attention_probs_dropout_prob": values["dropout"]}
    converted |= {**rates, "hidden_act": "gelu_tanh"}
    return strict.build_config(architecture.BertConfig, converted, origin=path)


def _read_lowercase(path: Path) -> bool:
    description = files.read_json(path)
    name, settings = description.get("class_name"), description.get("config")
    if name != "BertTokenizer" or not isinstance(settings, dict):
        raise InputError(f"{path}: expected KerasHub's BertTokenizer, found {name!r}")
    for key, expected in _TOKENIZER_SETTINGS.items():
        if settings.get(key, expected) != expected:
            raise InputError(
                f"{path}: {key} is {settings[key]!r}, expected {expected!r}: there, "
                "text is cut otherwise than here"
            )
    lowercase, strip = (settings.get(k, False) for k in ("lowercase", "strip_accents"))
    if not isinstance(lowercase, bool):
        raise InputError(f"{path}: `lowercase`: expected true or false")
    if lowercase != strip:
        logger.warning(
            f"{path}: the tokenizer there {'strips' if strip else 'keeps'} accents; "
            "here, as with the original BERT, text loses them if it is lower-cased, "
            f"which it {'is' if lowercase else 'is not'}"
        )
    return lowercase


def _read_task(directory: Path) -> tuple[tasks.Task, int | None]:
    """Returns the task of a preset and its longest input, `None` if no file tells;
    an encoder: the preset has no head that has a place here."""
    no_head, path = (tasks.Task(kind="encoder"), None), directory / _TASK
    described = files.read_json(path) if path.is_file() else {}
    values = described.get("config")
    is_classifier = described.get("class_name") == "BertTextClassifier"
    if not is_classifier or not isinstance(values, dict):
        return no_head
    # 1. The kind of task: by the number of classes and what is computed of the logits.
    number, activation = values.get("num_classes"), values.get("activation")
    if type(number) is not int or number < 1:
        raise InputError(
            f"{path}: expected a number of classes, `num_classes`, found {number!r}"
        )
    # A softmax over one class is always 1, so such a head is of no kind.
    kinds: dict[str, tasks.TaskKind | None] = {
        "linear": "classification" if number > 1 else "regression",
        "softmax": "classification" if number > 1 else None,
        "sigmoid": "multi_label",
    }
    kind = kinds.get(str(activation or "linear"))
    if not kind:
        return no_head
    # 2. The longest input.
    preprocessor = values.get("preprocessor") or {}
    length = (preprocessor.get("config") or {}).get("sequence_length")
    length = length if type(length) is int and length > 0 else None
    # 3. The labels: their numbers where no file has their names.
    if not registry.find(kind).has_labels:
        return tasks.Task(kind=kind), length
    labels_path = directory / _LABELS
    labels = tuple(map(str, range(number)))
    if labels_path.is_file():
        text = files.read_text(labels_path, expected="labels")
        labels = tuple(text.splitlines())
    tasks.check_labels(labels, path=labels_path)
    if len(labels) != number:
        raise InputError(
            f"{labels_path}: expected {number} different labels, one a line, as many "
            f"as `num_classes` in {_TASK}, found {len(labels)}"
        )
    return tasks.Task(kind=kind, labels=labels), length


def write(checkpoint: weights.Checkpoint, directory: Path) -> dict[str, str]:
    """Writes a preset for `BertBackbone.from_preset`, or
    `BertTextClassifier.from_preset` for texts' classes or numbers. A backbone always
    has a pooler: a missing one is initialized."""
    if checkpoint.vocabulary is not None:
        companions.check_casing_is_known(checkpoint)
    bert_config = checkpoint.bert_config
    # 1. The weights of the backbone.
    encoder = tasks.Task(kind="encoder")
    network = registry.build_network(bert_config, encoder, seed=native.SEED)
    pooler = weights.from_network(network, network.pooler.weights)
    arrays = collections.ChainMap(checkpoint.arrays, pooler)
    rows, num_parameters = _rows(_NAMES, bert_config, checkpoint.task), 0
    with h5py.File(directory / _WEIGHTS, "w") as file:
        for name, array in weights.write_rows(rows, arrays):
            file[name] = array
            num_parameters += array.size
    metadata = {"keras_version": keras.__version__, "parameter_count": num_parameters}
    files.write_json(directory / "metadata.json", metadata, indent=4)
    # 2. Its configuration.
    rates = bert_config.hidden_dropout_prob, bert_config.attention_probs_dropout_prob
    if rates[0] != rates[1]:
        logger.warning(
            "KerasHub has one dropout rate: wrote %s, that of attention was %s", *rates
        )
    values = {theirs: getattr(bert_config, ours) for theirs, ours in _KEYS.items()}
    backbone = _serialized("bert_backbone", values)
    files.write_json(directory / _CONFIG, backbone, indent=4)
    # 3. The tokenizer, and the head, which needs it.
    written = {row.ours for row in rows}
    if checkpoint.vocabulary is not None:
        written |= _write_task(checkpoint, directory, backbone)
    reasons = {
        "masked_lm_head": OTHER_HEAD,
        "next_sentence_head": "KerasHub has no such head",
    }
    other = "KerasHub has a head for texts alone, and needs a vocabulary with it"
    left_out = [name for name in checkpoint.arrays if name not in written]
    return {name: reasons.get(name.partition("/")[0], other) for name in left_out}


def _write_task(
    checkpoint: weights.Checkpoint, directory: Path, backbone: Mapping[str, Any]
) -> set[str]:
    """Writes the tokenizer, and the task if it has a place here; returns the names of
    the weights that were written."""
    # 1. How text is split.
    (directory / _VOCABULARY).parent.mkdir(parents=True)
    checkpoint.vocabulary.save(directory / _VOCABULARY)
    values = {
        "vocabulary": None,
        "sequence_length": None,
        "lowercase": checkpoint.do_lower_case,
        # KerasHub's default differs from the original BERT.
        "strip_accents": checkpoint.do_lower_case,
        **_TOKENIZER_SETTINGS,
    }
    tokenizer = _serialized("bert_tokenizer", values, dtype="int32")
    files.write_json(directory / _TOKENIZER, tokenizer, indent=4)
    task, bert_config = checkpoint.task, checkpoint.bert_config
    activation = registry.find(task.kind).names.keras_hub
    if activation is None:
        return set()
    # 2. How texts become inputs, and what is computed of them.
    length = checkpoint.max_seq_length or bert_config.max_position_embeddings
    values = {
        "tokenizer": tokenizer,
        "config_file": _PREPROCESSOR,
        "sequence_length": length,
        "truncate": "round_robin",
    }
    preprocessor = _serialized("bert_text_classifier_preprocessor", values)
    values = {
        "backbone": backbone,
        "preprocessor": preprocessor,
        "num_classes": len(checkpoint.arrays["head/classifier/bias"]),
        "activation": activation,
        "dropout": bert_config.hidden_dropout_prob,
    }
    described = _serialized("bert_text_classifier", values, dtype=None)
    files.write_json(directory / _TASK, described, indent=4)
    files.write_json(directory / _PREPROCESSOR, preprocessor, indent=4)
    rows = _rows(_HEAD, bert_config, task)
    with h5py.File(directory / _HEAD_WEIGHTS, "w") as file:
        for row in rows:
            file[row.theirs] = checkpoint.arrays[row.ours]
    if task.labels:
        lines = "".join(f"{label}\n" for label in task.labels)
        files.write_atomically(directory / _LABELS, lines.encode())
    return {row.ours for row in rows}


def _serialized(
    name: str, values: Mapping[str, Any], *, dtype: str | None = "float32"
) -> dict[str, Any]:
    """Describes an object as `keras.saving.serialize_keras_object` does.

    Args:
        name: of the object, of its class and of the module of that.
        values: all other keys of its configuration.
        dtype: of its policy; `None`: it has no policy, as a task.
    """
    class_name = name.title().replace("_", "")
    settings: dict[str, Any] = {"name": name}
    if dtype is not None:
        policy = {
            "module": "keras",
            "class_name": "DTypePolicy",
            "config": {"name": dtype},
            "registered_name": None,
        }
        settings |= {"trainable": True, "dtype": policy}
    return {
        "module": f"keras_hub.src.models.bert.{name}",
        "class_name": class_name,
        "config": {**settings, **values},
        "registered_name": f"keras_hub>{class_name}",
    }

"""Presets of KerasHub's `BertBackbone`: directories with `config.json`,
`model.weights.h5`, `tokenizer.json` and `assets/tokenizer/vocabulary.txt`.

Read and written with h5py alone: nothing that the files name is imported or called. A
preset holds the encoder and the head that classifies texts, see `keras_hub_tasks`.
KerasHub has no next-sentence head, and its masked-LM head computes another function.
"""

import collections
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from bert_keras.checkpoints import native, weights
from bert_keras.checkpoints.containers import keras_files
from bert_keras.checkpoints.formats import companions, keras_hub_tasks
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, strict, tasks
from bert_keras.data import tokenization
from bert_keras.model import layers

logger = logging.getLogger(__name__)

ACTIVATIONS = {"gelu_tanh": "gelu_approximate"}
"""KerasHub has only this one, whose name no file contains."""

_CONFIG, _METADATA, _TOKENIZER = "config.json", "metadata.json", "tokenizer.json"
_VOCABULARY = "assets/tokenizer/vocabulary.txt"
_WEIGHTS = "model.weights.h5"
_SHARDED_WEIGHTS = "model.weights.json"

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
# Keras names groups after the classes of layers, and numbers their datasets.
_VARIABLES = {
    **dict.fromkeys(("kernel", "gamma"), "/vars/0"),
    **dict.fromkeys(("bias", "beta"), "/vars/1"),
}

# Their keys -> ours, and the defaults of theirs.
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
_DEFAULTS = {"dropout": 0.1, "max_sequence_length": 512, "num_segments": 2}
# `dtype` is that of the computation; the arrays have their own.
_UNUSED_KEYS = frozenset(("name", "trainable", "dtype"))

# With other values, it would split text differently from our tokenizer.
_TOKENIZER_SETTINGS = {"split": True, "suffix_indicator": "##", "oov_token": "[UNK]"}

_LARGEST_JSON = 1 << 20


def recognizes(path: Path) -> bool:
    if not any((path / name).is_file() for name in (_WEIGHTS, _SHARDED_WEIGHTS)):
        return False
    try:
        registered_name = str(_read_json(path / _CONFIG).get("registered_name"))
    except InputError:
        return False
    return registered_name.startswith(("keras_hub>", "keras_nlp>"))


def read(path: Path) -> weights.Checkpoint:
    """Reads a preset, with the head of a `BertTextClassifier`. `vocab.txt` and
    `tokenizer_config.json` replace missing tokenizer files of KerasHub."""
    bert_config = _read_bert_config(path / _CONFIG)
    if not (path / _WEIGHTS).is_file():
        raise InputError(
            f"{path}: expected {_WEIGHTS}, found weights in several files: save the "
            "preset again with max_shard_size=None"
        )
    source = keras_files.WeightsFile(path / _WEIGHTS)
    names, num_layers = _names(source.shapes())
    weights.check_num_layers(num_layers, bert_config, path=path / _WEIGHTS)
    rows = [
        row._replace(theirs=names[row.theirs])
        for row in _rows(bert_config)
        if row.theirs in names
    ]
    backbone = weights.open_checkpoint(
        source,
        rows,
        bert_config,
        tasks.Task(kind="encoder"),
        path=path / _WEIGHTS,
        tokenizer=_read_tokenizer(path),
        why_unused=lambda name: "not part of BERT",
    )
    source.check_dtypes(row.theirs for row in rows)
    return keras_hub_tasks.with_head(backbone, path)


def _rows(bert_config: architecture.BertConfig) -> list[weights.Row]:
    num_layers = bert_config.num_hidden_layers
    return weights.rows(_NAMES, _VARIABLES, num_layers, kernels="heads")


def _read_bert_config(path: Path) -> architecture.BertConfig:
    description = _read_json(path)
    name, values = description.get("class_name"), description.get("config")
    if name != "BertBackbone" or not isinstance(values, dict):
        raise InputError(f"{path}: expected a BertBackbone of KerasHub, found {name!r}")
    if unknown := sorted(values.keys() - _KEYS.keys() - _UNUSED_KEYS):
        raise InputError(
            f"{path}: a BertBackbone with {unknown[0]!r}, which is not known here and "
            "may change what it computes"
        )
    values = {**_DEFAULTS, **values}
    if missing := [key for key in _KEYS if key not in values]:
        raise InputError(f"{path}: expected a key {missing[0]!r} in its `config`")
    converted = {ours: values[theirs] for theirs, ours in _KEYS.items()}
    return strict.build_config(
        architecture.BertConfig,
        {
            **converted,
            # Their one rate is both of ours.
            "attention_probs_dropout_prob": values["dropout"],
            "hidden_act": "gelu_tanh",
        },
        origin=path,
    )


_ROOT = r"^(?:layers|_layer_checkpoint_dependencies)/"
_ENCODER = re.compile(rf"{_ROOT}transformer_encoder(?:_(\d{{1,9}}))?/")


def _names(found: Iterable[str]) -> tuple[dict[str, str], int]:
    """Returns the file's names by those of `_rows`, and the number of layers.

    Files of Keras 2 have `_layer_checkpoint_dependencies` for `layers`, `_query_dense`
    for `query_dense`, and count each layer twice: `transformer_encoder`,
    `transformer_encoder_2`, ... In `_rows` every layer has a number, also the first.
    """
    matches = {name: _ENCODER.match(name) for name in found}
    numbers = sorted({int(match[1] or 0) for match in matches.values() if match})
    places = {number: place for place, number in enumerate(numbers)}
    names = {}
    for name, match in matches.items():
        today = re.sub(_ROOT, "layers/", name)
        if match:
            place = places[int(match[1] or 0)]
            rest = re.sub("_layer/_(?=[a-z]+_dense/)", "_layer/", name[match.end() :])
            today = f"layers/transformer_encoder_{place}/{rest}"
        names[today] = name
    return names, len(places)


def _read_tokenizer(path: Path) -> tuple[tokenization.Vocabulary | None, bool | None]:
    vocabulary, do_lower_case = companions.read_tokenizer(path)
    if (path / _VOCABULARY).is_file():
        vocabulary = tokenization.Vocabulary.load(path / _VOCABULARY)
    if (path / _TOKENIZER).is_file():
        do_lower_case = _read_lowercase(path / _TOKENIZER)
    return vocabulary, do_lower_case


def _read_lowercase(path: Path) -> bool:
    description = _read_json(path)
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
            "%s: the tokenizer there %s accents; here, as with the original BERT, text "
            "loses them if it is lower-cased, which it %s",
            path,
            "strips" if strip else "keeps",
            "is" if lowercase else "is not",
        )
    return lowercase


def write(checkpoint: weights.Checkpoint, directory: Path) -> dict[str, str]:
    """Writes a preset for `BertBackbone.from_preset`, or
    `BertTextClassifier.from_preset` for texts' classes or numbers. A backbone always
    has a pooler: a missing one is initialized."""
    if checkpoint.vocabulary is not None:
        companions.check_casing_is_known(checkpoint)
    bert_config = checkpoint.bert_config
    rows = _rows(bert_config)
    arrays = collections.ChainMap(checkpoint.arrays, _new_pooler(bert_config))
    num_parameters = 0
    with h5py.File(directory / _WEIGHTS, "w") as file:
        for name, array in weights.write_rows(rows, arrays, bert_config):
            # Keras gives the first layer of a class no number.
            file[name.replace("transformer_encoder_0/", "transformer_encoder/")] = array
            num_parameters += array.size
    metadata = {"keras_version": keras.__version__, "parameter_count": num_parameters}
    files.write_json(directory / _METADATA, metadata, indent=4)
    backbone = _their_config(bert_config)
    files.write_json(directory / _CONFIG, backbone, indent=4)
    written = {row.ours for row in rows}
    if checkpoint.vocabulary is not None:
        tokenizer = _write_tokenizer(checkpoint, directory)
        if keras_hub_tasks.has_place(checkpoint.task):
            keras_hub_tasks.write(
                checkpoint, directory, backbone=backbone, tokenizer=tokenizer
            )
            written |= keras_hub_tasks.HEAD.keys()
    return {n: _why_left_out(n) for n in checkpoint.arrays if n not in written}


def _new_pooler(bert_config: architecture.BertConfig) -> dict[str, np.ndarray]:
    size, scale = bert_config.hidden_size, bert_config.initializer_range
    owner = layers.Part(initializer_range=scale, seed=native.SEED, dtype="float32")
    pooler = layers.dense(owner, size, "pooler")
    pooler.build((None, size))
    kernel, bias = (keras.ops.convert_to_numpy(weight) for weight in pooler.weights)
    return {"encoder/pooler/kernel": kernel, "encoder/pooler/bias": bias}


def _why_left_out(name: str) -> str:
    if name.startswith("masked_lm_head/"):
        return keras_hub_tasks.OTHER_HEAD
    if name.startswith("next_sentence_head/"):
        return "KerasHub has no such head"
    return "KerasHub has a head for texts alone, and needs a vocabulary with it"


def _their_config(bert_config: architecture.BertConfig) -> dict[str, Any]:
    rates = bert_config.hidden_dropout_prob, bert_config.attention_probs_dropout_prob
    if rates[0] != rates[1]:
        logger.warning(
            "KerasHub has one dropout rate: wrote %s, that of attention was %s", *rates
        )
    values = {theirs: getattr(bert_config, ours) for theirs, ours in _KEYS.items()}
    return keras_hub_tasks.serialized(
        "bert_backbone", "BertBackbone", "float32", values
    )


def _write_tokenizer(checkpoint: weights.Checkpoint, directory: Path) -> dict[str, Any]:
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
    described = keras_hub_tasks.serialized(
        "bert_tokenizer", "BertTokenizer", "int32", values
    )
    files.write_json(directory / _TOKENIZER, described, indent=4)
    return described


def _read_json(path: Path) -> dict[str, Any]:
    if path.is_file() and files.size(path) > _LARGEST_JSON:
        raise InputError(f"{path}: expected JSON: more than {_LARGEST_JSON} bytes")
    return files.read_json(path)

"""Checkpoints of google-research/bert: its releases, and what its scripts train.

`bert_model.ckpt.index`, `bert_model.ckpt.data-00000-of-00001`, `bert_config.json` and
`vocab.txt`. A file does not say what it was fine-tuned for. `cls/squad/*` is a span.
`output_weights` is what `run_classifier.py` calls its classifier, and other scripts
call their tagger and their scorer of endings: it is read as a classification, and with
a single output as a regression.
"""

import json
import logging
import re
from collections.abc import Collection
from pathlib import Path

from bert_keras import config, files, run_directory
from bert_keras.checkpoints import tensor_bundle, weights
from bert_keras.checkpoints.weights import Row
from bert_keras.data import tokenization
from bert_keras.errors import InputError

logger = logging.getLogger(__name__)

ACTIVATIONS = {"gelu_tanh": "gelu", "relu": "relu"}
"""Ours to theirs: the original computes GELU in its tanh form."""

NAME = "bert_model.ckpt"
CONFIG_NAME = run_directory.BERT_CONFIG_NAME
VOCABULARY_NAME = "vocab.txt"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"

_WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
_ENCODER = "bert/encoder/layer_{i}"
_SHARED_LAYERS = "bert/encoder/transformer/group_"


def _norm(ours: str, theirs: str) -> list[Row]:
    names = ("gamma", "beta")
    return [Row(f"{ours}/{n}", f"{theirs}/LayerNorm/{n}") for n in names]


def _dense(ours: str, theirs: str) -> list[Row]:
    return [Row(f"{ours}/{n}", f"{theirs}/{n}") for n in ("kernel", "bias")]


def _classifier(ours: str, theirs: str) -> list[Row]:
    return [
        Row(f"{ours}/kernel", f"{theirs}output_weights", "transposed"),
        Row(f"{ours}/bias", f"{theirs}output_bias"),
    ]


_ENCODER_ROWS = [
    Row("encoder/embeddings/word_embeddings", _WORD_EMBEDDINGS),
    Row(
        "encoder/embeddings/position_embeddings", "bert/embeddings/position_embeddings"
    ),
    Row("encoder/embeddings/type_embeddings", "bert/embeddings/token_type_embeddings"),
    *_norm("encoder/embeddings/layer_norm", "bert/embeddings"),
    *_dense(
        "encoder/layer_{i}/self_attention/query", f"{_ENCODER}/attention/self/query"
    ),
    *_dense("encoder/layer_{i}/self_attention/key", f"{_ENCODER}/attention/self/key"),
    *_dense(
        "encoder/layer_{i}/self_attention/value", f"{_ENCODER}/attention/self/value"
    ),
    *_dense(
        "encoder/layer_{i}/self_attention/output_dense",
        f"{_ENCODER}/attention/output/dense",
    ),
    *_norm("encoder/layer_{i}/attention_layer_norm", f"{_ENCODER}/attention/output"),
    *_dense(
        "encoder/layer_{i}/feed_forward/intermediate_dense",
        f"{_ENCODER}/intermediate/dense",
    ),
    *_dense("encoder/layer_{i}/feed_forward/output_dense", f"{_ENCODER}/output/dense"),
    *_norm("encoder/layer_{i}/output_layer_norm", f"{_ENCODER}/output"),
    *_dense("encoder/pooler", "bert/pooler/dense"),
]

_PRETRAINING_ROWS = [
    *_dense("masked_lm_head/transform", "cls/predictions/transform/dense"),
    *_norm("masked_lm_head/layer_norm", "cls/predictions/transform"),
    Row("masked_lm_head/output_bias", "cls/predictions/output_bias"),
    *_classifier("next_sentence_head/classifier", "cls/seq_relationship/"),
]

_CLASSIFIER_ROWS = _classifier("head/classifier", "")

_HEAD_ROWS = {
    "pretraining": _PRETRAINING_ROWS,
    "encoder": [],
    "span": _classifier("head/classifier", "cls/squad/"),
    "classification": _CLASSIFIER_ROWS,
    "regression": _CLASSIFIER_ROWS,
    "tagging": _CLASSIFIER_ROWS,
    "choice": _CLASSIFIER_ROWS,
}


def _rows(kind: str, bert_config: config.BertConfig) -> list[Row]:
    rows = [*_ENCODER_ROWS, *_HEAD_ROWS[kind]]
    return weights.expand(rows, bert_config.num_hidden_layers)


def recognizes(path: Path) -> bool:
    """Whether there is a checkpoint with the original's names, or a damaged one."""
    names = tensor_bundle.names_at(path)
    return names is not None and (not names or _WORD_EMBEDDINGS in names)


def read(path: Path) -> weights.Checkpoint:
    """Opens a checkpoint; its tensors are read when they are asked for.

    Args:
        path: its directory, or its prefix, such as `model.ckpt-6910` in it.

    Raises:
        InputError: no such checkpoint, damaged, or no `bert_config.json` beside it
            that agrees with it.
    """
    prefix = tensor_bundle.find_prefix(path)
    bundle = tensor_bundle.Bundle(prefix)
    names = bundle.shapes()
    if _WORD_EMBEDDINGS not in names:
        raise InputError(
            f"{prefix}.index: expected the names of google-research/bert, such as "
            f"{_WORD_EMBEDDINGS}, found " + ", ".join(sorted(names)[:3])
        )
    if any(name.startswith(_SHARED_LAYERS) for name in names):
        raise InputError(
            f"{prefix}.index: the model is an ALBERT, whose layers share their "
            "weights, not a BERT"
        )
    bert_config = read_config(prefix.parent)
    layers = {re.match(r"bert/encoder/layer_\d+/|", name)[0] for name in names} - {""}
    check_num_layers(len(layers), bert_config, path=prefix)
    kind = _kind(names)
    shape = names.get("output_weights", ())
    num_labels = 2 if kind == "span" else shape[0] if shape else 1
    if kind == "classification" and num_labels == 1:
        kind = "regression"
    arrays = weights.Arrays(
        bundle,
        _rows(kind, bert_config),
        bert_config,
        num_labels=num_labels,
        path=prefix,
    )
    used = arrays.their_names
    vocabulary = read_vocabulary(prefix.parent)
    return weights.Checkpoint(
        bert_config=bert_config,
        task=numbered_task(kind, num_labels),
        arrays=arrays,
        vocabulary=vocabulary,
        do_lower_case=read_casing(prefix.parent, vocabulary),
        unused={
            name: _why_unused(name, names) for name in sorted(names) if name not in used
        },
    )


def _kind(names: Collection[str]) -> str:
    """What the heads in a file are for; a regression is not told from the rest."""
    if "cls/squad/output_weights" in names:
        return "span"
    if "output_weights" in names:
        return "classification"
    # Without the transform the head could not be used.
    is_pretraining = "cls/predictions/transform/dense/kernel" in names
    return "pretraining" if is_pretraining else "encoder"


def _why_unused(name: str, names: Collection[str]) -> str:
    parent, _, last = name.rpartition("/")
    if last == "global_step":
        return "step counter"
    # `.../kernel/adam_m` beside `.../kernel`; powers belong to TensorFlow's own Adam.
    if parent in names or last in ("beta1_power", "beta2_power"):
        return "optimizer slot"
    if name.startswith(("cls/predictions/", "cls/seq_relationship/")):
        is_tuned = _kind(names) not in ("pretraining", "encoder")
        return (
            "a pre-training head, which the fine-tuned one replaces"
            if is_tuned
            else "a pre-training head without the masked-LM transform"
        )
    return "not part of BERT"


def numbered_task(kind: str, num_labels: int) -> config.Task:
    """The task of a format that keeps no names of classes."""
    has_labels = kind in ("classification", "tagging")
    return config.Task(
        kind=kind,
        labels=tuple(str(i) for i in range(num_labels)) if has_labels else None,
        has_text_pair=kind == "span",
    )


def check_num_layers(
    num_layers: int, bert_config: config.BertConfig, *, path: Path
) -> None:
    """Raises an `InputError` if a file has not the layers of the configuration."""
    if num_layers != bert_config.num_hidden_layers:
        raise InputError(
            f"{path}: has {num_layers} layers, but by the configuration beside it "
            f"{bert_config.num_hidden_layers}: they do not belong together"
        )


def read_config(directory: Path) -> config.BertConfig:
    """Reads `bert_config.json`; its `gelu` is our `gelu_tanh`."""
    path = directory / CONFIG_NAME
    if not path.is_file():
        raise InputError(
            f"{path}: missing; copy the {CONFIG_NAME} and {VOCABULARY_NAME} of the "
            "release that the checkpoint was trained from to here"
        )
    bert_config = config.read_bert_config(path)
    ours = {theirs: ours for ours, theirs in ACTIVATIONS.items()}
    hidden_act = ours.get(bert_config.hidden_act, bert_config.hidden_act)
    return bert_config.model_copy(update={"hidden_act": hidden_act})


def write_config(bert_config: config.BertConfig, directory: Path) -> None:
    """Writes `bert_config.json` with the original's keys, and only these.

    Raises:
        InputError: the model attends from left to right, which no key says.
    """
    values = bert_config.model_dump()
    if values.pop("attention") != "bidirectional":
        raise InputError(
            f"{CONFIG_NAME} cannot say that attention is {bert_config.attention}: "
            "expected a bidirectional model"
        )
    values["hidden_act"] = ACTIVATIONS[bert_config.hidden_act]
    text = json.dumps(values, indent=2, sort_keys=True) + "\n"
    files.write_atomically(directory / CONFIG_NAME, text.encode())


def read_vocabulary(directory: Path) -> tokenization.Vocabulary | None:
    """Reads `vocab.txt`, if there is one."""
    path = directory / VOCABULARY_NAME
    return tokenization.Vocabulary.load(path) if path.is_file() else None


def read_casing(
    directory: Path, vocabulary: tokenization.Vocabulary | None
) -> bool | None:
    """`do_lower_case`, of which the original's files say nothing.

    A `tokenizer_config.json` that someone put beside them says it; else the vocabulary
    does, by its capital letters; `None`: it has letters of neither case.
    """
    path = directory / TOKENIZER_CONFIG_NAME
    if path.is_file():
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: expected JSON: {error}") from None
        value = values.get("do_lower_case") if isinstance(values, dict) else None
        if isinstance(value, bool):
            return value
    return None if vocabulary is None else casing_of(vocabulary)


def casing_of(vocabulary: tokenization.Vocabulary) -> bool | None:
    """The only `do_lower_case` that a vocabulary is right for; `None`: both are."""
    fitting = []
    for do_lower_case in (True, False):
        try:
            tokenization.check_casing(vocabulary, do_lower_case)
        except InputError:
            continue
        fitting.append(do_lower_case)
    return fitting[0] if len(fitting) == 1 else None


def write(checkpoint: weights.Checkpoint, directory: Path) -> dict[str, str]:
    """Writes a checkpoint under the names of Google's releases.

    A tagger and a scorer of endings are written as `output_weights`, as scripts derived
    from the original do; read back, they are a classification and a regression.

    Returns:
        Our names of weights that have no place there, and why.

    Raises:
        InputError: attention is not bidirectional, or the disk is full.
    """
    kind = checkpoint.task.kind
    write_companions(checkpoint, directory)
    if kind in ("tagging", "choice"):
        logger.warning(
            "%s: the format does not say what a head is for: this one, for %s, is read "
            "back as one for %s",
            directory,
            kind,
            "regression" if checkpoint.task.num_labels == 1 else "classification",
        )
    rows = _rows(kind, checkpoint.bert_config)
    tensors = weights.write_rows(rows, checkpoint.arrays, checkpoint.bert_config)
    tensor_bundle.write(directory / NAME, dict(tensors))
    placed = {row.ours for row in rows}
    return {
        name: f"not part of Google's checkpoints for {kind}"
        for name in checkpoint.arrays
        if name not in placed
    }


def write_companions(checkpoint: weights.Checkpoint, directory: Path) -> None:
    """Writes `bert_config.json` and `vocab.txt`, and what this does not show of casing
    into a `tokenizer_config.json`."""
    write_config(checkpoint.bert_config, directory)
    vocabulary = checkpoint.vocabulary
    if vocabulary is None:
        return
    vocabulary.save(directory / VOCABULARY_NAME)
    lower = checkpoint.do_lower_case
    if lower is not None and casing_of(vocabulary) != lower:
        # Google's own code passes it over; `read_casing` does not.
        text = json.dumps({"do_lower_case": lower}) + "\n"
        files.write_atomically(directory / TOKENIZER_CONFIG_NAME, text.encode())

"""The student of a distillation: its sizes and its initial weights."""

import dataclasses
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_keras.checkpoints import conversion, starting_point, weights
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, finetuning, loading, pretraining
from bert_keras.model import flops

logger = logging.getLogger(__name__)

_EMBEDDINGS = "encoder/embeddings/"


def read_student(
    student: str | Path | None,
    teacher: weights.Checkpoint,
    settings: finetuning.FinetuningConfig,
    *,
    teacher_path: str | Path,
) -> weights.Checkpoint:
    """Returns the sizes and the initial weights of a student.

    Other weights begin from the seed. The student is a checkpoint of any format, or
    sizes: a recipe of `pretrain`, a YAML file like it, or a `bert_config.json`. `None`:
    the teacher's sizes and first layers. `distillation.init_layers` and
    `init_embeddings` are taken from the teacher.
    """
    # 1. The student's own sizes and weights.
    init_layers = settings.distillation.init_layers
    arrays = {}
    if student is None and not init_layers:
        raise InputError(
            "--student is missing: a recipe such as bert_mini, a file of sizes or a "
            "checkpoint; or --set 'distillation.init_layers=[2,4,6]' for a student of "
            "the teacher's own layers"
        )
    if student is None:
        changes = {"num_hidden_layers": len(init_layers)}
        bert_config = teacher.bert_config.model_copy(update=changes)
    elif (sizes := _read_sizes(student, len(teacher.vocabulary))) is not None:
        bert_config = sizes
    else:
        checkpoint = conversion.read_with_tokenizer(student)
        check_vocabulary(checkpoint, teacher, student, teacher_path)
        if init_layers is not None:
            raise InputError(
                f"--student {student} has weights of its own: leave out "
                "`distillation.init_layers`, or give its sizes alone"
            )
        bert_config = checkpoint.bert_config
        arrays = starting_point.encoder_arrays(checkpoint)
    # 2. Weights of the teacher.
    if init_layers is not None:
        arrays = _layers_of(teacher, bert_config, init_layers)
        if settings.bilstm_units != (units := teacher.task.bilstm_units):
            raise InputError(
                "`distillation.init_layers` begins with the teacher's head too, but "
                f"`bilstm_units` is {settings.bilstm_units}, of the teacher {units}: "
                f"--set bilstm_units={units}"
            )
    if settings.distillation.init_embeddings:
        if arrays:
            raise InputError(
                "`distillation.init_embeddings` is for a student of sizes alone, this "
                "one has weights: leave it out"
            )
        arrays = _embeddings_of(teacher, bert_config)
    longest = bert_config.max_position_embeddings
    if settings.max_seq_length > longest:
        raise InputError(
            f"`max_seq_length` is {settings.max_seq_length}, but the student takes "
            f"{longest} tokens at most: --set max_seq_length={longest}"
        )
    ours, theirs = (
        flops.num_weights(sizes, heads=False) / 1e6
        for sizes in (bert_config, teacher.bert_config)
    )
    level = logging.WARNING if ours > theirs else logging.INFO
    larger = "the student is larger than its teacher:"
    what = larger if ours > theirs else "a student of"
    message = "%s %.1f million weights, the teacher has %.1f million"
    logger.log(level, message, what, ours, theirs)
    return dataclasses.replace(teacher, bert_config=bert_config, arrays=arrays)


def _read_sizes(source: str | Path, num_tokens: int) -> architecture.BertConfig | None:
    """Reads the sizes in a file or of a recipe; `None`: the source is a checkpoint."""
    path = files.path(source)
    # A name of no file at all is a misspelt recipe, which the loader explains.
    exists = path.exists() or files.match(f"{source}*")
    if exists and str(source) not in loading.recipe_names():
        is_text = path.suffix.lower() in (".yaml", ".yml", ".json")
        if not is_text or not path.is_file():
            return None
    if str(source).lower().endswith(".json"):
        sizes = loading.read_bert_config(source)
        return sizes.model_copy(update={"vocab_size": num_tokens})
    recipe = loading.load(pretraining.PretrainingConfig, source)
    return recipe.model.with_vocab_size(num_tokens)


def check_vocabulary(
    student: weights.Checkpoint,
    teacher: weights.Checkpoint,
    student_path: str | Path,
    teacher_path: str | Path,
) -> None:
    """Raises an `InputError` unless both encode a text with the same ids."""
    ours, theirs = student.vocabulary.tokens, teacher.vocabulary.tokens
    pairs = [*itertools.zip_longest(ours, theirs)]
    if num_different := sum(own != other for own, other in pairs):
        raise InputError(
            f"{student_path}: {num_different} of {len(pairs)} pieces "
            f"of the vocabulary are not those of its teacher, {teacher_path}, which "
            f"has {len(theirs)}: begin with a checkpoint of the teacher's vocabulary, "
            "or with sizes alone, such as bert_mini"
        )
    if student.do_lower_case != teacher.do_lower_case:
        casing, other = (
            "lower-cased" if checkpoint.do_lower_case else "cased"
            for checkpoint in (student, teacher)
        )
        raise InputError(
            f"{student_path}: of {casing} text, but its teacher, {teacher_path}, of "
            f"{other} text: take one of the same"
        )


def _layers_of(
    teacher: weights.Checkpoint,
    bert_config: architecture.BertConfig,
    layers: Sequence[int],
) -> dict[str, np.ndarray]:
    theirs = teacher.bert_config
    for layer in layers:
        if not 1 <= layer <= theirs.num_hidden_layers:
            raise InputError(
                "`distillation.init_layers`: the teacher has layers 1 to "
                f"{theirs.num_hidden_layers}, got {layer}"
            )
    if bert_config.num_hidden_layers != len(layers):
        raise InputError(
            f"`distillation.init_layers` has {len(layers)} layers, the student "
            f"{bert_config.num_hidden_layers}: name one for each"
        )
    for name in starting_point.ARCHITECTURE:
        ours, other = getattr(bert_config, name), getattr(theirs, name)
        if name != "num_hidden_layers" and ours != other:
            raise InputError(
                f"`distillation.init_layers` needs a student of the teacher's sizes: "
                f"`{name}` is {ours}, of the teacher {other}: leave --student out"
            )
    arrays = {}
    for name, array in teacher.arrays.items():
        part, slash, rest = name.removeprefix("encoder/").partition("/")
        if not part.startswith("layer_"):
            arrays[name] = array
            continue
        number = int(part.removeprefix("layer_")) + 1
        for place in (n for n, layer in enumerate(layers) if layer == number):
            arrays[f"encoder/layer_{place}{slash}{rest}"] = array
    return arrays


def _embeddings_of(
    teacher: weights.Checkpoint, bert_config: architecture.BertConfig
) -> dict[str, np.ndarray]:
    """Projects the teacher's embeddings on the principal components of its words.

    There are as many components as the student's `hidden_size`. They are not centred:
    words, positions and segments are added, so one projection serves all of them.
    """
    size = bert_config.hidden_size
    words = teacher.arrays[f"{_EMBEDDINGS}word_embeddings"]
    if size > words.shape[1]:
        raise InputError(
            "`distillation.init_embeddings` needs a student whose `hidden_size` is at "
            f"most its teacher's {words.shape[1]}, got {size}: leave it out"
        )
    basis = np.eye(size)
    if size < words.shape[1]:
        _, vectors = np.linalg.eigh(np.float64(words).T @ np.float64(words))
        basis = vectors[:, : -size - 1 : -1]
        # The sign of an eigenvector depends on the machine.
        largest = np.abs(basis).argmax(axis=0)
        basis = basis * np.sign(basis[largest, np.arange(size)])
    num_rows = {
        "word_embeddings": bert_config.vocab_size,
        "position_embeddings": bert_config.max_position_embeddings,
        "type_embeddings": bert_config.type_vocab_size,
    }
    tables = {name: teacher.arrays[_EMBEDDINGS + name] for name in num_rows}
    return {
        _EMBEDDINGS + name: np.float32(table[: num_rows[name]] @ basis)
        for name, table in tables.items()
        # A table that is too short for the student begins from the seed.
        if len(table) >= num_rows[name]
    }

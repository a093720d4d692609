"""Conversion between checkpoint formats, verified by reading the result back."""

import collections
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import keras
import numpy as np

from bert_keras.checkpoints import (
    adapters,
    native,
    run_directory,
    starting_point,
    weights,
)
from bert_keras.checkpoints.formats import (
    companions,
    google_tf1,
    hugging_face,
    keras_hub,
    model_garden,
    peft,
    sentence_transformers,
)
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import choices, loading, tasks
from bert_keras.data import vocabulary_pruning
from bert_keras.kinds import registry

logger = logging.getLogger(__name__)

FORMATS: dict[choices.CheckpointFormat, ModuleType] = {
    "native": native,
    "keras_hub": keras_hub,
    "hugging_face": hugging_face,
    "sentence_transformers": sentence_transformers,
    "model_garden": model_garden,
    "google": google_tf1,
    "peft": peft,
}
"""Modules with `ACTIVATIONS`, `recognizes`, `read` and `write`, which returns the
reasons why weights have no place in the format, by our names."""

TOLERANCE = 1e-6
"""Largest difference allowed between the outputs of source and result."""


class Sizes(NamedTuple):
    """Sizes of a vocabulary and of the weights in float32, after and before pruning."""

    num_kept: int
    num_pieces: int
    num_bytes: int
    num_bytes_before: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversion:
    source: str
    """Format of the source."""
    kind: str
    """Kind of its task."""
    num_weights: int
    """Number of arrays written."""
    num_parameters: int
    unused: dict[str, str]
    """Tensors of the source that were not used, by their names, and the reasons."""
    left_out: dict[str, str]
    """Weights without a place in the new format, by our names, and the reasons."""
    made_new: tuple[str, ...]
    """Weights of the result that the source lacks, by our names."""
    difference: float
    """Largest difference between the outputs of both on a fixed batch."""
    pruned: Sizes | None = None
    """`None`: all pieces were kept."""


def recognize(path: str | Path) -> str:
    """Returns the format of a checkpoint, a key of `FORMATS`."""
    files.check_model_exists(path)
    path = files.path(path)
    names = [name for name, form in FORMATS.items() if form.recognizes(path)]
    if len(names) == 1:
        return names[0]
    problem = (
        "no known checkpoint format; expected a run directory, bert_model.ckpt.index "
        "with bert_config.json (Google, Model Garden), config.json with "
        "model.safetensors or tf_model.h5 (Hugging Face) or model.weights.h5 "
        "(KerasHub), or adapter_config.json (peft)"
    )
    if names:
        problem = (
            f"contains checkpoints in {len(names)} formats, {' and '.join(names)}: "
            "move the one you want into its own directory"
        )
    elif path.is_file():
        if any(form.recognizes(path.parent) for form in FORMATS.values()):
            problem = f"a file of a checkpoint; give its directory, {path.parent}"
    else:
        for pattern in ("*.tflite", "*.onnx", "onnx/*.onnx", "saved_model.pb"):
            if any(path.glob(pattern)):
                problem = (
                    f"an export for serving ({pattern}), which is not read back; give "
                    "the run directory that `export` made it from"
                )
    raise InputError(f"{path}: {problem}")


def read(path: str | Path, *, base: str | Path | None = None) -> weights.Checkpoint:
    """Reads and checks a checkpoint: a directory, or a TensorFlow checkpoint's prefix.
    The vocabulary tells whether text is lower-cased, if nothing else does. `base` is an
    adapter's; `None`: the one that it names."""
    path = files.path(path)
    checkpoint = _open(path, base)
    weights.check(checkpoint, path=path)
    if checkpoint.do_lower_case is None and checkpoint.vocabulary is not None:
        casing = companions.casing_of(checkpoint.vocabulary)
        checkpoint = dataclasses.replace(checkpoint, do_lower_case=casing)
    return checkpoint


def _open(path: Path, base: str | Path | None = None) -> weights.Checkpoint:
    form = FORMATS[recognize(path)]
    adapter = None
    if form is native:
        adapter = loading.read_json(tasks.Adapter, path / run_directory.ADAPTER_NAME)
    elif form is peft:
        adapter = peft.read_adapter(path)
    if adapter is None:
        if base is not None:
            raise InputError(f"{path}: a whole model, but only an adapter has a base")
        return form.read(path)
    place = files.path(base or adapter.base)
    try:
        whole = _open(place)
    except InputError as error:
        if base is not None:
            raise
        raise InputError(
            f"{path}: its base cannot be read: {error}; put it back, or merge with a "
            f"copy of it: bert-keras convert --input {path} --base COPY --to native "
            "--output NEW"
        ) from None
    changes = peft.read(path, whole) if form is peft else form.read(path)
    return adapters.merge(changes, whole, path=path, base_path=place)


def init(path: str | Path) -> starting_point.Init:
    """Names a checkpoint of any format to begin with."""
    return starting_point.Init(path, read)


def read_with_tokenizer(path: str | Path) -> weights.Checkpoint:
    return init(path).open_with_tokenizer()


def convert(
    input_path: str | Path,
    output_dir: str | Path,
    *,
    to: str,
    approximate_gelu: bool = False,
    card: str | None = None,
    keep_tokens: Iterable[str] | None = None,
    base: str | Path | None = None,
) -> Conversion:
    """Writes a checkpoint in another format.

    The directory appears only after its content was read back and had the same weights,
    and the same outputs for a batch; else a `RuntimeError` is raised.

    Args:
        to: a key of `FORMATS`.
        approximate_gelu: replaces the exact GELU by its tanh form where the new format
            has only that one; the outputs then differ by `Conversion.difference`.
        card: content of a `README.md`, see `report.model_card`.
        keep_tokens: texts; pieces that they do not need are left out, see
            `data.vocabulary_pruning`. The format may then be the source's.
        base: of an adapter, see `read`.
    """
    output_dir = files.path(output_dir).absolute()
    files.check_is_new(output_dir)
    source_format = recognize(input_path)
    is_as_written = not hugging_face.reads_tensorflow(files.path(input_path))
    # 1. Read, and change what the new format cannot say.
    source = read(input_path, base=base)
    is_as_written = is_as_written and (source.changes is None or to == "peft")
    if source_format == to and keep_tokens is None and is_as_written:
        raise InputError(f"{input_path}: is in the format {to!r} already")
    target = _expressible(source, to, approximate_gelu=approximate_gelu)
    has_same_outputs, pruned = target is source, None
    # Of each row of the new embedding, that of the old one.
    kept_ids = np.arange(source.bert_config.vocab_size)
    if keep_tokens is not None:
        target, kept_ids, pruned = prune(target, keep_tokens, path=input_path)
    with files.new_directory(output_dir) as temporary:
        # 2. Write, and read back.
        left_out = FORMATS[to].write(target, temporary)
        result = _open(temporary)
        results = run_directory.read_results(temporary) or {}
        made_new = _check_weights(target, result, left_out)
        # A run's reader leaves out what its writer initialized; its results name it.
        made_new += tuple(results.get("made_new", ()))
        settings = source.settings
        if to == "native" != source_format:
            native.warn_of_pairs(target.task)
        elif to != "native" and settings is not None and settings.long_texts != "cut":
            logger.warning(
                f"the run reads long texts with long_texts={settings.long_texts}, "
                f"which {to} cannot say: there, a text of more than "
                f"{settings.max_seq_length} tokens is cut and may get another answer; "
                "`export` keeps long_texts"
            )
        for loss in list_losses(target, result, left_out):
            logger.warning("%s: %s", to, loss)
        # 3. Compare the outputs.
        difference = _largest_difference(source, result, kept_ids)
        # Equal weights give other outputs if the format has lost a setting, such as the
        # number of attention heads.
        if has_same_outputs and difference > TOLERANCE:
            raise RuntimeError(
                f"outputs of the result differ by {difference:.3g}: nothing was kept"
            )
        # An adapter is written without its base.
        written = (result.changes or result).arrays
        num_parameters = sum(array.size for array in written.values())
        if card is not None:
            if pruned is not None:
                card += (
                    f"\n## Vocabulary\n\nOf the {pruned.num_pieces:,} pieces named "
                    f"above, {pruned.num_kept:,} were kept after the training, with "
                    f"{num_parameters:,} parameters. Answers to texts of these pieces "
                    "are the same; words of other texts are split further.\n"
                )
            (temporary / "README.md").write_text(card, encoding="utf-8")
    return Conversion(
        source=source_format,
        kind=source.task.kind,
        num_weights=len(written),
        num_parameters=num_parameters,
        unused=dict(source.unused),
        left_out=left_out,
        made_new=made_new,
        difference=difference,
        pruned=pruned,
    )


def list_losses(
    target: weights.Checkpoint, result: weights.Checkpoint, left_out: Mapping[str, str]
) -> Iterator[str]:
    """Yields what a format has no place for, besides weights, which are listed. A head
    that is left out takes its task along."""
    before, after = target.task, result.task
    is_tuned = before.kind in registry.LABELLED
    if is_tuned and not any(name.startswith("head/") for name in left_out):
        if after.kind != before.kind:
            yield (
                f"the format does not name the task of a model: this one, for "
                f"{before.kind}, is read back as one for {after.kind}"
            )
        if before.labels not in (None, after.labels):
            yield (
                "the format has no names of labels: they are read back as numbers from "
                f"0, in the order {', '.join(before.labels[:10])}"
                + (", ..." if len(before.labels) > 10 else "")
            )
    if target.decision.is_promise and not result.decision.is_promise:
        yield (
            "the format has no temperature and no threshold of `bert-keras calibrate`: "
            "the model answers everything; `export` keeps both"
        )
    length = target.max_seq_length
    num_positions = target.bert_config.max_position_embeddings
    if length not in (None, num_positions, result.max_seq_length):
        yield (
            f"the format has no longest input: cut texts at {length} tokens, as the "
            "run does; another cut may give another answer"
        )


def _expressible(
    source: weights.Checkpoint, to: str, *, approximate_gelu: bool
) -> weights.Checkpoint:
    bert_config, task = source.bert_config, source.task
    activations, is_foreign = FORMATS[to].ACTIVATIONS, to != "native"
    attention, units = bert_config.attention, task.bilstm_units
    for what, is_there in (
        (f"the model attends {attention}", attention != "bidirectional"),
        (f"the head has a BiLSTM of {units} units", units),
        (f"the head reads `feature_layers` {task.feature_layers}", task.feature_layers),
    ):
        if is_foreign and is_there:
            raise InputError(
                f"{what}, which {to} has no place for: convert another model, such as "
                "the one that it was tuned from"
            )
    if bert_config.hidden_act in activations:
        return source
    if bert_config.hidden_act != "gelu" or "gelu_tanh" not in activations:
        raise InputError(
            f"the activation is {bert_config.hidden_act!r}, {to} has only "
            + ", ".join(activations)
        )
    if not approximate_gelu:
        raise InputError(
            f"the model was trained with the exact GELU, {to} computes its tanh form: "
            "outputs would differ a little; if you accept that, give --approximate_gelu"
        )
    changed = bert_config.model_copy(update={"hidden_act": "gelu_tanh"})
    return dataclasses.replace(source, bert_config=changed)


def prune(
    checkpoint: weights.Checkpoint, texts: Iterable[str], *, path: str | Path
) -> tuple[weights.Checkpoint, np.ndarray, Sizes]:
    """Leaves out the pieces that texts do not need. Returns the smaller checkpoint, the
    old ids `(num_kept,)` of its pieces, and its sizes."""
    if (vocabulary := checkpoint.vocabulary) is None:
        raise InputError(
            f"{path}: has no vocabulary, so nothing says which rows the texts need: "
            "put its vocab.txt next to it"
        )
    companions.check_casing_is_known(checkpoint, path=path)
    do_lower_case = bool(checkpoint.do_lower_case)
    ids = vocabulary_pruning.kept_ids(vocabulary, texts, do_lower_case=do_lower_case)
    kept = np.array(ids, np.int64)
    if not len(kept):
        raise InputError("--keep_tokens: the files hold no words: nothing to keep")
    tokens = vocabulary.tokens
    arrays, size = checkpoint.arrays, {"vocab_size": len(kept)}
    # All weights with a row for each piece of the vocabulary.
    by_piece = ("encoder/embeddings/word_embeddings", "masked_lm_head/output_bias")
    smaller = {name: arrays[name][kept] for name in by_piece if name in arrays}
    pruned = dataclasses.replace(
        checkpoint,
        bert_config=checkpoint.bert_config.model_copy(update=size),
        vocabulary=type(vocabulary)(tuple(tokens[i] for i in kept)),
        arrays=collections.ChainMap(smaller, arrays),
        changes=None,
    )
    num_bytes = [sum(a.nbytes for a in x.values()) for x in (pruned.arrays, arrays)]
    return pruned, kept, Sizes(len(kept), len(tokens), *num_bytes)


def _check_weights(
    source: weights.Checkpoint, result: weights.Checkpoint, left_out: dict[str, str]
) -> tuple[str, ...]:
    """Compares the weights of what was written with the source's; returns the names of
    those that the source lacks."""
    for name, array in source.arrays.items():
        if name in left_out:
            continue
        if name not in result.arrays:
            raise RuntimeError(f"{name} was not found in what was written")
        if array.tobytes() != result.arrays[name].tobytes():
            raise RuntimeError(f"{name} was written with other values")
    return tuple(name for name in result.arrays if name not in source.arrays)


def _largest_difference(
    source: weights.Checkpoint, result: weights.Checkpoint, kept_ids: np.ndarray
) -> float:
    """Returns the largest difference of any output, both as networks of one task;
    `kept_ids` are those in the source of the result's pieces."""
    # 1. A fixed batch of two inputs: random ids, padding in one, two segments.
    bert_config = result.bert_config
    length = min(16, bert_config.max_position_embeddings)
    draw = np.random.default_rng(0).integers
    ids = draw(bert_config.vocab_size, size=(2, length), dtype="int32")
    mask, segments = np.ones_like(ids), np.zeros_like(ids)
    mask[1, length - length // 4 :] = 0
    segments[:, length // 2 :] = min(1, bert_config.type_vocab_size - 1)
    batch = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    # The network of `choice` takes `(2, 1, length)`: a text with a single ending.
    if result.task.kind == "choice":
        batch = {name: array[:, None] for name, array in batch.items()}
    else:
        batch["masked_lm_positions"] = ids[:, :2] % length

    # 2. The outputs of both.
    def outputs(checkpoint: weights.Checkpoint) -> dict[str, np.ndarray]:
        # One seed: weights that both lack are initialized alike and make no difference.
        sizes, task = checkpoint.bert_config, result.task
        network = registry.build_network(sizes, task, seed=native.SEED)
        weights.assign(network, checkpoint.arrays)
        values = network(batch, training=False).items()
        return {name: keras.ops.convert_to_numpy(value) for name, value in values}

    ours = outputs(result)
    batch["input_ids"] = kept_ids[batch["input_ids"]].astype("int32")
    theirs = outputs(source)
    # `(2, 2, vocab_size)`: only columns of pieces that were kept have a counterpart.
    if "masked_lm_logits" in theirs:
        theirs["masked_lm_logits"] = theirs["masked_lm_logits"][..., kept_ids]
    return float(np.max([np.abs(ours[name] - theirs[name]).max() for name in theirs]))


def describe(conversion: Conversion, *, to: str) -> Iterator[str]:
    yield f"read a {conversion.source} checkpoint, {conversion.kind}"
    for name, reason in conversion.unused.items():
        yield f"  not used: {name} ({reason})"
    yield (
        f"wrote {conversion.num_weights} weights, {conversion.num_parameters:,} "
        f"parameters, as {to}"
    )
    for name, reason in conversion.left_out.items():
        yield f"  left out: {name} ({reason})"
    for name in conversion.made_new:
        yield f"  initialized: {name}"
    if (pruned := conversion.pruned) is not None:
        yield (
            f"kept {pruned.num_kept:,} of {pruned.num_pieces:,} pieces; weights in "
            f"float32: {pruned.num_bytes:,} bytes of {pruned.num_bytes_before:,}"
        )
        yield (
            "  words of other texts are split into these pieces, or become [UNK] if a "
            "character is neither ASCII nor in the files"
        )
    yield (
        "read back: same weights; outputs on a fixed batch differ by "
        f"{conversion.difference:.2g} at most"
    )

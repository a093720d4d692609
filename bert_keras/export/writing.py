"""Exports of trained models, checked before they appear."""

import dataclasses
import logging
import tempfile
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import starting_point
from bert_keras.core import files
from bert_keras.core.errors import InputError, check_choice
from bert_keras.core.settings import config
from bert_keras.export import formats, loading
from bert_keras.export.quantized import quantizing, verdict
from bert_keras.export.servers import model_servers
from bert_keras.kinds import registry, served
from bert_keras.kinds.vectors import served_embeddings
from bert_keras.model import trace_registry
from bert_keras.report import model_card

logger = logging.getLogger(__name__)

FORMS: tuple[str, ...] = typing.get_args(config.ExportForm)
"""Formats that a model can be written in."""

DECISIONS_NAME = "decisions.json"
"""File beside a model that gives numbers, see `answers.Answers.decisions`."""

LABELS_NAME = "labels.txt"
"""File with the classes, one a line, in the order of the logits; in a SavedModel below
`assets.extra/`."""

_LONG_TEXTS: tuple[str, ...] = typing.get_args(config.LongTexts)

# In half precision numbers depend on what else is in a batch.
_TOLERANCES = {"float32": 1e-5, "bfloat16": 2.0**-4, "float16": 2.0**-7}


def export_model(
    model_dir: str | Path,
    output_dir: str | Path,
    *,
    to: str = "saved_model",
    embedding: str | None = None,
    layers: Sequence[int] | None = None,
    long_texts: config.LongTexts | None = None,
    top_k: int | None = None,
    quantize: str | None = None,
    reduce_range: bool = False,
    dev: str | Path | None = None,
    max_drop: float | None = None,
    serving: str | None = None,
    image: str | None = None,
) -> dict[str, Any] | None:
    """Writes a trained model in a format that others load, in float32 or quantised.

    Answers by kind of model: `labels.Labels` (classes, numbers), `spans.Spans`
    (questions about a text), `tags.Tags` (entities), `choices.Choices` (endings),
    `masked_words.MaskedWords` (pre-trained models) and, for a model of vectors or on
    request for any model, `embeddings.Embeddings`.

    A SavedModel has the signatures `serving_default`, from strings to answers, and
    `ids`, from ids; with classes, `assets.extra/labels.txt` lists them. The other
    formats are one file, `model.tflite` or `model.onnx`, from ids to numbers, next to
    the files that make ids of text: `vocab.txt`, `tokenizer_config.json` and, with
    classes, `labels.txt`; `decisions.json` has the thresholds of several labels or of
    "no answer", and how contexts are cut and answers chosen. All take any batch size
    and length.

    The directory appears when its content has been loaded again and has answered some
    texts as the model itself does.

    Args:
        model_dir: checkpoint of any format (see `checkpoints.conversion`).
        output_dir: directory to make; TensorFlow Serving wants a number for a name.
        to: one of `FORMS`.
        embedding: one of `embeddings.KINDS`, to get vectors; `None`: the answers that
            the model was trained to give.
        layers: layers of the vectors, -1 is the last; `None`: the last.
        long_texts: what becomes of texts that are longer than an input, for vectors;
            answers have it from training. `None`: they are cut.
        top_k: number of guesses for each `[MASK]`; `None`: 5.
        quantize: one of `quantizing.PRECISIONS[to]`; `None`: float32.
        reduce_range: whether int8 ONNX weights have 7 bits, see `quantizing.quantize`.
        dev: labelled file to compare a quantised export with the float32 one on.
        max_drop: points of the task's main metric that it may lose; `None`: 0.5.
        serving: one of `config.ModelServer`, whose files are written too.
        image: container image of that server, see `model_servers.server`.

    Returns:
        The verdict on a quantised export, see `verdict`, which is also in
        `quantization.json`.

    Raises:
        InputError: the model cannot be used or its kind has no answers, an option does
            not apply to it, a package is missing, `output_dir` holds something, or a
            quantised export loses more than `max_drop`.
        RuntimeError: the export does not answer as the model does.
    """
    wanted = _Wanted(to, embedding, layers, long_texts, top_k)
    _check_quantize(wanted, quantize, reduce_range, dev, max_drop)
    _check_wanted(wanted)
    output_dir = files.path(output_dir).absolute()
    server = _find_server(serving, to=to, output_dir=output_dir, image=image)
    files.check_is_new(output_dir)
    model = _read_model(files.path(model_dir), wanted)
    # Its temporary name is no number, so that a server that watches the parent does not
    # take it for a model.
    found = None
    if quantize and isinstance(model, served_embeddings.Embeddings):
        raise InputError(
            "--quantize is for answers that a dev file has scores of: not for vectors"
        )
    dev_file = dev and verdict.DevFile(files.path(dev), files.path(model_dir), model)
    with files.new_directory(output_dir) as temporary:
        if dev_file and to == "saved_model":
            small = _read_model(files.path(model_dir), wanted, dtype=quantize)
            found = _write_smaller(temporary, model, small, dev_file)
        else:
            _write_and_check(model, temporary, to)
        if dev_file:
            found = found or _quantize(temporary, to, dev_file, reduce_range)
            options = {"to": to, "quantize": quantize, "reduce_range": reduce_range}
            found = {**options, "dev": str(dev), **found}
            verdict.check_drop(found, max_drop=0.5 if max_drop is None else max_drop)
            files.write_json(temporary / verdict.FILE_NAME, found)
        # Its own name is a number, if it is for TensorFlow Serving.
        name = files.path(model_dir).absolute().name
        if card := model_card.text(model_dir, name=name, form=to):
            (temporary / model_card.FILE_NAME).write_text(card, encoding="utf-8")
        if server:
            model_servers.write(model, temporary, server)
    logger.info("%s in %s", to, output_dir)
    return found


def _find_server(serving: str | None, **options: Any) -> model_servers.Server | None:
    if serving is not None:
        check_choice("--serving", serving, typing.get_args(config.ModelServer))
        return model_servers.server(**options)
    if options["image"] is not None:
        raise InputError("--image is for --serving tf")
    return None


def _check_quantize(
    wanted: "_Wanted",
    quantize: str | None,
    reduce_range: bool,
    dev: str | Path | None,
    max_drop: float | None,
) -> None:
    if quantize is None:
        if reduce_range or dev is not None or max_drop is not None:
            raise InputError("--dev, --max_drop and --reduce_range are for --quantize")
        return
    quantizing.check(wanted.to, quantize, reduce_range=reduce_range)
    if wanted.embedding is not None:
        raise InputError(
            "--quantize is for the answers of tuned models, whose scores on a dev file "
            "say what is lost: not for --embedding"
        )
    if dev is None:
        raise InputError("--quantize needs --dev FILE, to see what is lost")
    if max_drop is not None and not 0 <= max_drop <= 100:
        raise InputError(f"--max_drop is from 0 to 100 points, got {max_drop}")


def _quantize(
    directory: Path, to: str, dev_file: verdict.DevFile, reduce_range: bool
) -> dict[str, Any]:
    """Replaces an export by a quantised one; its verdict."""
    load = formats.ID_FORMATS[to][1]
    exact, num_bytes = load(directory), _num_bytes(directory, to)
    quantizing.quantize(directory, to, reduce_range=reduce_range)
    found = dev_file.compare(exact, load(directory))
    sizes = {"float32": num_bytes, "quantised": _num_bytes(directory, to)}
    return {**found, "bytes": sizes}


def _write_smaller(
    directory: Path,
    exact: served.Answers,
    small: served.Answers,
    dev_file: verdict.DevFile,
) -> dict[str, Any]:
    """Writes a SavedModel in half precision; its verdict."""
    found = dev_file.compare(formats.numbers_of(exact), formats.numbers_of(small))
    with tempfile.TemporaryDirectory(dir=directory) as other:
        _write_and_check(exact, Path(other), "saved_model")
        num_bytes = _num_bytes(Path(other), "saved_model")
    _write_and_check(small, directory, "saved_model")
    sizes = {"float32": num_bytes, "quantised": _num_bytes(directory, "saved_model")}
    return {**found, "bytes": sizes}


def _num_bytes(directory: Path, to: str) -> int:
    names = {"onnx": formats.ONNX_NAME, "litert": formats.LITERT_NAME}
    found = directory.rglob(names.get(to, "*"))
    return sum(path.stat().st_size for path in found if path.is_file())


class _Wanted(NamedTuple):
    """Options of `export_model`."""

    to: str
    embedding: str | None
    layers: Sequence[int] | None
    long_texts: config.LongTexts | None
    top_k: int | None


def _check_wanted(wanted: _Wanted) -> None:
    for option, value, known in (
        ("--to", wanted.to, FORMS),
        (
            "--embedding",
            wanted.embedding or served_embeddings.KINDS[0],
            served_embeddings.KINDS,
        ),
        ("--long_texts", wanted.long_texts or _LONG_TEXTS[0], _LONG_TEXTS),
    ):
        check_choice(option, value, known)
    if wanted.layers is not None and wanted.embedding in (None, "pooled"):
        raise InputError(
            "--layers is for --embedding cls, mean or tokens: everything else comes "
            "from the last layer"
        )
    if wanted.long_texts is not None and wanted.embedding is None:
        raise InputError(
            "--long_texts is for --embedding: a tuned model keeps what it was trained "
            "with, `finetune --set long_texts=...`"
        )
    if wanted.embedding == "tokens" and config.reads_windows(
        wanted.long_texts or "cut"
    ):
        raise InputError(
            "--long_texts windows_mean and windows_max give a text one vector: for "
            "--embedding tokens take cut or head_tail"
        )
    if wanted.top_k is not None and wanted.top_k < 1:
        raise InputError(f"--top_k is 1 or more, got {wanted.top_k}")
    if wanted.to == "onnx":
        formats.check_onnx_installed()


def _read_model(
    path: Path, wanted: _Wanted, *, dtype: str = "float32"
) -> served.Answers:
    """Reads a model that answers as asked for."""
    checkpoint = dataclasses.replace(
        starting_point.read_with_tokenizer(path), dtype=dtype
    )
    kind = checkpoint.task.kind
    gives_tokens = kind == "pretraining" and wanted.embedding is None
    if wanted.top_k is not None and not (gives_tokens and wanted.to == "saved_model"):
        raise InputError(
            "--top_k is for the guesses of a pre-trained model as a saved_model"
        )
    has_bilstm = checkpoint.task.bilstm_units > 0 and wanted.embedding is None
    if has_bilstm and wanted.to == "litert":
        raise InputError(
            f"{path}: its head has a BiLSTM, which LiteRT does not have for inputs of "
            "any length: export it to saved_model or onnx"
        )
    if wanted.embedding is not None:
        layers = wanted.layers or (-1,)
        return served_embeddings.Embeddings(
            loading.load(checkpoint, path=path, embedding=wanted.embedding),
            kind=wanted.embedding,
            layers=layers,
            long_texts=wanted.long_texts or "cut",
        )
    trained = loading.load(checkpoint, path=path)
    return registry.find(kind).served(trained, top_k=wanted.top_k or 5)


@trace_registry.custom_gradients_end()
def _write_and_check(model: served.Answers, directory: Path, to: str) -> None:
    # A GPU would round the factors of products to 10 bits.
    on_cpu = tf.device("CPU:0")
    if to == "saved_model":
        _write_saved_model(model, directory)
        with on_cpu:
            _check_saved_model(model, directory)
    else:
        write, load = formats.ID_FORMATS[to]
        write(model, directory)
        _describe_inputs(model, directory)
        with on_cpu:
            _check_for_ids(model, load(directory))


def _write_saved_model(model: served.Answers, directory: Path) -> None:
    formats.write_saved_model(model, directory)
    if model.labels is not None:
        extra = directory / "assets.extra"
        extra.mkdir()
        _write_labels(model.labels, extra)


def _check_saved_model(model: served.Answers, directory: Path) -> None:
    """Compares all answers, of strings and of ids."""
    probes = model.probes()
    found = formats.ask_saved_model(directory, probes)
    for probe, outputs in zip(probes, found, strict=True):
        _check_close(outputs, probe.wanted, tolerance=_TOLERANCES[model.dtype])


def _describe_inputs(model: served.Answers, directory: Path) -> None:
    """Writes the files that make ids of text."""
    model.vocabulary.save(directory / "vocab.txt")
    tokenizer_config = {
        "do_lower_case": model.do_lower_case,
        # The name that transformers uses.
        "model_max_length": model.max_seq_length,
    }
    if model.long_texts != "cut":
        # A name of ours: who makes ids of longer texts does as it says.
        tokenizer_config["long_texts"] = model.long_texts
        if config.reads_windows(model.long_texts):
            tokenizer_config["window_stride"] = model.stride
    files.write_json(directory / "tokenizer_config.json", tokenizer_config)
    if model.decisions:
        files.write_json(directory / DECISIONS_NAME, model.decisions)
    if model.labels is not None:
        _write_labels(model.labels, directory)


def _check_for_ids(
    model: served.Answers, run: Callable[[Mapping[str, np.ndarray]], dict]
) -> None:
    """Compares all numbers, of one batch and of texts by themselves."""
    for ids in _batches(model.id_probes()):
        tensors = served.as_tensors(ids)
        wanted = served.as_arrays(model.compute(tensors))
        _check_close(run(ids), wanted, tolerance=_TOLERANCES[model.dtype])


def _batches(ids: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """All texts at once; then the shortest ones, alone and without padding."""
    yield dict(ids)
    lengths = ids["input_mask"].sum(axis=-1)
    # The endings of an example have one length, that of the longest.
    lengths = lengths.reshape(len(lengths), -1).max(axis=1)
    for row in np.argsort(lengths, kind="stable")[:3]:
        length = int(lengths[row])
        yield {
            name: values[row : row + 1][
                ..., : length if name in served.INPUT_NAMES else 1
            ]
            for name, values in ids.items()
        }


def _write_labels(names: Sequence[str], directory: Path) -> None:
    lines = "".join(f"{name}\n" for name in names)
    (directory / LABELS_NAME).write_text(lines, encoding="utf-8")


def _check_close(
    found: Mapping[str, np.ndarray],
    wanted: Mapping[str, np.ndarray],
    *,
    tolerance: float,
) -> None:
    for name, values in wanted.items():
        if values.dtype == object:
            continue
        if found[name].shape != values.shape:
            raise RuntimeError(
                f"the exported model gives {name} of shape {found[name].shape} instead "
                f"of {values.shape}: nothing was written"
            )
        difference = _largest(found[name] - values)
        # A score has no scale but its own size. NaN fails this too.
        if not difference <= tolerance * max(1.0, _largest(values)):
            raise RuntimeError(
                f"the exported model answers differently, by up to {difference:.3g} in "
                f"{name}: nothing was written"
            )


def _largest(values: np.ndarray) -> float:
    """Largest absolute value; masked ones do not count."""
    return float(np.ma.filled(np.ma.abs(values), 0).max(initial=0))

"""Exports of trained models, checked before they appear."""

import dataclasses
import logging
import tempfile
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import conversion
from bert_keras.core import files
from bert_keras.core.errors import InputError, check_choice
from bert_keras.core.settings import choices, tasks
from bert_keras.export import formats, loading
from bert_keras.export.quantized import accuracy_check, quantizing
from bert_keras.export.servers import model_servers
from bert_keras.kinds import registry, served
from bert_keras.kinds.vectors import served_embeddings
from bert_keras.model import trace_registry
from bert_keras.report import model_card

logger = logging.getLogger(__name__)

LABELS_NAME = "labels.txt"
"""File with the classes, one a line, in the order of the logits; in a SavedModel below
`assets.extra/`."""

# In half precision numbers depend on what else is in a batch.
_TOLERANCES = {"float32": 1e-5, "bfloat16": 2.0**-4, "float16": 2.0**-7}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `bert-keras export`: the format of a trained model's export, and
    the files beside the model."""

    to: str = "saved_model"
    """One of `choices.ExportForm`."""
    embedding: str | None = None
    """One of `served_embeddings.KINDS`, to get vectors; `None`: the answers of the
    model's task, see `Kind.served`."""
    layers: Sequence[int] | None = None
    """Layers of the vectors, -1 is the last; `None`: the last."""
    long_texts: tasks.LongTexts | None = None
    """How to shorten long texts for vectors; `None`: they are cut. For answers the
    training decides."""
    top_k: int | None = None
    """Number of guesses for each `[MASK]`; `None`: 5."""
    quantize: str | None = None
    """One of `quantizing.PRECISIONS[to]`; `None`: float32."""
    reduce_range: bool = False
    """Whether int8 ONNX weights have 7 bits, see `quantizing.quantize`."""
    dev: str | Path | None = None
    """Labelled file to compare a quantised export with the float32 one on."""
    max_drop: float | None = None
    """Points of the task's main metric that it may lose; `None`: 0.5."""
    serving: str | None = None
    """One of `choices.ModelServer`, to add the files of a server."""
    image: str | None = None
    """Container image of the server, see `model_servers.compose`."""

    def check(self) -> None:
        """Refuses what cannot be exported, before anything is read."""
        for option, value, allowed in (
            ("--to", self.to, typing.get_args(choices.ExportForm)),
            ("--embedding", self.embedding, served_embeddings.KINDS),
            ("--long_texts", self.long_texts, typing.get_args(tasks.LongTexts)),
            ("--serving", self.serving, typing.get_args(choices.ModelServer)),
        ):
            if value is not None:
                check_choice(option, value, allowed)
        is_compared = self.dev is not None or self.max_drop is not None
        long_texts = self.long_texts
        reads_windows = long_texts is not None and tasks.reads_windows(long_texts)
        for is_wrong, message in (
            (
                self.quantize is None and (self.reduce_range or is_compared),
                "--dev, --max_drop and --reduce_range are for --quantize",
            ),
            (
                self.quantize is not None and self.embedding is not None,
                "--quantize is for the answers of tuned models, whose scores on a dev "
                "file say what is lost: not for --embedding",
            ),
            (
                self.quantize is not None and self.dev is None,
                "--quantize needs --dev FILE, to see what is lost",
            ),
            (
                self.max_drop is not None and not 0 <= self.max_drop <= 100,
                f"--max_drop is from 0 to 100 points, got {self.max_drop}",
            ),
            (
                self.layers is not None and self.embedding in (None, "pooled"),
                "--layers is for --embedding cls, mean or tokens: everything else "
                "comes from the last layer",
            ),
            (
                long_texts is not None and self.embedding is None,
                "--long_texts is for --embedding: a tuned model keeps what it was "
                "trained with, `finetune --set long_texts=...`",
            ),
            (
                self.embedding == "tokens" and reads_windows,
                "--long_texts windows_mean and windows_max give a text one vector: for "
                "--embedding tokens take cut or head_tail",
            ),
            (
                self.top_k is not None and self.top_k < 1,
                f"--top_k is 1 or more, got {self.top_k}",
            ),
            (
                self.serving is None and self.image is not None,
                "--image is for --serving tf",
            ),
        ):
            if is_wrong:
                raise InputError(message)
        if self.quantize is not None:
            quantizing.check(self.to, self.quantize, reduce_range=self.reduce_range)
        elif self.to == "onnx":
            formats.check_onnx_installed()


def export_model(
    model_dir: str | Path, output_dir: str | Path, **options: Any
) -> dict[str, Any] | None:
    """Writes a trained model in a format that others load, in float32 or quantised.

    A SavedModel has the signatures `serving_default`, from strings to answers, and
    `ids`, from ids; with classes, `assets.extra/labels.txt` lists them. The other
    formats are one file, `model.tflite` or `model.onnx`, from ids to numbers, next to
    the files that make ids of text: `vocab.txt`, `tokenizer_config.json` and, with
    classes, `labels.txt`; `decisions.json` has the thresholds of several labels or of
    "no answer", and how contexts are cut and answers chosen. All take any batch size
    and length.

    The directory appears when its content has been loaded again and has answered some
    texts as the model itself does; else a `RuntimeError` is raised. Returns the check
    of a quantised export, see `accuracy_check`, which is also in `quantization.json`.

    Args:
        model_dir: checkpoint of any format (see `checkpoints.conversion`).
        output_dir: directory to make; TensorFlow Serving wants a number for a name.
        options: fields of `Options`.
    """
    # 1. Refuse what cannot be exported, before anything is read.
    requested = Options(**options)
    requested.check()
    to = requested.to
    model_dir, output_dir = files.path(model_dir), files.path(output_dir).absolute()
    compose_file = None
    if requested.serving is not None:
        compose_file = model_servers.compose(
            to=to, output_dir=output_dir, image=requested.image
        )
    files.check_is_new(output_dir)

    # 2. Read the model, and the file on which a quantised one is compared with it.
    trained, model = _read_model(model_dir, requested)
    if requested.quantize and isinstance(model, served_embeddings.Embeddings):
        raise InputError(
            "--quantize is for answers that a dev file has scores of: not for vectors"
        )
    dev_file = None
    if requested.dev is not None:
        dev_file = accuracy_check.DevFile(files.path(requested.dev), trained)

    # 3. Write it, and ask what was written. Its temporary name is no number, so that a
    # server that watches the parent does not take it for a model.
    check = None
    with files.new_directory(output_dir) as temporary:
        if dev_file is None:
            _write_and_check(model, temporary, to)
        else:
            check = _write_quantised(
                model_dir,
                requested,
                model=model,
                dev_file=dev_file,
                directory=temporary,
            )
            max_drop = 0.5 if requested.max_drop is None else requested.max_drop
            accuracy_check.check_drop(check, max_drop=max_drop)
            files.write_json(temporary / accuracy_check.FILE_NAME, check)
        # 4. Describe it. The run's name: the export's own may be a number.
        name = model_dir.absolute().name
        if card := model_card.text(model_dir, name=name, form=to):
            (temporary / model_card.FILE_NAME).write_text(card, encoding="utf-8")
        if compose_file:
            model_servers.write(model, temporary, compose_file)
    logger.info("%s in %s", to, output_dir)
    return check


def _read_model(
    path: Path, options: Options, *, dtype: str = "float32"
) -> tuple[served.Trained, served.ServedModel]:
    checkpoint = dataclasses.replace(conversion.read_with_tokenizer(path), dtype=dtype)
    task, embedding, to = checkpoint.task, options.embedding, options.to
    gives_words = task.kind == "pretraining" and embedding is None
    if options.top_k is not None and not (gives_words and to == "saved_model"):
        raise InputError(
            "--top_k is for the guesses of a pre-trained model as a saved_model"
        )
    if task.bilstm_units and embedding is None and to == "litert":
        raise InputError(
            f"{path}: its head has a BiLSTM, which LiteRT does not have for inputs of "
            "any length: export it to saved_model or onnx"
        )
    trained = loading.load(checkpoint, path=path, embedding=embedding)
    if embedding is None:
        kind = registry.find(task.kind)
        return trained, kind.served(trained, top_k=options.top_k or 5)
    return trained, served_embeddings.Embeddings(
        trained,
        kind=embedding,
        layers=options.layers or (-1,),
        long_texts=options.long_texts or "cut",
    )


def _write_quantised(
    model_dir: Path,
    options: Options,
    *,
    model: served.ServedModel,
    dev_file: accuracy_check.DevFile,
    directory: Path,
) -> dict[str, Any]:
    """Writes a quantised model; returns its comparison with the float32 one."""
    to = options.to
    if to == "saved_model":
        _, small = _read_model(model_dir, options, dtype=options.quantize)
        check = dev_file.compare(formats.numbers_of(model), formats.numbers_of(small))
        with tempfile.TemporaryDirectory(dir=directory) as other:
            _write_and_check(model, Path(other), to)
            num_bytes = _num_bytes(Path(other), to)
        _write_and_check(small, directory, to)
    else:
        _write_and_check(model, directory, to)
        load = formats.ID_FORMATS[to][1]
        exact, num_bytes = load(directory), _num_bytes(directory, to)
        quantizing.quantize(directory, to, reduce_range=options.reduce_range)
        check = dev_file.compare(exact, load(directory))
    return {
        "to": to,
        "quantize": options.quantize,
        "reduce_range": options.reduce_range,
        "dev": str(options.dev),
        **check,
        "bytes": {"float32": num_bytes, "quantised": _num_bytes(directory, to)},
    }


def _num_bytes(directory: Path, to: str) -> int:
    names = {"onnx": formats.ONNX_NAME, "litert": formats.LITERT_NAME}
    paths = directory.rglob(names.get(to, "*"))
    return sum(path.stat().st_size for path in paths if path.is_file())


@trace_registry.custom_gradients_end()
def _write_and_check(model: served.ServedModel, directory: Path, to: str) -> None:
    # A GPU would round the factors of products to 10 bits.
    on_cpu = tf.device("CPU:0")
    if to == "saved_model":
        formats.write_saved_model(model, directory)
        if model.labels is not None:
            _write_labels(model.labels, directory / "assets.extra")
        with on_cpu:
            probes = model.probes()
            answers = formats.ask_saved_model(directory, probes)
            for probe, outputs in zip(probes, answers, strict=True):
                _check_close(outputs, probe.wanted, dtype=model.dtype)
        return
    write, load = formats.ID_FORMATS[to]
    write(model, directory)
    _describe_inputs(model, directory)
    with on_cpu:
        run = load(directory)
        for ids in _batches(model.id_probes()):
            expected = served.as_arrays(model.compute(served.as_tensors(ids)))
            _check_close(run(ids), expected, dtype=model.dtype)


def _describe_inputs(model: served.ServedModel, directory: Path) -> None:
    model.vocabulary.save(directory / "vocab.txt")
    tokenizer_config = {
        "do_lower_case": model.tokenizer.do_lower_case,
        # The name that transformers uses.
        "model_max_length": model.max_seq_length,
    }
    if model.long_texts != "cut":
        # Names of ours, for programs that make ids of longer texts.
        tokenizer_config["long_texts"] = model.long_texts
        if tasks.reads_windows(model.long_texts):
            tokenizer_config["window_stride"] = model.stride
    files.write_json(directory / "tokenizer_config.json", tokenizer_config)
    if model.decisions:
        files.write_json(directory / "decisions.json", model.decisions)
    if model.labels is not None:
        _write_labels(model.labels, directory)


def _write_labels(labels: Sequence[str], directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    lines = "".join(f"{label}\n" for label in labels)
    (directory / LABELS_NAME).write_text(lines, encoding="utf-8")


def _batches(ids: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Yields all texts at once; then the shortest ones, alone and without padding."""
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


def _check_close(
    outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], *, dtype: str
) -> None:
    for name, values in expected.items():
        if values.dtype == object:
            continue
        if outputs[name].shape != values.shape:
            raise RuntimeError(
                f"the exported model gives {name} of shape {outputs[name].shape} "
                f"instead of {values.shape}: nothing was written"
            )
        difference = _largest(outputs[name] - values)
        # A score has no scale but its own size. NaN fails this too.
        if not difference <= _TOLERANCES[dtype] * max(1.0, _largest(values)):
            raise RuntimeError(
                f"the exported model answers differently, by up to {difference:.3g} in "
                f"{name}: nothing was written"
            )


def _largest(values: np.ndarray) -> float:
    """Returns the largest absolute value; masked values do not count."""
    return float(np.ma.filled(np.ma.abs(values), 0).max(initial=0))

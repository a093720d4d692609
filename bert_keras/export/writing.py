"""Exports of trained models, checked before they appear."""

import functools
import logging
import operator
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_keras.checkpoints import conversion, native, weights
from bert_keras.core import files, requirements
from bert_keras.core.errors import InputError
from bert_keras.core.settings import choices, finetuning, tasks
from bert_keras.export import checking, formats
from bert_keras.export.browser import transformers_js
from bert_keras.export.quantized import accuracy_check, quantizing
from bert_keras.export.servers import warm_up
from bert_keras.kinds import registry, served
from bert_keras.kinds.vectors import served_embeddings
from bert_keras.model import recomputation
from bert_keras.report import model_card

logger = logging.getLogger(__name__)

LABELS_NAME = "labels.txt"
"""File with the classes, one a line, in the order of the logits; in a SavedModel below
`assets.extra/`."""


def export_model(
    model_dir: str | Path,
    output_dir: str | Path,
    *,
    to: choices.ExportForm = "saved_model",
    top_k: int | None = None,
    embedding: choices.Embedding | None = None,
    layers: Sequence[int] | None = None,
    long_texts: tasks.LongTexts | None = None,
    quantize: choices.Quantization | None = None,
    reduce_range: bool = False,
    dev: str | Path | None = None,
    max_drop: float | None = None,
    serving: choices.ModelServer | None = None,
) -> dict[str, Any] | None:
    """Writes a trained model in a format that others load, in float32 or quantised.

    A SavedModel has the signatures `serving_default`, from strings to answers, and
    `ids`, from ids; with classes, `assets.extra/labels.txt` lists them. The other
    formats are one file, `model.tflite` or `model.onnx`, from ids to numbers, next to
    the files that make ids of text: `vocab.txt`, `tokenizer_config.json` and, with
    classes, `labels.txt`; `decisions.json` has the thresholds of several labels or of
    "no answer", and how contexts are cut and answers chosen. All take any batch size
    and length.

    `transformers_js` is a directory for browsers, see `browser.transformers_js`.

    The directory appears when its content has been loaded again and has answered some
    texts as the model itself does; else a `RuntimeError` is raised. Returns the check
    of a quantised export, see `accuracy_check`, which is also in `quantization.json`.

    Args:
        model_dir: checkpoint of any format (see `checkpoints.conversion`).
        output_dir: directory to make; TensorFlow Serving wants a number for a name.
        top_k: number of guesses for each `[MASK]`; `None`: 5.
        embedding: which vectors to export, one of `choices.Embedding`; `None`: the
            answers of the model's task, see `Kind.served`.
        layers: layers of the vectors, -1 is the last; `None`: the last.
        long_texts: how to shorten long texts for vectors; `None`: they are cut. For
            answers the training decides.
        quantize: one of `quantizing.PRECISIONS[to]`; `None`: float32.
        reduce_range: whether int8 ONNX weights have 7 bits, see `quantize_onnx`.
        dev: labelled file to compare a quantised export with the float32 one on.
        max_drop: points of the task's main metric that it may lose; `None`: 0.5.
        serving: the server whose files to add; `None`: none.
    """
    # 1. Refuse what cannot be exported, before anything is read.
    if top_k is not None and top_k < 1:
        raise InputError(f"--top_k is 1 or more, got {top_k}")
    _check_vectors(embedding, layers, long_texts)
    quantizing.check(
        *(to, quantize),
        embedding=embedding,
        dev=dev,
        max_drop=max_drop,
        reduce_range=reduce_range,
    )
    # The page's network is an ONNX file.
    extra = "onnx" if to == "transformers_js" else to
    if extra in formats.ID_FORMATS:
        for name in formats.ID_FORMATS[extra].needs:
            requirements.check_installed(name, extra, f"--to {to} needs the package")
    model_dir, output_dir = files.path(model_dir), files.path(output_dir).absolute()
    if serving is not None:
        warm_up.check(to=to, output_dir=output_dir)
    files.check_is_new(output_dir)

    # 2. Read the model, and the file on which a quantised one is compared with it.
    read = functools.partial(
        *(load, model_dir),
        to=to,
        top_k=top_k,
        embedding=embedding,
        layers=layers or (-1,),
        long_texts=long_texts or "cut",
    )
    model = read()
    dev_file = None if dev is None else accuracy_check.DevFile(files.path(dev), model)

    # 3. Write it, and ask what was written. Its temporary name is no number, so that a
    # server that watches the parent does not take it for a model.
    check = None
    with files.new_directory(output_dir) as temporary:
        if dev_file is None:
            _write_and_check(model, temporary, to)
        else:
            numbers = _write_quantised(
                *(model, functools.partial(read, dtype=quantize)),
                to=to,
                dev_file=dev_file,
                directory=temporary,
                reduce_range=reduce_range,
            )
            facts = {"to": to, "quantize": quantize, "reduce_range": reduce_range}
            check = {**facts, "dev": str(dev), **numbers}
            accuracy_check.check_drop(check, 0.5 if max_drop is None else max_drop)
            files.write_json(temporary / accuracy_check.FILE_NAME, check)

        # 4. Describe it. The run's name: the export's own may be a number.
        name = model_dir.absolute().name
        has_answers = embedding is None
        if card := model_card.text(
            model_dir, name=name, form=to, has_answers=has_answers
        ):
            (temporary / model_card.FILE_NAME).write_text(card, encoding="utf-8")
        if serving is not None:
            warm_up.write(model, temporary)
    logger.info("%s in %s", to, output_dir)
    if to == "transformers_js":
        logger.info("to see its page, run `npm run library` there, once, and serve it")
    return check


def _check_vectors(
    embedding: str | None, layers: Sequence[int] | None, long_texts: str | None
) -> None:
    if layers is not None and embedding in (None, "pooled"):
        raise InputError(
            "--layers is for --embedding cls, mean or tokens: everything else comes "
            "from the last layer"
        )
    if long_texts is None:
        return
    if embedding is None:
        raise InputError(
            "--long_texts is for --embedding: a tuned model keeps what it was trained "
            "with, `finetune --set long_texts=...`"
        )
    if embedding == "tokens" and tasks.reads_windows(long_texts):
        raise InputError(
            "--long_texts windows_mean and windows_max give a text one vector: for "
            "--embedding tokens take cut or head_tail"
        )


def load(
    path: Path,
    *,
    to: str = "saved_model",
    top_k: int | None = None,
    embedding: str | None = None,
    layers: Sequence[int] = (-1,),
    long_texts: tasks.LongTexts = "cut",
    dtype: str = "float32",
) -> served.ServedModel:
    """Builds a network with its weights, and the graph of its answers or vectors.

    `dtype` is Keras's policy for the network; for the rest see `export_model`.
    """
    checkpoint = conversion.read_with_tokenizer(path)
    task, kind = checkpoint.task, registry.find(checkpoint.task.kind)
    if to == "transformers_js":
        transformers_js.check(task, embedding, layers)
    gives_words = task.kind == "pretraining" and embedding is None
    if top_k is not None and not (gives_words and to == "saved_model"):
        raise InputError(
            "--top_k is for the guesses of a pre-trained model as a saved_model"
        )
    if task.bilstm_units and embedding is None and to == "litert":
        raise InputError(
            f"{path}: its head has a BiLSTM, which LiteRT does not have for inputs of "
            "any length: export it to saved_model or onnx"
        )
    if embedding is None:
        network_task, purpose, is_needed = task, f"a model for {kind.name}", kind.needs
        # As the run made its inputs; another format says less about them.
        settings = native.tuning_settings(checkpoint)
    else:
        network_task, purpose = tasks.Task(kind="encoder"), "a pooled vector"
        needed = "encoder/pooler/" if embedding == "pooled" else ()
        is_needed = operator.methodcaller("startswith", needed)
        # Python reads texts for vectors as those of a number.
        task = tasks.Task(kind="regression")
        settings = finetuning.FinetuningConfig(
            max_seq_length=checkpoint.bert_config.max_position_embeddings,
            long_texts=long_texts,
        )
    network = registry.build_network(
        checkpoint.bert_config, network_task, seed=0, dtype=dtype
    )
    if missing := [*filter(is_needed, weights.assign(network, checkpoint.arrays))]:
        raise InputError(
            f"{path}: {purpose} needs {', '.join(missing)}, which the model does "
            "not have or was not trained with"
        )
    trained = served.Trained(
        task=task,
        bert_config=checkpoint.bert_config,
        tokenizer=checkpoint.tokenizer,
        dtype=dtype,
        network=network,
        settings=settings,
        decision=checkpoint.decision if embedding is None else tasks.LIKELIEST,
        path=path,
    )
    if embedding is None:
        return kind.served(trained, top_k=top_k or 5)
    return served_embeddings.Embeddings(trained, kind=embedding, layers=layers)


def _write_quantised(
    model: served.ServedModel,
    read_small: Callable[[], served.ServedModel],
    *,
    to: str,
    dev_file: accuracy_check.DevFile,
    directory: Path,
    reduce_range: bool,
) -> dict[str, Any]:
    """Writes a model with smaller weights; returns its comparison with `model`."""
    if to == "saved_model":
        # Half precision: the network itself, with other weights.
        small = read_small()
        numbers = dev_file.compare(*map(formats.numbers_of, (model, small)))
        with tempfile.TemporaryDirectory(dir=directory) as other:
            _write_and_check(model, Path(other), to)
            num_bytes = _num_bytes(Path(other), to)
        _write_and_check(small, directory, to)
    else:
        # 8 bits: the file, rewritten.
        _write_and_check(model, directory, to)
        form, num_bytes = formats.ID_FORMATS[to], _num_bytes(directory, to)
        path = directory / form.file_name
        exact = form.load(path)
        if to == "onnx":
            quantizing.quantize_onnx(path, reduce_range=reduce_range)
        else:
            quantizing.quantize_litert(path)
        numbers = dev_file.compare(exact, form.load(path))
    sizes = {"float32": num_bytes, "quantised": _num_bytes(directory, to)}
    return {**numbers, "bytes": sizes}


def _num_bytes(directory: Path, to: str) -> int:
    form = formats.ID_FORMATS.get(to)
    paths = directory.rglob(form.file_name if form else "*")
    return sum(path.stat().st_size for path in paths if path.is_file())


@recomputation.custom_gradients_end()
def _write_and_check(model: served.ServedModel, directory: Path, to: str) -> None:
    # A GPU would round the factors of products to 10 bits.
    on_cpu = tf.device("CPU:0")
    if to == "saved_model":
        # Not `keras.export.ExportArchive`, which in Keras 3.15 writes every weight
        # twice.
        signatures = formats.signatures_of(model)
        tf.saved_model.save(model, str(directory), signatures=signatures)
        _write_labels(model, directory / "assets.extra")
        with on_cpu:
            checking.check_saved_model(model, directory)
        return
    if to == "transformers_js":
        with on_cpu:
            transformers_js.write(model, directory)
        return
    form = formats.ID_FORMATS[to]
    form.write(model, directory / form.file_name)
    # What a caller of the file needs to make its ids and read its numbers.
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
    _write_labels(model, directory)
    with on_cpu:
        checking.check_numbers(model, form.load(directory / form.file_name))


def _write_labels(model: served.ServedModel, directory: Path) -> None:
    if model.labels is not None:
        directory.mkdir(exist_ok=True)
        lines = "".join(f"{label}\n" for label in model.labels)
        (directory / LABELS_NAME).write_text(lines, encoding="utf-8")

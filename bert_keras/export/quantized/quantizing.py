"""Exports with smaller weights, by the maintained quantisers of their formats."""

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_keras.core import requirements
from bert_keras.core.errors import InputError
from bert_keras.core.settings import choices

PRECISIONS: Mapping[str, tuple[choices.Quantization, ...]] = {
    "onnx": ("int8",),
    "litert": ("int8",),
    "saved_model": ("bfloat16", "float16"),
    "transformers_js": (),  # int8 beside float32 anyway
}
"""What each format can be quantised to. A SavedModel's weights have half the bytes, and
products are computed in their precision; normalisation is in float32."""

_QUANTISERS = {
    "onnx": ("onnxruntime.quantization", "onnx"),
    "litert": ("ai_edge_quantizer", "litert"),
}
"""The module that quantises each format, and the extra that installs it."""


def check(
    to: str,
    quantize: str | None,
    *,
    embedding: str | None,
    dev: Any,
    max_drop: float | None,
    reduce_range: bool,
) -> None:
    """Refuses options that mean nothing together, a precision that the format does not
    have, and one whose packages are not installed."""
    if quantize is None:
        if reduce_range or dev is not None or max_drop is not None:
            raise InputError("--dev, --max_drop and --reduce_range are for --quantize")
        return
    if embedding is not None:
        raise InputError(
            "--quantize is for the answers of tuned models, whose scores on a dev file "
            "say what is lost: not for --embedding; a model that was tuned for vectors "
            "exports them without it"
        )
    if dev is None:
        raise InputError("--quantize needs --dev FILE, to see what is lost")
    if max_drop is not None and not 0 <= max_drop <= 100:
        raise InputError(f"--max_drop is from 0 to 100 points, got {max_drop}")
    if reduce_range and (to, quantize) != ("onnx", "int8"):
        raise InputError(
            f"--reduce_range is for --to onnx --quantize int8, got --to {to} "
            f"--quantize {quantize}"
        )
    if quantize not in PRECISIONS[to]:
        known = ", ".join(
            f"--to {form} --quantize {precision}"
            for form, precisions in PRECISIONS.items()
            for precision in precisions
        )
        raise InputError(
            f"--to {to} --quantize {quantize}: there is no such export, but {known}"
        )
    if to in _QUANTISERS:
        need = f"--to {to} --quantize needs the quantiser"
        requirements.check_installed(*_QUANTISERS[to], need)


def quantize_litert(path: Path) -> None:
    """Replaces the float32 file by one whose products have 8-bit weights.

    Weights have a scale for each output; the inputs of a product get their scale at run
    time. Tables that rows are gathered from, the embeddings, stay in float32, since the
    quantiser does not support them.
    """
    from ai_edge_quantizer import quantizer, recipe

    quantised = path.with_name("quantised.tflite")
    # It prints its progress and a summary.
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        work = quantizer.Quantizer(str(path))
        work.load_quantization_recipe(recipe.dynamic_wi8_afp32())
        work.quantize().export_model(str(quantised))
    # The quantiser makes it a program.
    quantised.chmod(path.stat().st_mode)
    # Not written over: who reads the float32 file has it mapped into memory.
    quantised.replace(path)


def quantize_onnx(path: Path, *, reduce_range: bool = False) -> None:
    """Replaces the float32 file by one with 8-bit weights.

    Weights of products have a scale for each column, tables of embeddings one each; the
    inputs of a product get their scale at run time, from the whole batch. With
    `reduce_range`, weights have 7 bits, so that no sum overflows its 16 bits on x86
    processors without VNNI.
    """
    import onnx
    import onnxruntime
    from onnxruntime import quantization
    from onnxruntime.quantization import quant_utils

    folded = path.with_name("folded.onnx")
    # Weights of attention are reshaped before they are multiplied: the quantiser sees
    # only those that are products' inputs themselves.
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    )
    options.optimized_model_filepath = str(folded)
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    model = onnx.load(folded)
    folded.unlink()
    # Else the quantiser asks for what was just done.
    quant_utils.add_pre_process_metadata(model)
    quantization.quantize_dynamic(
        model,
        path,
        op_types_to_quantize=["MatMul", "Gather"],
        per_channel=True,
        reduce_range=reduce_range,
        weight_type=quantization.QuantType.QInt8,
    )

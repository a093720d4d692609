"""Exports with smaller weights, by the maintained quantisers of their formats."""

import importlib
from pathlib import Path

from bert_keras.errors import InputError
from bert_keras.export import formats

PRECISIONS = {"onnx": ("int8",)}
"""What each format can be quantised to."""


def check(to: str, quantize: str) -> None:
    """Looks for the way to quantise, and for its packages.

    Raises:
        InputError: there is none, or a package is missing.
    """
    if quantize not in PRECISIONS.get(to, ()):
        known = ", ".join(
            f"--to {form} --quantize {precision}"
            for form, precisions in PRECISIONS.items()
            for precision in precisions
        )
        raise InputError(
            f"--to {to} --quantize {quantize}: there is no such export, but {known}"
        )
    formats.check_onnx_installed()
    try:
        importlib.import_module("onnxruntime.quantization")
    except ImportError as error:
        raise InputError(
            f"--quantize needs onnxruntime's quantiser ({error}): run "
            "`pip install '.[onnx]' -c constraints.txt` in the checkout"
        ) from None


def quantize_onnx(directory: Path) -> None:
    """Replaces the float32 file by one with 8-bit weights.

    Weights of products have a scale for each column, tables of embeddings one each;
    what goes into a product gets its scale when it is computed, from all of its batch.
    """
    import onnx
    import onnxruntime
    from onnxruntime import quantization
    from onnxruntime.quantization import quant_utils

    path = directory / formats.ONNX_NAME
    folded = directory / "folded.onnx"
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
        weight_type=quantization.QuantType.QInt8,
    )

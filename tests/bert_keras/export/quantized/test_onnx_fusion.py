"""Chains of ONNX operators: which are joined, and that their numbers stay."""

import re

import numpy as np
import pytest

from bert_keras.export.quantized import onnx_fusion

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

NORM = """
    mean = GlobalAveragePool(x)
    centred = Sub(x, mean)
    square = Mul(centred, centred)
    variance = GlobalAveragePool(square)
    shifted = Add(variance, epsilon)
    root = Sqrt(shifted)
    inverse = Reciprocal(root)
    scaled = Mul(centred, inverse)
    weighted = Mul(scaled, gamma)
    y = Add(weighted, beta)
"""
GELU = """
    half = Mul(point_five, x)
    small = Mul(x, root_half)
    error = Erf(small)
    one_more = Add(one, error)
    y = Mul(half, one_more)
"""
CONSTANTS = {
    "epsilon": 1e-3,
    "gamma": [1.5, 2.5, -1.0, 0.5],
    "beta": [0.1, -0.2, 0.3, 0.0],
    "point_five": 0.5,
    "root_half": 0.5**0.5,
    "one": 1.0,
    "other": 0.75,
}
X = np.random.default_rng(1).normal(size=(2, 3, 4)).astype("float32")


def model_of(nodes: str):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        f"graph (float[B, S, 4] x) => (float[B, S, 4] y) {{ {nodes} }}"
    )
    used = {name for node in model.graph.node for name in node.input}
    for name, value in CONSTANTS.items():
        if name in used:
            array = np.array(value, np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def kinds(model) -> list[str]:
    return [node.op_type for node in model.graph.node]


def run(model) -> np.ndarray:
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, {"x": X})[0]


def swapped(nodes: str) -> str:
    """The same sums and products, their inputs in the other order."""
    return re.sub(r"(Add|Mul)\((\w+), (\w+)\)", r"\1(\3, \2)", nodes)


@pytest.mark.parametrize("change", [str, swapped])
def test_a_norm_becomes_one_operator(change):
    model = model_of(change(NORM))
    before = run(model)
    assert onnx_fusion.fuse(model.graph) == {"LayerNormalization": 1, "Gelu": 0}
    assert kinds(model) == ["LayerNormalization"]
    assert [value.name for value in model.graph.initializer] == ["gamma", "beta"]
    np.testing.assert_allclose(run(model), before, atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        str,
        swapped,
        lambda nodes: nodes.replace("Mul(x, root_half)", "Div(x, root_two)"),
    ],
)
def test_a_gelu_becomes_the_chain_that_is_known(change, monkeypatch):
    monkeypatch.setitem(CONSTANTS, "root_two", 2**0.5)
    model = model_of(change(GELU))
    before = run(model)
    assert onnx_fusion.fuse(model.graph) == {"LayerNormalization": 0, "Gelu": 1}
    assert kinds(model) == ["Div", "Erf", "Add", "Mul", "Mul"]
    np.testing.assert_allclose(run(model), before, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "old", "new"),
    [
        (NORM, "Sub(x, mean)", "Sub(mean, x)"),
        (NORM, "square = Mul(centred, centred)", "square = Mul(centred, x)"),
        (NORM, "scaled = Mul(centred, inverse)", "scaled = Mul(x, inverse)"),
        (NORM, "Mul(scaled, gamma)", "Mul(scaled, x)"),
        (NORM, "Add(variance, epsilon)", "Add(variance, variance)"),
        (NORM, "y = Add(weighted, beta)", "z = Add(weighted, beta) y = Add(z, scaled)"),
        (NORM, "Mul(scaled, gamma)", "Mul(scaled, other)"),
        (GELU, "root_half)", "other)"),
        (GELU, "Mul(point_five, x)", "Mul(other, x)"),
        (GELU, "Add(one, error)", "Add(other, error)"),
        (GELU, "y = Mul(half, one_more)", "z = Mul(half, one_more) y = Add(z, error)"),
        (GELU, "half = Mul(point_five, x)", "n = Neg(x) half = Mul(point_five, n)"),
    ],
)
def test_what_looks_otherwise_stays(nodes, old, new):
    assert old in nodes
    model = model_of(nodes.replace(old, new))
    before, numbers = kinds(model), run(model)
    assert onnx_fusion.fuse(model.graph) == {"LayerNormalization": 0, "Gelu": 0}
    assert kinds(model) == before
    assert run(model).tobytes() == numbers.tobytes()


def test_what_a_branch_reads_stays():
    """It is no input of the branch's node."""
    branches = " ".join(
        f"{name}_branch = {name}_graph () => (float[B, S, 4] {name}_y) "
        f"{{ {name}_y = {computed} }},"
        for name, computed in (("then", "Add(x, shown)"), ("else", "Identity(x)"))
    ).rstrip(",")
    model = model_of(
        NORM.replace("y =", "z =")
        + "shown = Neg(z) total = ReduceSum(z) flag = Greater(total, other) "
        + f"y = If (flag) <{branches}>"
    )
    before = run(model)
    assert onnx_fusion.fuse(model.graph) == {"LayerNormalization": 1, "Gelu": 0}
    assert "Neg" in kinds(model)
    np.testing.assert_allclose(run(model), before, atol=1e-6)

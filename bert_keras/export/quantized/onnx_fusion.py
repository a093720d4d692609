"""Rewrites layer normalisation and GELU in ONNX graphs so that runtimes fuse them.

tf2onnx writes both as chains of small operators, each of which reads and writes all
numbers. ONNX Runtime joins such chains only if they look like the chains of PyTorch's
exporter. Here a layer normalisation becomes the operator of that name (opset 17), and
the exact GELU the chain that the runtime knows. Other chains stay: right, and slower.
"""

import copy
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_MEANS = ("GlobalAveragePool", "ReduceMean")


def fuse(graph: Any) -> dict[str, int]:
    """Rewrites a graph in place; returns the number of rewritten chains by operator."""
    nodes = _Graph(graph)
    norms = [_fuse_norm(nodes, node) for node in nodes.of("Reciprocal")]
    gelus = [_rewrite_gelu(nodes, node) for node in nodes.of("Erf")]
    nodes.write()
    return {"LayerNormalization": sum(norms), "Gelu": sum(gelus)}


def _fuse_norm(graph: "_Graph", reciprocal: Any) -> bool:
    """Looks for `(x - mean) * reciprocal(sqrt(variance + epsilon)) * gamma + beta`."""
    root = graph.writer(reciprocal.input[0], "Sqrt")
    inside = root and graph.writer(root.input[0], "Add")
    variance = inside and graph.other_than_number(inside)
    mean_square = variance and graph.writer(variance, *_MEANS)
    square = mean_square and graph.writer(mean_square.input[0], "Mul")
    centred = square and graph.writer(square.input[0], "Sub")
    mean = centred and graph.writer(centred.input[1], *_MEANS)
    scaled = graph.reader(reciprocal.output[0], "Mul")
    weighted = scaled and graph.reader(scaled.output[0], "Mul")
    last = weighted and graph.reader(weighted.output[0], "Add")
    if not (mean and last):
        return False
    difference = centred.output[0]
    gamma = _other(weighted, scaled.output[0])
    beta = _other(last, weighted.output[0])
    sizes = [graph.constant(name) for name in (gamma, beta)]
    if not (
        mean.input[0] == centred.input[0]
        and list(square.input) == [difference, difference]
        and _other(scaled, reciprocal.output[0]) == difference
        and all(array is not None and array.ndim == 1 for array in sizes)
    ):
        return False
    epsilon = graph.number(_other(inside, variance))
    norm = ("LayerNormalization", gamma, beta)
    graph.replace(last, centred.input[0], [norm], axis=-1, epsilon=epsilon)
    return True


def _rewrite_gelu(graph: "_Graph", erf: Any) -> bool:
    """Looks for `(0.5 * x) * (1 + erf(x / sqrt(2)))`."""
    scaled = graph.writer(erf.input[0], "Mul", "Div")
    added = graph.reader(erf.output[0], "Add")
    last = added and graph.reader(added.output[0], "Mul")
    half = last and graph.writer(_other(last, added.output[0]), "Mul")
    x = scaled and graph.other_than_number(scaled)
    if not (half and x and graph.other_than_number(half) == x):
        return False
    factor = graph.number(_other(scaled, x))
    root = factor if scaled.op_type == "Div" else 1 / factor
    constants = (
        graph.number(_other(half, x)),
        graph.number(_other(added, erf.output[0])),
    )
    if constants != (0.5, 1.0) or not math.isclose(root, math.sqrt(2), rel_tol=1e-6):
        return False
    divisor, one, one_half = map(graph.add_number, (math.sqrt(2), 1.0, 0.5))
    chain = [("Div", divisor), ("Erf",), ("Add", one), ("Mul", x), ("Mul", one_half)]
    graph.replace(last, x, chain)
    return True


def _read_names(node: Any) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read_names(inner)


def _other(node: Any, name: str) -> str:
    first, second = node.input
    return second if first == name else first


class _Graph:
    """A graph's nodes, by the values they read and write; `write` applies changes."""

    def __init__(self, graph: Any):
        import onnx

        self._onnx, self._proto = onnx, graph
        self._nodes = list(graph.node)
        self._constants = {value.name: value for value in graph.initializer}
        self._replaced: dict[str, list[Any]] = {}
        self._writers: dict[str, Any] = {}
        self._readers: dict[str, list[Any]] = defaultdict(list)
        for node in self._nodes:
            self._writers.update(dict.fromkeys(node.output, node))
            for name in _read_names(node):
                self._readers[name].append(node)

    def of(self, kind: str) -> list[Any]:
        return [node for node in self._nodes if node.op_type == kind]

    def writer(self, name: str, *kinds: str) -> Any | None:
        """Returns the node that makes a value, if it is of one of these kinds."""
        node = self._writers.get(name)
        return node if node is not None and node.op_type in kinds else None

    def reader(self, name: str, kind: str) -> Any | None:
        """Returns the only node that reads a value, if it is of this kind."""
        readers = self._readers[name]
        return readers[0] if [node.op_type for node in readers] == [kind] else None

    def constant(self, name: str) -> np.ndarray | None:
        value = self._constants.get(name)
        return None if value is None else self._onnx.numpy_helper.to_array(value)

    def number(self, name: str) -> float | None:
        array = self.constant(name)
        return None if array is None or array.size != 1 else float(array.item())

    def other_than_number(self, node: Any) -> str | None:
        """Returns the first input of a node whose other input alone is a number."""
        others = [name for name in node.input if self.number(name) is None]
        return others[0] if len(others) == 1 and len(node.input) == 2 else None

    def add_number(self, value: float) -> str:
        name = f"onnx_fusion/{value:.9g}"
        array = np.array(value, np.float32)
        self._constants[name] = self._onnx.numpy_helper.from_array(array, name)
        return name

    def replace(
        self, last: Any, value: str, chain: Sequence[tuple[str, ...]], **settings: Any
    ) -> None:
        """Replaces the node `last` by a chain with the same output: of kinds, each with
        what it reads besides `value` or, from the second on, the node before it."""
        nodes, make = [], self._onnx.helper.make_node
        for number, (kind, *others) in enumerate(chain, start=1):
            inputs, is_last = [value, *others], number == len(chain)
            value = last.output[0] + ("" if is_last else f"/{kind}_{number}")
            nodes.append(make(kind, inputs, [value], name=value, **settings))
        self._replaced[last.output[0]] = nodes

    def write(self) -> None:
        """Writes all changes, without the nodes and constants that became unused."""
        nodes = []
        for node in self._nodes:
            nodes += self._replaced.get(node.output[0], [node])
        needed = {value.name for value in self._proto.output}
        needed_nodes = []
        for node in reversed(nodes):
            if needed & set(node.output):
                needed.update(_read_names(node))
                needed_nodes.append(node)
        constants = [c for name, c in self._constants.items() if name in needed]
        for field, values in (
            (self._proto.node, needed_nodes[::-1]),
            (self._proto.initializer, constants),
        ):
            # Deleted messages lose their content.
            copies = copy.deepcopy(values)
            del field[:]
            field.extend(copies)

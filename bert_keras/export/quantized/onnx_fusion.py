"""Rewrites layer normalisation and GELU in ONNX graphs so that runtimes fuse them.

tf2onnx writes both as chains of small operators, each of which reads and writes all
numbers. ONNX Runtime joins such chains only if they look like the chains of PyTorch's
exporter. Here a layer normalisation becomes the operator of that name (opset 17), and
the exact GELU the chain that the runtime knows. Other chains stay: right, and slower.
"""

import copy
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

# Patterns of chains. A tuple is an operator and what it reads; a name stands for any
# value, the same everywhere; a number for a constant.
_VARIANCE = ("Mean", ("Mul", "centred", "centred"))
_SCALED = ("Mul", "centred", ("Reciprocal", ("Sqrt", ("Add", _VARIANCE, "epsilon"))))
_NORM = ("Add", ("Mul", _SCALED, "gamma"), "beta")
_CENTRED = ("Sub", "x", ("Mean", "x"))
_GELUS = [
    ("Mul", ("Mul", "x", 0.5), ("Add", ("Erf", small), 1.0))
    for small in (("Div", "x", math.sqrt(2)), ("Mul", "x", math.sqrt(0.5)))
]
_OPERATORS = {"Mean": ("GlobalAveragePool", "ReduceMean")}


def fuse(graph: Any) -> dict[str, int]:
    """Rewrites a graph in place; returns the number of rewritten chains by operator."""
    nodes, counts = _Graph(graph), {"LayerNormalization": 0, "Gelu": 0}
    for last in nodes.of("Add"):
        norm = nodes.match(last, _NORM, {})
        norm = norm and nodes.match(nodes.writers.get(norm["centred"]), _CENTRED, norm)
        if norm is None:
            continue
        epsilon = nodes.number(norm["epsilon"])
        sizes = [nodes.constant(norm[name]) for name in ("gamma", "beta")]
        if epsilon is not None and all(a is not None and a.ndim == 1 for a in sizes):
            chain = [("LayerNormalization", norm["gamma"], norm["beta"])]
            nodes.replace(last, norm["x"], chain, axis=-1, epsilon=epsilon)
            counts["LayerNormalization"] += 1
    for last, pattern in itertools.product(nodes.of("Mul"), _GELUS):
        if gelu := nodes.match(last, pattern, {}):
            root, one, half = map(nodes.add_number, (math.sqrt(2), 1.0, 0.5))
            x = gelu["x"]
            chain = [("Div", root), ("Erf",), ("Add", one), ("Mul", x), ("Mul", half)]
            nodes.replace(last, x, chain)
            counts["Gelu"] += 1
    nodes.write()
    return counts


def _read_names(node: Any) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read_names(inner)


class _Graph:
    """A graph's nodes, by the values they read and write; `write` applies changes."""

    def __init__(self, graph: Any):
        import onnx

        self._onnx, self._proto = onnx, graph
        self._nodes = list(graph.node)
        self._constants = {value.name: value for value in graph.initializer}
        self._replaced: dict[str, list[Any]] = {}
        self.writers: dict[str, Any] = {}
        self._readers: dict[str, list[Any]] = defaultdict(list)
        for node in self._nodes:
            self.writers.update(dict.fromkeys(node.output, node))
            for name in _read_names(node):
                self._readers[name].append(node)

    def of(self, kind: str) -> list[Any]:
        return [node for node in self._nodes if node.op_type == kind]

    def match(
        self, last: Any | None, pattern: tuple[Any, ...], values: Mapping[str, str]
    ) -> Mapping[str, str] | None:
        """Returns the values that the names of a pattern stand for, if a node ends such
        a chain and nobody else reads what is computed in between. Some may be known."""
        name, *parts = pattern
        if last is None or last.op_type not in _OPERATORS.get(name, (name,)):
            return None
        orders = itertools.permutations(parts) if name in ("Add", "Mul") else [parts]
        for order in orders:
            found = values
            for value, part in zip(last.input, order, strict=False):
                found = None if found is None else self._match_input(value, part, found)
            if found is not None:
                return found
        return None

    def _match_input(
        self, value: str, part: Any, values: Mapping[str, str]
    ) -> Mapping[str, str] | None:
        if isinstance(part, tuple):
            node = self.writers.get(value) if len(self._readers[value]) == 1 else None
            return self.match(node, part, values)
        if isinstance(part, str):
            return {**values, part: value} if values.get(part, value) == value else None
        is_same = math.isclose(self.number(value) or 0.0, part, rel_tol=1e-6)
        return values if is_same else None

    def constant(self, name: str) -> np.ndarray | None:
        value = self._constants.get(name)
        return None if value is None else self._onnx.numpy_helper.to_array(value)

    def number(self, name: str) -> float | None:
        array = self.constant(name)
        return None if array is None or array.size != 1 else float(array.item())

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

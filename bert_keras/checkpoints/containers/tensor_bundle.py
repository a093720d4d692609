"""TensorFlow's checkpoint files: `NAME.index` and `NAME.data-00000-of-00001`. Savers of
TF 1 and TF 2 write named tensors; TF 2 adds a graph of objects."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorflow.core.protobuf import trackable_object_graph_pb2

from bert_keras.core import files
from bert_keras.core.errors import InputError, one_line

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The tensor that holds the graph of objects."""

_INDEX = ".index"


class Bundle:
    """A `weights.Source` of all tensors but the graph of objects."""

    def __init__(self, prefix: Path):
        self.prefix = prefix
        with self._errors():
            self._reader = tf.compat.v1.train.NewCheckpointReader(str(prefix))
            shapes = self._reader.get_variable_to_shape_map()
            dtypes = self._reader.get_variable_to_dtype_map()
        self.has_graph = shapes.pop(GRAPH, None) is not None
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        # The names of data files tell how many there must be.
        pattern = re.compile(re.escape(prefix.name) + r"\.data-\d{5}-of-(\d{5})")
        matches = [pattern.fullmatch(path.name) for path in prefix.parent.iterdir()]
        names = {match[0]: int(match[1]) for match in matches if match}
        num_files = next(iter(names.values()), 1)
        for index in range(num_files):
            name = f"{prefix.name}.data-{index:05d}-of-{num_files:05d}"
            if name not in names:
                raise InputError(
                    f"{prefix.parent / name}: missing; put it next to "
                    f"{prefix.name}.index"
                )
        # Claims of the index are checked before memory is allocated for them.
        claimed = sum(
            math.prod(shape) * dtypes[name].size
            for name, shape in self.shapes.items()
            # Their values have any number of bytes, which the index does not tell.
            if dtypes[name] not in (tf.string, tf.variant)
        )
        there = sum(files.size(prefix.parent / name) for name in names)
        if there < claimed:
            raise InputError(
                f"{prefix}.data-*: {there} bytes in {len(names)} files, but the "
                f"tensors of {prefix.name}.index have {claimed}: cut or missing; "
                "copy them again"
            )

    def read(self, name: str) -> np.ndarray:
        with self._errors():
            return self._reader.get_tensor(name)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except _ERRORS as error:
            hint = ""
            if re.search(r"[][*?\\]", str(self.prefix)):
                hint = " (TensorFlow reads no path with any of [ ] * ? \\ in it)"
            raise InputError(
                f"{self.prefix}{_INDEX}: cannot be read as a TensorFlow checkpoint"
                f"{hint}: " + one_line(error)
            ) from None


# A short read is an IndexError; names of damaged files may not be text.
_ERRORS = (tf.errors.OpError, IndexError, ValueError, RuntimeError)


class Node:
    """An object of a TF 2 checkpoint; a variable has a tensor's name and shape."""

    def __init__(self, children: dict[str, "Node"]):
        self.children = children
        self.key: str | None = None
        self.shape: tuple[int, ...] = ()

    def find(self, path: str) -> "Node":
        """Returns the object at a path of names, `NOTHING` if there is none."""
        node = self
        for name in path.split("/"):
            node = node.children.get(name, NOTHING)
        return node

    def descendants(self) -> list["Node"]:
        """Returns this object and all that can be reached from it, nearest first."""
        nodes, seen = [self], {self}
        # The list grows during the loop.
        for node in nodes:
            new = [child for child in node.children.values() if child not in seen]
            seen.update(new)
            nodes += dict.fromkeys(new)
        return nodes


NOTHING = Node({})


def read_graph(bundle: Bundle) -> Node:
    """Returns the root of a checkpoint's objects."""
    origin = f"{bundle.prefix}.index"
    if not bundle.has_graph:
        raise InputError(
            f"{origin}: expected an object checkpoint of TensorFlow 2, found no "
            f"{GRAPH} in it"
        )
    try:
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
            bundle.read(GRAPH)
        )
    except (message.DecodeError, TypeError) as error:
        raise InputError(f"{origin}: damaged graph of objects: {error}") from None
    nodes = [Node({}) for _ in graph.nodes]
    for node, described in zip(nodes, graph.nodes, strict=True):
        for child in described.children:
            if 0 <= child.node_id < len(nodes):
                node.children[child.local_name] = nodes[child.node_id]
        keys = {value.name: value.checkpoint_key for value in described.attributes}
        node.key = keys.get("VARIABLE_VALUE")
        node.shape = bundle.shapes.get(node.key or "", ())
    return nodes[0] if nodes else NOTHING


def _prefixes(directory: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(
            path.with_name(path.name.removesuffix(_INDEX))
            for path in directory.iterdir()
            if path.name.endswith(_INDEX) and path.is_file()
        )
    return []


def find_prefix(path: Path) -> Path:
    """Returns a checkpoint's prefix. `path` is the prefix, or a directory with a single
    checkpoint or a state file (`checkpoint`) that names the latest."""
    if not path.is_dir():
        prefix = path.with_name(path.name.removesuffix(_INDEX))
        if prefix in _prefixes(prefix.parent):
            return prefix
        raise InputError(f"{prefix}{_INDEX}: no such checkpoint")
    candidates = _prefixes(path)
    if not candidates:
        raise InputError(f"{path}: expected a TensorFlow checkpoint, found no *.index")
    if len(candidates) == 1:
        return candidates[0]
    with contextlib.suppress(OSError):
        text = (path / "checkpoint").read_text(encoding="utf-8", errors="replace")
        match = re.search(r'^model_checkpoint_path: "([^"]+)"', text, re.MULTILINE)
        # Only the last part of the named path counts: the rest belongs to the machine
        # that wrote it.
        if match and (latest := path / Path(match[1]).name) in candidates:
            return latest
    raise InputError(
        f"{path}: several checkpoints: "
        + ", ".join(prefix.name for prefix in candidates)
        + f"; give one, such as {candidates[0]}"
    )


def names_at(path: Path) -> frozenset[str] | None:
    """Returns the names of tensors in the checkpoint of a path, or else in the first.
    `None`: there is no checkpoint. Empty: its index is unreadable."""
    with contextlib.suppress(OSError):
        try:
            prefix = find_prefix(path)
        except InputError:
            # Of several checkpoints any tells the format; `read` then asks for one.
            prefix = next(iter(_prefixes(path)), None)
        if prefix is None:
            return None
        with contextlib.suppress(*_ERRORS):
            reader = tf.compat.v1.train.NewCheckpointReader(str(prefix))
            return frozenset(reader.get_variable_to_shape_map())
        # Other programs use the suffix too.
        if any(prefix.parent.glob("*.data-?????-of-?????")):
            return frozenset()
    return None


def write(prefix: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes named tensors as TF 1's saver does."""
    with errors_of_writing(prefix):
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=[tf.constant(array) for array in tensors.values()],
        )


@contextlib.contextmanager
def errors_of_writing(prefix: Path) -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        raise InputError(
            f"{prefix}: cannot be written: {one_line(error)}; make room, or choose "
            "another place"
        ) from error

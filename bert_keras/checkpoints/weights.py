"""Weights of a trained model under this project's names, from a file of any format.

The names are the paths of the Keras weights without the model's name, but with query,
key and value apart, as in all other formats. A third-party format is a table of `Row`s,
from our names to theirs, that serves both directions.
"""

import dataclasses
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import keras
import numpy as np

from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, finetuning, tasks
from bert_keras.data import tokenization
from bert_keras.model import encoder, weight_shapes

logger = logging.getLogger(__name__)

Layout = Literal["as_is", "transposed", "heads_out", "heads_in"]
"""Difference between their array and ours: none; reversed axes; the last or the first
axis split into `(num_attention_heads, size_per_head)`."""

FUSED, APART = "query_key_value", weight_shapes.APART
"""Parts of names: one weight of the network is three by our names."""


class Row(NamedTuple):
    """One weight, or, with `{i}` in both names, one weight of every layer."""

    ours: str
    theirs: str
    layout: Layout = "as_is"


VARIABLES = {name: f"/{name}" for name in ("kernel", "bias", "gamma", "beta")}
"""Suffixes of a layer's weights in formats that name weights as Keras does."""


def rows(
    names: Mapping[str, str],
    variables: Mapping[str, str],
    num_hidden_layers: int,
    *,
    kernels: Literal["as_is", "transposed", "heads"] = "as_is",
) -> list[Row]:
    """Makes the table of a format from our names of layers and theirs; also of single
    weights (`..._embeddings`, `output_bias`).

    `variables` are their suffixes for the `kernel`, `bias`, `gamma` and `beta` of a
    layer. Their `kernels` are as ours, transposed, or with a separate axis for
    attention heads. `{i}` becomes the numbers of all layers, from 0.
    """
    table = []
    for ours, theirs in names.items():
        if ours.endswith(("_embeddings", "output_bias")):
            table.append(Row(ours, theirs))
            continue
        # Layouts of the first and the second weight of a layer.
        layouts: tuple[Layout, Layout] = ("as_is", "as_is")
        is_norm = ours.endswith("layer_norm")
        if kernels == "transposed" and not is_norm:
            layouts = ("transposed", "as_is")
        elif kernels == "heads" and ours.endswith(APART):
            layouts = ("heads_out", "heads_out")
        elif kernels == "heads" and ours.endswith("self_attention/output_dense"):
            layouts = ("heads_in", "as_is")
        names_of_two = ("gamma", "beta") if is_norm else ("kernel", "bias")
        for name, layout in zip(names_of_two, layouts, strict=True):
            table.append(Row(f"{ours}/{name}", theirs + variables[name], layout))
    return [
        Row(row.ours.format(i=index), row.theirs.format(i=index), row.layout)
        for row in table
        for index in (range(num_hidden_layers) if "{i}" in row.ours else (0,))
    ]


class Source(Protocol):
    """Tensors of an opened file, read on demand."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of all tensors, by their names."""

    def read(self, name: str) -> np.ndarray:
        """Reads a tensor, of whatever dtype it has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    bert_config: architecture.BertConfig
    task: tasks.Task
    """Its `labels` are `0`, `1`, ... where the format stores no names."""
    arrays: Mapping[str, np.ndarray]
    """Float32 by our names, possibly read on demand. Weights of the task's network that
    are not here were not in the file."""
    vocabulary: tokenization.Vocabulary | None
    """`None`: the files have none."""
    do_lower_case: bool | None
    """`None`: the files do not say."""
    max_seq_length: int | None = None
    """Tokens of an input at most, of a tuned model; `None`: the files do not say."""
    settings: finetuning.FinetuningConfig | None = None
    """Those of a tuned run of ours; no other format has them."""
    threshold: float | dict[str, float] | None = None
    """Of a tuned run of ours, chosen on its dev file: see `run_directory`."""
    unused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Tensors of the file without a place here, by their names, and the reasons."""

    @property
    def tokenizer(self) -> tokenization.Tokenizer | None:
        """The training's tokenizer; `None`: the files do not tell all of it."""
        if self.vocabulary is None or self.do_lower_case is None:
            return None
        return tokenization.Tokenizer(self.vocabulary, do_lower_case=self.do_lower_case)


def count_layers(names: Iterable[str], pattern: str) -> int:
    """Counts the values of a pattern's group at the beginnings of names."""
    matches = (re.match(pattern, name) for name in names)
    return len({match[1] for match in matches if match})


def check_num_layers(
    num_layers: int, bert_config: architecture.BertConfig, *, path: Path
) -> None:
    if num_layers != bert_config.num_hidden_layers:
        raise InputError(
            f"{path}: has {num_layers} layers, but by the configuration next to it "
            f"{bert_config.num_hidden_layers}: they do not belong together"
        )


class Arrays(Mapping[str, np.ndarray]):
    """Arrays by our names, read one by one; `places` are what `read` takes for each."""

    def __init__(self, read: Callable[[Any], np.ndarray], places: Mapping[str, Any]):
        self._read, self._places = read, places

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read(self._places[name])

    def __contains__(self, name: object) -> bool:
        # Mapping's own would read the array.
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def part(arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> Arrays:
    return Arrays(arrays.__getitem__, {name: name for name in names})


def open_arrays(
    source: Source,
    rows: Iterable[Row],
    bert_config: architecture.BertConfig,
    task: tasks.Task,
    *,
    path: str | Path,
) -> Arrays:
    """Opens the tensors of a source under our names, to be read and converted one by
    one. Rows without a tensor are skipped."""
    shapes, their_shapes = weight_shapes.all_shapes(bert_config, task), source.shapes
    there = {row.ours: row for row in rows if row.theirs in their_shapes}
    for name, row in there.items():
        shape = tuple(their_shapes[row.theirs])
        expected = their_shape(row, shapes[name], bert_config)
        if shape != expected:
            raise InputError(
                f"{path}: tensor {row.theirs!r} has the shape {shape}, but by the "
                f"configuration next to it, it has {expected}: they do not belong "
                "together"
            )

    def read(row: Row) -> np.ndarray:
        array = np.asarray(source.read(row.theirs))
        array = array.T if row.layout == "transposed" else array
        return array.reshape(shapes[row.ours]).astype(np.float32, copy=False)

    return Arrays(read, there)


def open_checkpoint(
    source: Source,
    rows: Collection[Row],
    bert_config: architecture.BertConfig,
    task: tasks.Task,
    *,
    path: str | Path,
    tokenizer: tuple[tokenization.Vocabulary | None, bool | None],
    why_unused: Callable[[str], str],
    max_seq_length: int | None = None,
) -> Checkpoint:
    """Makes a checkpoint whose arrays are read from a source on demand.

    Args:
        path: of the source, for errors.
        tokenizer: the vocabulary and `do_lower_case`.
        why_unused: returns the reason why a tensor has no place in `rows`.
    """
    names = {row.theirs for row in rows}
    vocabulary, do_lower_case = tokenizer
    return Checkpoint(
        bert_config=bert_config,
        task=task,
        arrays=open_arrays(source, rows, bert_config, task, path=path),
        vocabulary=vocabulary,
        do_lower_case=do_lower_case,
        max_seq_length=max_seq_length,
        unused={
            name: why_unused(name) for name in sorted(source.shapes.keys() - names)
        },
    )


def their_shape(
    row: Row, shape: tuple[int, ...], bert_config: architecture.BertConfig
) -> tuple[int, ...]:
    num_heads = bert_config.num_attention_heads
    per_head = (num_heads, bert_config.hidden_size // num_heads)
    if row.layout == "transposed":
        return shape[::-1]
    if row.layout == "heads_out":
        return (*shape[:-1], *per_head)
    if row.layout == "heads_in":
        return (*per_head, *shape[1:])
    return shape


def write_rows(
    rows: Iterable[Row],
    arrays: Mapping[str, np.ndarray],
    bert_config: architecture.BertConfig,
) -> Iterator[tuple[str, np.ndarray]]:
    for row in rows:
        if row.ours in arrays:
            array = arrays[row.ours]
            shape = their_shape(row, array.shape, bert_config)
            array = array.T if row.layout == "transposed" else array
            yield row.theirs, array.reshape(shape)


def left_out(
    checkpoint: Checkpoint, rows: Iterable[Row], reason: str
) -> dict[str, str]:
    placed = {row.ours for row in rows}
    return {name: reason for name in checkpoint.arrays if name not in placed}


def from_network(network: keras.Model) -> dict[str, np.ndarray]:
    """Copies a built network's weights, by our names."""
    return with_parts_apart(
        (_name(network, weight), keras.ops.convert_to_numpy(weight))
        for weight in network.weights
    )


def with_parts_apart(
    weights: Iterable[tuple[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    arrays = {}
    for name, value in weights:
        if FUSED in name:
            parts = np.split(value, len(APART), axis=-1)
            for part, array in zip(APART, parts, strict=True):
                arrays[name.replace(FUSED, part)] = array
        else:
            arrays[name] = value
    return arrays


def assign(network: keras.Model, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Assigns arrays to the weights of a built network. Returns the names of weights
    that are not in `arrays`; of query, key and value either all change or none."""
    missing = []
    for weight in network.weights:
        name = _name(network, weight)
        parts = [name.replace(FUSED, part) for part in APART]
        names = parts if FUSED in name else [name]
        if not all(part in arrays for part in names):
            missing += names
            continue
        value, *others = (arrays[part] for part in names)
        if others:
            value = np.concatenate([value, *others], axis=-1)
        if value.shape != tuple(weight.shape):
            raise InputError(
                f"weight {name!r} has the shape {value.shape}, the network's has "
                f"{tuple(weight.shape)}"
            )
        weight.assign(value)
    return missing


def _name(network: keras.Model, weight: keras.Variable) -> str:
    rest = weight.path.partition("/")[2]
    return f"encoder/{rest}" if isinstance(network, encoder.BertEncoder) else rest


def check(checkpoint: Checkpoint, *, path: str | Path) -> None:
    """Looks for damage that shapes do not show. Reads every array once."""
    names = weight_shapes.all_shapes(checkpoint.bert_config)
    needed = {n for n in names if n.startswith("encoder/") and "/pooler/" not in n}
    if missing := sorted(needed - checkpoint.arrays.keys()):
        raise InputError(
            f"{path}: {len(missing)} weights of the encoder are missing, such as "
            + ", ".join(missing[:3])
        )
    if checkpoint.vocabulary is not None:
        num_tokens = len(checkpoint.vocabulary)
        num_rows = checkpoint.bert_config.vocab_size
        if num_tokens > num_rows:
            raise InputError(
                f"{path}: the vocabulary has {num_tokens} entries, the embedding only "
                f"{num_rows} rows: they do not belong together"
            )
        if num_tokens < num_rows:
            logger.warning(
                "%s: the vocabulary has %d entries, the embedding %d rows; the rows "
                "above are kept and never used",
                path,
                num_tokens,
                num_rows,
            )
    check_finite(checkpoint.arrays.items(), path=path)


def check_finite(arrays: Iterable[tuple[str, np.ndarray]], *, path: str | Path) -> None:
    counts = {
        name: int(array.size - np.isfinite(array).sum())
        for name, array in arrays
        # Finite values have a finite sum, which takes no memory to compute.
        if not math.isfinite(float(array.sum(dtype=np.float64)))
    }
    if counts:
        first = ", ".join(f"{count} of {name}" for name, count in [*counts.items()][:3])
        more = f" and of {len(counts) - 3} more weights" if len(counts) > 3 else ""
        raise InputError(
            f"{path}: {sum(counts.values())} values are not finite: {first}{more}: the "
            "training has failed, or the file is damaged; take an earlier checkpoint "
            "or another copy"
        )

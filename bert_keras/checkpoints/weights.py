"""Weights of a trained model under this project's names, from a file of any format.

The names are the paths of the Keras weights without the model's name, but with query,
key and value apart, as in all other formats. A third-party format is a table of `Row`s,
from our names to theirs, that serves both directions.
"""

import dataclasses
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import keras
import numpy as np

from bert_keras.checkpoints import run_directory
from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, finetuning, tasks
from bert_keras.data import tokenization
from bert_keras.model import encoder, weight_shapes

logger = logging.getLogger(__name__)

FUSED, APART = "query_key_value", weight_shapes.APART
"""Parts of names: one weight of the network is three by our names."""


class Row(NamedTuple):
    """One weight: its name here and in a file, and its shapes."""

    ours: str
    theirs: str
    shape: tuple[int, ...]
    their_shape: tuple[int, ...]
    is_transposed: bool = False


VARIABLES = {name: f"/{name}" for name in ("kernel", "bias", "gamma", "beta")}
"""Suffixes of a layer's weights in formats that name weights as Keras does."""


def rows(
    names: Mapping[str, str],
    variables: Mapping[str, str],
    bert_config: architecture.BertConfig,
    task: tasks.Task,
    *,
    kernels: Literal["as_is", "transposed", "heads"] = "as_is",
) -> list[Row]:
    """Makes the table of a format from our names of layers and theirs; also of single
    weights (`..._embeddings`, `output_bias`).

    `variables` are their suffixes for the `kernel`, `bias`, `gamma` and `beta` of a
    layer. Their `kernels` are as ours, transposed, or with a separate axis for
    attention heads. `{i}` becomes the numbers of all layers, from 0.
    """
    # 1. The weights of each layer.
    pairs: dict[str, str] = {}
    for ours, theirs in names.items():
        parts = ("gamma", "beta") if ours.endswith("layer_norm") else ("kernel", "bias")
        if ours.endswith(("_embeddings", "output_bias")):
            pairs[ours] = theirs
        else:
            pairs |= {f"{ours}/{part}": theirs + variables[part] for part in parts}
    # 2. Those of all layers of the encoder, and how their arrays differ from ours.
    shapes = weight_shapes.all_shapes(bert_config, task)
    num_heads = bert_config.num_attention_heads
    # With an axis for heads, kernels are `(hidden, num_heads, head_size)`, and that of
    # attention's output `(num_heads, head_size, hidden)`.
    heads = (num_heads, bert_config.hidden_size // num_heads)
    table = []
    for ours, theirs in pairs.items():
        layer = ours.rpartition("/")[0]
        # Embeddings are alike in all formats; a transpose leaves vectors as they are.
        is_transposed = kernels == "transposed" and layer in names
        for index in range(bert_config.num_hidden_layers) if "{i}" in ours else (0,):
            name = ours.format(i=index)
            shape = their_shape = shapes[name]
            if is_transposed:
                their_shape = shape[::-1]
            elif kernels == "heads" and layer.endswith(APART):
                their_shape = (*shape[:-1], *heads)
            elif kernels == "heads" and ours.endswith("attention/output_dense/kernel"):
                their_shape = (*heads, *shape[1:])
            row = Row(name, theirs.format(i=index), shape, their_shape, is_transposed)
            table.append(row)
    return table


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
    decision: tasks.Decision = tasks.LIKELIEST
    """Of a tuned run of ours: its thresholds, chosen on its dev file, or its promise.
    """
    unused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Tensors of the file without a place here, by their names, and the reasons."""
    adapter: tasks.Adapter | None = None
    """Of changes of a base that has the other arrays: see `adapters.merge`."""
    changes: "Checkpoint | None" = None
    """Those that this model was merged from; `None`: it was whole."""

    @property
    def tokenizer(self) -> tokenization.Tokenizer | None:
        """The training's tokenizer; `None`: the files do not tell all of it."""
        if self.vocabulary is None or self.do_lower_case is None:
            return None
        return tokenization.Tokenizer(self.vocabulary, do_lower_case=self.do_lower_case)


def check_num_layers(
    names: Iterable[str], pattern: str, bert_config: architecture.BertConfig, path: Path
) -> None:
    """Checks that a pattern's group at the beginnings of names has as many values as
    the configuration has layers."""
    matches = (re.match(pattern, name) for name in names)
    num_layers = len({match[1] for match in matches if match})
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


def part(arrays: Mapping[str, np.ndarray], select: Callable[[str], bool]) -> Arrays:
    return Arrays(arrays.__getitem__, {name: name for name in filter(select, arrays)})


def open_arrays(source: Source, rows: Iterable[Row], *, path: str | Path) -> Arrays:
    """Opens the tensors of a source under our names, to be read and converted one by
    one. Rows without a tensor are skipped."""
    there = {row.ours: row for row in rows if row.theirs in source.shapes}
    for row in there.values():
        shape = tuple(source.shapes[row.theirs])
        if shape != row.their_shape:
            raise InputError(
                f"{path}: tensor {row.theirs!r} has the shape {shape}, but by the "
                f"configuration next to it, it has {row.their_shape}: they do not "
                "belong together"
            )

    def read(row: Row) -> np.ndarray:
        array = np.asarray(source.read(row.theirs))
        array = array.T if row.is_transposed else array
        return array.reshape(row.shape).astype(np.float32, copy=False)

    return Arrays(read, there)


def unused(
    source: Source, rows: Iterable[Row], why: Callable[[str], str]
) -> dict[str, str]:
    """Returns the tensors of a source that are not in `rows`, and the reasons."""
    names = source.shapes.keys() - {row.theirs for row in rows}
    return {name: why(name) for name in sorted(names)}


def write_rows(
    rows: Iterable[Row], arrays: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    for row in rows:
        if row.ours in arrays:
            array = arrays[row.ours]
            array = array.T if row.is_transposed else array
            yield row.theirs, array.reshape(row.their_shape)


def left_out(
    checkpoint: Checkpoint, rows: Iterable[Row], reason: str
) -> dict[str, str]:
    placed = {row.ours for row in rows}
    return {name: reason for name in checkpoint.arrays if name not in placed}


def from_network(
    network: keras.Model, kept: Iterable[keras.Variable] | None = None
) -> dict[str, np.ndarray]:
    """Copies a built network's weights, by our names; `None`: all of them."""
    return with_parts_apart(
        (_name(network, weight), keras.ops.convert_to_numpy(weight))
        for weight in (network.weights if kept is None else kept)
    )


def finish_run(
    run: run_directory.Run, network: keras.Model, results: Mapping[str, Any]
) -> None:
    """Writes the weights of a network into its run, and last the run's results."""
    # The frozen weights of an adapter are its base's.
    kept = network.trainable_weights if run.adapter else network.weights
    arrays = from_network(network, kept)
    safetensors_files.write(
        run.directory / run_directory.WEIGHTS_NAME,
        safetensors_files.layouts_of(arrays),
        arrays.items(),
        has_hashes=True,
    )
    run_directory.write_results(run.directory, results)


def with_parts_apart(
    weights: Iterable[tuple[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    arrays = {}
    for name, value in weights:
        if FUSED in name:
            # Kernels `(hidden, 3 * hidden)` and biases `(3 * hidden,)` alike.
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


def share_frozen(network: keras.Model, other: keras.Model) -> None:
    """Lets the frozen weights of a network be those of another, in one memory."""
    theirs = {_name(other, weight): weight for weight in other.weights}
    for weight in network.weights:
        name = _name(network, weight)
        if not weight.trainable and name in theirs:
            weight._value = theirs[name]._value


def _name(network: keras.Model, weight: keras.Variable) -> str:
    # A path begins with the name of the network, which a checkpoint does not have.
    rest = weight.path.partition("/")[2]
    # The changes of query, key and value are apart here, too.
    rest = re.sub(rf"{FUSED}/({'|'.join(APART)})_", r"\1/", rest)
    return f"encoder/{rest}" if isinstance(network, encoder.BertEncoder) else rest


def check(checkpoint: Checkpoint, *, path: str | Path) -> None:
    """Looks for damage that shapes do not show. Reads every array once."""
    names = weight_shapes.all_shapes(checkpoint.bert_config)
    # Several classes of Hugging Face have no pooler.
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
                *(path, num_tokens, num_rows),
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

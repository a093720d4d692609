"""The directory that transformers.js reads in a browser, with a page to try the model.

`answers.js` beside the page gives the run's own answers, where the library's pipelines
know less of it; `config.json` tells it under `bert_keras` what it needs besides.
"""

import functools
import re
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.formats import hugging_face, hugging_face_tokenizer
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.data import tokenization
from bert_keras.export import checking, formats
from bert_keras.kinds import registry, served
from bert_keras.kinds.vectors import served_embeddings

_PIPELINES = ("text-classification", "token-classification", "fill-mask")
_PIPELINES += ("question-answering", "sentence-similarity", "text-ranking")

_NAMES = dict(
    input_ids="input_ids", input_mask="attention_mask", segment_ids="token_type_ids"
)
"""Their names for `served.INPUT_NAMES`."""


def check(task: tasks.Task, embedding: str | None, layers: Sequence[int]) -> None:
    """Refuses what the library's pipelines and the page cannot ask for."""
    pipeline, reason = registry.find(task.kind).names.pipeline, None
    if embedding in ("pooled", "tokens") or [*layers] != [-1]:
        reason = "vectors are the cls or the mean of the last layer"
    elif embedding is None and pipeline not in _PIPELINES:
        reason = f"transformers.js has no pipeline for {task.kind}"
    elif embedding is None and task.feature_layers:
        reason = "the head reads `feature_layers`, which transformers.js does not have"
    if reason:
        raise InputError(f"--to transformers_js: {reason}; take onnx or saved_model")


class _NamedModel(served.ServedModel):
    """A model with inputs and outputs of the names and types that the library has."""

    id_specs = tuple(tf.TensorSpec([None, None], tf.int64, n) for n in _NAMES.values())

    def __init__(self, model: served.ServedModel):
        super().__init__(model.trained)
        self._model = model

    def encode(self, *texts):
        ids = super().encode(*texts)
        # Scores of all words at all places take memory.
        longest = 64 if "masked_lm_logits" in self._model.outputs else None
        return {n: tf.cast(ids[k][:, :longest], tf.int64) for k, n in _NAMES.items()}

    def compute(self, ids):
        ids = {k: tf.cast(ids[name], tf.int32) for k, name in _NAMES.items()}
        if self._model.outputs == ("embedding",):
            network = self.trained.network
            encoded = getattr(network, "encoder", network)(ids, training=False)
            vectors = encoded["sequence_output"]
            # Numbers of padding are those of no text, and differ between runtimes.
            is_text = tf.cast(ids["input_mask"], vectors.dtype)
            return {"last_hidden_state": vectors * is_text[:, :, None]}
        # A score for each word at each place.
        places = tf.cumsum(tf.ones_like(ids["input_ids"]), axis=1, exclusive=True)
        numbers = self._model.compute({**ids, "masked_lm_positions": places})
        return {name.removeprefix("masked_lm_"): v for name, v in numbers.items()}


def write_small(path: Path, small: Path) -> None:
    """Writes an ONNX file with its matrices in 8 bits and computes in float32.

    Each row of a table has a scale, and so have each 64 numbers in a column of a
    kernel: one for a whole column changes twice as many answers. The runtime's own
    quantiser also rounds what goes into a product, which changes more.
    """
    import onnx

    model, nodes = onnx.load(path), []
    for tensor in [*model.graph.initializer]:
        values, name = onnx.numpy_helper.to_array(tensor), tensor.name
        if values.ndim != 2 or values.size < 1024 or values.dtype != np.float32:
            continue
        blocks = values[..., None]
        if not name.endswith("embeddings"):
            height, width = values.shape
            blocks = values.reshape(-1, height if height % 64 else 64, width)
        scale = np.maximum(np.abs(blocks).max(1, keepdims=True) / 127, 1e-30)
        rounded = np.round(blocks / scale).astype(np.int8)
        parts = {"int8": rounded, "scale": scale, "shape": np.array(values.shape)}
        for part, array in parts.items():
            part = onnx.numpy_helper.from_array(array, f"{name}/{part}")
            model.graph.initializer.append(part)
        model.graph.initializer.remove(tensor)
        node, steps = onnx.helper.make_node, (f"{name}/whole", f"{name}/scaled")
        nodes += (
            node("Cast", [f"{name}/int8"], [steps[0]], to=onnx.TensorProto.FLOAT),
            node("Mul", [steps[0], f"{name}/scale"], [steps[1]]),
            node("Reshape", [steps[1], f"{name}/shape"], [name]),
        )
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    onnx.save(model, small)


def describe_tokenizer(tokenizer: tokenization.Tokenizer) -> dict[str, Any]:
    """Returns a `tokenizer.json` with the steps of `tokenization.basic_tokenize`. But
    `[MASK]` and the like in a text are one token, as others expect."""
    lower, classes = tokenizer.do_lower_case, character_classes()
    dropped, marks, alone = ({"pattern": {"Regex": x}} for x in classes.values())
    removes = {"type": "Replace", "content": ""}
    isolates = {"type": "Split", "behavior": "Isolated", "invert": False}
    steps = [{**removes, **dropped}]
    if lower:
        steps += [{"type": "Lowercase"}, {"type": "NFD"}, {**removes, **marks}]
    splits = [{"type": "WhitespaceSplit"}, {**isolates, **alone}]
    return {
        **hugging_face_tokenizer.describe(tokenizer.vocabulary, do_lower_case=lower),
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
    }


@functools.cache
def character_classes() -> Mapping[str, str]:
    """Returns regular expressions for characters that are `dropped`, for `marks` that
    are stripped from lower-cased text, and for characters that are words `alone`: those
    of the running Python, for a browser's version of Unicode may be another."""

    def kind(char: str) -> str:
        if tokenization.is_dropped(char):
            return "d"
        is_alone = tokenization.is_punctuation(char) or tokenization.is_cjk(char)
        return "a" if is_alone else "m" if unicodedata.category(char) == "Mn" else " "

    def literal(point: int) -> str:
        # All engines of regular expressions take these two ways to write a character.
        return f"\\u{point:04X}" if point < 1 << 16 else chr(point)

    kinds, classes = "".join(kind(chr(point)) for point in range(0x110000)), {}
    for name in ("dropped", "marks", "alone"):
        runs = re.finditer(f"{name[0]}+", kinds)
        ranges = (f"{literal(x.start())}-{literal(x.end() - 1)}" for x in runs)
        classes[name] = f"[{''.join(ranges)}]"
    return classes


def write(model: served.ServedModel, directory: Path) -> None:
    """Writes the directory, with the network in float32 and in 8 bits."""
    trained, task, length = model.trained, model.trained.task, model.max_seq_length
    if isinstance(model, served_embeddings.Embeddings):
        task = tasks.Task(kind="embedding", pooling=model.kind)
    # 1. The network, whose file gives the same numbers, or with 8 bits can be run.
    exact, small = (directory / "onnx" / f"model{x}.onnx" for x in ("", "_quantized"))
    exact.parent.mkdir()
    named = _NamedModel(model)
    formats.write_onnx(named, exact)
    checking.check_numbers(named, formats.load_onnx(exact))
    write_small(exact, small)
    formats.load_onnx(small)(checking.ids_of_texts(named))
    # 2. Its task and its tokenizer.
    checkpoint = weights.Checkpoint(
        bert_config=trained.bert_config,
        task=task,
        arrays={},
        vocabulary=model.vocabulary,
        do_lower_case=model.tokenizer.do_lower_case,
        max_seq_length=length,
    )
    facts = {
        **task.model_dump(include={"kind", "has_text_pair", "pooling", "normalize"}),
        "name": trained.path.absolute().name,
        "max_seq_length": length,
        "do_lower_case": model.tokenizer.do_lower_case,
        "long_texts": model.long_texts,
        "window_stride": model.stride,
        "characters": character_classes(),
        **model.decisions,
    }
    config = hugging_face.config_of(checkpoint) | {"bert_keras": facts}
    files.write_json(directory / "config.json", config)
    hugging_face_tokenizer.write(checkpoint, directory)
    path = directory / "tokenizer_config.json"
    # Other classes of theirs have no `token_type_ids`.
    values = files.read_json(path) | {"tokenizer_class": "BertTokenizer"}
    files.write_json(path, values)
    described = describe_tokenizer(model.tokenizer)
    files.write_json(directory / "tokenizer.json", described)
    # 3. The page.
    for name in ("index.html", "answers.js", "package.json"):
        shutil.copyfile(Path(__file__).with_name(name), directory / name)

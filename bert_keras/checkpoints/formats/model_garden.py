"""Checkpoints of tf-models-official (TensorFlow's Model Garden), without that package.

`NAME-1.index`, `NAME-1.data-00000-of-00001`, `checkpoint` and `bert_config.json`. A
file holds a graph of objects. That of a `BertPretrainerV2`, as `write` makes it:

    (root)
    ├── encoder
    │   ├── _embedding_layer, _position_embedding_layer, _type_embedding_layer
    │   ├── _embedding_norm_layer
    │   ├── _transformer_layers
    │   │   └── 0, 1, ...
    │   │       ├── _attention_layer: _query_dense, _key_dense, _value_dense, ...
    │   │       └── _attention_layer_norm, _intermediate_dense, _output_dense, ...
    │   └── _pooler_layer
    ├── model
    │   ├── encoder_network                 the same object as encoder
    │   ├── masked_lm: dense, layer_norm, bias
    │   └── classification_heads
    │       └── 0: dense (a pooler of its own), out_proj
    ├── masked_lm                           the same as in model
    └── next_sentence.pooler_dense          the dense of that head

In a fine-tuned model, `model` has `_network` (the encoder) and `classifier` or
`span_labeling`. A weight's key is one of the paths to it, another one in each training
script. So parts are found by the graph: an encoder wherever it is, and the heads of
`BertPretrainerV2`, `BertClassifier`, `BertTokenClassifier` and `BertSpanLabeler`
around it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.containers import tensor_bundle
from bert_keras.checkpoints.formats import companions
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, tasks
from bert_keras.kinds import registry

ACTIVATIONS = companions.ACTIVATIONS

NAME = "bert_model.ckpt"

_OURS, _THEIRS = "encoder/layer_{i}", "encoder/_transformer_layers/{i}"
_ATTENTION = f"{_THEIRS}/_attention_layer"
_EMBEDDINGS = "encoder/embeddings"

_ENCODER = {
    f"{_EMBEDDINGS}/word_embeddings": "encoder/_embedding_layer/embeddings",
    f"{_EMBEDDINGS}/position_embeddings": (
        "encoder/_position_embedding_layer/embeddings"
    ),
    f"{_EMBEDDINGS}/type_embeddings": "encoder/_type_embedding_layer/embeddings",
    f"{_EMBEDDINGS}/layer_norm": "encoder/_embedding_norm_layer",
    f"{_OURS}/self_attention/query": f"{_ATTENTION}/_query_dense",
    f"{_OURS}/self_attention/key": f"{_ATTENTION}/_key_dense",
    f"{_OURS}/self_attention/value": f"{_ATTENTION}/_value_dense",
    f"{_OURS}/self_attention/output_dense": f"{_ATTENTION}/_output_dense",
    f"{_OURS}/attention_layer_norm": f"{_THEIRS}/_attention_layer_norm",
    f"{_OURS}/feed_forward/intermediate_dense": f"{_THEIRS}/_intermediate_dense",
    f"{_OURS}/feed_forward/output_dense": f"{_THEIRS}/_output_dense",
    f"{_OURS}/output_layer_norm": f"{_THEIRS}/_output_layer_norm",
    "encoder/pooler": "pooler",
}
"""Their names are paths from a part of the model, such as `encoder` or `masked_lm`.
`_find_parts` finds the parts in a graph, `_compose` makes a graph of them."""

_QUERY = "_attention_layer/_query_dense/kernel"
_FIRST_QUERY = f"_transformer_layers/0/{_QUERY}"


def _heads(kind: tasks.TaskKind) -> Mapping[str, str]:
    """Returns the paths of a head's layers by our names; the path of `head/classifier`
    begins at the model of its task."""
    return registry.find(kind).names.heads.get("model_garden", {})


def _rows(bert_config: architecture.BertConfig, task: tasks.Task) -> list[weights.Row]:
    names = {**_ENCODER, **_heads(task.kind)}
    if "head/classifier" in names:
        names["head/classifier"] = "classifier"
    return weights.rows(names, weights.VARIABLES, bert_config, task, kernels="heads")


def recognizes(path: Path) -> bool:
    names = tensor_bundle.names_at(path) or ()
    query = f"/{_QUERY}/.ATTRIBUTES/VARIABLE_VALUE"
    return any(name.endswith(query) for name in names)


def read(path: Path) -> weights.Checkpoint:
    """Opens a checkpoint by its directory or prefix, such as `bert_model.ckpt-1`."""
    prefix = tensor_bundle.find_prefix(path)
    bundle = tensor_bundle.Bundle(prefix)
    kind, parts = _find_parts(tensor_bundle.read_graph(bundle), path=prefix)
    transformer_layers = parts.find("encoder/_transformer_layers").children
    bert_config = companions.read_config(prefix.parent)
    weights.check_num_layers(transformer_layers, "(.+)", bert_config, prefix)
    *_, num_labels = parts.find("classifier/kernel").shape or (1,)
    task = registry.numbered_task(kind, num_labels)
    rows = [
        row._replace(theirs=key)
        for row in _rows(bert_config, task)
        if (key := parts.find(row.theirs).key)
    ]
    pooler = parts.find("encoder/_pooler_layer")
    poolers = {pooler.find(name).key for name in ("kernel", "bias")}

    def why_unused(name: str) -> str:
        first = name.partition("/")[0]
        if first in ("save_counter", "global_step"):
            return "step counter"
        if "/.OPTIMIZER_SLOT/" in name or first == "optimizer":
            return "optimizer slot"
        if name in poolers:
            return "the head has a pooler of its own"
        return "not part of BERT"

    vocabulary, do_lower_case = companions.read_tokenizer(prefix.parent)
    return weights.Checkpoint(
        bert_config=bert_config,
        task=task,
        arrays=weights.open_arrays(bundle, rows, path=prefix),
        vocabulary=vocabulary,
        do_lower_case=do_lower_case,
        unused=weights.unused(bundle, rows, why_unused),
    )


def _find_parts(
    root: tensor_bundle.Node, *, path: Path
) -> tuple[tasks.TaskKind, tensor_bundle.Node]:
    """Returns the kind of a model, and a new object with its parts as children."""
    nodes = root.descendants()
    encoder = next((n for n in nodes if n.find(_FIRST_QUERY).key), None)
    encoder = encoder or _encoder_of_2020(nodes)
    if encoder is None:
        raise InputError(f"{path}.index: expected an encoder of Model Garden's BERT")
    parts = {"encoder": encoder}
    if "_pooler_layer" in encoder.children:
        parts["pooler"] = encoder.children["_pooler_layer"]
    heads: dict[str, tensor_bundle.Node] = {}
    for node in nodes:
        if node.find("masked_lm/dense/kernel").key:
            heads.setdefault("masked_lm", node.children["masked_lm"])
        heads |= _next_sentence_parts(node, root)
    if "masked_lm" in heads:
        return "pretraining", tensor_bundle.Node(parts | heads)
    # A fine-tuned model is around the encoder.
    around = (n for n in nodes if n.find("_network") is encoder)
    model = next(around, tensor_bundle.NOTHING)
    for head, kind in _CLASSIFIERS.items():
        classifier = model.find(head)
        if not classifier.find("kernel").key:
            continue
        parts["classifier"] = classifier
        pooler = model.find("classifier/dense")
        # A `BertClassifier` computes with the pooler of its head, not the encoder's.
        if head.startswith("classifier/") and pooler is not tensor_bundle.NOTHING:
            parts["pooler"] = pooler
        return kind, tensor_bundle.Node(parts)
    return "encoder", tensor_bundle.Node(parts)


def _encoder_of_2020(nodes: list[tensor_bundle.Node]) -> tensor_bundle.Node | None:
    """Finds an encoder of 2020, as the published ones are, and gives its layers today's
    names. They have only numbers, in the order of computation, and the output of
    attention belongs to the transformer layer."""
    name = "layer_with_weights-{}"
    first_query = f"{name.format(4)}/{_QUERY}"
    encoder = next((n for n in nodes if n.find(first_query).key), None)
    if encoder is None:
        return None
    # Numbers 0 to 3 are the embeddings and their norm; the pooler follows the layers.
    layers: dict[str, tensor_bundle.Node] = {}
    while (layer := encoder.find(name.format(len(layers) + 4))).find(_QUERY).key:
        if "_attention_output_dense" in layer.children:
            attention = layer.children["_attention_layer"].children
            attention["_output_dense"] = layer.children["_attention_output_dense"]
        layers[str(len(layers))] = layer
    encoder.children["_transformer_layers"] = tensor_bundle.Node(layers)
    names = ("_embedding_layer", "_position_embedding_layer")
    names += ("_type_embedding_layer", "_embedding_norm_layer")
    for number, today in (*enumerate(names), (len(layers) + 4, "_pooler_layer")):
        if name.format(number) in encoder.children:
            encoder.children.setdefault(today, encoder.find(name.format(number)))
    return encoder


def _next_sentence_parts(
    node: tensor_bundle.Node, root: tensor_bundle.Node
) -> dict[str, tensor_bundle.Node]:
    """Finds the next-sentence head of a pre-training model, and its own pooler. Heads
    have no names: among several, the root's `next_sentence.pooler_dense` tells."""
    candidates = [*node.find("classification_heads").children.values()]
    named = root.children.get("next_sentence.pooler_dense")
    for head in candidates:
        dense, output = head.children.get("dense"), head.find("out_proj")
        is_meant = len(candidates) == 1 if named is None else dense is named
        has_two = output.find("kernel").shape[-1:] == (2,)
        if is_meant and has_two and dense is not None:
            return {"next_sentence": output, "pooler": dense}
    return {}


_CLASSIFIERS: dict[str, tasks.TaskKind] = {
    "classifier/out_proj": "classification",
    "classifier": "tagging",
    "span_labeling/layer_with_weights-0": "span",
}
"""Paths of the last layer of `BertClassifier`, `BertTokenClassifier` and
`BertSpanLabeler`."""


def write(checkpoint: weights.Checkpoint, directory: Path) -> dict[str, str]:
    """Writes a checkpoint as Model Garden's own models do.

    `tf.train.Checkpoint(encoder=...)` restores it into an encoder,
    `tf.train.Checkpoint(model=...)` into the model of its task: `BertPretrainerV2`,
    `BertClassifier`, `BertTokenClassifier` or `BertSpanLabeler`. The pooler is stored
    twice, because pre-training models and classifiers have their own. Returns the
    reasons by our names of weights without a place: Model Garden has no multiple
    choice.
    """
    companions.write(checkpoint, directory)
    kind, rows = checkpoint.task.kind, _rows(checkpoint.bert_config, checkpoint.task)
    parts: dict[str, Any] = {}
    for path, array in weights.write_rows(rows, checkpoint.arrays):
        *parents, name = path.split("/")
        branch = parts
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = array
    with tensor_bundle.errors_of_writing(directory / NAME):
        _compose(_heads(kind), parts).save(str(directory / NAME))
    reason = f"Model Garden has no place for it in a {kind} checkpoint"
    return weights.left_out(checkpoint, rows, reason)


def _compose(heads: Mapping[str, str], parts: dict[str, Any]) -> tf.train.Checkpoint:
    """Makes the graph of the module's docstring."""
    pooler, encoder = {}, parts["encoder"]
    if "pooler" in parts:
        pooler = {"dense": parts["pooler"]}
        encoder = {**encoder, "_pooler_layer": parts["pooler"]}
    encoder = _object(encoder)
    root: dict[str, Any] = {"encoder": encoder}
    model: dict[str, Any] = {}
    if "masked_lm" in parts:
        root["masked_lm"] = model["masked_lm"] = _object(parts["masked_lm"])
    if "next_sentence" in parts:
        head = _object({"out_proj": parts["next_sentence"], **pooler})
        model["classification_heads"] = [head]
        # Named as in `BertPretrainerV2.checkpoint_items`: head, a dot, its layer.
        if pooler:
            root["next_sentence.pooler_dense"] = head.dense
    if model:
        model["encoder_network"] = encoder
    if "classifier" in parts:
        model["_network"] = encoder
        name, _, layer = heads["head/classifier"].partition("/")
        # Without a name of its own, the last layer is the whole head.
        head = {layer: parts["classifier"]} if layer else parts["classifier"]
        has_pooler = pooler and layer == "out_proj"
        model[name] = _object({**head, **pooler} if has_pooler else head)
        if has_pooler:
            root["sentence_prediction.pooler_dense"] = model[name].dense
    if model:
        root["model"] = tf.train.Checkpoint(**model)
    return tf.train.Checkpoint(**root)


def _object(tree: Mapping[str, Any]) -> Any:
    """Makes an object with attributes; a list of objects if the names are numbers."""
    values = {
        name: _object(value) if isinstance(value, dict) else tf.Variable(value)
        for name, value in tree.items()
    }
    if "0" in values:
        return [values[str(index)] for index in range(len(values))]
    return tf.train.Checkpoint(**values)

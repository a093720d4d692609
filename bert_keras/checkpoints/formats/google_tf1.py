"""Checkpoints of google-research/bert: its releases, and the output of its scripts.

`bert_model.ckpt.index`, `bert_model.ckpt.data-00000-of-00001`, `bert_config.json` and
`vocab.txt`. No file names the task of a fine-tuned model. `cls/squad/*` is a span.
`output_weights` is the classifier of `run_classifier.py`, but also the tagger or the
scorer of endings of other scripts: it is read as a classification, and with a single
output as a regression.
"""

from pathlib import Path

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.containers import tensor_bundle
from bert_keras.checkpoints.formats import companions
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, tasks
from bert_keras.kinds import registry

ACTIVATIONS = companions.ACTIVATIONS

NAME = "bert_model.ckpt"

_WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
_OURS, _THEIRS = "encoder/layer_{i}", "bert/encoder/layer_{i}"

ENCODER = {
    "encoder/embeddings/word_embeddings": _WORD_EMBEDDINGS,
    "encoder/embeddings/position_embeddings": "bert/embeddings/position_embeddings",
    "encoder/embeddings/type_embeddings": "bert/embeddings/token_type_embeddings",
    "encoder/embeddings/layer_norm": "bert/embeddings/LayerNorm",
    f"{_OURS}/self_attention/query": f"{_THEIRS}/attention/self/query",
    f"{_OURS}/self_attention/key": f"{_THEIRS}/attention/self/key",
    f"{_OURS}/self_attention/value": f"{_THEIRS}/attention/self/value",
    f"{_OURS}/self_attention/output_dense": f"{_THEIRS}/attention/output/dense",
    f"{_OURS}/attention_layer_norm": f"{_THEIRS}/attention/output/LayerNorm",
    f"{_OURS}/feed_forward/intermediate_dense": f"{_THEIRS}/intermediate/dense",
    f"{_OURS}/feed_forward/output_dense": f"{_THEIRS}/output/dense",
    f"{_OURS}/output_layer_norm": f"{_THEIRS}/output/LayerNorm",
    "encoder/pooler": "bert/pooler/dense",
}
_KINDS: dict[str, tasks.TaskKind] = {
    "cls/squad/output_weights": "span",
    "output_weights": "classification",
    # The head is useless without the transform.
    "cls/predictions/transform/dense/kernel": "pretraining",
}
"""Kinds of task by a tensor of their head; the first that is there decides."""


def _rows(bert_config: architecture.BertConfig, task: tasks.Task) -> list[weights.Row]:
    heads = registry.find(task.kind).names.heads.get("google", {})
    # The last layer of the scripts is two variables whose names begin alike:
    # `output_weights`, `(num_labels, hidden_size)`, and `output_bias`.
    outputs = {ours: name for ours, name in heads.items() if "classifier" in ours}
    others = {ours: name for ours, name in heads.items() if ours not in outputs}
    rows = weights.rows({**ENCODER, **others}, weights.VARIABLES, bert_config, task)
    variables = {"kernel": "_weights", "bias": "_bias"}
    return rows + weights.rows(
        outputs, variables, bert_config, task, kernels="transposed"
    )


def recognizes(path: Path) -> bool:
    names = tensor_bundle.names_at(path)
    # An unreadable index counts, so that `read` says what is wrong with it.
    return names is not None and (not names or _WORD_EMBEDDINGS in names)


def read(path: Path) -> weights.Checkpoint:
    """Opens a checkpoint by its directory or prefix, such as `model.ckpt-6910`."""
    prefix = tensor_bundle.find_prefix(path)
    bundle = tensor_bundle.Bundle(prefix)
    names = bundle.shapes
    if _WORD_EMBEDDINGS not in names:
        raise InputError(
            f"{prefix}.index: expected the names of google-research/bert, such as "
            f"{_WORD_EMBEDDINGS}, found " + ", ".join(sorted(names)[:3])
        )
    if any(name.startswith("bert/encoder/transformer/group_") for name in names):
        raise InputError(
            f"{prefix}.index: the model is an ALBERT, whose layers share their "
            "weights, not a BERT"
        )
    bert_config = companions.read_config(prefix.parent)
    layer = r"bert/encoder/layer_(\d+)/"
    weights.check_num_layers(names, layer, bert_config, prefix)
    sign = next((name for name in _KINDS if name in names), "")
    kind = _KINDS.get(sign, "encoder")
    num_labels, *_ = names.get("output_weights") or (1,)

    def why_unused(name: str) -> str:
        parent, _, last = name.rpartition("/")
        if last == "global_step":
            return "step counter"
        # `.../kernel/adam_m` next to `.../kernel`; powers are of TensorFlow's own Adam.
        if parent in names or last in ("beta1_power", "beta2_power"):
            return "optimizer slot"
        if not name.startswith(("cls/predictions/", "cls/seq_relationship/")):
            return "not part of BERT"
        if sign.endswith("output_weights"):
            return "a pre-training head, which the fine-tuned one replaces"
        return "a pre-training head without the masked-LM transform"

    task = registry.numbered_task(kind, num_labels)
    rows = _rows(bert_config, task)
    vocabulary, do_lower_case = companions.read_tokenizer(prefix.parent)
    return weights.Checkpoint(
        bert_config=bert_config,
        task=task,
        arrays=weights.open_arrays(bundle, rows, path=prefix),
        vocabulary=vocabulary,
        do_lower_case=do_lower_case,
        unused=weights.unused(bundle, rows, why_unused),
    )


def write(checkpoint: weights.Checkpoint, directory: Path) -> dict[str, str]:
    """Writes a checkpoint under the names of Google's releases.

    A tagger and a scorer of endings become `output_weights`, as in scripts derived from
    the original; read back, they are a classification and a regression.
    """
    companions.write(checkpoint, directory)
    rows = _rows(checkpoint.bert_config, checkpoint.task)
    tensors = dict(weights.write_rows(rows, checkpoint.arrays))
    tensor_bundle.write(directory / NAME, tensors)
    reason = f"not part of Google's checkpoints for {checkpoint.task.kind}"
    return weights.left_out(checkpoint, rows, reason)

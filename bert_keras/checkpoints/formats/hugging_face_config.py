"""`config.json` of Hugging Face's directories: architecture and task of a model."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_keras.checkpoints import weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import strict, tasks
from bert_keras.core.settings.architecture import BertConfig
from bert_keras.kinds import registry

NAME = "config.json"

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
"""Our names to theirs; `gelu_new` is their oldest name for the tanh form."""

_OUR_ACTIVATIONS = {
    **{theirs: ours for ours, theirs in ACTIVATIONS.items()},
    "gelu_python": "gelu",
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"), "gelu_tanh"),
}

KINDS: dict[str, tasks.TaskKind] = {
    "BertForMaskedLM": "pretraining",
    "BertForNextSentencePrediction": "pretraining",
    # The first kind of a class comes last, so it stays.
    **{
        kind.names.hugging_face: kind.name
        for kind in reversed(registry.KINDS.values())
        if kind.names.hugging_face
    },
}
"""Kind of task, by their class; their classification may be a regression, or of several
labels."""

# By the type that a file names, such as `xlm-roberta`.
_MODEL_NAMES = {"deberta-v2": "a DeBERTa"} | {
    name.split()[1].lower(): name
    for name in (
        *("an ALBERT", "a CamemBERT", "a DeBERTa", "a DistilBERT", "an ELECTRA"),
        *("a ModernBERT", "an MPNet", "a RoBERTa", "an XLM-RoBERTa"),
    )
}

_ONLY_VALUES: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "quantization_config": None,
}
"""Config values that our network implements. Any other value would compute something
else and is refused."""


def named_architecture(values: Mapping[str, Any], path: Path) -> str | None:
    """Returns the class of a model, `None` if the file does not tell it; refuses any
    model but BERT as published."""
    model_type = values.get("model_type", "bert")
    if model_type != "bert":
        name = _MODEL_NAMES.get(str(model_type), f"of the type {model_type!r}")
        raise InputError(f"{path}: the model is {name}, not a BERT")
    for key, expected in _ONLY_VALUES.items():
        if values.get(key) not in (None, expected):
            raise InputError(
                f'{path}: "{key}" is {values[key]!r}, only {expected!r} is '
                "known here: such a model computes something else"
            )
    if not (named := values.get("architectures")):
        return None
    for known in KINDS:
        if named == [known]:
            return known
    raise InputError(
        f'{path}: "architectures" is {named!r}, expected one of '
        f"{', '.join(KINDS)}; take the key away to go by the tensors"
    )


def architecture_by_tensors(names: Iterable[str], path: Path) -> str:
    heads = {name.rpartition(".")[0] for name in names}
    if "classifier" in heads:
        raise InputError(
            f"{path}: nothing says what the classifier is for: put "
            '"architectures": ["BertForSequenceClassification"] there, or '
            "BertForTokenClassification or BertForMultipleChoice"
        )
    if "cls.predictions.transform.dense" in heads:
        has_pairs = "cls.seq_relationship" in heads
        return "BertForPreTraining" if has_pairs else "BertForMaskedLM"
    if "cls.seq_relationship" in heads:
        return "BertForNextSentencePrediction"
    return "BertForQuestionAnswering" if "qa_outputs" in heads else "BertModel"


def read_bert_config(values: Mapping[str, Any], path: Path) -> BertConfig:
    # They have defaults, but no tensor would reveal a wrong number of heads.
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    sizes += ("intermediate_size", "max_position_embeddings")
    if lacking := [key for key in sizes if key not in values]:
        raise InputError(f"{path}: expected the keys {', '.join(lacking)} too")
    # Ours is 1e-12. With 1e-8 the outputs of a trained model of 6 layers and 384 units
    # move by 3e-6, with 1e-7 by 2e-5, and with 1e-5 by 2e-3.
    epsilon, largest = values.get("layer_norm_eps", 1e-12), 1e-8
    if not isinstance(epsilon, float | int) or not 0 <= epsilon <= largest:
        raise InputError(
            f'{path}: "layer_norm_eps" is {epsilon!r}, here it is 1e-12, and above '
            f"{largest} the outputs would be others"
        )
    hidden_act = values.get("hidden_act", "gelu")
    if not isinstance(hidden_act, str) or hidden_act not in _OUR_ACTIVATIONS:
        raise InputError(
            f'{path}: "hidden_act" is {hidden_act!r}, expected one of '
            + ", ".join(_OUR_ACTIVATIONS)
        )
    known = BertConfig.model_fields.keys() - {"attention"}
    ours = {key: value for key, value in values.items() if key in known}
    ours["hidden_act"] = _OUR_ACTIVATIONS[hidden_act]
    return strict.build_config(BertConfig, ours, origin=path)


def read_task(
    values: Mapping[str, Any],
    architecture: str,
    shapes: Mapping[str, Sequence[int]],
    path: Path,
) -> tasks.Task:
    kind, labels = KINDS[architecture], None
    problem_type = values.get("problem_type")
    has_several = problem_type == "multi_label_classification"
    if registry.find(kind).has_labels:
        labels = _read_labels(values, shapes, path)
        tasks.check_labels(labels, path=path, has_several=has_several)
    if architecture == "BertForSequenceClassification":
        if has_several:
            return tasks.Task(kind="multi_label", labels=labels)
        if problem_type == "regression" and len(labels) > 1:
            raise InputError(
                f"{path}: a regression of {len(labels)} numbers, expected one"
            )
        # Without `problem_type`, transformers decides like this.
        if len(labels) == 1 and problem_type != "single_label_classification":
            kind, labels = "regression", None
    has_text_pair = registry.find(kind).has_text_pair
    return tasks.Task(kind=kind, labels=labels, has_text_pair=has_text_pair)


def _read_labels(
    values: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], path: Path
) -> tuple[str, ...]:
    """Reads `id2label` in the order of the logits; `LABEL_0`, ... if it is missing."""
    id2label = values.get("id2label")
    if id2label is None:
        num_labels, *size = shapes.get("classifier.weight", (2,))
        # Only then does the file have to be as long as the shape claims.
        num_labels = num_labels if size == [values["hidden_size"]] else 2
        return tuple(f"LABEL_{i}" for i in range(num_labels))
    if isinstance(id2label, dict):
        numbers = [str(i) for i in range(len(id2label))]
        is_named = all(type(label) in (str, int) for label in id2label.values())
        if numbers and is_named and id2label.keys() == set(numbers):
            return tuple(str(id2label[number]) for number in numbers)
    raise InputError(
        f'{path}: expected "id2label" from "0", "1" and so on to the names of labels, '
        "each a string or a whole number"
    )


def to_theirs(checkpoint: weights.Checkpoint) -> dict[str, Any]:
    """Returns the configuration of a checkpoint, with the class that has a place for
    most of its weights."""
    names = registry.find(checkpoint.task.kind).names
    architecture = names.hugging_face
    if architecture is None:
        raise InputError(
            f"transformers has no class for {checkpoint.task.kind}: `convert --to "
            "native` or `export` keep this model"
        )
    if architecture == "BertForPreTraining":
        pair_head = {"encoder/pooler/kernel", "next_sentence_head/classifier/kernel"}
        if not pair_head <= checkpoint.arrays.keys():
            architecture = "BertForMaskedLM"
        elif "masked_lm_head/transform/kernel" not in checkpoint.arrays:
            architecture = "BertForNextSentencePrediction"
    values = checkpoint.bert_config.model_dump(exclude={"attention"})
    values |= {
        "model_type": "bert",
        "architectures": [architecture],
        "hidden_act": ACTIVATIONS[checkpoint.bert_config.hidden_act],
        "layer_norm_eps": 1e-12,
        "position_embedding_type": "absolute",
        "pad_token_id": 0,
    }
    labels = checkpoint.task.labels
    if labels is not None:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    if names.problem_type:
        values["problem_type"] = names.problem_type
        if labels is None:
            # Else transformers makes two outputs.
            values["id2label"] = {"0": "LABEL_0"}
    return values

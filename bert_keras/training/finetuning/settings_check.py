"""Settings of a fine-tuning that mean nothing for its task: they are refused."""

from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning
from bert_keras.kinds.text import text_forms

_Settings = finetuning.FinetuningConfig


def check(
    settings: _Settings, task: config.Task, bert_config: config.BertConfig
) -> None:
    """Raises an `InputError` if a setting means nothing for the task.

    Args:
        settings: of the run.
        task: that it learns.
        bert_config: of the encoder.
    """
    _check_labels(settings, task)
    _check_long_texts(settings, task)
    if task.kind == "embedding":
        _check_embedding(settings, bert_config)
    elif settings.embedding != finetuning.EmbeddingConfig():
        raise InputError(
            "the settings below `embedding` are for --task embedding, got the task "
            f"{settings.task}: leave them out"
        )
    elif settings.columns.negative is not None:
        raise InputError(
            "`columns.negative` is for --task embedding, got the task "
            f"{settings.task}: leave it out"
        )
    if settings.pack_examples:
        _check_packable(task, bert_config)


def _check_labels(settings: _Settings, task: config.Task) -> None:
    if settings.positive_label is not None and task.positive_label is None:
        raise InputError(
            "`positive_label` is for your own texts (--task text) with two labels, got "
            f"{len(task.labels)} labels: leave it out"
            if task.labels and task.kind == "classification" and task.name is None
            else "`positive_label` is for your own texts (--task text) with two "
            f"labels, got the task {settings.task}, {task.kind}: leave it out"
        )
    if task.kind not in ("classification", "multi_label"):
        for key in ("class_weights", "label_smoothing"):
            if getattr(settings, key):
                raise InputError(
                    f"`{key}` is for texts with labels, got a task of kind "
                    f"{task.kind}: leave it out"
                )
    for key in ("multi_label", "regression"):
        if getattr(settings, key) and settings.task != "text":
            raise InputError(
                f"`{key}` is for your own texts (--task text), got the task "
                f"{settings.task}: leave it out"
            )


def _check_long_texts(settings: _Settings, task: config.Task) -> None:
    long_texts = settings.long_texts
    if long_texts != "cut" and task.kind not in (*text_forms.KINDS, "embedding"):
        raise InputError(
            f"`long_texts` is for texts, got a task of kind {task.kind}: leave it out"
        )
    if not config.reads_windows(long_texts):
        return
    if task.kind == "embedding":
        raise InputError(
            f"`long_texts` {long_texts} is not for vectors that are learnt: take cut "
            "or head_tail"
        )
    if task.has_text_pair:
        raise InputError(
            f"`long_texts` {long_texts} is for single texts, got pairs: take cut or "
            "head_tail"
        )


_NOT_FOR_VECTORS = {
    "gradient_accumulation_steps": "the parts of a batch would not see each other's "
    "texts: `recompute` needs less memory, too",
    "dropout_prob": "vectors have no head; the encoder has `hidden_dropout_prob`",
    "bilstm_units": "vectors have no head",
}


def _check_embedding(settings: _Settings, bert_config: config.BertConfig) -> None:
    usual = _Settings()
    for key, reason in _NOT_FOR_VECTORS.items():
        if (value := getattr(settings, key)) != getattr(usual, key):
            raise InputError(
                f"`{key}` {value} is not for --task embedding: {reason}; leave it out"
            )
    shares = [
        getattr(bert_config if getattr(settings, name) is None else settings, name)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob")
    ]
    if settings.embedding.pairs == "dropout" and not any(shares):
        raise InputError(
            "`embedding.pairs` dropout: the encoder drops nothing, so a text is "
            "like itself anyway: --set hidden_dropout_prob=0.1"
        )
    if settings.embedding.pooling == "cls" and bert_config.attention != "bidirectional":
        raise InputError(
            "`embedding.pooling` cls: the first token of this encoder has not seen the "
            "text, because it attends to the left only: take mean"
        )


def _check_packable(task: config.Task, bert_config: config.BertConfig) -> None:
    found = f"a task of kind {task.kind}"
    if task.kind in (*text_forms.KINDS, "tagging"):
        if bert_config.attention == "bidirectional":
            return
        found = f"an encoder whose attention is {bert_config.attention}"
    raise InputError(
        "`pack_examples` is for texts and tagging with a bidirectional encoder, got "
        f"{found}: leave it out"
    )

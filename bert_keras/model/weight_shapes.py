"""Names and shapes of all weights of a network, from its configuration: no Keras."""

from bert_keras.core.settings import architecture, tasks

APART = ("query", "key", "value")
"""Parts of names: weights that a network has in one."""

LORA_PLACES: dict[tasks.LoraTarget, str] = {
    "query": "self_attention/query",
    "key": "self_attention/key",
    "value": "self_attention/value",
    "attention.output.dense": "self_attention/output_dense",
    "intermediate.dense": "feed_forward/intermediate_dense",
    "output.dense": "feed_forward/output_dense",
}
"""Parts of names: the matrices of a layer that an adapter may change."""


def all_shapes(
    bert_config: architecture.BertConfig, task: tasks.Task | None = None
) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every weight of any network, by our names; those of `head/`
    are a task's (`None`: a classifier with one output)."""
    hidden, inner = bert_config.hidden_size, bert_config.intermediate_size
    num_positions = bert_config.max_position_embeddings
    shapes = {
        "encoder/embeddings/word_embeddings": (bert_config.vocab_size, hidden),
        "encoder/embeddings/position_embeddings": (num_positions, hidden),
        "encoder/embeddings/type_embeddings": (bert_config.type_vocab_size, hidden),
        **_norm("encoder/embeddings/layer_norm", hidden),
    }
    for index in range(bert_config.num_hidden_layers):
        layer = f"encoder/layer_{index}"
        for name in (*APART, "output_dense"):
            shapes |= _dense(f"{layer}/self_attention/{name}", hidden, hidden)
        shapes |= {
            **_norm(f"{layer}/attention_layer_norm", hidden),
            **_dense(f"{layer}/feed_forward/intermediate_dense", hidden, inner),
            **_dense(f"{layer}/feed_forward/output_dense", inner, hidden),
            **_norm(f"{layer}/output_layer_norm", hidden),
        }
    shapes |= {
        **_dense("encoder/pooler", hidden, hidden),
        **_dense("masked_lm_head/transform", hidden, hidden),
        **_norm("masked_lm_head/layer_norm", hidden),
        "masked_lm_head/output_bias": (bert_config.vocab_size,),
        **_dense("next_sentence_head/classifier", hidden, 2),
    }
    # The head of a task: which layers it reads, then BiLSTMs, then the classifier.
    task = task or tasks.Task(kind="encoder")
    width, units = hidden, task.bilstm_units
    if task.feature_layers:
        num_layers = bert_config.num_hidden_layers
        count = len(tasks.feature_layer_numbers(task.feature_layers, num_layers))
        if task.feature_layers.startswith("weighted_sum"):
            shapes |= {"head/mix/scores": (count,), "head/mix/scale": ()}
        else:
            width *= count
    for index in range(task.num_bilstm_layers if units else 0):
        name = f"head/bilstm_{index}" if index else "head/bilstm"
        for direction in ("forward", "backward"):
            shapes |= {
                f"{name}/{direction}/cell/kernel": (width, 4 * units),
                f"{name}/{direction}/cell/recurrent_kernel": (units, 4 * units),
                f"{name}/{direction}/cell/bias": (4 * units,),
            }
        width = 2 * units
    return shapes | _dense("head/classifier", width, task.num_labels)


def factor_shapes(
    bert_config: architecture.BertConfig, adapter: tasks.Adapter
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the factors `a` and `b` of an adapter, by our names."""
    shapes, factors = all_shapes(bert_config), {}
    for index in range(bert_config.num_hidden_layers):
        for target in adapter.targets:
            place = f"encoder/layer_{index}/{LORA_PLACES[target]}"
            num_in, num_out = shapes[f"{place}/kernel"]
            factors[f"{place}/lora_kernel_a"] = num_in, adapter.rank
            factors[f"{place}/lora_kernel_b"] = adapter.rank, num_out
    return factors


def _dense(name: str, num_in: int, num_out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": (num_in, num_out), f"{name}/bias": (num_out,)}


def _norm(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/gamma": (size,), f"{name}/beta": (size,)}

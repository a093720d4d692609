"""Arithmetic and weights of a model, counted from its shapes: no TensorFlow."""

import math

from bert_keras.core.settings.architecture import BertConfig
from bert_keras.model import weight_shapes


def pretraining_flops_per_example(
    config: BertConfig,
    *,
    max_seq_length: int,
    num_predictions: int,
    next_sentence: bool,
    num_instances: int = 1,
) -> int:
    """Counts the floating-point operations of a pre-training step for one example.

    A multiplication with its addition counts as two operations. The matrix products of
    the encoder and of the heads count once for the forward pass, and twice as much
    again for the backward pass, which multiplies with the weights and with the inputs
    of each product. Recomputation adds nothing; padding and unused slots of predictions
    count as tokens do. The pooler and the next-sentence head count only if they are
    trained. A packed row has `num_instances` slots. Without next sentences and dropout
    the last layer computes what follows its attention for the predictions alone.

    Not counted are sums of embeddings and their lookup (also when it is a product),
    element-wise work such as softmax, norms, activations and dropout (below one
    percent), the loss, and the optimizer: see `muon_flops_per_step`.
    """
    sizes = {name: math.prod(shape) for name, shape in _kernels(config).items()}
    table = config.vocab_size * config.hidden_size
    products = num_predictions * (sizes["masked_lm_head/transform"] + table)
    if next_sentence:
        pooled = sizes["encoder/pooler"] + sizes["next_sentence_head/classifier"]
        products += num_instances * pooled
    elif not config.hidden_dropout_prob:
        last_layer = f"encoder/layer_{config.num_hidden_layers - 1}/"
        num_left_out = max_seq_length - num_predictions
        for name, size in sizes.items():
            if name.startswith(last_layer) and not name.endswith(weight_shapes.APART):
                products -= num_left_out * size
    return encoder_flops_per_example(config, max_seq_length) + 6 * products


def encoder_flops_per_example(config: BertConfig, length: int) -> int:
    """Counts the same operations of the layers alone, all tokens of the last one too,
    for an example of `length` tokens."""
    # Scores and weighted sums: all heads together have `hidden_size`.
    products = config.num_hidden_layers * 2 * length * length * config.hidden_size
    for name, shape in _kernels(config).items():
        if name.startswith("encoder/layer_"):
            products += length * math.prod(shape)
    return 6 * products


def muon_flops_per_step(config: BertConfig, *, next_sentence: bool) -> int:
    """Counts the matrix products of a step of Muon, whatever the batch.

    For each hidden matrix of m x n, m <= n, five times the Gram matrix, its square, and
    their sum times the matrix. Where n is over 1.5 m, only two Gram matrices and two
    products with the matrix, beside 14 of m x m: see `optimization.orthogonalized`.
    """
    hidden = ("encoder/layer_", "masked_lm_head/transform")
    hidden += ("encoder/pooler",) * next_sentence
    products = 0
    for name, shape in _kernels(config).items():
        if name.startswith(hidden):
            m, n = sorted(shape)
            wide, square = (4, 14) if 2 * n > 3 * m else (10, 5)
            products += wide * m * n * m + square * m * m * m
    return 2 * products


def num_weights(config: BertConfig, *, heads: bool) -> int:
    """Counts the weights of an encoder with its pooler, and of pre-training heads."""
    parts = ("encoder/", "masked_lm_head/", "next_sentence_head/")
    return sum(
        math.prod(shape)
        for name, shape in weight_shapes.all_shapes(config).items()
        if name.startswith(parts if heads else "encoder/")
    )


def _kernels(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all matrices of products; query, key and value apart."""
    return {
        name.removesuffix("/kernel"): shape
        for name, shape in weight_shapes.all_shapes(config).items()
        if name.endswith("/kernel")
    }

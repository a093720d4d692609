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
    hidden_size = config.hidden_size
    forward = _product_flops(num_predictions, hidden_size, hidden_size)
    forward += _product_flops(num_predictions, hidden_size, config.vocab_size)
    if next_sentence:
        forward += _product_flops(num_instances, hidden_size, hidden_size)
        forward += _product_flops(num_instances, hidden_size, 2)
    elif not config.hidden_dropout_prob:
        forward -= _output_flops(config, max_seq_length - num_predictions)
    return encoder_flops_per_example(config, max_seq_length) + 3 * forward


def encoder_flops_per_example(config: BertConfig, length: int) -> int:
    """Counts the same operations of the layers alone, all tokens of the last one too,
    for an example of `length` tokens."""
    hidden_size = config.hidden_size
    layer = (
        # Query, key and value.
        3 * _product_flops(length, hidden_size, hidden_size)
        # Scores and weighted sums: all heads together have `hidden_size`.
        + 2 * _product_flops(length, hidden_size, length)
        + _output_flops(config, length)
    )
    return 3 * config.num_hidden_layers * layer


def muon_flops_per_step(config: BertConfig, *, next_sentence: bool) -> int:
    """Counts the matrix products of a step of Muon, whatever the batch: for each hidden
    matrix of m x n, m <= n, five times `X X'`, its square, and their sum times X."""
    hidden, inner = config.hidden_size, config.intermediate_size
    square = _product_flops(hidden, hidden, hidden)
    short, long = min(hidden, inner), max(hidden, inner)
    # Query, key, value and output; both matrices of the feed-forward part.
    layer = 4 * 3 * square + 2 * (
        2 * _product_flops(short, long, short) + _product_flops(short, short, short)
    )
    # The transform before the masked-LM table, and the pooler.
    heads = (1 + next_sentence) * 3 * square
    return 5 * (config.num_hidden_layers * layer + heads)


def num_weights(config: BertConfig, *, heads: bool) -> int:
    """Counts the weights of an encoder with its pooler, and of pre-training heads."""
    parts = ("encoder/", "masked_lm_head/", "next_sentence_head/")
    return sum(
        math.prod(shape)
        for name, shape in weight_shapes.all_shapes(config).items()
        if name.startswith(parts if heads else "encoder/")
    )


def _output_flops(config: BertConfig, length: int) -> int:
    """Counts a layer's output projection and feed-forward part."""
    hidden_size, intermediate_size = config.hidden_size, config.intermediate_size
    return _product_flops(length, hidden_size, hidden_size) + 2 * _product_flops(
        length, hidden_size, intermediate_size
    )


def _product_flops(rows: int, inner: int, columns: int) -> int:
    return 2 * rows * inner * columns

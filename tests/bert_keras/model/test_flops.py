import math

import pytest
import tensorflow as tf

from bert_keras.core.settings import architecture
from bert_keras.model import flops, pretrainer


def product_flops(operation):
    """Operations of a matrix product of a graph, from its shapes; 0 of all else."""
    if operation.type not in ("MatMul", "BatchMatMulV2"):
        return 0
    transposed = "transpose_a" if operation.type == "MatMul" else "adj_x"
    left = operation.inputs[0].shape
    inner = left[-2] if operation.get_attr(transposed) else left[-1]
    return 2 * math.prod(operation.outputs[0].shape) * inner


def needed_operations(graph):
    """The operations that a function's outputs depend on, those that it calls among
    them."""
    seen, waiting = set(), [output.op for output in graph.outputs]
    while waiting:
        operation = waiting.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        waiting += [tensor.op for tensor in operation.inputs]
        yield operation
        if operation.type in ("PartitionedCall", "StatefulPartitionedCall"):
            called = operation.get_attr("f").name
            yield from needed_operations(graph._get_function(called).graph)


def graph_flops(network, batch):
    """Counted in the graph of a training step, without products for segments."""

    @tf.function
    def gradients(batch):
        with tf.GradientTape() as tape:
            terms = network.loss_terms(batch, network(batch, training=False))
            loss = sum(terms[name][0] for name in network.loss_names)
        return tape.gradient(loss, network.trainable_variables)

    graph = gradients.get_concrete_function(batch).graph
    type_vocab_size = network.encoder.config.type_vocab_size
    return sum(
        product_flops(operation)
        for operation in needed_operations(graph)
        # The lookup of segments is written as a product with one row per segment.
        if not any(
            type_vocab_size == dimension and tensor.shape.rank == 2
            for tensor in [*operation.inputs, *operation.outputs]
            for dimension in tensor.shape[:1]
        )
    )


@pytest.mark.parametrize(
    "next_sentence", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_counts_the_products_of_the_graph(tiny_config, make_batch, next_sentence):
    tiny_config = tiny_config.model_copy(update={"hidden_dropout_prob": 0.0})
    network = pretrainer.BertPretrainer(tiny_config, next_sentence=next_sentence)
    network.build()
    batch = make_batch(tiny_config, lengths=(16, 11, 5), num_predictions=3)
    counted = flops.pretraining_flops_per_example(
        tiny_config, max_seq_length=16, num_predictions=3, next_sentence=next_sentence
    )
    assert 3 * counted == graph_flops(network, batch)


def test_bert_base():
    """Literally: worked out by hand for the paper's model at length 128.

    A layer has 4 * 768^2 + 2 * 768 * 3072 weights in products, each used once per
    token, and 2 * 128 * 768 products per token in the attention; 12 layers, 128 tokens.
    The masked LM adds (768^2 + 768 * 30522) per prediction, the pooler 768^2 and the
    next sentence 768 * 2. Two operations each, three passes.
    """
    per_token = 12 * (7_077_888 + 196_608)
    products = 128 * per_token + 20 * (589_824 + 23_440_896) + 589_824 + 1_536
    counted = flops.pretraining_flops_per_example(
        architecture.BertConfig(),
        max_seq_length=128,
        num_predictions=20,
        next_sentence=True,
    )
    assert counted == 6 * products == 69_928_989_696
    # Fine-tuning computes all tokens of the last layer, whatever the dropout.
    for rate in (0.0, 0.1):
        sizes = architecture.BertConfig(hidden_dropout_prob=rate)
        counted = flops.encoder_flops_per_example(sizes, 128)
        assert counted == 6 * 128 * per_token == 67_041_755_136


def test_the_products_of_muon():
    """Literally: of H = 4 and matrices of 4 x 4, five iterations of three products,
    each of m * m * m; of 4 x 8 two Gram matrices, fourteen products of two polynomials
    or of a polynomial and a Gram matrix, and two products with the matrix.
    """
    sizes = architecture.BertConfig(
        hidden_size=4, num_attention_heads=2, intermediate_size=8, num_hidden_layers=2
    )
    square, wide = 5 * (64 + 64 + 64), 2 * 128 + 14 * 64 + 2 * 128
    per_layer = 4 * square + 2 * wide
    counted = flops.muon_flops_per_step(sizes, next_sentence=True)
    assert counted == 2 * (2 * per_layer + 2 * square) == 30_464

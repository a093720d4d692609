"""A step on a GPU by our own count: nothing is compiled, so it is an estimate.

What a layer keeps for its gradients is counted as in Korthikanti et al. (2022),
"Reducing Activation Recomputation in Large Transformer Models", equation 2, with the
numbers that our layers keep.
"""

from bert_keras import config
from bert_keras.model import flops
from bert_keras.tpu.preflight import compiling, steps

_BYTES_PER_UNIT = 34
"""Of each token and unit of the hidden size in a layer, in numbers of 16 bits."""
_BYTES_PER_SCORE = 7
"""Of each pair of tokens and head: the score, its probability, its dropout."""
_LOGIT_COPIES = 3
"""In float32: logits, their logarithms, the gradient."""


def estimate(step: steps.Step) -> compiling.Compiled:
    """Memory and arithmetic of one chip's share of a step."""
    num_parameters = count_parameters(step.bert_config)
    # Weights and two moments; gradients, which parts add up in a second copy.
    state = 3 * 4 * num_parameters
    gradients = 4 * num_parameters * (2 if step.num_parts > 1 else 1)
    rows = step.batch_size // step.num_parts
    is_training = step.purpose == "training"
    kept = kept_bytes(step) if is_training else layer_bytes(step)
    logits = 0
    if step.task.kind == "pretraining":
        logits = 4 * _LOGIT_COPIES * step.num_predictions * step.bert_config.vocab_size
    of_example = example_flops(step)
    return compiling.Compiled(
        seconds=0.0,
        state_bytes=state,
        argument_bytes=state,
        temporary_bytes=gradients * is_training + rows * (kept + logits),
        flops=step.batch_size * (of_example if is_training else of_example // 3),
        num_all_reduces=int(is_training and step.num_chips > 1),
        all_reduced_bytes=4 * num_parameters * (is_training and step.num_chips > 1),
    )


def kept_bytes(step: steps.Step) -> int:
    """What all layers keep of one example for the backward pass."""
    whole = layer_bytes(step)
    if step.recompute == "none":
        return step.num_layers * whole
    # One layer at a time is whole again.
    layer = whole - layer_bytes(step, scores=0)
    if step.recompute == "attention":
        return step.num_layers * (whole - layer) + layer
    inputs = _input_bytes(step)
    return step.num_layers * inputs + whole


def _input_bytes(step: steps.Step) -> int:
    """Of the vectors that a layer is given, of one example."""
    width = 4 if step.precision == "float32" else 2
    num_texts = steps.NUM_CHOICES if step.task.kind == "choice" else 1
    return width * num_texts * step.max_seq_length * step.bert_config.hidden_size


def layer_bytes(step: steps.Step, *, scores: int = _BYTES_PER_SCORE) -> int:
    """What a layer keeps of one example, so many bytes for each score."""
    length, sizes = step.max_seq_length, step.bert_config
    width = 2 if step.precision == "float32" else 1
    num_texts = steps.NUM_CHOICES if step.task.kind == "choice" else 1
    of_token = _BYTES_PER_UNIT * sizes.hidden_size
    of_token += scores * sizes.num_attention_heads * length
    return width * num_texts * length * of_token


def example_flops(step: steps.Step) -> int:
    """Operations of training on one example: forward, and twice that backward."""
    num_texts = steps.NUM_CHOICES if step.task.kind == "choice" else 1
    is_pretraining = step.task.kind == "pretraining"
    return num_texts * flops.pretraining_flops_per_example(
        step.bert_config,
        max_seq_length=step.max_seq_length,
        # A task's head is a few thousandths of the encoder.
        num_predictions=step.num_predictions if is_pretraining else 0,
        next_sentence=step.next_sentence and is_pretraining,
    )


def count_parameters(sizes: config.BertConfig) -> int:
    """Weights of the encoder with its pooler and the heads of pre-training."""
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    tables = sizes.vocab_size + sizes.max_position_embeddings + sizes.type_vocab_size
    norm = 2 * hidden
    dense = hidden * hidden + hidden
    layer = 4 * dense + hidden * inner + inner + inner * hidden + hidden + 2 * norm
    heads = dense + norm + sizes.vocab_size + 2 * hidden + 2
    pooler = dense
    return tables * hidden + norm + sizes.num_hidden_layers * layer + pooler + heads

"""From a task to the network that answers it."""

import keras

from bert_keras import config
from bert_keras.config import BertConfig
from bert_keras.model import choice, classification, encoder, pretrainer, span, tagging


def build(
    bert_config: BertConfig,
    task: config.Task,
    *,
    dropout_prob: float = 0.0,
    seed: int | None = None,
    dtype: str = "float32",
) -> keras.Model:
    """Makes the network of a task, with all its weights, which are new.

    Args:
        bert_config: sizes and shapes of the encoder.
        task: what it answers.
        dropout_prob: fraction of the head's input that is dropped in training, for the
            tasks whose heads drop any.
        seed: of weights and dropout; `None` for random ones.
        dtype: a Keras dtype policy, such as `mixed_bfloat16`.
    """
    shared = {"seed": seed, "dtype": dtype}
    head = {"dropout_prob": dropout_prob, "bilstm_units": task.bilstm_units, **shared}
    match task.kind:
        case "pretraining":
            network = pretrainer.BertPretrainer(bert_config, **shared)
        case "encoder":
            network = encoder.BertEncoder(bert_config, **shared)
        case "classification" | "regression":
            network = classification.BertClassifier(
                bert_config, task.num_labels, **head
            )
        case "tagging":
            network = tagging.BertTagger(bert_config, task.num_labels, **head)
        case "span":
            network = span.BertSpanPredictor(bert_config, **head)
        case "choice":
            network = choice.BertChooser(bert_config, **head)
    network.build()
    return network

"""All kinds of answers by name: the only list of them."""

from types import MappingProxyType
from typing import TYPE_CHECKING

from bert_keras.core.errors import InputError
from bert_keras.core.settings import config
from bert_keras.kinds import choice, masked_words, ranking, span, tagging, text, vectors
from bert_keras.kinds.kind import Kind, Labelled

if TYPE_CHECKING:
    import keras

KINDS: MappingProxyType[str, Kind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            masked_words.MaskedWords(),
            vectors.Encoder(),
            text.Classification(),
            text.MultiLabel(),
            text.Regression(),
            tagging.Tagging(),
            span.Span(),
            choice.Choice(),
            vectors.Embedding(),
            ranking.Ranking(),
        )
    }
)

LABELLED = tuple(k.name for k in KINDS.values() if isinstance(k, Labelled))
"""Names of kinds that are learnt from labelled examples: runs of `finetune`."""


def find(name: config.TaskKind) -> Kind:
    return KINDS[name]


def labelled(name: config.TaskKind) -> Labelled:
    """Returns a kind that is learnt from labelled examples, or raises an
    `InputError`."""
    kind = KINDS[name]
    if not isinstance(kind, Labelled):
        raise InputError(f"expected a model for a task, got a model for {name}")
    return kind


def build_network(
    bert_config: config.BertConfig,
    task: config.Task,
    *,
    dropout_prob: float = 0.0,
    scale: float = 20.0,
    seed: int | None = None,
    dtype: str = "float32",
) -> "keras.Model":
    """Builds the network of a task, with new weights.

    Args:
        dropout_prob: fraction of the head's input that is dropped in training, if the
            task has a head with dropout.
        scale: factor of cosines in the loss of `embedding`.
        seed: of weights and dropout; `None` for random ones.
        dtype: a Keras dtype policy, such as `mixed_bfloat16`.
    """
    network = KINDS[task.kind].network(
        bert_config,
        task,
        head={
            "dropout_prob": dropout_prob,
            "bilstm_units": task.bilstm_units,
            "num_bilstm_layers": task.num_bilstm_layers,
        },
        scale=scale,
        seed=seed,
        dtype=dtype,
        # Part of the variables' names, which Keras would number otherwise.
        name=f"bert_{task.kind}",
    )
    network.build(None)
    return network

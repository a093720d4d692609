"""Tags from the logits of a model, and their scores."""

# Sentences to score have tags; types of seqeval are narrower than what it takes.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportOptionalIterable=false

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import scipy.special
from seqeval.metrics import sequence_labeling

from bert_keras.core.errors import InputError, nearest
from bert_keras.kinds.tagging import tag_schemes
from bert_keras.kinds.tagging.ner import Sentence


def label_ids(
    sentences: Sequence[Sentence], labels: Sequence[str], *, path: str | Path
) -> np.ndarray:
    """Returns `(num_words,)` int32 label numbers, sentence after sentence."""
    places = {label: place for place, label in enumerate(labels)}
    tags = [tag for sentence in sentences for tag in sentence.tags]
    if unknown := next((tag for tag in tags if tag not in places), None):
        line = next(s.line for s in sentences if unknown in s.tags)
        raise InputError(
            f"{path}: sentence of line {line}: tag {unknown!r} was not in the training "
            f"data (known: {', '.join(labels)}){nearest(unknown, labels)}"
        )
    scheme, trained = tag_schemes.scheme_of(tags), tag_schemes.scheme_of(labels)
    if {*tags} != {tag_schemes.OUTSIDE} and scheme != trained:
        raise InputError(
            f"{path}: its tags are {scheme}, those of the training data {trained}: "
            "convert one of the two"
        )
    return np.array([places[tag] for tag in tags], np.int32)


def decode(
    word_logits: np.ndarray, labels: Sequence[str], sentences: Sequence[Sentence]
) -> list[tuple[str, ...]]:
    """Returns the most probable tag of each word of each sentence, IOB as IOB2.

    `word_logits` are `(num_words, num_labels)`, sentence after sentence. An entity that
    the model begins with `I-` is made to begin with `B-`.
    """
    tags = iter([labels[place] for place in word_logits.argmax(axis=-1)])
    rows = (list(itertools.islice(tags, len(s.words))) for s in sentences)
    return [tag_schemes.to_iob2(row) for row in rows]


def scores(
    word_logits: np.ndarray, labels: Sequence[str], sentences: Sequence[Sentence]
) -> dict[str, float]:
    """Returns scores of answers, `(num_words, num_labels)` logits, sentence after
    sentence.

    `loss` (mean cross entropy of the words, nats), `accuracy` of the words, and, if
    tags are not plain, `precision`, `recall` and `f1` of whole entities, all types
    together, as `conlleval` counts them. All but the loss are fractions of 1; 0 where
    nothing could be right.
    """
    true_label_ids = label_ids(sentences, labels, path="the data")
    log_probabilities = scipy.special.log_softmax(word_logits.astype(float), axis=-1)
    rows = np.arange(len(true_label_ids))
    by_word = {
        "loss": float(-log_probabilities[rows, true_label_ids].mean()),
        "accuracy": float((word_logits.argmax(axis=-1) == true_label_ids).mean()),
    }
    if tag_schemes.scheme_of(labels) == "plain":
        return by_word
    tags = decode(word_logits, labels, sentences)
    return by_word | entity_scores((s.tags for s in sentences), tags)


def entity_scores(
    true_tags: Iterable[Sequence[str]], predicted_tags: Iterable[Sequence[str]]
) -> dict[str, float]:
    """Returns `precision`, `recall` and `f1` of the entities of all sentences."""
    # This mode of seqeval, not its strict one, finds entities as conlleval does.
    numbers = sequence_labeling.precision_recall_fscore_support(
        [tag_schemes.in_bioes(tags) for tags in true_tags],
        [tag_schemes.in_bioes(tags) for tags in predicted_tags],
        average="micro",
        zero_division=0,
    )
    return dict(zip(("precision", "recall", "f1"), map(float, numbers), strict=False))

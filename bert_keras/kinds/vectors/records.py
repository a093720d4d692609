"""A tuned model's answer to a text whose vector is learnt."""

from bert_keras.labelled.answers import Computed, Record


class EmbeddedText(Record):
    """A text, or two, and its vector, or how much they are alike."""

    truth_name = "text_pair"

    text: str
    text_pair: str | None = None
    line: int
    label: float | None = None
    """How much they should be alike, where the file says it."""
    prediction: Computed | tuple[Computed, ...]
    """The cosine of the two vectors, or the vector of a single text."""
    rank: int | None = None
    """Place of the second text among all second texts of the file, from 1; of pairs
    without a label."""
    nearest: str | None = None
    """The wrong one that is nearest, of these."""

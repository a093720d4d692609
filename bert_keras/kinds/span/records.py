"""A tuned model's answer to a question about a text."""

from bert_keras.labelled.answers import Computed, Record


class AnsweredQuestion(Record):
    """A question about a context."""

    truth_name = "answers"

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    """The right ones; none if the question cannot be answered, or nobody said them."""
    prediction: str
    """Text of the answer; empty: the question has none."""
    probability: Computed
    """Probability of the prediction."""
    null_odds: float | None = None
    """Score of "no answer" less that of the best answer."""
    best_text: str
    """The best answer that is not empty."""

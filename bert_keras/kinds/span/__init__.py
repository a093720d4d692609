"""Answers within a text: SQuAD 1.1 and 2.0, TriviaQA and data of that shape."""

from bert_keras.kinds.kind import Labelled, Metric, Names, Usage, classifier_names
from bert_keras.labelled import degenerate, python_examples
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


class Span(Labelled):
    """Answers a question with a part of its context, or with none."""

    name = "span"
    keras_classes = ("BertSpanPredictor",)
    record = AnsweredQuestion
    form = "span"
    other_names = ("qa", "question-answering")
    suffixes = (".json",)
    unused = ("encoder/pooler/",)
    names = Names(
        hugging_face="BertForQuestionAnswering",
        pipeline="question-answering",
        heads=classifier_names(
            hugging_face="qa_outputs",
            google="cls/squad/output",
            model_garden="span_labeling/layer_with_weights-0",
        ),
    )
    own_settings = ("span",)
    has_text_pair = True
    transfers_head = judges_labels = True
    always_windows = True
    examples = "questions"
    metrics = (
        *(Metric(name, "%") for name in ("exact_match", "exact", "f1")),
        *(Metric(f"best_{name}_thresh", "odds", None) for name in ("exact", "f1")),
        *(
            Metric(name, "questions", None)
            for name in ("num_unanswered", "num_unknown", "total")
        ),
    )
    resampled = ("f1", "exact_match", "exact", "best_f1", "best_exact")
    usual = {"max_seq_length": 384}
    example = Usage(
        model="""\
pair = "Who left?", "Ada left early."
inputs = tokenizer(*pair, return_tensors="pt", truncation="only_second")
outputs = model(**inputs)
start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))""",
        strings='question=tf.constant(["Who left?"]), '
        'context=tf.constant(["Ada left."])',
    )

    def network(self, bert_config, task, *, head, **shared):
        from bert_keras.kinds.span import network

        return network.BertSpanPredictor(bert_config, **head, **shared)

    def read(self, path, settings, *, has_labels=True, **_):
        from bert_keras.kinds.span import dataset

        return dataset.read(path, self.data_set(settings), has_answers=has_labels)

    def from_python(self, examples, task):
        from bert_keras.kinds.span import dataset, squad

        def read(example, number):
            question, context = python_examples.strings(example)
            return squad.Question(str(number), question, context, ())

        expected = "a question and its context"
        fields = python_examples.read(examples, read, expected=expected)
        return dataset.SpanDataset(**fields, has_impossible=task.has_impossible)

    def main_metric(self, settings, labels):
        # Of SQuAD 2.0 with the threshold that is best on dev (section 4.3).
        return "best_f1" if settings.task == "SQuAD2.0" else "f1"

    def score(self, records, metric, *, labels):
        from bert_keras.kinds.span import squad_scores

        return squad_scores.as_sums(records, metric)

    def page(self, records, task):
        from bert_keras.kinds.span import answered_questions

        return answered_questions.describe(records, has_impossible=task.has_impossible)

    def served(self, trained, *, top_k):
        from bert_keras.kinds.span import served_spans

        return served_spans.Spans(trained)

    def label_features(self, task, rows, length):
        place = ((rows,), "int32")
        return {"start_positions": place, "end_positions": place}

    def sign(self, evaluation, answers):
        if evaluation["f1"] < 1:
            return f"F1 is {evaluation['f1']:.2f} %"
        return degenerate.sameness([answer["prediction"] for answer in answers or ()])

"""Exported answers to questions about a text, however long it is."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.graphs import graph_tokenizer, graph_windows
from bert_keras.kinds import served
from bert_keras.kinds.span import served_search, squad, squad_predictions


class Spans(served.ServedModel):
    """The answer to a question in a text.

    Strings: `question` and `context`, `(batch_size,)` each. Ids: `served.INPUT_NAMES`.

    Numbers, also those of the signature of ids: `start_logits` and `end_logits`,
    `(batch_size, sequence_length)` float32, one for each token. Answers,
    `(batch_size,)` each: `answer`, strings cut from the context, "" for no answer;
    `start` and `end`, int32: `context[start:end]` in Python is the answer; `score`,
    float32, the sum of both logits; `probability`, float32, of this answer among the
    best ones; and, if the training had questions without answer,
    `no_answer_probability`, float32.

    The context is read in windows, and the answer chosen, as in `squad.featurize` and
    `squad_predictions.predict`. A question has no answer if its odds are above the
    run's threshold, or above 0 if the run has none.
    """

    outputs = ("start_logits", "end_logits")
    windows_at_once = 16

    def __init__(self, trained: served.Trained):
        super().__init__(trained)
        self._settings = trained.settings.span
        self._has_impossible = trained.task.has_impossible
        self._threshold = float(trained.threshold or 0.0)
        if self.max_seq_length < self._settings.max_query_length + 4:
            raise InputError(
                f"{trained.path}: windows of {self.max_seq_length} tokens have no room "
                f"for {self._settings.max_query_length} of the question, 3 special "
                "tokens and some of the text"
            )

    @property
    def decisions(self):
        limits = self._settings.model_dump()
        if self._has_impossible:
            limits["no_answer_threshold"] = self._threshold
        return limits

    def signatures(self):
        names = ("question", "context")
        specs = tuple(tf.TensorSpec([None], tf.string, name) for name in names)
        return {
            served.STRINGS: served.Signature(self.answer, specs),
            served.IDS: self.numbers_signature(),
        }

    def answer(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        code_points = graph_tokenizer.decode(context)
        candidates, null_scores = self._read_all(question, code_points)
        outputs = served_search.decide(
            candidates,
            null_scores,
            has_impossible=self._has_impossible,
            n_best_size=self._settings.n_best_size,
            threshold=self._threshold,
        )
        texts = tf.range(tf.size(context, tf.int64))
        places = (tf.cast(outputs[name], tf.int64) for name in ("start", "end"))
        return {"answer": graph_tokenizer.cut(code_points, texts, *places), **outputs}

    def _read_all(
        self, question: tf.Tensor, code_points: tf.RaggedTensor
    ) -> tuple[served_search.Candidates, tf.Tensor]:
        """Returns each question's best candidates, by characters of its context, and
        its lowest score of "no answer"."""
        settings = self._settings
        queries = self._tokenizer(question)[:, : settings.max_query_length]
        pieces = self._tokenizer.locate(code_points)
        windows = graph_windows.cut(
            pieces.ids.row_lengths(),
            self.max_seq_length - 3 - queries.row_lengths(),
            settings.doc_stride,
        )
        owners = served_search.owners(windows, tf.size(pieces.ids.values))
        fingerprint = served_search.fingerprinter(code_points)

        def read(rows, state):
            candidates, null_scores = state
            here = graph_windows.Windows(*(tf.gather(v, rows) for v in windows))
            asked = tf.gather(queries, here.texts)
            tokens = tf.ragged.range(here.starts, here.ends)
            ids = tokens.with_values(tf.gather(pieces.ids.values, tokens.values))
            numbers = self.compute(
                graph_tokenizer.pack_windows(asked, ids, vocabulary=self.vocabulary)
            )
            spans = self._find(numbers, here, rows, asked.row_lengths(), owners)
            texts = tf.gather(here.texts, spans.rows)
            starts = tf.gather(pieces.starts.values, spans.first)
            ends = tf.gather(pieces.ends.values, spans.last)
            new = served_search.Candidates(
                texts, spans.scores, starts, ends, fingerprint(texts, starts, ends)
            )
            of_cls = tf.cast(numbers["start_logits"][:, 0], tf.float64)
            of_cls += tf.cast(numbers["end_logits"][:, 0], tf.float64)
            lowest = tf.math.unsorted_segment_min(of_cls, here.texts, queries.nrows())
            return (
                served_search.keep_best(
                    candidates, new, n_best_size=settings.n_best_size
                ),
                tf.minimum(null_scores, lowest),
            )

        infinite = tf.fill([queries.nrows()], tf.constant(np.inf, tf.float64))
        return graph_windows.fold(
            read,
            (served_search.no_candidates(), infinite),
            tf.size(windows.texts, tf.int64),
            windows_at_once=self.windows_at_once,
        )

    def _find(
        self,
        numbers: Mapping[str, tf.Tensor],
        windows: graph_windows.Windows,
        rows: tf.Tensor,
        query_lengths: tf.Tensor,
        owners: tf.Tensor,
    ) -> served_search.Spans:
        """Returns possible answers in some windows, which have the numbers `rows`.
        `query_lengths` are `(num_windows,)` int64; `owners` are of all tokens."""
        columns = tf.range(tf.shape(numbers["start_logits"], tf.int64)[1])
        # After [CLS] question [SEP].
        tokens = columns + (windows.starts - query_lengths - 2)[:, tf.newaxis]
        may_end = tokens >= windows.starts[:, tf.newaxis]
        may_end &= tokens < windows.ends[:, tf.newaxis]
        tokens = tf.where(may_end, tokens, 0)
        # One more, for contexts without any token.
        owners = tf.concat([owners, [-1]], 0)
        is_owner = tf.gather(owners, tokens) == rows[:, tf.newaxis]
        return served_search.find(
            numbers["start_logits"],
            numbers["end_logits"],
            tokens=tokens,
            may_begin=may_end & is_owner,
            may_end=may_end,
            n_best_size=self._settings.n_best_size,
            max_answer_length=self._settings.max_answer_length,
        )

    def id_probes(self):
        return self._python_batch(self._python_windows(_probe_questions()))

    def probes(self):
        questions = _probe_questions()
        strings = {
            name: [getattr(question, name) for question in questions]
            for name in ("question", "context")
        }
        wanted = self._python_answers(questions)
        return [served.Probe(served.STRINGS, strings, wanted), self.numbers_probe()]

    def _python_windows(self, questions: Sequence[squad.Question]) -> squad.Windows:
        return squad.featurize(
            questions,
            self.tokenizer,
            self._settings,
            max_seq_length=self.max_seq_length,
        )

    def _python_answers(
        self, questions: Sequence[squad.Question]
    ) -> dict[str, np.ndarray]:
        """Returns the answers of `squad_predictions` to the same network's scores.
        Answers are texts without places: `start` and `end` are masked if the text
        occurs more than once, and everything if another answer is as good."""
        windows = self._python_windows(questions)
        predictions = squad_predictions.predict(
            questions,
            windows,
            self._settings,
            **self._python_numbers(windows),
            has_impossible=self._has_impossible,
        )
        texts = predictions.answers(null_score_diff_threshold=self._threshold)
        rows = [
            _wanted_row(question, texts[question.id], predictions, self._threshold)
            for question in questions
        ]
        return {n: np.ma.masked_invalid([row[n] for row in rows]) for n in rows[0]}


def _probe_questions() -> list[squad.Question]:
    texts = served.PROBES
    return [
        squad.Question(str(i), texts[i - 1], texts[i], ()) for i in range(len(texts))
    ]


def _wanted_row(
    question: squad.Question,
    text: str,
    predictions: squad_predictions.Predictions,
    threshold: float,
) -> dict[str, float]:
    """Returns outputs for one question; NaN where several are right."""
    candidates = predictions.n_best[question.id]
    ranked = [c.score for c in candidates if c.text]
    gaps = [first - second for first, second in zip(ranked, ranked[1:2], strict=False)]
    no_answer = {}
    if predictions.null_odds is not None:
        gaps.append(abs(predictions.null_odds[question.id] - threshold))
        nulls = (c.probability for c in candidates if not c.text)
        no_answer = {"no_answer_probability": sum(nulls)}
    is_clear = all(gap > served.CLEAR_CUT for gap in gaps)
    is_in_one_place = is_clear and (not text or question.context.count(text) == 1)
    answer = next(c for c in candidates if c.text == text)
    start = question.context.find(text) if is_in_one_place else np.nan
    return {
        "start": start,
        "end": start + len(text),
        "score": answer.score if is_clear else np.nan,
        "probability": answer.probability if is_clear else np.nan,
        **no_answer,
    }

"""Exported answers to questions about a text, however long it is."""

import numpy as np
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.graphs import graph_tokenizer, graph_windows
from bert_keras.kinds import served
from bert_keras.kinds.span import served_search


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
    string_specs = (
        tf.TensorSpec([None], tf.string, "question"),
        tf.TensorSpec([None], tf.string, "context"),
    )
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
        return {
            served.STRINGS: served.Signature(self.answer, self.string_specs),
            served.IDS: self.numbers_signature(),
        }

    def encode(self, question, context):
        return self._pack_pairs(self._tokenizer(question), self._tokenizer(context))

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
        # 1. Cut texts into tokens, and contexts into windows.
        settings = self._settings
        queries = self._tokenizer(question)[:, : settings.max_query_length]
        pieces = self._tokenizer.locate(code_points)
        windows = graph_windows.cut(
            pieces.ids.row_lengths(),
            self.max_seq_length - 3 - queries.row_lengths(),
            settings.doc_stride,
        )
        owners = served_search.owners(windows, tf.size(pieces.ids.values))
        # One more, for contexts without any token.
        owners = tf.concat([owners, [-1]], 0)
        fingerprint = served_search.fingerprinter(code_points)

        def read(rows, state):
            candidates, null_scores = state
            # 2. Score the tokens of some windows.
            here = graph_windows.Windows(*(tf.gather(v, rows) for v in windows))
            asked = tf.gather(queries, here.texts)
            tokens = tf.ragged.range(here.starts, here.ends)
            ids = tokens.with_values(tf.gather(pieces.ids.values, tokens.values))
            # An empty window gets its [SEP] too.
            once = tf.ones_like(here.texts)
            packed = graph_tokenizer.pack(asked, ids, once, vocabulary=self.vocabulary)
            numbers = self.compute(packed)
            logits = numbers["start_logits"], numbers["end_logits"]
            # 3. Number the columns' tokens, which follow [CLS] question [SEP].
            columns = tf.range(tf.shape(logits[0], tf.int64)[1])
            first_columns = asked.row_lengths() + 2
            tokens = columns + (here.starts - first_columns)[:, tf.newaxis]
            is_context = tokens >= here.starts[:, tf.newaxis]
            is_context &= tokens < here.ends[:, tf.newaxis]
            tokens = tf.where(is_context, tokens, 0)
            # 4. Combine first and last tokens, and keep the best answers so far.
            rows, first, last, scores = served_search.find(
                *logits,
                tokens=tokens,
                may_begin=is_context & (tf.gather(owners, tokens) == rows[:, None]),
                may_end=is_context,
                n_best_size=settings.n_best_size,
                max_answer_length=settings.max_answer_length,
            )
            texts = tf.gather(here.texts, rows)
            starts = tf.gather(pieces.starts.values, first)
            ends = tf.gather(pieces.ends.values, last)
            texts_of_spans = fingerprint(texts, starts, ends)
            new = served_search.Candidates(
                *(texts, scores, starts, ends, texts_of_spans)
            )
            best = served_search.keep_best(
                candidates, new, n_best_size=settings.n_best_size
            )
            # 5. "No answer" has the score of [CLS] where it is lowest.
            of_cls = tf.add_n([tf.cast(v[:, 0], tf.float64) for v in logits])
            lowest = tf.math.unsorted_segment_min(of_cls, here.texts, queries.nrows())
            return best, tf.minimum(null_scores, lowest)

        dtypes = (tf.int64, tf.float64, tf.int32, tf.int32, tf.int64)
        none = served_search.Candidates(*(tf.zeros([0], dtype) for dtype in dtypes))
        infinite = tf.fill([queries.nrows()], tf.constant(np.inf, tf.float64))
        num_windows = tf.size(windows.texts, tf.int64)
        return graph_windows.fold(
            read, (none, infinite), num_windows, windows_at_once=self.windows_at_once
        )

    def expected_outputs(self, answers):
        for record in answers.records(threshold=self._threshold):
            odds = record.null_odds
            if odds is not None and abs(odds - self._threshold) < self.clear_cut:
                yield {}
            elif record.probability > 0.75:
                answer = record.prediction.encode()
                yield {"probability": record.probability, "answer": answer}
            else:
                # Another answer may be almost as probable.
                yield {"probability": record.probability}

"""Exported pre-trained models: guesses for every `[MASK]` of a text."""

import tensorflow as tf

from bert_keras.data import features
from bert_keras.graphs import graph_tokenizer
from bert_keras.kinds import served


class MaskedWords(served.DirectAnswers):
    """The likeliest `top_k` tokens for every `[MASK]` of a text.

    Strings: `text`, with `[MASK]` for each word to guess. Ids: `served.INPUT_NAMES` and
    `masked_lm_positions`, `(batch_size, num_positions)` int32, padded with 0.

    Numbers: `masked_lm_logits`, `(batch_size, num_positions, vocab_size)` float32.
    Answers: `num_masks`, `(batch_size,)` int32, the number of `[MASK]` in the text
    before the place where a long one is cut; `masked_lm_positions`, `(batch_size,
    num_positions)` int32, their places among the tokens, padded with 0 (there is always
    one column); and for each the most probable tokens, best first: `tokens`,
    `(batch_size, num_positions, top_k)` strings, padded with "", and `probabilities`,
    the same shape, float32, padded with 0.
    """

    outputs = ("masked_lm_logits",)
    column_count = "num_masks"
    id_specs = (
        *served.ID_SPECS,
        tf.TensorSpec([None, None], tf.int32, "masked_lm_positions"),
    )

    def __init__(self, trained: served.Trained, *, top_k: int):
        super().__init__(trained)
        self.top_k = min(top_k, len(self.vocabulary))
        self._tokens = tf.constant(self.vocabulary.tokens)

    def encode(self, text):
        # Every literal `[MASK]` is one token, before all parts of a text but the first:
        # the tokenizer itself splits `[MASK]` like any text.
        parts = tf.strings.split(text, features.MASK_TOKEN)
        place_in_text = tf.ragged.range(parts.row_lengths()).flat_values
        num_before = tf.cast(place_in_text > 0, tf.int64)
        masks = graph_tokenizer.repeat(self.vocabulary.mask_id, num_before)
        ids = tf.concat([masks, self._tokenizer(parts.flat_values)], axis=1)
        ids = self._pack_pairs(parts.with_values(ids).merge_dims(1, 2))
        # No text can spell the id but by `[MASK]` itself.
        places = tf.where(ids["input_ids"] == self.vocabulary.mask_id)
        positions = tf.RaggedTensor.from_value_rowids(
            tf.cast(places[:, 1], tf.int32), places[:, 0], tf.size(text, tf.int64)
        ).to_tensor()
        # No positions at all are no input for the head.
        missing = tf.cast(tf.equal(tf.shape(positions)[1], 0), tf.int32)
        return {**ids, "masked_lm_positions": tf.pad(positions, [[0, 0], [0, missing]])}

    def present(self, ids, numbers):
        probabilities = tf.nn.softmax(numbers["masked_lm_logits"])
        # An embedding may have more rows than the vocabulary has entries.
        probabilities, best = tf.math.top_k(
            probabilities[..., : len(self.vocabulary)], self.top_k
        )
        positions = ids["masked_lm_positions"]
        # The first token, [CLS], is never masked.
        is_mask = (positions > 0)[..., tf.newaxis]
        return {
            "num_masks": tf.math.count_nonzero(positions, axis=1, dtype=tf.int32),
            "masked_lm_positions": positions,
            "tokens": tf.where(is_mask, tf.gather(self._tokens, best), ""),
            "probabilities": tf.where(is_mask, probabilities, 0.0),
        }

    def expected_outputs(self, answers):
        """Yields the probabilities of the guesses for each text; `answers` are empty
        for texts that cannot be asked in Python: without a mask, or too long."""
        for masks in answers:
            guesses = [[guess.probability for guess in mask] for mask in masks]
            yield {"probabilities": guesses} if guesses else {}

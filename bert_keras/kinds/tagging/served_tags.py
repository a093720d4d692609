"""Exported taggers: the entities of a text, or a tag for each word of sentences.

Words are end to end, sentence after sentence, and so are their pieces. Two sentences of
three words, of which each fits into a window:

    sentences       0      0      0      1      1      1
    spelled         Ada    met    Eve    New    York   .
    pieces          A ##da met    Eve    New    York   .
    starts          0      2      3      4      5      6     (and 7, the end)
    window          0      0      0      1      1      1
    positions       1      3      4      1      2      3     (after [CLS])
    best label      B-PER  O      I-PER  I-LOC  I-LOC  O
    types           PER           PER    LOC    LOC
    begins_entity   yes    no     yes    yes    no     no
    tags            B-PER  O      B-PER  B-LOC  I-LOC  O
    entity          0             1      2      2

A position is `1 + starts[word] - starts[first word of the window]`. An `I-` after
another type, another sentence or `O` begins an entity, as in `tag_schemes.to_iob2`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.special
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.graphs import graph_tokenizer, graph_windows
from bert_keras.kinds import served
from bert_keras.kinds.tagging import tag_schemes

WORDS = "words"
"""Signature for sentences given as words."""

DOCUMENTS = "documents"
"""Signature for sentences given as words, with the names of their documents."""


class Tags(served.ServedModel):
    """Entities of texts, and tags of words.

    Strings: `text`, `(batch_size,)`, whose words `graph_tokenizer.WordSplitter` finds.
    Answers, the entities of each text in order: `num_entities`, `(batch_size,)` int32;
    and, `(batch_size, num_entities)` each, padded with "" and 0, with one column at
    least: `entity`, strings, as in the text; `type`, strings; `start` and `end`, int32:
    `text[start:end]` in Python is the entity; `probability`, float32, the mean of its
    words. Of a calibrated run it is the calibrated one, and entities below the
    threshold are left out.

    Signature `words`: `words`, `(batch_size, num_words)` strings, padded with "".
    Answers, of the same shape: `tags`, strings, as `TaggingAnswers` has them, and
    `probability`, float32, of each tag; "" and 0 for padding. Of a calibrated run the
    words of an entity have its calibrated probability, also where the tag is `O`
    because the entity is left out.

    Signature `documents`, if the model was trained with documents around its sentences:
    `words` as before, and `document`, `(batch_size,)` strings. Consecutive sentences
    with the same document are context for each other. Answers as for `words`.

    Ids: `served.INPUT_NAMES`. Numbers, also those of the signature of ids: `logits`,
    `(batch_size, sequence_length, num_labels)` float32, of each token. With
    `feature_layers`, ids have `word_positions` too and logits are of words, see
    `network.BertTagger`.

    Without documents, a sentence has no context. Long ones go through windows, as in
    `ner_windows.tokenize`.
    """

    column_count = "num_entities"

    def __init__(self, trained: served.Trained):
        if trained.task.labels is None:
            raise InputError(
                f"{trained.path}: tagging needs labels, its task.json has none"
            )
        super().__init__(trained)
        self.labels = trained.task.labels
        self.has_documents = trained.settings.document_context
        self.has_places = trained.task.feature_layers is not None
        if self.has_places:
            places = tf.TensorSpec([None, None], tf.int32, "word_positions")
            self.id_specs = (*served.ID_SPECS, places)
        self._split = graph_tokenizer.WordSplitter()

    def signatures(self):
        padded_words = tf.TensorSpec([None, None], tf.string, "words")
        document = tf.TensorSpec([None], tf.string, "document")
        of_all = super().signatures()
        signatures = {
            served.STRINGS: of_all.pop(served.STRINGS),
            WORDS: served.Signature(self.tag_words, (padded_words,)),
            **of_all,
        }
        if self.has_documents:
            inputs = (padded_words, document)
            signatures[DOCUMENTS] = served.Signature(
                self.tag_words, inputs, is_by_row=False
            )
        return signatures

    def tag_words(
        self, padded: tf.Tensor, document: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        # 1. Put the words of all sentences end to end.
        places, shape = tf.where(padded != ""), tf.shape(padded, tf.int64)
        sentences = places[:, 0]
        spelled = tf.RaggedTensor.from_value_rowids(
            tf.gather_nd(padded, places), sentences, nrows=shape[0], validate=False
        )
        # 2. Number the documents: equal names in a row are one. The first name is not
        # new, and without any sentence there is none.
        documents = None
        if document is not None:
            is_new = [document[:1] != document[:1], document[1:] != document[:-1]]
            documents = tf.cumsum(tf.cast(tf.concat(is_new, 0), tf.int64))
        # 3. Tag them, and put the tags where the words were.
        logits = self._logits(spelled.values, spelled.row_lengths(), documents)
        tagged = tag(logits, sentences, self.labels, self.decision)
        return {
            "tags": tf.scatter_nd(places, tagged.tags, shape),
            "probability": tf.scatter_nd(places, tagged.probabilities, shape),
        }

    def answer(self, text):
        # 1. Find the words of all texts, and tag them.
        code_points = graph_tokenizer.decode(text)
        starts, ends = self._split(code_points)
        sentences = starts.value_rowids()
        spelled = graph_tokenizer.cut(
            code_points, sentences, starts.values, ends.values
        )
        logits = self._logits(spelled, starts.row_lengths())
        tagged = tag(logits, sentences, self.labels, self.decision)
        # 2. Describe each entity by its first and last word.
        first, last, probabilities = tagged.entities()
        sentence = tf.gather(sentences, first)
        start = tf.gather(starts.values, first)
        end = tf.gather(ends.values, last)
        columns = {
            "entity": graph_tokenizer.cut(code_points, sentence, start, end),
            "type": tf.gather(tagged.types, first),
            "start": tf.cast(start, tf.int32),
            "end": tf.cast(end, tf.int32),
            "probability": probabilities,
        }
        # 3. Give each text a row of entities.
        num_texts = tf.size(text, tf.int64)
        num_entities = tf.math.bincount(
            tf.cast(sentence, tf.int32), minlength=tf.size(text), dtype=tf.int32
        )
        longest = tf.reduce_max(tf.concat([num_entities, [1]], 0))
        shape = tf.stack([num_texts, tf.cast(longest, tf.int64)])
        rows = {
            name: tf.RaggedTensor.from_value_rowids(
                values, sentence, nrows=num_texts, validate=False
            ).to_tensor(shape=shape)
            for name, values in columns.items()
        }
        return {"num_entities": num_entities, **rows}

    def _logits(
        self,
        spelled: tf.Tensor,
        num_words: tf.Tensor,
        documents: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns the logits of all words, `(num_words, num_labels)` float32.

        `spelled` are `(num_words,)` strings, sentence after sentence, and `num_words`
        `(batch_size,)` int64; `documents` are as for `cut_windows`.
        """
        # 1. Cut each word into pieces; one of control characters only is unknown.
        max_pieces = self.max_seq_length - 2
        pieces = self._tokenizer(spelled)[:, :max_pieces]
        is_unknown = tf.cast(pieces.row_lengths() == 0, tf.int64)
        unknown = graph_tokenizer.repeat(self.vocabulary.unk_id, is_unknown)
        pieces = tf.concat([pieces, unknown], axis=1)
        starts = pieces.row_splits
        # 2. Cut the sentences into windows, of which each answers for its own words.
        windows = cut_windows(
            num_words, starts, max_pieces=max_pieces, documents=documents
        )

        def read(rows, logits):
            here = WordWindows(*(tf.gather(v, rows) for v in windows))
            first_pieces = tf.gather(starts, here.begins)
            tokens = tf.ragged.range(first_pieces, tf.gather(starts, here.ends))
            ids = self._pack_pairs(
                tokens.with_values(tf.gather(pieces.values, tokens.values))
            )
            own = tf.ragged.range(here.own_begins, here.own_ends)
            window = own.value_rowids()
            positions = 1 + tf.gather(starts, own.values)
            positions -= tf.gather(first_pieces, window)
            if self.has_places:
                # The network answers for words; a word is found by its number.
                places = own.with_values(tf.cast(positions, tf.int32))
                ids["word_positions"] = places.to_tensor()
                positions = own.values - tf.gather(here.own_begins, window)
            of_windows = self.compute(ids)["logits"]
            of_words = tf.gather_nd(of_windows, tf.stack([window, positions], axis=1))
            return tf.concat([logits, of_words], 0)

        # 3. Read the windows; their own words in order are all words.
        return graph_windows.fold(
            read,
            tf.zeros([0, len(self.labels)]),
            tf.size(windows.begins, tf.int64),
            windows_at_once=self.windows_at_once,
        )

    def encode(self, text):
        """Makes ids of a text as one sentence, whose words are single pieces."""
        ids = super().encode(text)
        if self.has_places:
            places = tf.cumsum(ids["input_mask"], axis=1)
            # All tokens but [CLS] and [SEP], from 1 on.
            num_words = tf.reduce_sum(ids["input_mask"], axis=1, keepdims=True) - 2
            ids["word_positions"] = tf.where(places <= num_words, places, 0)
        return ids

    def expected_outputs(self, answers):
        # The probability of the best tag less that of the second; with a column of 0,
        # for a model of a single label.
        probabilities = scipy.special.softmax(answers.word_logits, axis=-1)
        ranked = np.sort(np.pad(probabilities, [(0, 0), (1, 0)]), axis=-1)
        is_clear = iter(ranked[:, -1] - ranked[:, -2] >= self.clear_cut)
        decision = self.decision
        every = answers.entities(answers.tags(), decision)
        for record in answers.records(decision=decision):
            gaps = [abs(p - decision.threshold) for _, p in next(every)]
            clear = [next(is_clear) for _ in record.words]
            clear += [not decision.is_promise or gap >= self.clear_cut for gap in gaps]
            if all(clear):
                columns = {
                    name: [getattr(entity, name) for entity in record.entities]
                    for name in ("start", "end", "probability")
                }
                yield {"num_entities": len(record.entities), **columns}
            else:
                yield {}


class Tagged(NamedTuple):
    """The words of a batch with their tags, `(num_words,)` each."""

    tags: tf.Tensor
    """Strings, IOB as IOB2."""
    types: tf.Tensor
    """Strings: types of entities; "" outside of them."""
    probabilities: tf.Tensor
    """float32, probability of the tag."""
    begins_entity: tf.Tensor
    """bool."""

    def entities(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns first word, last word and mean probability of each entity."""
        words = tf.where(self.types != "")[:, 0]
        begins = tf.gather(self.begins_entity, words)
        entity = tf.cumsum(tf.cast(begins, tf.int32)) - 1
        return (
            tf.boolean_mask(words, begins),
            tf.math.segment_max(words, entity),
            tf.math.segment_mean(tf.gather(self.probabilities, words), entity),
        )


def tag(
    logits: tf.Tensor,
    sentences: tf.Tensor,
    labels: Sequence[str],
    decision: tasks.Decision = tasks.LIKELIEST,
) -> Tagged:
    """Chooses the most probable labels of words, and finds where entities begin;
    `sentences` are `(num_words,)` numbers, ascending. Entities that are too improbable
    for a promise are no entities."""
    label_ids = tf.argmax(logits, axis=-1)

    def of_words(values):
        return tf.gather(tf.constant(values), label_ids)

    def before(values, first):
        return tf.concat([tf.constant([first], values.dtype), values], 0)[:-1]

    marked = [*map(tag_schemes.as_entity_tag, labels)]
    types = of_words([label[2:] for label in marked])
    is_begin = of_words([label.startswith(tag_schemes.BEGINS) for label in marked])
    is_end = of_words([label.startswith(tag_schemes.ENDS) for label in marked])
    continues = (before(types, "") == types) & (before(sentences, -1) == sentences)
    continues &= ~before(is_end, False)
    begins_entity = (types != "") & (is_begin | ~continues)
    as_begins = [f"B-{x[2:]}" if x.startswith("I-") else x for x in labels]
    tags = tf.where(begins_entity, of_words(as_begins), of_words([*labels]))
    # The log odds of a mean near 1 need more digits than float32 has.
    shares = tf.nn.softmax(tf.cast(logits, tf.float64))
    probabilities = tf.reduce_max(shares, axis=-1)
    if decision.is_promise:
        # Entity 0 are all words outside of entities.
        is_in = types != ""
        numbers = tf.cumsum(tf.cast(begins_entity, tf.int32))
        entity = tf.where(is_in, numbers, 0)
        mean = tf.math.unsorted_segment_mean(
            probabilities, entity, 1 + tf.reduce_max(tf.concat([[0], numbers], 0))
        )
        log_odds = tf.math.log(mean) - tf.math.log1p(-mean)
        calibrated = tf.gather(tf.sigmoid(log_odds / decision.temperature), entity)
        is_given = decision.is_given(calibrated) | ~is_in
        tags = tf.where(is_given, tags, tag_schemes.OUTSIDE)
        types, begins_entity = tf.where(is_given, types, ""), begins_entity & is_given
        probabilities = tf.where(is_in, calibrated, probabilities)
    probabilities = tf.cast(probabilities, tf.float32)
    return Tagged(tags, types, probabilities, begins_entity)


class WordWindows(NamedTuple):
    """Windows over the sentences of a batch, in order, `(num_windows,)` int64 each.

    Words are counted from the first word of the first sentence. Every word is a
    window's own exactly once, in this order.
    """

    own_begins: tf.Tensor
    """First own word: a window answers for its own words."""
    own_ends: tf.Tensor
    """The word after the last own one."""
    begins: tf.Tensor
    """First word in the window."""
    ends: tf.Tensor
    """The word after the last one in it."""


def cut_windows(
    num_words: tf.Tensor,
    starts: tf.Tensor,
    *,
    max_pieces: int,
    documents: tf.Tensor | None = None,
) -> WordWindows:
    """Returns the windows of `ner_windows.tokenize`, for a batch.

    Args:
        num_words: `(batch_size,)` int64: length of each sentence.
        starts: `(num_words + 1,)` int64: first piece of each word, and the end of the
            last word. A word has one to `max_pieces` pieces.
        max_pieces: length of a window.
        documents: `(batch_size,)` int64, ascending from 0 in steps of 1 at most: the
            document of each sentence, whose words fill its windows; `None`: each
            sentence is a document.
    """

    def first_from(pieces):
        """Returns the first word that begins at a piece or after it; for one piece more
        the word after the last that ends there."""
        # The operation of `tf.searchsorted`, which cannot search for nothing.
        return tf.raw_ops.LowerBound(
            sorted_inputs=starts[tf.newaxis], values=[pieces], out_type=tf.int64
        )[0]

    # 1. Where each word's sentence ends. Windows over long sentences have half the
    # length, so that words at the cuts have neighbours.
    begins = tf.cumsum(num_words, exclusive=True)
    num_pieces = tf.gather(starts, begins + num_words) - tf.gather(starts, begins)
    longest = tf.where(num_pieces > max_pieces, max_pieces // 2, max_pieces)
    last, longest = (
        tf.repeat(values, num_words) for values in (begins + num_words, longest)
    )
    # 2. Where a window's own words end if they begin with a word; so, followed from the
    # first word of all sentences at once, which words begin a window.
    words = tf.range(tf.size(last, tf.int64))
    fitting = first_from(starts[:-1] + tf.cast(longest, tf.int64) + 1) - 1
    next_begins = tf.minimum(last, tf.maximum(words + 1, fitting))

    def follow(current, reached):
        following = tf.gather(next_begins, current)
        is_in = following < tf.gather(last, current)
        reached = tf.concat([reached, current], 0)
        return tf.boolean_mask(following, is_in), reached

    # Each step goes on to the next window of all sentences, so that there are as many
    # steps as windows of the longest one; the sort puts the windows in order again.
    _, own_begins = tf.while_loop(
        lambda current, reached: tf.size(current) > 0,
        follow,
        (tf.boolean_mask(begins, num_words > 0), tf.zeros([0], tf.int64)),
        shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None])),
    )
    own_begins = tf.sort(own_begins)
    own_ends = tf.gather(next_begins, own_begins)
    # 3. Add words of the sentence, or of its document: half of the room on each side,
    # and room that one side leaves on the other.
    if documents is None:
        documents = tf.range(tf.size(num_words, tf.int64))
    counts = tf.math.segment_sum(num_words, documents)
    owners = tf.gather(tf.repeat(documents, num_words), own_begins)
    last = tf.gather(tf.cumsum(counts), owners)
    first = last - tf.gather(counts, owners)
    begin_pieces = tf.gather(starts, own_begins)
    room = max_pieces - (tf.gather(starts, own_ends) - begin_pieces)
    begins = tf.maximum(first, first_from(begin_pieces - room // 2))
    ends = first_from(tf.gather(starts, begins) + max_pieces + 1) - 1
    ends = tf.minimum(last, ends)
    begins = first_from(tf.gather(starts, ends) - max_pieces)
    return WordWindows(own_begins, own_ends, tf.maximum(first, begins), ends)

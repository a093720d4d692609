"""Exported taggers: the entities of a text, or a tag for each word of sentences.

Words are end to end, sentence after sentence, and so are pieces. In the graph, two
sentences of three words become, in windows of 6 pieces,

    sentences       0      0      0      1      1      1
    words           Ada    met    Eve    New    York   .
    pieces          a ##da met    Eve    New    York   .
    starts          0      2      3      4      5      6     (and 7, the end)
    label_ids       B-PER  O      I-PER  I-LOC  I-LOC  O
    is_in_entity    yes    no     yes    yes    yes    no
    begins_entity   yes    no     yes    yes    no     no
    entity          0             1      2      2

An `I-` after another type, another sentence or `O` begins an entity, as in
`tag_schemes.to_iob2`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.special
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.graphs import graph_tokenizer, graph_windows
from bert_keras.kinds import served
from bert_keras.kinds.tagging import (
    dataset,
    ner,
    ner_windows,
    served_windows,
    tag_schemes,
)

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
    words.

    Signature `words`: `words`, `(batch_size, num_words)` strings, padded with "".
    Answers, of the same shape: `tags`, strings, as `tag_scores.decode` has them, and
    `probability`, float32, of each tag; "" and 0 for padding.

    Signature `documents`, if the model was trained with documents around its sentences:
    `words` as before, and `document`, `(batch_size,)` strings. Consecutive sentences
    with the same document are context for each other. Answers as for `words`.

    Ids: `served.INPUT_NAMES`. Numbers, also those of the signature of ids: `logits`,
    `(batch_size, sequence_length, num_labels)` float32, of each token. With
    `feature_layers`, ids have `word_positions` too and logits are of words, see
    `network.BertTagger`.

    Without documents, a sentence has no context. Long ones go through windows, as in
    `ner_windows.tokenize`. Of plain labels but `O`, equal ones in a row are one
    entity.
    """

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
        text = tf.TensorSpec([None], tf.string, "text")
        padded_words = tf.TensorSpec([None, None], tf.string, "words")
        document = tf.TensorSpec([None], tf.string, "document")
        signatures = {
            served.STRINGS: served.Signature(self.find_entities, (text,)),
            WORDS: served.Signature(self.tag_words, (padded_words,)),
            served.IDS: self.numbers_signature(),
        }
        if self.has_documents:
            inputs = (padded_words, document)
            signatures[DOCUMENTS] = served.Signature(self.tag_words, inputs)
        return signatures

    def tag_words(
        self, padded: tf.Tensor, document: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        places = tf.where(padded != "")
        sentences = places[:, 0]
        shape = tf.shape(padded, tf.int64)
        spelled = tf.RaggedTensor.from_value_rowids(
            tf.gather_nd(padded, places), sentences, nrows=shape[0], validate=False
        )
        documents = None if document is None else _number(document)
        logits = self._logits(spelled.values, spelled.row_lengths(), documents)
        tagged = _tag(logits, sentences, self.labels)
        names = tf.constant([*self.labels, *map(_as_begin, self.labels)])
        is_begin = tf.cast(tagged.begins_entity, tf.int32)
        tags = tf.gather(names, tagged.label_ids + len(self.labels) * is_begin)
        return {
            "tags": tf.scatter_nd(places, tags, shape),
            "probability": tf.scatter_nd(places, tagged.probabilities, shape),
        }

    def find_entities(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        code_points = graph_tokenizer.decode(text)
        starts, ends = self._split(code_points)
        sentences = starts.value_rowids()
        spelled = graph_tokenizer.cut(
            code_points, sentences, starts.values, ends.values
        )
        logits = self._logits(spelled, starts.row_lengths())
        tagged = _tag(logits, sentences, self.labels)
        first, last, probabilities = _entities(tagged)
        sentence = tf.gather(sentences, first)
        start = tf.gather(starts.values, first)
        end = tf.gather(ends.values, last)
        types = tf.constant([_marked(label)[2:] for label in self.labels])
        columns = {
            "entity": graph_tokenizer.cut(code_points, sentence, start, end),
            "type": tf.gather(types, tf.gather(tagged.label_ids, first)),
            "start": tf.cast(start, tf.int32),
            "end": tf.cast(end, tf.int32),
            "probability": probabilities,
        }
        rows = {
            name: tf.RaggedTensor.from_value_rowids(
                values, sentence, nrows=tf.size(text, tf.int64), validate=False
            )
            for name, values in columns.items()
        }
        num_entities = rows["start"].row_lengths()
        num_columns = tf.reduce_max(tf.concat([num_entities, [1]], 0))
        shape = tf.stack([tf.size(text, tf.int64), num_columns])
        padded = {name: values.to_tensor(shape=shape) for name, values in rows.items()}
        return {"num_entities": tf.cast(num_entities, tf.int32), **padded}

    def _logits(
        self,
        spelled: tf.Tensor,
        num_words: tf.Tensor,
        documents: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns the logits of all words, `(num_words, num_labels)` float32.

        `spelled` are `(num_words,)` strings, sentence after sentence, and `num_words`
        `(batch_size,)` int64; `documents` are as for `served_windows.cut_windows`.
        """
        max_pieces = self.max_seq_length - 2
        pieces = self._tokenizer(spelled)[:, :max_pieces]
        # A word of control characters only.
        is_unknown = tf.cast(pieces.row_lengths() == 0, tf.int64)
        unknown = graph_tokenizer.repeat(self.vocabulary.unk_id, is_unknown)
        pieces = tf.concat([pieces, unknown], axis=1)
        starts = pieces.row_splits
        windows = served_windows.cut_windows(
            num_words, starts, max_pieces=max_pieces, documents=documents
        )

        def read(rows, logits):
            of_rows = served_windows.Windows(*(tf.gather(v, rows) for v in windows))
            return tf.concat([logits, self._read(of_rows, pieces, starts)], 0)

        return graph_windows.fold(
            read,
            tf.zeros([0, len(self.labels)]),
            tf.size(windows.begins, tf.int64),
            windows_at_once=self.windows_at_once,
        )

    def _read(
        self,
        windows: served_windows.Windows,
        pieces: tf.RaggedTensor,
        starts: tf.Tensor,
    ) -> tf.Tensor:
        """Returns the logits of the own words of some windows, one after another."""
        first_pieces = tf.gather(starts, windows.begins)
        tokens = tf.ragged.range(first_pieces, tf.gather(starts, windows.ends))
        ids = self._pack(tokens.with_values(tf.gather(pieces.values, tokens.values)))
        own = tf.ragged.range(windows.own_begins, windows.own_ends)
        rows = own.value_rowids()
        # After [CLS].
        positions = 1 + tf.gather(starts, own.values) - tf.gather(first_pieces, rows)
        if self.has_places:
            places = own.with_values(tf.cast(positions, tf.int32))
            ids["word_positions"] = places.to_tensor()
            positions = own.values - tf.gather(windows.own_begins, rows)
        return tf.gather_nd(
            self.compute(ids)["logits"], tf.stack([rows, positions], axis=1)
        )

    def id_probes(self):
        return self._python_batch(self._python_words(_probe_sentences()))

    def probes(self):
        sentences = _probe_sentences()
        logits = self._python_logits(sentences)
        words = served.Probe(WORDS, *_of_words(sentences, logits))
        probes = [words, self._text_probe(sentences, logits), self.numbers_probe()]
        if self.has_documents:
            # Of two sentences each.
            sentences = [s._replace(document=s.document // 2) for s in sentences]
            inputs, wanted = _of_words(
                sentences, self._python_logits(sentences, document_context=True)
            )
            names = np.array([str(sentence.document) for sentence in sentences], "O")
            inputs["document"] = names
            probes.append(served.Probe(DOCUMENTS, inputs, wanted))
        return probes

    def _text_probe(
        self, sentences: Sequence[ner.Sentence], logits: np.ndarray
    ) -> served.Probe:
        """Returns a probe of the texts whose tags, and so all entities, are clear."""
        num_words = [len(sentence.words) for sentence in sentences]
        sentence_of = np.repeat(np.arange(len(sentences)), num_words)
        unclear = {*sentence_of[_margins(logits) < served.CLEAR_CUT].tolist()}
        labels = tuple(map(_marked, self.labels))
        answers = dataset.TaggingAnswers(
            sentences=sentences, word_logits=logits, labels=labels
        )
        records = [
            record
            for number, record in enumerate(answers.records())
            if number not in unclear
        ]
        counts = [len(record.entities) for record in records]
        entities = [entity for record in records for entity in record.entities]
        wanted = {
            name: _padded(
                counts, np.array([getattr(entity, name) for entity in entities])
            )
            for name in ("start", "end", "probability")
        }
        wanted["num_entities"] = np.array(counts, np.int32)
        texts = np.array([record.text for record in records], "O")
        return served.Probe(served.STRINGS, {"text": texts}, wanted)

    def _python_words(
        self, sentences: Sequence[ner.Sentence], *, document_context: bool = False
    ) -> ner_windows.TokenizedWords:
        return ner_windows.tokenize(
            sentences,
            self.tokenizer,
            max_seq_length=self.max_seq_length,
            document_context=document_context,
            has_places=self.has_places,
        )

    def _python_logits(
        self, sentences: Sequence[ner.Sentence], *, document_context: bool = False
    ) -> np.ndarray:
        """Returns `(num_words, num_labels)`, sentence after sentence."""
        words = self._python_words(sentences, document_context=document_context)
        return self._python_numbers(words)["logits"]


class _Tagged(NamedTuple):
    """The words of a batch with their tags, `(num_words,)` each."""

    label_ids: tf.Tensor
    """int32."""
    probabilities: tf.Tensor
    """float32, probability of the label."""
    begins_entity: tf.Tensor
    is_in_entity: tf.Tensor


def _tag(logits: tf.Tensor, sentences: tf.Tensor, labels: Sequence[str]) -> _Tagged:
    """Returns the most probable tags, and beginnings of entities, see `_marked`."""
    label_ids = tf.argmax(logits, axis=-1, output_type=tf.int32)

    def of_labels(values):
        return tf.gather(tf.constant(values), label_ids)

    marked = [_marked(label) for label in labels]
    types = [label[2:] for label in marked]
    type_ids = of_labels([types.index(name) for name in types])
    is_begin = of_labels([label.startswith(tag_schemes.BEGINS) for label in marked])
    is_end = of_labels([label.startswith(tag_schemes.ENDS) for label in marked])
    is_in_entity = of_labels([name != "" for name in types])
    continues_type = _shift(type_ids, -1) == type_ids
    continues_sentence = _shift(sentences, -1) == sentences
    continues = continues_type & continues_sentence & ~_shift(is_end, False)
    return _Tagged(
        label_ids=label_ids,
        probabilities=tf.reduce_max(tf.nn.softmax(logits), axis=-1),
        begins_entity=is_in_entity & (is_begin | ~continues),
        is_in_entity=is_in_entity,
    )


def _shift(values: tf.Tensor, first: int | bool) -> tf.Tensor:
    """Returns the value before each, and `first` before the first."""
    return tf.concat([tf.constant([first], values.dtype), values], 0)[:-1]


def _entities(tagged: _Tagged) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns first word, last word and mean probability of each entity."""
    words_in = tf.where(tagged.is_in_entity)[:, 0]
    begins = tf.gather(tagged.begins_entity, words_in)
    entity = tf.cumsum(tf.cast(begins, tf.int32)) - 1
    return (
        tf.boolean_mask(words_in, begins),
        tf.math.segment_max(words_in, entity),
        tf.math.segment_mean(tf.gather(tagged.probabilities, words_in), entity),
    )


def _marked(label: str) -> str:
    """Returns a label that marks entities; of plain ones, equal ones in a row do."""
    is_plain = label != tag_schemes.OUTSIDE and not tag_schemes.PREFIXED.fullmatch(
        label
    )
    return f"I-{label}" if is_plain else label


def _as_begin(label: str) -> str:
    return f"B-{label[2:]}" if label.startswith("I-") else label


def _number(documents: tf.Tensor) -> tf.Tensor:
    """Numbers strings, `(batch_size,)` int64, ascending; equal ones in a row share
    one."""
    # The first is not new; without any there is none.
    changes = tf.concat(
        [documents[:1] != documents[:1], documents[1:] != documents[:-1]], 0
    )
    return tf.cumsum(tf.cast(changes, tf.int64))


def _probe_sentences() -> list[ner.Sentence]:
    return [ner.of_text(text, row, 0) for row, text in enumerate(served.PROBES)]


def _of_words(
    sentences: Sequence[ner.Sentence], logits: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns words to ask for, and the probabilities of their tags."""
    words = np.array([word for s in sentences for word in s.words], "O")
    best = scipy.special.softmax(logits, axis=-1).max(axis=-1)
    counts = [len(sentence.words) for sentence in sentences]
    return {"words": _padded(counts, words, "")}, {"probability": _padded(counts, best)}


def _padded(
    counts: Sequence[int], values: np.ndarray, padding: float | str = 0.0
) -> np.ndarray:
    """Puts values, end to end, into rows of `counts`, with one column at least."""
    is_there = np.arange(max(1, *counts)) < np.array(counts)[:, None]
    rows = np.full(is_there.shape, padding, values.dtype)
    rows[is_there] = values
    return rows


def _margins(logits: np.ndarray) -> np.ndarray:
    """Returns `(num_words,)`: probability of the best tag less that of the second."""
    probabilities = scipy.special.softmax(logits, axis=-1)
    # With a column of 0, for a model of a single label.
    ranked = np.sort(np.pad(probabilities, [(0, 0), (1, 0)]), axis=-1)
    return ranked[:, -1] - ranked[:, -2]

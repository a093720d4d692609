"""Files of tagged words as data sets, the tags that a model predicts, their scores."""

# Labels are None only in files without any, which are not asked for them; types of
# seqeval are narrower than what it takes.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportOptionalIterable=false

import collections
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.special
from seqeval.metrics import sequence_labeling

from bert_keras.core import files
from bert_keras.core.errors import InputError, nearest
from bert_keras.core.settings import tasks
from bert_keras.kinds.tagging import (
    FoundEntity,
    TaggedSentence,
    TaggedText,
    ner,
    ner_windows,
    tag_schemes,
)
from bert_keras.kinds.tagging.ner import Sentence
from bert_keras.labelled import answers, dataset

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TaggingDataset(dataset.Dataset):
    """Rows of `ner.Sentence`."""

    @property
    def reads_text(self) -> bool:
        """Returns whether the words come from texts with spans of characters."""
        return self.rows[0].text is not None

    def keys(self) -> list[str]:
        """Returns documents, whose sentences are each other's context; of a file that
        is one document its sentences."""
        documents = collections.defaultdict(list)
        for sentence in self.rows:
            documents[sentence.document].append(" ".join(sentence.words))
        if len(documents) == 1:
            return next(iter(documents.values()))
        by_document = {number: "\n".join(lines) for number, lines in documents.items()}
        return [by_document[sentence.document] for sentence in self.rows]

    def contents(self) -> dataset.Contents:
        texts = [(" ".join(sentence.words),) for sentence in self.rows]
        tags = [sentence.tags for sentence in self.rows]
        labels = [*itertools.chain(*tags)] if self.has_labels else ()
        return dataset.Contents(texts, tags, labels=labels)

    def files(self, answers, *, suffix, decision=tasks.LIKELIEST) -> dict[str, str]:
        if not self.reads_text:
            tags = answers.tags(decision=decision)
            content = ner.with_columns(self.path, self.rows, tags, suffix=suffix)
            return {"predictions": content}
        fields = {"text", "entities"}
        records = answers.records(decision=decision)
        rows = [record.model_dump(include=fields) for record in records]
        if ner.is_json(self.path):
            records = ner.read_records(self.path, has_tags=self.has_labels)
            whole = (row.cells for row in records)
            rows = [row | found for row, found in zip(whole, rows, strict=True)]
        lines = (files.to_json(row, ensure_ascii=False) + "\n" for row in rows)
        return {"predictions": "".join(lines)}

    def relabelled(self, changes) -> tuple[str, str]:
        changes = {r: t and tag_schemes.to_iob2(t) for r, t in changes.items()}
        return ner.relabelled(self.path, self.rows, changes)

    def describe(self) -> tasks.Task:
        tags = itertools.chain(*(sentence.tags for sentence in self.rows))
        labels = tag_schemes.labels_of(tags, path=self.path)
        is_plain = (scheme := tag_schemes.scheme_of(labels)) == "plain"
        scored = "by accuracy" if is_plain else "by whole entities"
        logger.info("%s: %s tags, scored %s", self.path, scheme, scored)
        return tasks.Task(
            kind="tagging", name=self.name, labels=labels, reads_text=self.reads_text
        )

    def encode(self, task, tokenizer, settings) -> ner_windows.TokenizedWords:
        ids = None
        if self.has_labels:
            ids = label_ids(self.rows, task.labels, path=self.path)
        return ner_windows.tokenize(
            *(self.rows, tokenizer),
            max_seq_length=settings.max_seq_length,
            label_ids=ids,
            document_context=settings.document_context,
            has_places=task.feature_layers is not None,
        )

    def answer(self, outputs, inputs, task, settings) -> "TaggingAnswers":
        if not inputs.num_answers:  # only blank texts
            outputs = np.zeros((0, task.num_labels), np.float32)
        return self.answers_of(outputs, task)

    def answers_of(self, logits: np.ndarray, task: tasks.Task) -> "TaggingAnswers":
        """Makes answers of logits `(num_words, num_labels)`."""
        labels = task.labels or ()
        return TaggingAnswers(sentences=self.rows, word_logits=logits, labels=labels)


@dataclass(frozen=True, kw_only=True)
class TaggingAnswers(dataset.Answers):
    sentences: Sequence[Sentence]
    word_logits: np.ndarray
    """`(num_words, num_labels)` float32, sentence after sentence."""
    labels: tuple[str, ...]

    def tags(
        self, *, decision: tasks.Decision = tasks.LIKELIEST
    ) -> list[tuple[str, ...]]:
        """Returns the most probable tag of each word of each sentence, IOB as IOB2: an
        entity that the model begins with `I-` is made to begin with `B-`. Words of
        entities that are too improbable for a promise have `O`."""
        tags = iter([self.labels[place] for place in self.word_logits.argmax(axis=-1)])
        rows = (list(itertools.islice(tags, len(s.words))) for s in self.sentences)
        rows = [tag_schemes.to_iob2(row) for row in rows]
        if decision.is_promise:
            rows = [[*row] for row in rows]
            for row, found in zip(rows, self.entities(rows, decision), strict=True):
                for (_, begin, end), probability in found:
                    if not decision.is_given(probability):
                        row[begin:end] = [tag_schemes.OUTSIDE] * (end - begin)
        return [*map(tuple, rows)]

    def entities(
        self, tags: Iterable[Sequence[str]], decision: tasks.Decision = tasks.LIKELIEST
    ) -> Iterator[list[tuple[tag_schemes.Entity, float]]]:
        """Yields the entities of each sentence's tags with their probabilities: means
        of their words' best tags, whose log odds are divided by the temperature."""
        best = scipy.special.softmax(self.word_logits.astype(float), axis=-1).max(-1)
        end = 0
        for row in tags:
            begin, end = end, end + len(row)
            found = tag_schemes.entities(row)
            means = [best[begin + e.start : begin + e.end].mean() for e in found]
            odds = scipy.special.logit(means) / decision.temperature
            yield [*zip(found, scipy.special.expit(odds).tolist(), strict=True)]

    def candidates(self) -> dataset.Candidates | None:
        """Returns the predicted entities, of which those of one sentence depend on one
        another; `None`: plain tags mark no entities."""
        if tag_schemes.scheme_of(self.labels) == "plain":
            return None
        every = []
        for row, found in enumerate(self.entities(self.tags())):
            right = tag_schemes.entities(self.sentences[row].tags or ())
            every += [(share, entity in right, row) for entity, share in found]
        shares, is_right, texts = np.array(every).reshape(-1, 3).T
        log_odds = scipy.special.logit(shares.clip(max=1 - 1e-15))
        return dataset.Candidates.of_several(log_odds, is_right > 0, texts.astype(int))

    def judged_labels(self) -> dataset.JudgedLabels:
        ids = label_ids(self.sentences, self.labels, path="the data")
        names, logits = np.array(self.labels, object), self.word_logits.astype(float)
        words = [f"{word}: " for s in self.sentences for word in s.words]
        lengths = [len(sentence.words) for sentence in self.sentences]
        return dataset.JudgedLabels(
            rows=np.repeat(np.arange(len(lengths)), lengths),
            labels=ids,
            probabilities=scipy.special.softmax(logits, axis=-1),
            names=np.broadcast_to(names, logits.shape),
            parts=np.array(words, object),
            groups=0 * ids,
        )

    def scores(self, *, decision=tasks.LIKELIEST) -> dict[str, float]:
        """Returns `loss` (mean cross entropy of the words, nats), `accuracy` of the
        words, and, if tags are not plain, `precision`, `recall` and `f1` of whole
        entities, all types together, as `conlleval` counts them. All but the loss are
        fractions of 1; 0 where nothing could be right."""
        logits = self.word_logits
        true_label_ids = label_ids(self.sentences, self.labels, path="the data")
        log_probabilities = scipy.special.log_softmax(logits.astype(float), axis=-1)
        rows = np.arange(len(true_label_ids))
        by_word = {
            "loss": float(-log_probabilities[rows, true_label_ids].mean()),
            "accuracy": float((logits.argmax(axis=-1) == true_label_ids).mean()),
        }
        if tag_schemes.scheme_of(self.labels) == "plain":
            return by_word
        # This mode of seqeval, not its strict one, finds entities as conlleval does.
        right = [sentence.tags for sentence in self.sentences]
        numbers = sequence_labeling.precision_recall_fscore_support(
            *([*map(tag_schemes.in_bioes, tags)] for tags in (right, self.tags())),
            average="micro",
            zero_division=0,
        )
        names = ("precision", "recall", "f1")
        return by_word | dict(zip(names, map(float, numbers), strict=False))

    def records(self, *, decision=tasks.LIKELIEST) -> Iterator[answers.Record]:
        every = self.tags(decision=decision)
        parts = self.sentences, every, self.entities(every, decision)
        for sentence, tags, found in zip(*parts, strict=True):
            words, right, _, line, text, places = sentence
            values = {"words": words, "line": line, "labels": right, "prediction": tags}
            if text is None:
                yield TaggedSentence(**values)
                continue
            entities = tuple(
                FoundEntity(
                    start=places[first][0],
                    end=places[stop - 1][1],
                    label=label,
                    probability=probability,
                )
                for (label, first, stop), probability in found
            )
            yield TaggedText(**values, text=text, entities=entities)


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

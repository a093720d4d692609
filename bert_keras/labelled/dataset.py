"""The interface between fine-tuning and the data of any task. No TensorFlow."""

import abc
import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import scipy.special

from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import tokenization
from bert_keras.labelled import answers


class Places(NamedTuple):
    """Places of a batch's answers: `all_outputs[ids] = outputs_of_batch[index]`."""

    ids: np.ndarray
    """`(num_answers,)` numbers among all answers of a file."""
    index: tuple[np.ndarray, ...]
    """Index into the leading axes of the batch's outputs."""


NO_LABEL = "(none)"
"""Name under which examples without a label are counted among labels."""


class Contents(NamedTuple):
    """All examples of a file, for comparisons with one another."""

    texts: Sequence[tuple[str, ...]]
    """All parts of each example; equal parts mean equal model inputs."""
    answers: Sequence[Any]
    """The right answers, hashable, equal where they mean the same; `None`: unknown."""
    labels: Sequence[Any] = ()
    """Labels in the answers, with repetitions; empty: unknown, or numbers."""
    numbers: Sequence[float] = ()
    """Answers that are numbers; empty: unknown, or labels."""
    needs_all_texts: bool = True
    """Whether each of the first two texts is required, or one of them is enough."""

    def conflicts(self) -> list[list[int]]:
        """Returns the rows of each text that is there with different answers."""
        rows_of = collections.defaultdict(list)
        for row, text in enumerate(self.texts):
            rows_of[text].append(row)
        all_rows = rows_of.values()
        return [rows for rows in all_rows if len({self.answers[r] for r in rows}) > 1]


class Inputs(Protocol):
    """Model inputs of a file."""

    @property
    def lengths(self) -> np.ndarray:
        """`(num_inputs,)` tokens of each input."""
        ...

    @property
    def num_answers(self) -> int:
        """Rows of outputs: one for each text, word, token or question; here one for
        each input."""
        return len(self.lengths)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns some inputs with their labels, padded to the longest of them."""
        ...

    def places(self, rows: np.ndarray) -> Places:
        """Returns the places of the outputs for a batch of these inputs; here of inputs
        with one row of outputs each."""
        return Places(rows, (np.arange(len(rows)),))


@runtime_checkable
class RedrawnInputs(Inputs, Protocol):
    """Inputs for training; every epoch draws a part of each example."""

    def of_epoch(self, epoch: int) -> Inputs:
        """Returns the inputs of an epoch, counted from 0, of the same `lengths`."""
        ...


class EncodedInputs(Inputs, Protocol):
    @property
    def whole_lengths(self) -> np.ndarray:
        """`(num_examples,)` tokens of each example as one whole, undivided input."""
        ...


class Explained(NamedTuple):
    """The score behind an answer: the sum of `weights * outputs` of an input."""

    answer: str
    texts: tuple[str, ...]
    """The whole texts, by their segments in the input."""
    row: int
    """The input."""
    weights: np.ndarray
    """In the shape of the outputs of the input."""
    skipped: int = 0
    """Pieces of the last text before those in the input, which may be a window."""


@dataclass(frozen=True, kw_only=True)
class Dataset(abc.ABC):
    """The examples of one file of a task."""

    path: Path
    rows: Sequence[Any]
    """The examples: texts, sentences or questions."""
    has_labels: bool
    name: str | None = None
    """Name of the official data set; `None`: the user's own file."""

    def __len__(self) -> int:
        return len(self.rows)

    @abc.abstractmethod
    def keys(self) -> list[str]:
        """Returns the subject of each example: equal ones stay in training or out
        together."""

    @abc.abstractmethod
    def contents(self) -> Contents:
        """Returns each example's model input and right answer."""

    def places(self) -> list[str]:
        """Returns where each example is in its file: the first line, or an id."""
        return [str(row.line) for row in self.rows]

    def subset(self, rows: Sequence[int]) -> Self:
        """Returns the examples `rows`, numbered from 0, in this order."""
        return dataclasses.replace(self, rows=[self.rows[row] for row in rows])

    def for_training(self) -> Self:
        """Returns the examples that can be trained on."""
        return self

    @abc.abstractmethod
    def files(
        self, answers: Any, *, suffix: str, decision: tasks.Decision = tasks.LIKELIEST
    ) -> dict[str, str]:
        """Returns the contents of the files of answers to this file, by name; a single
        one has the columns of this file, in the form of `suffix`."""

    def relabelled(
        self, changes: Mapping[int, Sequence[str] | None]
    ) -> tuple[str, str]:
        """Returns the suffix and the content of a file to train on: this one, with
        other labels by row; `None`: the row is left out. For kinds that judge labels;
        a row has the names of its `JudgedLabels` that are not empty."""
        raise NotImplementedError

    @abc.abstractmethod
    def describe(self) -> tasks.Task:
        """Returns the task that a model can learn from this file. An `InputError` says
        that all examples have the same label."""

    @abc.abstractmethod
    def encode(
        self,
        task: tasks.Task,
        tokenizer: tokenization.Tokenizer,
        settings: finetuning.FinetuningConfig,
    ) -> EncodedInputs:
        """Makes model inputs, with labels if the file was read with them. A label that
        the task does not have raises an `InputError`."""

    @abc.abstractmethod
    def answer(
        self,
        outputs: np.ndarray,
        inputs: Inputs,
        task: tasks.Task,
        settings: finetuning.FinetuningConfig,
    ) -> "Answers":
        """Makes answers from a model's outputs, `(inputs.num_answers, width)` float32.
        The task and the settings are those of `encode`."""

    def explained(
        self,
        outputs: np.ndarray,
        inputs: Any,
        task: tasks.Task,
        settings: finetuning.FinetuningConfig,
        *,
        label: str | None = None,
    ) -> list[Explained] | None:
        """Returns the score behind each answer, or behind a `label` of the task; other
        arguments are those of `answer`. `None`: answers of this kind have no score."""
        return None


class Candidates(NamedTuple):
    """The candidates of each answer, in one form for all kinds of tasks."""

    logits: np.ndarray
    """`(num_answers, num_candidates)` float, of which the softmax are probabilities;
    -inf is no candidate."""
    is_right: np.ndarray
    """The same shape, bool."""
    answers: np.ndarray
    """`(num_answers,)` places of the candidates that are the answers."""
    texts: np.ndarray | None = None
    """`(num_answers,)` numbers of the examples that the answers belong to, where each
    may have several, which depend on one another; `None`: each has one, in order."""
    labels: np.ndarray | None = None
    """`(num_answers,)` names of the answers, of which a text has each once at most;
    `None`: answers have no names."""

    @classmethod
    def of_classes(cls, logits: np.ndarray, right: np.ndarray | None) -> Self:
        """Returns candidates of which the highest is the answer, and one is right:
        `right` has `(num_answers,)` places; `None`: unknown."""
        right = np.full(len(logits), -1) if right is None else right
        is_right = np.arange(logits.shape[1]) == right[:, None]
        return cls(logits.astype(float), is_right, logits.argmax(axis=-1))

    @classmethod
    def of_several(
        cls, log_odds: np.ndarray, is_right: np.ndarray, texts: np.ndarray
    ) -> Self:
        """Returns candidates of answers that are right or wrong by themselves, all
        `(num_answers,)`: the probability at a temperature T is that of log odds / T."""
        logits = np.stack([log_odds, np.zeros(len(log_odds))], axis=1)
        is_right = np.stack([is_right, ~is_right], axis=1)
        return cls(logits.astype(float), is_right, np.zeros(len(logits), int), texts)

    def take(self, places: np.ndarray) -> Self:
        """Returns some of the answers."""
        every: Any = (None if values is None else values[places] for values in self)
        return type(self)(*every)

    def answered(self, temperature: float) -> "Answered":
        shares = scipy.special.softmax(self.logits / temperature, axis=-1)
        places = np.arange(len(shares)), self.answers
        return Answered(shares[places], self.is_right[places], self.texts)


class Answered(NamedTuple):
    """Answers as a threshold sees them."""

    probabilities: np.ndarray
    """`(num_answers,)` float."""
    is_right: np.ndarray
    """`(num_answers,)` bool."""
    texts: np.ndarray | None = None
    """See `Candidates`."""


class JudgedLabels(NamedTuple):
    """The labels of a file, each beside what a model thinks of it. A row has one label
    or more: of its text, of each word, or whether each of several labels holds."""

    rows: np.ndarray
    """`(num_labels,)` numbers of rows in the file, ascending."""
    labels: np.ndarray
    """`(num_labels,)` places among the classes."""
    probabilities: np.ndarray
    """`(num_labels, num_classes)` float."""
    names: np.ndarray
    """The same shape, of strings: names of the classes; an empty one means no label."""
    parts: np.ndarray
    """`(num_labels,)` beginnings of names: the part of a row that a label is about."""
    groups: np.ndarray
    """`(num_labels,)` int: classes of labels in different groups differ. Labels next to
    each other in a row and a group, such as those of words, may be one answer."""


class Answers(abc.ABC):
    """A model's answers to a file."""

    def best_decision(self) -> tasks.Decision:
        """Returns the thresholds that are best for a file that was read with labels."""
        return tasks.LIKELIEST

    def candidates(self) -> Candidates | None:
        """Returns what the answers were chosen from, none of it right if the file has
        no labels; `None`: they have no probabilities to compare a threshold with."""
        return None

    def judged_labels(self) -> JudgedLabels:
        """Returns all labels of a file with labels, for kinds that judge labels."""
        raise NotImplementedError

    def distances(self) -> np.ndarray | None:
        """Returns how far the answers to a file with labels are from the right numbers,
        `(num_answers,)` float; `None`: they are no numbers."""
        return None

    def promise_scores(self, decision: tasks.Decision) -> dict[str, float]:
        """Returns what a promise makes of a file that was read with labels:
        `share_answered`, and if there are answers `precision_of_answers`; of numbers
        `share_within_interval`. Nothing without a promise."""
        if not decision.is_promise:
            return {}
        if (distances := self.distances()) is not None:
            is_within = distances <= decision.half_width
            return {"share_within_interval": float(is_within.mean())}
        if (candidates := self.candidates()) is None:
            return {}
        probabilities, is_right, _ = candidates.answered(decision.temperature)
        least = None
        if candidates.labels is not None:
            least = decision.thresholds_of(candidates.labels)
        is_given = decision.is_given(probabilities, least)
        # There may be no answer at all where an example has any number of them.
        found = {"share_answered": float(is_given.mean())} if len(is_given) else {}
        if is_given.any():
            found["precision_of_answers"] = float(is_right[is_given].mean())
        return found

    @abc.abstractmethod
    def scores(self, *, decision: tasks.Decision = tasks.LIKELIEST) -> dict[str, float]:
        """Computes official scores of a file that was read with labels."""

    @abc.abstractmethod
    def records(
        self, *, decision: tasks.Decision = tasks.LIKELIEST
    ) -> Iterator[answers.Record]:
        """Yields examples with their answers, and with the right ones if the file has
        labels."""

"""The interface between fine-tuning and the data of any task. No TensorFlow."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from bert_keras.core.settings import config, finetuning
from bert_keras.data import tokenization
from bert_keras.labelled import answers


class Places(NamedTuple):
    """Places of a batch's answers among all answers.

    `all_outputs[ids] = outputs_of_batch[index]`.
    """

    ids: np.ndarray
    """`(num_answers,)` numbers among all answers of a file."""
    index: tuple[np.ndarray, ...]
    """Index into the leading axes of the batch's outputs."""


class Contents(NamedTuple):
    """All examples of a file, for comparisons with one another."""

    texts: Sequence[tuple[str, ...]]
    """All parts of each, equal where a model is given the same."""
    answers: Sequence[Any]
    """The right answers, hashable, equal where they mean the same; `None`: unknown."""
    labels: Sequence[Any] = ()
    """Labels in the answers, as often as they occur; empty: unknown, or numbers."""
    numbers: Sequence[float] = ()
    """Answers that are numbers; empty: unknown, or labels."""
    needs_all_texts: bool = True
    """Whether an example lacks a text if one of its first two is blank, not both."""


class Inputs(Protocol):
    """Model inputs of a file."""

    @property
    def lengths(self) -> np.ndarray:
        """`(num_inputs,)` tokens of each input."""
        ...

    @property
    def num_answers(self) -> int:
        """Rows of outputs: one for each text, word, token or question."""
        ...

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Some inputs with their labels, padded to the longest of them."""
        ...

    def places(self, rows: np.ndarray) -> Places:
        """Places of the outputs for a batch of these inputs."""
        ...


@runtime_checkable
class RedrawnInputs(Inputs, Protocol):
    """Model inputs to learn from, each a part of its example that every epoch draws."""

    def of_epoch(self, epoch: int) -> Inputs:
        """Returns the inputs of an epoch, counted from 0, of the same `lengths`."""
        ...


class EncodedInputs(Inputs, Protocol):
    """Model inputs that a dataset makes of its examples."""

    @property
    def whole_lengths(self) -> np.ndarray:
        """`(num_examples,)` tokens of each example as one input, had nothing been cut
        off or divided into windows."""
        ...


class Dataset(abc.ABC):
    """The examples of one file of a task."""

    path: Path

    @abc.abstractmethod
    def __len__(self) -> int:
        """Number of examples: texts, sentences or questions."""

    @abc.abstractmethod
    def keys(self) -> list[str]:
        """What each example is about: those with the same key are trained on, or held
        out, together."""

    @abc.abstractmethod
    def contents(self) -> Contents:
        """All that a model is given of each example, and the right answers."""

    @abc.abstractmethod
    def subset(self, rows: Sequence[int]) -> Self:
        """Some of the examples, by their numbers from 0, in this order."""

    def for_training(self) -> Self:
        """The examples that can be trained on."""
        return self

    def with_columns(self, answers: str, *, suffix: str) -> str:
        """The only file of answers, with the columns of the input where it has some.

        Args:
            answers: from `Answers.files`.
            suffix: of the file to write, see `tables.joined`.
        """
        return answers

    @abc.abstractmethod
    def describe(self) -> config.Task:
        """The task that a model can learn from this file.

        Raises:
            InputError: all examples have the same label.
        """

    @abc.abstractmethod
    def encode(
        self,
        task: config.Task,
        tokenizer: tokenization.Tokenizer,
        settings: finetuning.FinetuningConfig,
    ) -> EncodedInputs:
        """Makes model inputs, with labels if the file was read with them.

        Raises:
            InputError: a label that the task does not have.
        """

    @abc.abstractmethod
    def answer(
        self,
        outputs: np.ndarray,
        inputs: Inputs,
        task: config.Task,
        settings: finetuning.FinetuningConfig,
    ) -> "Answers":
        """Makes answers of a model's outputs.

        Args:
            outputs: `(inputs.num_answers, width)` float32.
            inputs: from `encode`.
            task: the same as for `encode`.
            settings: the same as for `encode`.
        """


Threshold = float | Mapping[str, float] | None
"""Odds above which a question has no answer; probabilities, by label, from which on it
holds, where a text may have several; `None`: the usual ones. For the rest it means
nothing."""


class Answers(abc.ABC):
    """A model's answers to a file."""

    def best_threshold(self) -> Threshold:
        """The best threshold for a file that was read with labels; `None`: the scores
        have it, or there is none."""
        return None

    @abc.abstractmethod
    def scores(self, *, threshold: Threshold = None) -> dict[str, float]:
        """Scores by the official metrics, of a file that was read with labels.

        Args:
            threshold: as for `files`.
        """

    @abc.abstractmethod
    def files(self, *, threshold: Threshold = None) -> dict[str, str]:
        """Files to write: their contents by name.

        Args:
            threshold: that was chosen on a development file.
        """

    @abc.abstractmethod
    def records(self, *, threshold: Threshold = None) -> Iterator[answers.Record]:
        """Examples with their answers, and with the right ones if the file was read
        with labels."""

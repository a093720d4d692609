"""What fine-tuning asks of a task's data, whatever the task. No TensorFlow."""

import abc
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from bert_keras import config
from bert_keras.data import tokenization
from bert_keras.tasks import answers


class Places(NamedTuple):
    """Where the answers that a batch gives belong.

    `all_outputs[ids] = outputs_of_batch[index]`.
    """

    ids: np.ndarray
    """`(num_answers,)` among all answers of a file."""
    index: tuple[np.ndarray, ...]
    """Of the leading axes of the batch's outputs."""


class Inputs(Protocol):
    """Model inputs of a file."""

    @property
    def lengths(self) -> np.ndarray:
        """`(num_inputs,)` tokens of each input."""

    @property
    def num_answers(self) -> int:
        """Rows of outputs: one for each text, word, token or question."""

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Some inputs, padded to the longest of them, and with what is right."""

    def places(self, rows: np.ndarray) -> Places:
        """Where the outputs for a batch of these inputs belong."""


class Dataset(abc.ABC):
    """The examples of one file of a task."""

    path: Path

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many examples: texts, sentences or questions."""

    @abc.abstractmethod
    def describe(self) -> config.Task:
        """The task that can be learnt from this file.

        Raises:
            InputError: there is nothing to tell apart.
        """

    @abc.abstractmethod
    def encode(
        self,
        task: config.Task,
        tokenizer: tokenization.Tokenizer,
        settings: config.FinetuningConfig,
    ) -> Inputs:
        """Makes model inputs, with what is right if the file was read with it.

        Raises:
            InputError: a label that the task does not have.
        """

    @abc.abstractmethod
    def answer(
        self,
        outputs: np.ndarray,
        inputs: Inputs,
        task: config.Task,
        settings: config.FinetuningConfig,
    ) -> "Answers":
        """What a model's outputs say.

        Args:
            outputs: `(inputs.num_answers, width)` float32.
            inputs: from `encode`.
            task: the same as for `encode`.
            settings: the same as for `encode`.
        """


class Answers(abc.ABC):
    """A model's answers to a file."""

    @abc.abstractmethod
    def scores(self, *, threshold: float | None = None) -> dict[str, float]:
        """How good they are, by the official metrics. The file was read with labels.

        Args:
            threshold: as for `files`.
        """

    @abc.abstractmethod
    def files(self, *, threshold: float | None = None) -> dict[str, str]:
        """What is written of them: from file name to content.

        Args:
            threshold: of the odds that a question has no answer; only for `span`.
        """

    @abc.abstractmethod
    def records(self, *, threshold: float | None = None) -> Iterator[answers.Record]:
        """Each example with its answer and, if the file was read with labels, with the
        right one."""

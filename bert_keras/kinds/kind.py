"""The protocol of a kind of answers.

A kind is cheap to import: its methods import what needs NumPy, Keras or TensorFlow, so
that the command line and a sweep can ask any kind for its facts.
"""

import abc
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bert_keras.core.settings import config, finetuning

if TYPE_CHECKING:
    import keras

    from bert_keras.kinds import sections, served
    from bert_keras.labelled import answers, dataset


class Kind(abc.ABC):
    """A kind of answers that a network can give."""

    name: ClassVar[config.TaskKind]
    parts: ClassVar[tuple[str, ...]] = ("encoder/", "head/")
    """Prefixes of the names of its network's weights."""
    unused: ClassVar[tuple[str, ...]] = ()
    """Prefixes of weights that its answers do not come from."""

    @property
    def purpose(self) -> str:
        """The answers in words, for messages."""
        return self.name

    def served_network(self, task: config.Task) -> config.Task:
        """Returns the task whose network gives the answers."""
        return task

    def needs(self, weight: str) -> bool:
        """Whether the answers come from a weight, by its name."""
        return weight.startswith(self.parts) and not weight.startswith(self.unused)

    @abc.abstractmethod
    def network(
        self,
        bert_config: config.BertConfig,
        task: config.Task,
        *,
        head: Mapping[str, Any],
        scale: float,
        **shared: Any,
    ) -> "keras.Model":
        """Returns the network with new weights, not built yet.

        Args:
            bert_config: sizes and shapes of the encoder.
            task: what it answers.
            head: `dropout_prob` and `bilstm_units` of a head, see `EncoderWithHead`.
            scale: of the cosines in the loss of vectors.
            shared: `seed`, `dtype` and `name` of the model.
        """

    @abc.abstractmethod
    def served(self, trained: "served.Trained", *, top_k: int) -> "served.Answers":
        """Returns the answers of a trained model as a graph to export.

        Args:
            trained: the model, with the network of this kind, or of an encoder where
                the answers are vectors.
            top_k: words for each masked place.

        Raises:
            InputError: the model answers nothing, or not with such settings.
        """


class Labelled(Kind):
    """A kind that is learnt from labelled examples."""

    form: ClassVar[str]
    """The `--task` of the user's own files."""
    suffix: ClassVar[str] = ".tsv"
    """Of input that comes without a name."""

    @property
    @abc.abstractmethod
    def record(self) -> "type[answers.Record]":
        """The type of a line of `dev_answers.jsonl`."""

    @abc.abstractmethod
    def read(
        self,
        path: Path,
        settings: finetuning.FinetuningConfig,
        *,
        data_set: str | None = None,
        has_labels: bool = True,
        has_text_pair: bool | None = None,
        reads_text: bool = False,
    ) -> "dataset.Dataset":
        """Reads a file of examples.

        Args:
            path: of the file.
            settings: name the columns.
            data_set: name of the official data set; `None`: the user's own file.
            has_labels: whether to read labels.
            has_text_pair: of texts, whether to read second texts; `None`: if the file
                has them.
            reads_text: of tags without labels, see `config.Task`.

        Raises:
            InputError: with file and line: the file cannot be read as such a file.
        """

    @abc.abstractmethod
    def from_python(
        self, examples: Iterable[Any], task: config.Task
    ) -> "dataset.Dataset":
        """Returns a data set of examples without labels that were given in Python.

        Raises:
            InputError: an example has another shape (with its number, from 1), or there
                is no example.
        """

    def main_metric(
        self, settings: finetuning.FinetuningConfig, labels: Sequence[str] | None
    ) -> str:
        """Returns the metric that chooses the best checkpoint.

        Args:
            settings: of the run.
            labels: of the run; `None`: not known yet.
        """
        return "accuracy"

    @abc.abstractmethod
    def page(
        self, records: Sequence[Any], task: config.Task
    ) -> "list[sections.Section]":
        """Returns the parts of a page about answers, at least one.

        Raises:
            InputError: a record has a label that the task does not have.
        """

    def sign(
        self,
        evaluation: Mapping[str, float],
        answers: Sequence[Mapping[str, Any]] | None,
    ) -> str | None:
        """Returns the sign that a run learnt nothing; `None`: there is no sign.

        Args:
            evaluation: metrics on the dev file; for spans in percent.
            answers: to the dev file, as `dev_answers.jsonl` has them; `None`: unknown.
        """
        return None

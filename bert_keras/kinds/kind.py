"""The protocol of a kind of answers.

A kind is cheap to import: its methods import what needs NumPy, Keras or TensorFlow, so
that the command line and a sweep can ask any kind for its facts.
"""

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bert_keras.core.settings import config, finetuning

if TYPE_CHECKING:
    import keras

    from bert_keras.kinds import sections, served
    from bert_keras.labelled import answers, dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
    """What other formats call a kind. `None`: they have no such thing."""

    hugging_face: str | None = None
    """Class of its models in transformers."""
    problem_type: str | None = None
    """Key of `config.json` that tells apart the kinds of one class."""
    pipeline: str | None = None
    """`pipeline_tag` of the Hugging Face Hub."""
    keras_hub: str | None = None
    """Activation of the outputs of KerasHub's `BertTextClassifier`."""
    heads: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """By format, our names of the head's layers and theirs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """Python code with which a model card shows how a model is called."""

    text: str | None = None
    """Argument of a pipeline of transformers, and of a SavedModel; `None`: a text or a
    pair of texts, which the pipeline has to cut."""
    model: str | None = None
    """Calls of `tokenizer` and `model` of transformers; `None`: a pipeline exists."""
    strings: str | None = None
    """Arguments of a SavedModel; `None`: `text`."""
    ids: str = "[{ids}]"
    """Array of ids, from those of one text."""
    more: str = ""
    """Line that adds other inputs to ids."""


class Kind(abc.ABC):
    """A kind of answers that a network can give."""

    name: ClassVar[config.TaskKind]
    names: ClassVar[Names] = Names()
    parts: ClassVar[tuple[str, ...]] = ("encoder/", "head/")
    """Prefixes of the names of its network's weights."""
    unused: ClassVar[tuple[str, ...]] = ()
    """Prefixes of weights that its answers do not come from."""
    has_labels: ClassVar[bool] = False
    """Whether its tasks have `labels`."""
    has_text_pair: ClassVar[bool] = False
    """Whether each input is a pair of texts."""
    transfers_head: ClassVar[bool] = False
    """Whether a head means the same for all data sets, so that fine-tuning starts from
    it."""

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

    def usage(self, task: config.Task) -> Usage:
        """Returns code that calls a model of the task."""
        return Usage()

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
    longest_input: ClassVar[int] = 512
    """Tokens of an input at most, where nothing says how many: that of `export`."""
    always_windows: ClassVar[bool] = False
    """Whether longer inputs are read in overlapping windows, whatever the settings."""
    scored: ClassVar[str] = "whole texts"
    """What the scores of `evaluate` count."""

    def usual_settings(self, task: config.Task) -> dict[str, Any]:
        """Returns settings of a converted model, which comes without any."""
        return {"task": self.form}

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

"""The protocol of a kind of answers.

A kind is cheap to import: its methods import what needs scikit-learn, Keras or
TensorFlow, so that the command line and a sweep can ask any kind for its facts.
"""

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from bert_keras.core.settings import architecture, finetuning, tasks
from bert_keras.data import features as names_of
from bert_keras.labelled import answers, dataset, score_sums

if TYPE_CHECKING:
    import keras

    from bert_keras.kinds import served
    from bert_keras.pages import sections


Feature = tuple[tuple[int, ...], str]
"""Shape and dtype of an array."""


class Metric(NamedTuple):
    name: str
    unit: str = ""
    """`%`, `nats`, or what is counted; empty: a fraction of 1."""
    better: Literal["more", "less"] | None = "more"
    """`None`: the number is no score."""
    is_of_label: bool = False
    """Whether the name may be followed by ` of LABEL`."""


LOSS = Metric("loss", "nats", "less")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
    """The names of a kind in other formats; `None`: the format has no such name."""

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


def classifier_names(
    *, hugging_face: str = "classifier", google: str = "output", **others: str
) -> dict[str, dict[str, str]]:
    """Returns `Names.heads` of a head of one layer, from its name in each format."""
    layers = {"hugging_face": hugging_face, "google": google, **others}
    return {form: {"head/classifier": layer} for form, layer in layers.items()}


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

    name: ClassVar[tasks.TaskKind]
    names: ClassVar[Names] = Names()
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """Numbers of its evaluations."""
    parts: ClassVar[tuple[str, ...]] = ("encoder/", "head/")
    """Prefixes of the names of its network's weights."""
    unused: ClassVar[tuple[str, ...]] = ()
    """Prefixes of weights that its answers do not come from."""
    has_labels: ClassVar[bool] = False
    """Whether its tasks have `labels`."""
    has_text_pair: ClassVar[bool] = False
    """Whether each input is a pair of texts."""
    keras_classes: ClassVar[tuple[str, ...]] = ()
    """Classes of the `network` beside it that a `.keras` file may hold."""
    transfers_head: ClassVar[bool] = False
    """Whether a head means the same for all data sets, so that fine-tuning starts from
    it."""
    example: ClassVar[Usage] = Usage()

    def metric(self, key: str) -> Metric:
        """Returns the meaning of a key of evaluations. Keys of further dev files begin
        with the name of the file. An unknown key is no score."""
        matches = [
            metric
            for metric in self.metrics
            if f"_{key}".endswith(f"_{metric.name}")
            or (metric.is_of_label and f"_{metric.name} of " in f"_{key}")
        ]
        longest = max(matches, key=lambda metric: len(metric.name), default=None)
        return longest or Metric(key, better=None)

    def needs(self, weight: str) -> bool:
        """Returns whether the answers come from the weight of a name."""
        return weight.startswith(self.parts) and not weight.startswith(self.unused)

    def usage(self, task: tasks.Task) -> Usage:
        """Returns code that calls a model of the task."""
        return self.example

    def build(
        self,
        bert_config: architecture.BertConfig,
        task: tasks.Task,
        *,
        dropout_prob: float = 0.0,
        seed: int | None = None,
        dtype: str = "float32",
        **options: Any,
    ) -> "keras.Model":
        """Builds the network of a task, with new weights.

        Args:
            dropout_prob: fraction of the head's input that is dropped in training, if
                the task has a head with dropout.
            seed: of weights and dropout; `None` for random ones.
            dtype: a Keras dtype policy, such as `mixed_bfloat16`.
            options: what this kind of network alone takes, such as `scale` for vectors.
        """
        network = self.network(
            bert_config,
            task,
            head={
                "dropout_prob": dropout_prob,
                "bilstm_units": task.bilstm_units,
                "num_bilstm_layers": task.num_bilstm_layers,
            },
            seed=seed,
            dtype=dtype,
            # Part of the variables' names, which Keras would number otherwise.
            name=f"bert_{task.kind}",
            **options,
        )
        network.build(None)
        return network

    @abc.abstractmethod
    def network(
        self,
        bert_config: architecture.BertConfig,
        task: tasks.Task,
        *,
        head: Mapping[str, Any],
        **shared: Any,
    ) -> "keras.Model":
        """Returns the network with new weights, not built yet.

        Args:
            head: arguments of `EncoderWithHead` about its head.
            shared: `seed`, `dtype` and `name` of the model, and what this kind of
                network alone takes.
        """

    @abc.abstractmethod
    def served(self, trained: "served.Trained", *, top_k: int) -> "served.ServedModel":
        """Returns the answers of a trained model as a graph to export.

        `top_k` is the number of words for each masked place. Raises an
        `InputError` if the model answers nothing, or not with such settings.
        """


Option = Literal[
    "class_weights",
    "label_smoothing",
    "long_texts",
    "windows",
    "teacher",
    "calibration_fraction",
]


class Labelled(Kind):
    """A kind that is learnt from labelled examples."""

    record: ClassVar[type[answers.Record]]
    """Type of a line of `dev_answers.jsonl`."""
    accepts: ClassVar[frozenset[Option]] = frozenset(
        {"teacher", "calibration_fraction"}
    )
    """Settings and commands that mean something for it."""
    own_settings: ClassVar[tuple[str, ...]] = ()
    """Dotted keys of settings that mean something for it alone."""
    examples: ClassVar[str] = "texts"
    """Its examples in words."""
    answered: ClassVar[str | None] = None
    """Plural noun of the inputs that get one answer each; `None`: `examples`."""
    several: ClassVar[str | None] = None
    """Plural noun of answers of which an example may have any number; `None`: each has
    one."""
    num_texts: ClassVar[int] = 1
    """Inputs of the network for each example."""
    resampled: ClassVar[tuple[str, ...]] = ()
    """Metrics that `score` knows."""
    form: ClassVar[str]
    """The `--task` of the user's own files."""
    other_names: ClassVar[tuple[str, ...]] = ()
    """Names of the same task in other programs."""
    suffixes: ClassVar[tuple[str, ...]] = (".tsv", ".csv", ".jsonl")
    """Endings of the names of its files; input without a name has the first one, or is
    JSON lines if it begins like these."""
    judges_labels: ClassVar[bool] = False
    """Whether its answers have `judged_labels`."""
    always_windows: ClassVar[bool] = False
    """Whether longer inputs are read in overlapping windows, whatever the settings."""
    usual: ClassVar[Mapping[str, Any]] = {"max_seq_length": 512}
    """See `usual_settings`."""
    usual_metric: ClassVar[str] = "accuracy"
    """See `main_metric`."""

    def usual_settings(self, task: tasks.Task) -> dict[str, Any]:
        """Returns settings for a converted model, which comes without any; those of its
        length hold if it does not say how many tokens an input has."""
        return {"task": self.form, **self.usual}

    @abc.abstractmethod
    def read(
        self,
        path: Path,
        settings: finetuning.FinetuningConfig,
        *,
        has_labels: bool = True,
        has_text_pair: bool | None = None,
        reads_text: bool = False,
    ) -> dataset.Dataset:
        """Reads a file of the task that the settings name; a file of GLUE stands in
        its official folder.

        Args:
            has_text_pair: whether to read second texts; `None`: if the file has them.
            reads_text: for tags without labels, see `tasks.Task`.
        """

    def data_set(self, settings: finetuning.FinetuningConfig) -> str | None:
        """Returns the name of the official data set; `None`: it is the user's own."""
        return None if settings.task == self.form else settings.task

    @abc.abstractmethod
    def from_python(self, examples: Iterable[Any], task: tasks.Task) -> dataset.Dataset:
        """Returns a data set of examples without labels that were given in Python.
        Errors name the number of the example, from 1."""

    def features(
        self, task: tasks.Task, rows: int, length: int, *, has_labels: bool
    ) -> dict[str, Feature]:
        """Returns shape and dtype of each feature of a batch, but for seeds. Features
        of the loss are there if `has_labels`."""
        texts = () if self.num_texts == 1 else (self.num_texts,)
        shape = (rows, *texts, length)
        names = ("input_ids", "input_mask", "segment_ids")
        features: dict[str, Feature] = {name: (shape, "int32") for name in names}
        if has_labels:
            features |= self.label_features(task, rows, length)
            features[names_of.EXAMPLE_WEIGHTS] = ((rows,), "float32")
            features[names_of.BATCH_LENGTHS] = ((rows,), "int32")
        return features

    def label_features(
        self, task: tasks.Task, rows: int, length: int
    ) -> dict[str, Feature]:
        """Returns shape and dtype of the features that the loss compares with."""
        return {"label_ids": ((rows,), "int32")}

    def check(
        self,
        settings: finetuning.FinetuningConfig,
        task: tasks.Task,
        bert_config: architecture.BertConfig,
        dev: Any,
    ) -> None:
        """Raises an `InputError` for the first setting that this kind alone forbids, or
        if `dev`, the main dev file, has no scores of the main metric."""

    def score(
        self,
        records: Sequence[Mapping[str, Any]],
        metric: str,
        *,
        labels: Sequence[str],
    ) -> score_sums.ScoreSums:
        """Returns one of the metrics `resampled` as a function of sums over records,
        the lines of `dev_answers.jsonl`."""
        raise KeyError(metric)

    def main_metric(
        self, settings: finetuning.FinetuningConfig, labels: Sequence[str] | None
    ) -> str:
        """Returns the metric that chooses the best checkpoint; for the paper's tasks,
        the paper's. `labels` of the run; `None`: tags are taken for entities'."""
        return self.usual_metric

    @abc.abstractmethod
    def page(
        self, records: Sequence[Any], task: tasks.Task
    ) -> "list[sections.Section]":
        """Returns the parts of a page about answers, at least one. Raises an
        `InputError` if the task does not have the label of a record."""

    def sign(
        self,
        evaluation: Mapping[str, float],
        answers: Sequence[Mapping[str, Any]] | None,
    ) -> str | None:
        """Returns the sign that a run learnt nothing; `None`: there is no sign.

        Args:
            evaluation: metrics on the dev file; for spans in percent.
            answers: lines of `dev_answers.jsonl`; `None`: unknown.
        """
        return None

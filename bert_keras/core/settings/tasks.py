"""The task of a trained model, as its directory states it: see `Task`."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import pydantic

from bert_keras.core.errors import InputError
from bert_keras.core.settings.strict import StrictModel

TextPooling = Literal["mean", "cls"]
"""A text's vector: the mean over its tokens, `[CLS]` and `[SEP]` but no padding, or
that of the first one, as in sentence-transformers."""

LongTexts = Literal["cut", "head_tail", "windows_mean", "windows_max"]
"""What becomes of a text longer than an input: its beginning is kept, or beginning and
end; or the mean or the greatest of the numbers of overlapping windows count."""

TaskKind = Literal[
    "pretraining",
    "encoder",
    "classification",
    "multi_label",
    "regression",
    "tagging",
    "span",
    "choice",
    "embedding",
    "ranking",
]
FORMS = ("text", "tagging", "span", "choice", "embedding", "ranking")
"""Forms of the user's own data, each read by one kind or, texts, by several."""

FeatureLayers = Literal[
    "embeddings",
    "second_to_last",
    "last",
    "weighted_sum_last_four",
    "concat_last_four",
    "weighted_sum_all",
]
"""Outputs of a frozen encoder that a head reads: rows of the paper's Table 7."""

NOT_IN_LABELS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
"""Characters that end a line or a column, or cannot be written: labels become both."""

LoraTarget = Literal[
    "query",
    "key",
    "value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
]
"""Matrices of a layer as peft's `target_modules` names those of Hugging Face's BERT;
`output.dense` is the feed-forward part's alone."""


def reads_windows(long_texts: LongTexts) -> bool:
    """Whether long texts are read in windows."""
    return long_texts.startswith("windows_")


def window_stride(max_seq_length: int, stride: int | None) -> int:
    """Tokens from the beginning of a text's window to that of the next: `stride` if it
    is not `None`, else half of a window's text, which is all but its special tokens."""
    room = max_seq_length - 2
    return min(stride or max(1, room // 2), room)


def feature_layer_numbers(
    name: FeatureLayers, num_hidden_layers: int
) -> tuple[int, ...]:
    """Returns the numbers of layers of an encoder; 0 are the embeddings. Refuses an
    encoder that has too few layers."""
    if name == "embeddings":
        return (0,)
    last = num_hidden_layers
    numbers = {
        "second_to_last": range(last - 1, last),
        "last": range(last, last + 1),
        "weighted_sum_last_four": range(last - 3, last + 1),
        "concat_last_four": range(last - 3, last + 1),
        "weighted_sum_all": range(1, last + 1),
    }[name]
    if numbers.start < 1:
        raise InputError(
            f"`feature_layers` {name} needs more layers than the {last} of the encoder"
        )
    return tuple(numbers)


def check_labels(
    labels: Sequence[str], *, path: object, has_several: bool = False
) -> None:
    """Checks labels in a third-party checkpoint's file as those of a labelled file are:
    none is empty, has several lines or comes twice; nor has it a comma where a text may
    have several labels, which commas separate in tables."""
    for number, label in enumerate(labels):
        problem = None
        if not label or NOT_IN_LABELS.search(label):
            problem = "expected a label of one line"
        elif has_several and "," in label:
            problem = "expected a label without a comma, which separates labels"
        elif label in labels[:number]:
            problem = "expected different labels"
        if problem:
            raise InputError(f"{path}: {problem}, got {label!r}: rename it there")


class Adapter(StrictModel):
    """A model as changes of a base: `kernel + alpha / rank * a @ b` in the place of
    some kernels (LoRA; Hu et al., 2021), and a head."""

    base: str
    """Checkpoint of any format."""
    base_sha256: str | None = None
    """Digest of the base's weights and vocabulary; null: unknown."""
    rank: int
    alpha: float
    targets: tuple[LoraTarget, ...]
    has_pooler: bool = False
    """Whether a pooler belongs to the changes, because the base has none."""


class Decision(StrictModel):
    """How the numbers of a run's head become its answers: here each question gets the
    likeliest answer, with the thresholds that were chosen on the dev file."""

    is_promise: ClassVar[bool] = False

    temperature: float = pydantic.Field(default=1.0, gt=0)
    """Logits are divided by it (Guo et al., 2017)."""
    threshold: float = pydantic.Field(default=0.0, ge=0, le=1)
    """Of a promise: probability from which on an answer is given; below it the answer
    is empty."""
    half_width: float | None = pydantic.Field(default=None, ge=0)
    """Greatest distance of the right number from an answer that is a number; such
    answers are all given. `None`: no interval was promised."""
    label_thresholds: dict[str, float] = {}
    """Probabilities from which on a label is given: of texts with several labels, or of
    a promise for each label, which never gives a label that is not here."""
    no_answer_odds: float = 0.0
    """Of questions: score of "no answer" less that of the best answer, above which a
    question has no answer."""

    def is_given(self, probability: Any, threshold: Any = None) -> Any:
        """Returns whether answers with these probabilities are given: a bool for a
        float, an array or a tensor for another one. NaN keeps no promise. Answers that
        are labels have thresholds from `thresholds_of`."""
        least = self.threshold if threshold is None else threshold
        return (probability >= least) | (not self.is_promise)

    def thresholds_of(self, labels: Iterable[str]) -> list[float]:
        """Returns a threshold for each label; infinity: it is never given."""
        if not self.label_thresholds:
            return [self.threshold for _ in labels]
        return [self.label_thresholds.get(label, math.inf) for label in labels]


LIKELIEST = Decision()


class Distribution(StrictModel):
    """The shares of some rows in which a quantity has at most some values; see
    `labelled.drift`."""

    num_rows: float = pydantic.Field(gt=0)
    points: tuple[tuple[float, float], ...] = pydantic.Field(min_length=1)
    """Values, ascending, and their shares."""

    def _problems(self) -> Iterator[str]:
        columns = zip(*self.points, (float("inf"), 1.0), strict=True)
        if any([*column] != sorted(column) for column in columns):
            yield "expected ascending values and shares, of 1 at most"


class Calibration(Decision):
    """The promise that `bert-keras calibrate` makes of a run's answers, and the figures
    on new rows that support it."""

    is_promise = True

    model_sha256: str = ""
    """Of the weights' file: see `checkpoints.run_directory.weights_digest`."""
    data_sha256: str
    examples: str
    """Plural noun of the inputs, such as `texts`."""
    several: str | None = None
    """Plural noun of the answers, such as `labels`, of which an input may have any
    number; `None`: each has one. Then the rows below are such answers."""
    precision: float = pydantic.Field(gt=0, lt=1)
    """Least share of the answers given that is right."""
    confidence: float = pydantic.Field(gt=0, lt=1)
    """Probability, over the choice of the rows, that `precision` is kept."""
    num_rows: int = pydantic.Field(gt=0)
    """Rows on which the threshold was tested; the temperature comes from others."""
    num_answered: int = pydantic.Field(gt=0)
    """Rows of `num_rows` that got an answer."""
    most_counted: int = 1
    """More rows that depend on one another, as those of one text do, count as much as
    so many."""
    num_wrong: int
    """Rows of `num_answered` whose answer is wrong."""
    curve: tuple[tuple[float, float], ...] = ()
    """Shares of rows that other thresholds answer, and of these the right ones."""
    before: tuple[tuple[float, float, float], ...] = ()
    """Bins of the uncalibrated probabilities of the answers: mean, share that is right,
    share of the rows."""
    after: tuple[tuple[float, float, float], ...] = ()
    """The same of the calibrated ones."""
    by_label: dict[str, tuple[int, int, int]] = {}
    """Of a promise for each label: how many of the `num_rows` answers have this label,
    how many of these are given, and how many of the given ones are wrong."""
    inputs: dict[str, Distribution] = {}
    """The rows and their answers, by names of `labelled.drift.QUANTITIES`."""


class Task(StrictModel):
    """The answers of a run's heads."""

    kind: TaskKind
    """`encoder`: no head at all; `multi_label`: any number of classes for a text;
    `tagging`: a class for each token; `span`: where an answer begins and ends;
    `choice`: the best of several endings; `embedding`: a vector, near those of texts
    that mean the same; `ranking`: a score for each passage for a question."""
    name: str | None = None
    """Data set it was tuned on, such as `MRPC`; null: the user's own."""
    labels: tuple[str, ...] | None = None
    """Classes, in the order of the logits."""
    positive_label: str | None = None
    """Of two classes of the user's own texts, that of the F1; null: the second."""
    has_text_pair: bool = False
    """Whether it was trained on pairs of texts."""
    has_impossible: bool = False
    """Whether a question may have no answer."""
    reads_text: bool = False
    """Of `tagging`: whether it was trained on texts with spans of characters, so that
    a file without labels has a text a line."""
    bilstm_units: int = 0
    """Cells in each direction of a BiLSTM below the head (paper, Table 5); 0: none."""
    num_bilstm_layers: int = 1
    """BiLSTMs, one on the other."""
    feature_layers: FeatureLayers | None = None
    """Outputs of a frozen encoder that the head reads; null: the last, trained."""
    pooling: TextPooling = "mean"
    """Of `embedding`: what a text's vector is made of."""
    normalize: bool = False
    """Of `embedding`: vectors have length 1."""

    @property
    def num_labels(self) -> int:
        """Outputs of the head: one for each class, two of a span, else one."""
        if self.labels is not None:
            return len(self.labels)
        return 2 if self.kind == "span" else 1

"""Frozen, strict, typed configurations: load, override, save.

A configuration is a pydantic model that refuses unknown keys. Files are YAML; a name
without a slash or a suffix is a recipe in `bert_keras/recipes/`.
"""

import json
import math
import typing
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import pydantic
import yaml

from bert_keras.errors import InputError, nearest


class StrictModel(pydantic.BaseModel):
    """Base of all configurations: immutable, no unknown keys, no silent casts."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class BertConfig(StrictModel):
    """Size and shape of the encoder, with the keys of Google's `bert_config.json`.

    The defaults are those of BERT-BASE, uncased.
    """

    vocab_size: int = pydantic.Field(30522, gt=0)
    hidden_size: int = pydantic.Field(768, gt=0)
    # Tables of a name for each layer are made of what a file claims here.
    num_hidden_layers: int = pydantic.Field(12, gt=0, le=1000)
    num_attention_heads: int = pydantic.Field(12, gt=0)
    intermediate_size: int = pydantic.Field(3072, gt=0)
    hidden_act: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    """`gelu` is exact (erf); `gelu_tanh` is the form Google's checkpoints saw."""
    hidden_dropout_prob: float = pydantic.Field(0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = pydantic.Field(0.1, ge=0, lt=1)
    max_position_embeddings: int = pydantic.Field(512, gt=0)
    type_vocab_size: int = pydantic.Field(2, gt=0)
    initializer_range: float = pydantic.Field(0.02, gt=0)
    attention: Literal["bidirectional", "left_to_right"] = "bidirectional"
    """`left_to_right`: a token sees only itself and those before it (paper, 5.1); not
    a key of Google's."""

    @pydantic.model_validator(mode="after")
    def _heads_divide_hidden_size(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                "`hidden_size` must be a multiple of `num_attention_heads`, got "
                f"{self.hidden_size} and {self.num_attention_heads}"
            )
        return self


class CorpusConfig(StrictModel):
    """What `corpus` leaves out."""

    min_document_words: int = pydantic.Field(20, ge=0)
    """Shorter documents are dropped."""
    drop_lists: bool = True
    """Drop disambiguation and list pages of Wikipedia."""
    deduplicate_paragraphs: bool = True
    """Keep a paragraph that several documents share in one of them only."""
    min_duplicate_words: int = pydantic.Field(10, ge=1)
    """Shorter paragraphs may repeat: dialogue and headings do so by chance."""


class ExamplesConfig(StrictModel):
    """How documents become masked examples (`create_pretraining_data.py`'s flags)."""

    max_seq_length: int = pydantic.Field(128, ge=8)
    """Tokens per example, `[CLS]` and both `[SEP]` included."""
    max_predictions_per_seq: int | None = pydantic.Field(None, gt=0)
    """Slots for masked tokens; null: `ceil(max_seq_length * masked_lm_prob)`."""
    masked_lm_prob: float = pydantic.Field(0.15, gt=0, lt=1)
    """Fraction of tokens that is predicted."""
    dupe_factor: int | None = pydantic.Field(None, ge=1)
    """How many times each document is used, with other pairs and other masks; null: 10,
    and 1 with dynamic masking, which gives other masks in each epoch."""
    short_seq_prob: float = pydantic.Field(0.1, ge=0, le=1)
    """Fraction of examples that aims at a random shorter length."""
    masking: Literal["static", "dynamic"] = "static"
    """`static` writes masked and padded examples; `dynamic` writes plain ones, masked
    when they are loaded, differently in each epoch."""
    mask_token_prob: float = pydantic.Field(0.8, ge=0, le=1)
    """Fraction of the chosen tokens that becomes `[MASK]`."""
    random_token_prob: float = pydantic.Field(0.1, ge=0, le=1)
    """Fraction of the chosen tokens that becomes a random one; the rest stays."""
    do_whole_word_mask: bool = False
    """Mask all pieces of a word or none."""
    max_ngram_size: int = pydantic.Field(1, ge=1)
    """Mask runs of up to so many whole words, n words with a probability in proportion
    to 1 / n; 1: no runs."""
    packing: Literal["sentence_pairs", "full_sentences"] = "sentence_pairs"
    """`sentence_pairs` as in the paper; `full_sentences`: consecutive sentences, across
    documents, up to `max_seq_length`, for training without next-sentence prediction."""
    partner: Literal["same_source", "any_source"] = "same_source"
    """Documents among which a random next segment is drawn: those of the same source,
    or uniformly among all, as the paper has it."""
    feature_names: Literal["v1", "v2"] = "v1"
    """Names of the record's features: the original's, or tf-models-official's newer."""
    compression: Literal["none", "gzip"] = "none"
    random_seed: int = 12345

    @pydantic.model_validator(mode="after")
    def _predictions_fit(self) -> Self:
        if self.num_predictions > self.max_seq_length - 3:
            raise ValueError(
                "`max_predictions_per_seq` must leave room for [CLS] and two [SEP] in "
                f"`max_seq_length`, got {self.num_predictions} and "
                f"{self.max_seq_length}"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _mix_adds_up(self) -> Self:
        if self.mask_token_prob + self.random_token_prob > 1 + 1e-9:
            raise ValueError(
                "`mask_token_prob` and `random_token_prob` must not exceed 1 together, "
                f"got {self.mask_token_prob} and {self.random_token_prob}"
            )
        return self

    @property
    def num_duplicates(self) -> int:
        """`dupe_factor`, or its default for this kind of masking."""
        if self.dupe_factor is not None:
            return self.dupe_factor
        return 10 if self.masking == "static" else 1

    @property
    def num_predictions(self) -> int:
        """`max_predictions_per_seq`, or its default for this length."""
        if self.max_predictions_per_seq is not None:
            return self.max_predictions_per_seq
        return math.ceil(self.max_seq_length * self.masked_lm_prob)


class OptimizerConfig(StrictModel):
    """BERT's Adam (paper, A.2; `optimization.py` of the original), or LAMB."""

    name: Literal["adamw", "lamb"] = "adamw"
    """`lamb`: You et al. (2020), for batches of many thousands."""
    adamw_mode: Literal["google", "corrected"] = "google"
    """`google`: without bias correction, as BERT was trained; `corrected`: with it, as
    AdamW is published. LAMB always corrects."""
    learning_rate: float = pydantic.Field(1e-4, gt=0)
    """Peak value, which the warm-up heads for."""
    warmup_steps: int = pydantic.Field(10_000, ge=0)
    decay_power: float = pydantic.Field(1.0, gt=0)
    """The rate falls as `(1 - step / num_train_steps) ** decay_power`; 1: linearly."""
    end_learning_rate: float = pydantic.Field(0.0, ge=0)
    """Where the rate ends."""
    weight_decay_rate: float = pydantic.Field(0.01, ge=0)
    """Decoupled decay of all weights but layer norms and biases."""
    beta_1: float = pydantic.Field(0.9, ge=0, lt=1)
    beta_2: float = pydantic.Field(0.999, ge=0, lt=1)
    epsilon: float = pydantic.Field(1e-6, gt=0)
    max_grad_norm: float | None = pydantic.Field(1.0, gt=0)
    """Gradients are clipped to this global norm; null: not at all."""


class ModelConfig(BertConfig):
    """`BertConfig` for a recipe: the vocabulary's size comes from the data."""

    vocab_size: int | None = pydantic.Field(None, gt=0)
    """null: as many as the vocabulary has."""

    def with_vocab_size(self, num_tokens: int) -> BertConfig:
        """The full configuration for a vocabulary of `num_tokens` entries."""
        if self.vocab_size is not None and self.vocab_size < num_tokens:
            raise InputError(
                f"`model.vocab_size` is {self.vocab_size}, but the vocabulary has "
                f"{num_tokens} entries: leave it out, or make it at least that large"
            )
        values = self.model_dump()
        values["vocab_size"] = self.vocab_size or num_tokens
        return BertConfig(**values)


Precision = Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"]
"""Of the computation; weights and optimizer state are float32 always. `auto`:
`mixed_bfloat16` where the hardware multiplies in bfloat16, else `float32`."""


class PhaseConfig(StrictModel):
    """A stretch of pre-training on examples of one length."""

    fraction: float = pydantic.Field(gt=0, le=1)
    """Of `num_train_steps`; those of all phases add up to 1."""
    global_batch_size: int | None = pydantic.Field(None, gt=0)
    """null: the run's."""
    gradient_accumulation_steps: int | None = pydantic.Field(None, gt=0)
    """null: the run's."""


class PretrainingConfig(StrictModel):
    """One pre-training run."""

    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    next_sentence: bool = True
    """Train next-sentence prediction too, if the examples are sentence pairs."""
    global_batch_size: int = pydantic.Field(256, gt=0)
    """Examples per step, over all replicas."""
    gradient_accumulation_steps: int = pydantic.Field(1, gt=0)
    """Parts that a replica computes its share of a batch in, one after the other, to
    need less memory; the outcome is that of the whole batch."""
    num_train_steps: int = pydantic.Field(1_000_000, gt=0)
    phases: tuple[PhaseConfig, ...] = (
        PhaseConfig(fraction=0.9),
        PhaseConfig(fraction=0.1),
    )
    """One for each directory of examples, in their order; with a single directory
    there is a single phase."""
    steps_per_execution: int = pydantic.Field(1, gt=0)
    """Steps that the device makes before it reports back."""
    jit_compile: bool | None = None
    """Compile each replica's step with XLA; null: on GPUs."""
    input_sharding: Literal["record", "file"] = "record"
    """How several workers share the examples. `record`: each takes its rows of every
    batch, so the batches are those of one worker. `file`: each reads its own files."""
    max_skipped_steps: int = pydantic.Field(20, gt=0)
    """Updates in a row that may be skipped because the loss or a gradient is not
    finite; then the run stops."""
    num_eval_shards: int | None = pydantic.Field(None, ge=0)
    """Shards kept out of training for evaluation; their documents are in no other
    shard. null: one in fifty, at least one if there are two."""
    num_eval_steps: int = pydantic.Field(50, gt=0)
    """Batches per evaluation, at most; an evaluation never sees an example twice."""
    save_checkpoint_steps: int = pydantic.Field(1000, gt=0)
    """Steps between checkpoints; each is followed by an evaluation."""
    num_checkpoints: int = pydantic.Field(3, gt=0)
    """Newest checkpoints to keep."""
    num_best_checkpoints: int = pydantic.Field(1, ge=0)
    """Checkpoints of the lowest evaluation loss to keep besides."""
    shuffle_buffer_size: int = pydantic.Field(20_000, gt=0)
    """Records held in memory for shuffling."""
    profile_steps: tuple[int, int] | None = None
    """First and last step of a profile for TensorBoard; null: none."""
    precision: Precision = "auto"
    seed: int = 12345

    @pydantic.model_validator(mode="after")
    def _fractions_add_up(self) -> Self:
        total = sum(phase.fraction for phase in self.phases)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the fractions of `phases` must add up to 1, got {total}")
        return self

    @pydantic.model_validator(mode="after")
    def _warmup_ends(self) -> Self:
        return _check_warmup(self, self.optimizer.warmup_steps, self.num_train_steps)


TaskKind = Literal[
    "pretraining",
    "encoder",
    "classification",
    "regression",
    "tagging",
    "span",
    "choice",
]
TASK_KINDS: tuple[TaskKind, ...] = typing.get_args(TaskKind)


class Task(StrictModel):
    """What a run's heads answer."""

    kind: TaskKind
    """`encoder`: no head at all; `tagging`: a class for each token; `span`: where an
    answer begins and ends; `choice`: the best of several endings."""
    name: str | None = None
    """Of the data set it was tuned on, such as `MRPC`; null: the user's own."""
    labels: tuple[str, ...] | None = None
    """The classes, in the order of the logits."""
    has_text_pair: bool = False
    """Whether it was trained on pairs of texts."""
    has_impossible: bool = False
    """Whether a question may have no answer."""
    bilstm_units: int = 0
    """Cells in each direction of a BiLSTM below the head (paper, Table 5); 0: none."""

    @property
    def num_labels(self) -> int:
        """Outputs of the head: one for each class, two of a span, else one."""
        if self.labels is not None:
            return len(self.labels)
        return 2 if self.kind == "span" else 1


class TextColumns(StrictModel):
    """Where a labelled file keeps its text and labels."""

    text: str = "text"
    text_pair: str | None = None
    """Second text, for tasks on pairs; null: use a column `text_pair` if there."""
    label: str = "label"


class SpanConfig(StrictModel):
    """How answers are looked for in a text, with the names of run_squad.py."""

    doc_stride: int = pydantic.Field(128, gt=0)
    """Tokens from the beginning of a window to that of the next."""
    max_query_length: int = pydantic.Field(64, gt=0)
    """Tokens of a question; the rest of it is cut off."""
    max_answer_length: int = pydantic.Field(30, gt=0)
    """Tokens of an answer at most."""
    n_best_size: int = pydantic.Field(20, gt=0)
    """Answers that are kept of each question."""


class FinetuningConfig(StrictModel):
    """One fine-tuning run on labelled data."""

    task: str = "text"
    """A form of your own data (`text`, `tagging`, `span`, `choice`) or the name of a
    data set, such as `MRPC`: see `bert_keras.tasks.catalogue`."""
    columns: TextColumns = TextColumns()
    regression: bool = False
    """Labels are numbers to be predicted, not classes."""
    max_seq_length: int = pydantic.Field(128, ge=4)
    """Longer inputs are cut, the longer text of a pair first; of `span` and `tagging`
    into windows."""
    document_context: bool = True
    """`tagging`: put the sentences before and after beside each, as many as fit."""
    span: SpanConfig = SpanConfig()
    bilstm_units: int = pydantic.Field(0, ge=0)
    """Cells in each direction of a BiLSTM below the head (paper, Table 5); 0: none."""
    batch_size: int = pydantic.Field(32, gt=0)
    batches: Literal["auto", "shuffled", "by_length"] = "auto"
    """Of examples at random, or of such as are about as long, which pads least. `auto`:
    `shuffled` for `tagging`, where words of short sentences would otherwise count for
    more than others, `by_length` for the rest."""
    num_train_epochs: float = pydantic.Field(3.0, gt=0)
    learning_rate: float = pydantic.Field(5e-5, gt=0)
    warmup_proportion: float = pydantic.Field(0.1, ge=0, lt=1)
    weight_decay_rate: float = pydantic.Field(0.01, ge=0)
    adamw_mode: Literal["google", "corrected"] = "google"
    """`google`: as the paper's results were made; `corrected`: with bias correction,
    which makes fewer runs on small data fail (Mosbach et al., 2021)."""
    dropout_prob: float = pydantic.Field(0.1, ge=0, lt=1)
    """Dropout before the classifier."""
    precision: Precision = "float32"
    seed: int = 12345

    def are_batches_by_length(self, task: Task) -> bool:
        """What `batches` means for a task."""
        if self.batches == "auto":
            return task.kind != "tagging"
        return self.batches == "by_length"


_PLAIN_VALUE = int | float | str | None


class SweepConfig(StrictModel):
    """Which fine-tuning runs a sweep makes, and how it chooses among them."""

    grid: dict[str, tuple[Any, ...]] = {}
    """Values for keys of `FinetuningConfig`, with dots for keys of its parts; each
    combination is a point of the grid."""
    num_restarts: int = pydantic.Field(1, gt=0)
    """Runs of each point: with `seed`, `seed` + 1, ..., so with other shuffles and
    other initial weights of the head, from the same encoder (paper, section 4.1)."""
    metric: str | None = None
    """Of `eval` in results.json; null: what the task is usually measured by."""
    goal: Literal["max", "min"] | None = None
    """Which value of the metric is best; null: `min` of a loss, `max` of all others."""
    choose: Literal["best", "mean"] = "best"
    """`best`: the best single run, as the paper does; `mean`: the point with the best
    mean over its restarts, and its best run."""

    @pydantic.field_validator("grid", mode="before")
    @classmethod
    def _has_lists_of_values(cls, grid: Any) -> Any:
        for key, values in grid.items() if isinstance(grid, dict) else ():
            is_list = isinstance(values, list | tuple) and len(values) > 0
            if not is_list or not all(isinstance(v, _PLAIN_VALUE) for v in values):
                raise ValueError(
                    f"`grid.{key}` is a list of values, such as [16, 32], got "
                    f"{values!r}"
                )
        return grid


def _check_warmup(config: Any, warmup_steps: int, num_train_steps: int) -> Any:
    if warmup_steps >= num_train_steps:
        raise ValueError(
            "`optimizer.warmup_steps` must be below `num_train_steps`, got "
            f"{warmup_steps} and {num_train_steps}: set both"
        )
    return config


Config = TypeVar("Config", bound=StrictModel)


def load_config(
    config_type: type[Config],
    source: str | Path | None = None,
    overrides: Iterable[str] = (),
) -> Config:
    """Reads a configuration and applies overrides to it.

    Args:
        config_type: the model to build.
        source: a YAML file, the name of a recipe, or `None` for the defaults.
        overrides: `"dotted.key=value"` strings; a value is written as in YAML.

    Raises:
        InputError: no such file or recipe, an unknown key (with the nearest known
            one), a value of the wrong type or out of range.
    """
    values = {} if source is None else _read_yaml(config_type, source)
    for override in overrides:
        _apply_override(values, override)
    return build_config(config_type, values, origin=source)


def build_config(
    config_type: type[Config],
    values: Mapping[str, Any],
    *,
    origin: str | Path | None = None,
) -> Config:
    """Builds a configuration from plain values, with errors for people."""
    try:
        return config_type(**values)
    except pydantic.ValidationError as error:
        prefix = f"{origin}: " if origin else ""
        problems = [_explain(config_type, problem) for problem in error.errors()]
        raise InputError(prefix + "; ".join(problems)) from None


def save_config(config: StrictModel, path: str | Path) -> None:
    """Writes a configuration as YAML that `load_config` reads back unchanged."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    Path(path).write_text(text, encoding="utf-8")


def read_bert_config(path: str | Path) -> BertConfig:
    """Reads a `bert_config.json`; keys that Google's own files add are left out."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: expected Google's bert_config.json: {error}"
        ) from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected Google's bert_config.json: keys and values")
    values = {key: v for key, v in values.items() if key not in _UNUSED_GOOGLE_KEYS}
    return build_config(BertConfig, values, origin=path)


# Present in some published bert_config.json files, read by no released code.
_UNUSED_GOOGLE_KEYS = frozenset(
    "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
    "pooler_size_per_head pooler_type".split()
)


def recipe_names() -> list[str]:
    """The names of the recipes that come with the package."""
    folder = resources.files("bert_keras") / "recipes"
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml"))


def _read_yaml(config_type: type[StrictModel], source: str | Path) -> dict[str, Any]:
    name = str(source)
    if name in recipe_names():
        text = (resources.files("bert_keras") / f"recipes/{name}.yaml").read_text()
    elif Path(name).is_file():
        text = Path(name).read_text(encoding="utf-8")
    else:
        raise InputError(
            f"no configuration {name!r}: neither a file nor one of the recipes "
            + ", ".join(recipe_names())
            + nearest(name, recipe_names())
        )
    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise InputError(f"{name}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise InputError(f"{name}: expected keys and values of {config_type.__name__}")
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(f"--set takes key=value, got {override!r}")
    *parents, leaf = key.strip().split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise InputError(f"--set {override!r}: {parent!r} holds no further keys")
    try:
        values[leaf] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"--set {override!r}: {text!r} is not a YAML value") from None


def _explain(config_type: type[StrictModel], problem: Mapping[str, Any]) -> str:
    """One pydantic problem as a line that names the key and what came."""
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] == "extra_forbidden":
        known = _fields_at(config_type, location[:-1])
        return (
            f"no key {key!r}{nearest(location[-1], known)}"
            f" (keys here: {', '.join(known)})"
        )
    message = problem["msg"].removeprefix("Value error, ")
    if not key or "got" in message:
        return message
    return f"`{key}`: {message[0].lower()}{message[1:]}, got {problem['input']!r}"


def _fields_at(config_type: type[StrictModel], location: list[str]) -> list[str]:
    for name in location:
        config_type = config_type.model_fields[name].annotation
    return list(config_type.model_fields)

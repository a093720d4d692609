"""Settings as frozen, strict, typed pydantic models; unknown keys are refused."""

import itertools
import math
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from bert_keras.core.errors import InputError
from bert_keras.core.settings.strict import StrictModel

Attention = Literal["bidirectional", "left_to_right"]


class BertConfig(StrictModel):
    """Size and shape of the encoder, with the keys of Google's `bert_config.json`.

    The defaults are those of BERT-BASE, uncased.
    """

    vocab_size: int = pydantic.Field(default=30522, gt=0)
    """Entries of the vocabulary, special tokens included."""
    hidden_size: int = pydantic.Field(default=768, gt=0)
    """Numbers in the vector of a token; a multiple of `num_attention_heads`."""
    # Tables of a name for each layer are made of what a file claims here.
    num_hidden_layers: int = pydantic.Field(default=12, gt=0, le=1000)
    """Transformer layers."""
    num_attention_heads: int = pydantic.Field(default=12, gt=0)
    """Attention heads in each layer."""
    intermediate_size: int = pydantic.Field(default=3072, gt=0)
    """Units of the feed-forward part of each layer; 4 x `hidden_size` in the paper."""
    hidden_act: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    """Activation of the feed-forward part. `gelu` is exact (erf); `gelu_tanh` is the
    approximation that Google's checkpoints were trained with."""
    hidden_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Fraction of numbers that dropout zeroes in embeddings and layer outputs."""
    attention_probs_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Fraction of attention probabilities that dropout zeroes."""
    max_position_embeddings: int = pydantic.Field(default=512, gt=0)
    """Longest input, in tokens."""
    type_vocab_size: int = pydantic.Field(default=2, gt=0)
    """Kinds of segments: two texts of a pair."""
    initializer_range: float = pydantic.Field(default=0.02, gt=0)
    """Standard deviation of initial weights, normal and cut at twice that."""
    attention: Attention = "bidirectional"
    """Tokens that a token sees: all of them, or with `left_to_right` itself and those
    before it (paper, 5.1). Not a key of Google's."""

    def _problems(self) -> Iterator[str]:
        if self.hidden_size % self.num_attention_heads:
            yield (
                "`hidden_size` must be a multiple of `num_attention_heads`, got "
                f"{self.hidden_size} and {self.num_attention_heads}"
            )


class CorpusConfig(StrictModel):
    """Text that `corpus` leaves out."""

    min_document_words: int = pydantic.Field(default=20, ge=0)
    """Words that a document needs; shorter ones are dropped. Two characters of Chinese
    or Japanese are a word, and four of Thai, Lao, Khmer or Burmese."""
    drop_lists: bool = True
    """Drop disambiguation and list pages of Wikipedia."""
    deduplicate_paragraphs: bool = True
    """Keep a paragraph that several documents share in one of them only."""
    min_duplicate_words: int = pydantic.Field(default=10, ge=1)
    """Words from which a paragraph counts as a duplicate: shorter ones, such as
    dialogue and headings, repeat by chance."""


def instances_per_row(max_seq_length: int) -> int:
    """Instances that a packed row has slots for."""
    return max(1, max_seq_length // 8)


class ExamplesConfig(StrictModel):
    """Masked examples from documents (`create_pretraining_data.py`'s flags)."""

    max_seq_length: int = pydantic.Field(default=128, ge=8)
    """Tokens per example, `[CLS]` and both `[SEP]` included."""
    max_predictions_per_seq: int | None = pydantic.Field(default=None, gt=0)
    """Slots for masked tokens; null: `ceil(max_seq_length * masked_lm_prob)`."""
    masked_lm_prob: float = pydantic.Field(default=0.15, gt=0, lt=1)
    """Fraction of tokens to predict."""
    dupe_factor: int | None = pydantic.Field(default=None, ge=1)
    """Copies of each document, each with other pairs and masks; null: 10, or 1 with
    dynamic masking, which draws new masks in each epoch."""
    short_seq_prob: float | None = pydantic.Field(default=None, ge=0, le=1)
    """Fraction of examples that aim at a random shorter length; null: 0.1, or 0 with
    full sentences, as RoBERTa has them."""
    masking: Literal["static", "dynamic"] = "static"
    """`static` writes masked and padded examples; `dynamic` writes plain ones, which
    training masks when it loads them, differently in each epoch."""
    mask_token_prob: float = pydantic.Field(default=0.8, ge=0, le=1)
    """Fraction of the chosen tokens that becomes `[MASK]`."""
    random_token_prob: float = pydantic.Field(default=0.1, ge=0, le=1)
    """Fraction of the chosen tokens that becomes a random one; the rest stays."""
    do_whole_word_mask: bool = False
    """Mask all pieces of a word or none."""
    max_ngram_size: int = pydantic.Field(default=1, ge=1)
    """Longest run of whole words masked together, n with a share of 1 / n; 1: none."""
    packing: Literal["sentence_pairs", "full_sentences"] = "sentence_pairs"
    """`sentence_pairs` as in the paper; `full_sentences`: consecutive sentences, across
    documents, up to `max_seq_length`, for training without next-sentence prediction."""
    pack_instances: bool = False
    """Put several instances into each row of `max_seq_length` tokens, so that hardly a
    position is padding; each is trained as in a row of its own."""
    partner: Literal["same_source", "any_source"] = "same_source"
    """Documents of random next segments: of the same source, or all as in the paper."""
    next_sentence: Literal["original", "balanced"] = "original"
    """Pairs whose B is random: `original` as in google-research/bert, about half in
    long documents and 60 % in short ones, where a sentence that is left alone gets a
    random B; `balanced`: exactly half, drawn from the commoner kind; the rest goes."""
    feature_names: Literal["v1", "v2"] = "v1"
    """Names of the record's features: the original's, or tf-models-official's newer."""
    compression: Literal["none", "gzip"] = "none"
    """Compression of the TFRecord files."""
    random_seed: int = 12345
    """Seed of pairs and masks: the same seed gives the same bytes."""

    def _problems(self) -> Iterator[str]:
        if self.num_predictions > self.max_seq_length - 3:
            yield (
                "`max_predictions_per_seq` must leave room for [CLS] and two [SEP] in "
                f"`max_seq_length`, got {self.num_predictions} and "
                f"{self.max_seq_length}"
            )
        if self.next_sentence == "balanced" and self.packing != "sentence_pairs":
            yield (
                "`next_sentence=balanced` needs `packing=sentence_pairs`, got "
                f"{self.packing}: full sentences have no next sentence"
            )
        if self.mask_token_prob + self.random_token_prob > 1 + 1e-9:
            yield (
                "`mask_token_prob` and `random_token_prob` must not exceed 1 together, "
                f"got {self.mask_token_prob} and {self.random_token_prob}"
            )

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

    @property
    def num_slots(self) -> int:
        """Instances that a row has room for."""
        return instances_per_row(self.max_seq_length) if self.pack_instances else 1

    @property
    def num_row_predictions(self) -> int:
        """Slots for the masked tokens of a row: of one instance, or of all in it."""
        if not self.pack_instances:
            return self.num_predictions
        # The shares of several instances are rounded one by one.
        wanted = math.ceil(1.05 * self.max_seq_length * self.masked_lm_prob)
        return max(self.num_predictions, wanted)


AdamwMode = Literal["google", "corrected"]


class OptimizerConfig(StrictModel):
    """BERT's Adam (paper, A.2; `optimization.py` of the original), LAMB or Muon."""

    name: Literal["adamw", "lamb", "muon"] = "adamw"
    """Optimizer. `lamb`: You et al. (2020), for batches of many thousands; `muon`:
    Jordan et al. (2024) for matrices between layers, with AdamW for the rest."""
    adamw_mode: AdamwMode = "google"
    """`google`: without bias correction, as BERT was trained; `corrected`: with it, as
    AdamW is published. LAMB and Muon always correct."""
    learning_rate: float = pydantic.Field(default=1e-4, gt=0)
    """Peak learning rate, which the warm-up heads for."""
    warmup_steps: int = pydantic.Field(default=10_000, ge=0)
    """Steps over which the rate rises linearly from 0."""
    decay_steps: int | None = pydantic.Field(default=None, gt=0)
    """Steps at the end of the run in which the rate falls from its peak (warm-up,
    stable, decay; Hu et al., 2024); null: all after the warm-up, as in the original.
    The checkpoint before them stays, for `--init` to go on from with other text."""
    decay_power: float = pydantic.Field(default=1.0, gt=0)
    """The rate falls as `(1 - step / num_train_steps) ** decay_power`, with
    `decay_steps` as that power of the share of them that is left; 1: linearly."""
    end_learning_rate: float = pydantic.Field(default=0.0, ge=0)
    """Learning rate at the last step."""
    weight_decay_rate: float = pydantic.Field(default=0.01, ge=0)
    """Decoupled weight decay, per unit of learning rate; none of norms and biases."""
    beta_1: float = pydantic.Field(default=0.9, ge=0, lt=1)
    """Decay per step of the mean of gradients."""
    beta_2: float = pydantic.Field(default=0.999, ge=0, lt=1)
    """Decay per step of the mean of squared gradients."""
    epsilon: float = pydantic.Field(default=1e-6, gt=0)
    """Added to the root of the mean squared gradient, against division by 0."""
    max_grad_norm: float | None = pydantic.Field(default=1.0, gt=0)
    """Global norm that gradients are clipped to; null: no clipping."""


class ModelConfig(BertConfig):
    """`BertConfig` for a recipe: the vocabulary's size comes from the data."""

    vocab_size: int | None = pydantic.Field(default=None, gt=0)
    """Entries of the embedding table; null: as many as the vocabulary has."""

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


_RECOMPUTED = (
    "What the backward pass computes again, so that it need not be kept in memory: "
    "nothing, each layer's attention, or each layer. The loss is the same, bit for bit."
)
Recompute = Annotated[
    Literal["none", "attention", "layers"], pydantic.Field(description=_RECOMPUTED)
]

Precision = Annotated[
    Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"],
    pydantic.Field(
        description="Number format of the computation; weights and optimizer state are "
        "always float32. `auto`: `mixed_bfloat16` where the hardware multiplies in "
        "bfloat16, else `float32`."
    ),
]


class PhaseConfig(StrictModel):
    """A stretch of pre-training on examples of one length."""

    fraction: float = pydantic.Field(gt=0, le=1)
    """Share of `num_train_steps`; the shares of all phases add up to 1."""
    global_batch_size: int | None = pydantic.Field(default=None, gt=0)
    """Examples per step, over all replicas; null: the run's."""
    gradient_accumulation_steps: int | None = pydantic.Field(default=None, gt=0)
    """Parts of a batch, one after the other; null: the run's. May change on resume."""


class PretrainingConfig(StrictModel):
    """One pre-training run."""

    model: ModelConfig = ModelConfig()
    """The encoder."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """The optimizer and its learning rate."""
    next_sentence: bool = True
    """Train next-sentence prediction too, if the examples are sentence pairs."""
    global_batch_size: int = pydantic.Field(default=256, gt=0)
    """Examples per step, over all replicas; of packed ones, rows."""
    gradient_accumulation_steps: int = pydantic.Field(default=1, gt=0)
    """Parts in which a replica computes its share of a batch, to need less memory, also
    to evaluate; the result is that of the whole batch. May change on resume."""
    recompute: Recompute = pydantic.Field(
        default="none", description=f"{_RECOMPUTED} May change on resume."
    )
    num_train_steps: int = pydantic.Field(default=1_000_000, gt=0)
    """Optimizer updates of the whole run."""
    phases: tuple[PhaseConfig, ...] = (
        PhaseConfig(fraction=0.9),
        PhaseConfig(fraction=0.1),
    )
    """Stretches of the run, one for each directory of examples, in their order; with a
    single directory there is a single phase."""
    masked_lm_prob_end: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """Fraction of tokens to predict at the last step, to which it falls linearly from
    the examples' `masked_lm_prob` (Ankner et al., 2024), for examples with dynamic
    masking; evaluation keeps the examples'. null: constant."""
    grow_positions: Literal["none", "extrapolate"] = "none"
    """Position embeddings that no phase has trained, when one with longer sequences
    begins: `none`: as initialised; `extrapolate`: continued from the trained ones by
    the rotation that turns each into the next. With `--init` all count as trained."""
    steps_per_execution: int | None = pydantic.Field(default=None, gt=0)
    """Steps that the device makes before it reports back; SIGTERM and Ctrl-C wait for
    them. null: 50 on TPUs, 10 on GPUs, 1 on processors. May change on resume."""
    jit_compile: bool | None = None
    """Compile the replicas' step with XLA; null: on GPUs. May change on resume."""
    input_sharding: Literal["record", "file"] = "record"
    """How several workers share the examples. `record`: each takes its rows of every
    batch, so the batches are those of one worker. `file`: each reads its own files."""
    max_skipped_steps: int = pydantic.Field(default=20, gt=0)
    """Updates in a row that may be skipped because the loss or a gradient is not
    finite; then the run stops. May change on resume."""
    num_eval_shards: int | None = pydantic.Field(default=None, ge=0)
    """Shards kept out of training for evaluation; their documents are in no other
    shard. null: one in fifty, at least one if there are two."""
    num_eval_steps: int = pydantic.Field(default=50, gt=0)
    """Most batches of an evaluation, each example once. May change on resume."""
    minimal_pairs: str | None = None
    """File of minimal pairs, as `score --pairs` reads, of which each evaluation scores
    about 1,000, as many of each group; null: none. May change on resume."""
    save_checkpoint_steps: int = pydantic.Field(default=1000, gt=0)
    """Steps between checkpoints. May change on resume."""
    save_checkpoint_minutes: float | None = pydantic.Field(default=None, gt=0)
    """Minutes without a checkpoint after which there is one more, which the next one
    replaces; null: none. May change on resume."""
    evaluate_steps: int | None = pydantic.Field(default=None, gt=0)
    """Steps between evaluations; null: `save_checkpoint_steps`. Best a multiple of it:
    only what is saved can be the best checkpoint. May change on resume."""
    evaluate_minutes: float | None = pydantic.Field(default=None, gt=0)
    """Minutes without evaluation before one more; null: none. May change on resume."""
    draw_steps: int | None = pydantic.Field(default=None, gt=0)
    """Steps between pictures and guesses for TensorBoard; null: with
    each evaluation that comes by steps. May change on resume."""
    draw_minutes: float | None = pydantic.Field(default=None, gt=0)
    """Minutes without these before some more; null: none. May change on resume."""
    num_checkpoints: int = pydantic.Field(default=3, gt=0)
    """Newest checkpoints to keep. May change on resume."""
    num_best_checkpoints: int = pydantic.Field(default=1, ge=0)
    """Checkpoints of the lowest evaluation loss to keep, too. May change on resume."""
    shuffle_buffer_size: int = pydantic.Field(default=20_000, gt=0)
    """Records held in memory for shuffling."""
    profile_steps: tuple[int, int] | None = None
    """First and last step of a TensorBoard profile; null: no. May change on resume."""
    precision: Precision = "auto"
    seed: int = 12345
    """Seed of initial weights, shuffling, masks and dropout."""

    @property
    def decay_begin(self) -> int | None:
        """Last step at the stable rate; `None`: there is none."""
        if self.optimizer.decay_steps is None:
            return None
        return self.num_train_steps - self.optimizer.decay_steps

    def planned_phases(
        self, num_directories: int
    ) -> list[tuple[PhaseConfig, int, int]]:
        """The phases of a run on so many directories of examples.

        Each comes with the steps of the run before it and at its end.

        Raises:
            InputError: the directories are neither one nor as many as `phases`.
        """
        phases = self.phases
        if num_directories == 1 < len(phases):
            phases = (PhaseConfig(fraction=1.0),)
        elif num_directories != len(phases):
            raise InputError(
                f"{num_directories} directories of examples, but `phases` has "
                f"{len(phases)}: give one for each phase, or a single one"
            )
        shares = itertools.accumulate((p.fraction for p in phases), initial=0.0)
        limits = [round(share * self.num_train_steps) for share in shares]
        return list(zip(phases, limits, limits[1:], strict=False))

    def _problems(self) -> Iterator[str]:
        total = sum(phase.fraction for phase in self.phases)
        if abs(total - 1) > 1e-6:
            yield f"the fractions of `phases` must add up to 1, got {total}"
        warmup_steps = self.optimizer.warmup_steps
        if warmup_steps >= self.num_train_steps:
            yield (
                "`optimizer.warmup_steps` must be below `num_train_steps`, got "
                f"{warmup_steps} and {self.num_train_steps}: set both"
            )
        decay_steps = self.optimizer.decay_steps or 0
        if warmup_steps + decay_steps > self.num_train_steps:
            yield (
                "`optimizer.warmup_steps` and `optimizer.decay_steps` must fit into "
                f"`num_train_steps`, got {warmup_steps} and {decay_steps} of "
                f"{self.num_train_steps}: lower one of the first two"
            )


CheckpointFormat = Literal[
    "google",
    "model_garden",
    "hugging_face",
    "sentence_transformers",
    "keras_hub",
    "native",
]
"""Formats that `convert` reads and writes."""
ExportForm = Literal["saved_model", "litert", "onnx"]
"""Forms that `export` writes."""
ModelServer = Literal["tf"]
"""Servers that `export` writes files for."""
Quantization = Literal["int8", "bfloat16", "float16"]
"""Numbers that `export` can quantise weights to."""
Embedding = Literal["cls", "pooled", "mean", "tokens"]
"""Vectors that `export` offers: see `export.embeddings`."""

PllForm = Literal["original", "word_l2r"]
"""Pieces that are masked together in a pseudo-log-likelihood. `original`: one at a time
(Salazar et al., 2020); `word_l2r`: a piece with the rest of its word, so that the end
of a rare word does not give its beginning away (Kauf and Ivanova, 2023)."""

TextPooling = Literal["mean", "cls"]
"""A text's vector: the mean over its tokens, `[CLS]` and `[SEP]` but no padding, or
that of the first one, as in sentence-transformers."""

PairKind = Literal["titles", "neighbours", "sentences"]
"""Pairs of texts of a document: see `bert_keras.pipelines.pairs`."""

LongTexts = Literal["cut", "head_tail", "windows_mean", "windows_max"]
"""What becomes of a text longer than an input: its beginning is kept, or beginning and
end; or the mean or the greatest of the numbers of overlapping windows count."""


def reads_windows(long_texts: LongTexts) -> bool:
    """Whether long texts are read in windows."""
    return long_texts.startswith("windows_")


def window_stride(max_seq_length: int, stride: int | None) -> int:
    """Tokens from the beginning of a text's window to that of the next.

    Args:
        max_seq_length: tokens of an input at most.
        stride: that was asked for; `None`: half of a window's text.
    """
    room = max_seq_length - 2
    return min(stride or max(1, room // 2), room)


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
TASK_KINDS: tuple[TaskKind, ...] = typing.get_args(TaskKind)

FeatureLayers = Literal[
    "embeddings",
    "second_to_last",
    "last",
    "weighted_sum_last_four",
    "concat_last_four",
    "weighted_sum_all",
]
"""Outputs of a frozen encoder that a head reads: rows of the paper's Table 7."""


def feature_layer_numbers(
    name: FeatureLayers, num_hidden_layers: int
) -> tuple[int, ...]:
    """Returns the numbers of layers of an encoder; 0 are the embeddings.

    Raises:
        InputError: the encoder has too few layers.
    """
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


NOT_IN_LABELS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
"""Characters that end a line or a column, or cannot be written: labels become both."""


def check_labels(
    labels: Sequence[str], *, path: str | Path, has_several: bool = False
) -> None:
    """Checks labels of a third-party checkpoint as those of a labelled file are.

    Args:
        labels: in the order of the logits.
        path: of their file, for errors.
        has_several: a text may have several, which commas separate in tables.

    Raises:
        InputError: one is empty, has several lines or a comma, or comes twice.
    """
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

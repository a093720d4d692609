"""Settings of a fine-tuning run; unknown keys are refused."""

import json
import math
from collections.abc import Iterator
from typing import Any, Literal, get_args

import pydantic

from bert_keras.core.errors import check_choice
from bert_keras.core.settings import tasks
from bert_keras.core.settings.architecture import Precision, Recompute
from bert_keras.core.settings.pretraining import AdamwMode
from bert_keras.core.settings.strict import StrictModel


class TextColumns(StrictModel):
    """Columns of a labelled file."""

    text: str = "text"
    """Column of the text."""
    text_pair: str | None = None
    """Column of the second text, for tasks on pairs; null: `text_pair`, if there."""
    negative: str | None = None
    """Of `embedding`: column of a text unlike the first; null: `negative`, if there."""
    label: str | tuple[str, ...] = "label"
    """Column of the class or number; or, for texts with any number of labels, a column
    of 0 and 1 for each label, such as [toxic, insult]."""
    label_separator: str = pydantic.Field(default=",", min_length=1)
    """Between `multi_label` labels in a cell of a table; JSON lines have a list."""

    def _problems(self) -> Iterator[str]:
        labels = [self.label] if isinstance(self.label, str) else list(self.label)
        if not 0 < len({*labels}) == len(labels):
            yield f"`columns.label` is a column or several different ones, got {labels}"


class SpanConfig(StrictModel):
    """How answers are looked for in a text, with the names of run_squad.py."""

    doc_stride: int = pydantic.Field(default=128, gt=0)
    """Tokens from the beginning of a window to that of the next."""
    max_query_length: int = pydantic.Field(default=64, gt=0)
    """Tokens of a question; the rest of it is cut off."""
    max_answer_length: int = pydantic.Field(default=30, gt=0)
    """Tokens of an answer at most."""
    n_best_size: int = pydantic.Field(default=20, gt=0)
    """Answers kept for each question."""


class EmbeddingConfig(StrictModel):
    """Vectors of texts, and what they are learnt from."""

    pairs: Literal["columns", "dropout"] = "columns"
    """Texts whose vectors become alike. `columns`: `text` and `text_pair` of a row.
    `dropout`: each text and itself, seen through two dropout masks (SimCSE; Gao et al.,
    2021), for plain texts. The other texts of a batch are what they are unlike; with a
    `label`, a number for each pair, cosines become these numbers."""
    scale: float = pydantic.Field(default=20.0, gt=0, allow_inf_nan=False)
    """Factor of cosines before a softmax over a batch: 1 / temperature."""
    max_label: float = pydantic.Field(default=1.0, gt=0, allow_inf_nan=False)
    """Label of pairs that mean the same, which becomes a cosine of 1: 5 for STS-B."""
    pooling: tasks.TextPooling = "mean"
    """What a text's vector is made of."""
    normalize: bool = True
    """Vectors that are answered and exported have length 1."""
    metric: Literal["recall_at_10", "spearman"] = "recall_at_10"
    """What counts for `keep` and sweeps: the share of pairs whose second text is among
    the ten nearest of all second texts of the dev file; or, of a dev file with labels,
    the rank correlation of cosines with them."""


class RankingConfig(StrictModel):
    """How the passages of a question are learnt."""

    loss: Literal["listwise", "pairwise"] = "listwise"
    """`listwise`: cross entropy of a softmax over passages, the targets are shares of
    the relevance (ListNet; Cao et al., 2007). `pairwise`: logistic loss of each more
    and less relevant passage (RankNet; Burges et al., 2005)."""
    num_candidates: int = pydantic.Field(default=8, ge=2)
    """Passages of a question in a step at most. Of more, each epoch draws others: a
    right one, a less relevant one, and the rest at random. Scores are of all."""


class DistillationConfig(StrictModel):
    """Settings of a student that learns from a teacher, with `bert-keras distill`."""

    soft_weight: float | None = pydantic.Field(default=None, ge=0)
    """Weight of the teacher's answers in the loss: divergence of probabilities from the
    teacher's, or squared difference of numbers. null: 1 if the teacher is tuned."""
    temperature: float = pydantic.Field(default=1.0, gt=0)
    """Divides the logits of both, which makes unlikely answers count for more; the loss
    is multiplied by its square (Hinton et al., 2015)."""
    hard_weight: float | None = pydantic.Field(default=None, ge=0)
    """Weight of the training file's own labels; null: 1 with `--labels`."""
    relation_weight: float | None = pydantic.Field(default=None, ge=0)
    """Weight of relations between tokens, by queries, keys and values of the last layer
    (MiniLMv2; Wang et al., 2021). null: 1 unless the teacher is tuned."""
    relation_heads: int | None = pydantic.Field(default=None, gt=0)
    """Parts into which those vectors are cut, a divisor of both hidden sizes; null: the
    greatest one up to 48, as many as the paper has for BASE."""
    init_layers: tuple[int, ...] | None = None
    """Layers of the teacher that the student begins with, such as [2, 4, 6], and its
    embeddings; null: `--student` says what it begins with."""
    init_embeddings: bool = False
    """A student of sizes alone begins with its teacher's embeddings, projected on as
    many principal components as its own have numbers; else with random ones."""


class FinetuningConfig(StrictModel):
    """One fine-tuning run on labelled data."""

    task: str = pydantic.Field(
        default="text",
        description=f"Form of your own data (`{'`, `'.join(tasks.FORMS)}`), or a data "
        "set of `bert_keras.kinds.catalogue`, such as `MRPC`.",
    )
    columns: TextColumns = TextColumns()
    """Names of the columns of a table or JSON lines."""
    regression: bool = False
    """Labels are numbers to predict, not classes."""
    multi_label: bool = False
    """A text has any number of labels: `columns.label` holds them, or lists columns."""
    positive_label: str | None = None
    """Of two classes of texts (`--task text`), the one whose F1 is scored, as `f1 of
    LABEL`; null: the rarer in the training file. Data sets of the paper have theirs."""
    class_weights: Literal["balanced"] | dict[str, float] | None = None
    """Weights of labels in the loss of texts: by label, 1 for those not named, or
    `balanced`: each class counts alike, rare ones more an example. With `multi_label`
    they weigh the texts that have the label."""
    label_smoothing: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Share of a text's targets that all labels get alike (Szegedy et al., 2016)."""
    max_seq_length: int = pydantic.Field(default=128, ge=4)
    """Tokens of an input, special tokens included. Longer inputs are cut, the longer
    text of a pair first; those of `span` and `tagging` into windows."""
    long_texts: tasks.LongTexts = "cut"
    """What becomes of longer texts, or of a pair's longer one: `cut` keeps the
    beginning; `head_tail` a quarter from the beginning and the rest from the end, 128
    and 382 of 510 tokens (Sun et al., 2019). `windows_mean` and `windows_max`, of
    single texts: overlapping windows all learn the text's label, and the mean of their
    logits, or for each label the greatest, answers for the text."""
    window_stride: int | None = pydantic.Field(default=None, gt=0)
    """Tokens from one window of `long_texts` to the next; null: half of a window."""
    document_context: bool = True
    """`tagging`: put the sentences before and after next to each, as many as fit."""
    span: SpanConfig = SpanConfig()
    """Windows and answers of `span`."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    """Pairs and vectors of `embedding`."""
    ranking: RankingConfig = RankingConfig()
    """Loss and passages of `ranking`."""
    bilstm_units: int = pydantic.Field(default=0, ge=0)
    """Cells in each direction of a BiLSTM below the head (paper, Table 5); 0: none."""
    num_bilstm_layers: int = pydantic.Field(default=1, gt=0)
    """BiLSTMs, one on the other; 2 in the paper's Table 7."""
    feature_layers: tasks.FeatureLayers | None = None
    """`tagging`: outputs of the encoder that the head reads, at the first pieces of a
    sentence's words, while the encoder stays as it is and drops nothing (paper, 5.3).
    Weights of a sum are learnt. null: the last layer of an encoder that is trained."""
    lora_rank: int | None = pydantic.Field(default=None, gt=0)
    """Rank of changes of `lora_targets` (LoRA; Hu et al., 2021), which are learnt with
    the head while the rest of the encoder stays as it is. The run keeps these alone,
    and the path of its base. It needs a larger `learning_rate`, such as 5e-4, and for
    small models 3e-3. null: all weights are learnt."""
    lora_targets: tuple[tasks.LoraTarget, ...] = get_args(tasks.LoraTarget)
    """Matrices of each layer that are changed: all of query, key, value,
    attention.output.dense, intermediate.dense and output.dense, or some."""
    lora_alpha: float | None = pydantic.Field(default=None, gt=0)
    """The changes are multiplied by `lora_alpha / lora_rank`. null: `lora_rank`, so by
    1, as in Keras, and in peft with its usual 8 for both."""
    batch_size: int = pydantic.Field(default=32, gt=0)
    """Examples per step, over all replicas."""
    batches: Literal["auto", "shuffled", "by_length"] = "auto"
    """Batches of random examples, or of examples of about the same length, which need
    the least padding. `auto`: `shuffled` for `tagging`, where words of short sentences
    would otherwise count for more than others, for `embedding`, where the length would
    tell texts of a batch apart; `by_length` for the rest."""
    train_fraction: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Share of the training file to learn from, for learning curves: chosen by a hash
    of `seed` and of what an example is about, so that a smaller share is part of a
    larger one. The labels are those of the whole file."""
    calibration_fraction: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Share of the training file that `--calibrate` sets aside by a hash of what its
    examples are about: they are neither trained nor evaluated on, and `calibrate`
    without `--data` takes them."""
    num_train_epochs: float = pydantic.Field(default=3.0, gt=0)
    """Passes over the training file."""
    learning_rate: float = pydantic.Field(default=5e-5, gt=0)
    """Peak learning rate."""
    warmup_proportion: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Fraction of the steps over which the rate rises; then it falls to 0, linearly."""
    weight_decay_rate: float = pydantic.Field(default=0.01, ge=0)
    """Decoupled weight decay, per unit of learning rate; none of norms and biases."""
    adamw_mode: Literal["auto"] | AdamwMode = "auto"
    """`google`: as in the paper's results, without bias correction, which makes the
    first updates up to six times as large; `corrected`: with it, which makes fewer
    runs on small data fail (Mosbach et al., 2021). `auto`: `corrected` for
    `embedding`, whose vectors such updates spoil, `google` for the rest."""
    max_grad_norm: float | None = pydantic.Field(default=1.0, gt=0)
    """Global norm that gradients are clipped to; null: no clipping."""
    dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Fraction of numbers that dropout zeroes before the head."""
    hidden_dropout_prob: float | None = pydantic.Field(default=None, ge=0, lt=1)
    """Dropout of the encoder's layers; null: that of the checkpoint's configuration."""
    attention_probs_dropout_prob: float | None = pydantic.Field(
        default=None, ge=0, lt=1
    )
    """Dropout of attention; null: that of the checkpoint's configuration."""
    gradient_accumulation_steps: int = pydantic.Field(default=1, gt=0)
    """Parts in which a replica computes its share of a batch, one after the other, to
    need less memory; the result is that of the whole batch, up to rounding."""
    recompute: Recompute = "none"
    lengths: tuple[int, ...] | None = None
    """Fixed shapes: each batch has `batch_size` rows, of which missing ones have no
    weight, and the smallest of these numbers of tokens that its inputs fit into, or
    `max_seq_length`. []: as many tokens as its longest input. null: [64, 128, 384] on
    TPUs and with `jit_compile`."""
    length_multiple: int = pydantic.Field(default=1, gt=0)
    """Without `lengths`, pad training batches to a multiple of this many tokens, up to
    `max_seq_length`: 8 suits the tensor cores of GPUs."""
    jit_compile: bool = False
    """Compile each replica's step with XLA, once for each shape of a batch."""
    steps_per_execution: int | None = pydantic.Field(default=None, gt=0)
    """Steps that the devices make without Python at most: those that follow each other
    with one length of `lengths`, up to an evaluation or a checkpoint by steps. null: 50
    on TPUs, 10 on GPUs, 1 on CPUs. May change on resume."""
    evaluate_steps: int | None = pydantic.Field(default=None, gt=0)
    """Steps between evaluations; null: an epoch. The last step has one in any case."""
    keep: Literal["last", "best"] = "last"
    """Weights to keep: the last, as in the paper, or those with the best evaluation by
    the task's main metric on the main dev file."""
    early_stopping: int | None = pydantic.Field(default=None, gt=0)
    """Evaluations in a row without gain in that metric to stop after; null: none."""
    save_checkpoint_steps: int | None = pydantic.Field(default=None, gt=0)
    """Steps between checkpoints to resume from; null: none. May change on resume."""
    save_checkpoint_minutes: float | None = pydantic.Field(default=10.0, gt=0)
    """Minutes between checkpoints; null: none. May change on resume."""
    max_skipped_steps: int = pydantic.Field(default=20, gt=0)
    """Updates in a row that may be skipped because the loss or a gradient is not
    finite; then the run stops, as if all are skipped. May change on resume."""
    distillation: DistillationConfig = DistillationConfig()
    """What `distill` learns from a teacher; `finetune` has none."""
    precision: Precision = "float32"
    seed: int = 12345
    """Seed of the head's initial weights, shuffling and dropout."""

    @pydantic.field_validator("positive_label", mode="before")
    @classmethod
    def _is_text(cls, label: Any) -> Any:
        # In YAML the label `1` is a number.
        return json.dumps(label) if isinstance(label, bool | int | float) else label

    @pydantic.field_validator("lora_targets", mode="before")
    @classmethod
    def _are_matrices(cls, targets: Any) -> Any:
        for name in targets if isinstance(targets, list | tuple) else [targets]:
            check_choice("`lora_targets`", str(name), get_args(tasks.LoraTarget))
        return targets

    @pydantic.field_validator("class_weights", mode="before")
    @classmethod
    def _weighs_labels(cls, weights: Any) -> Any:
        if weights in (None, "balanced"):
            return weights
        if not isinstance(weights, dict) or not weights:
            raise ValueError(
                "`class_weights` is `balanced` or weights by label, such as {spam: "
                f"3}}, got {weights!r}"
            )
        for label, weight in weights.items():
            is_number = isinstance(weight, int | float) and weight is not True
            if not is_number or not 0 < weight < math.inf:
                raise ValueError(
                    f"`class_weights.{label}` is a number above 0, got {weight!r}"
                )
        # As data files have them: YAML takes 1 or true for something else.
        return {
            label if isinstance(label, str) else json.dumps(label): weight
            for label, weight in weights.items()
        }

    def _problems(self) -> Iterator[str]:
        if self.window_stride and not tasks.reads_windows(self.long_texts):
            yield (
                "`window_stride` is for `long_texts` windows_mean and windows_max, got "
                f"{self.long_texts}: leave it out"
            )
        if self.lora_rank and self.feature_layers:
            yield "`feature_layers` freezes all that `lora_rank` changes: give only one"
        usual = type(self).model_fields["lora_targets"].default
        # With `lora_rank: null` beside them, as a run's config.yaml has, they may be
        # another version's defaults.
        is_asked = (
            self.lora_targets != usual and "lora_rank" not in self.model_fields_set
        )
        if not self.lora_rank and (self.lora_alpha or is_asked):
            yield "`lora_targets` and `lora_alpha` need `lora_rank`, got null"
        if self.regression and self.has_several_labels:
            yield (
                "a label is a number or one of several: give `regression` or "
                "`multi_label` (several columns in `columns.label` mean it), got both"
            )
        if self.num_bilstm_layers > 1 and not self.bilstm_units:
            yield (
                f"`num_bilstm_layers` {self.num_bilstm_layers} needs `bilstm_units`, "
                "got 0"
            )
        lengths = list(self.lengths or ())
        if lengths and (lengths[0] < 1 or lengths != sorted({*lengths})):
            yield (
                "`lengths` are ascending numbers of tokens or words, such as [64, 128, "
                f"384], got {lengths}"
            )
        if lengths and self.length_multiple > 1:
            yield (
                f"give `lengths` or `length_multiple`, got {lengths} and "
                f"{self.length_multiple}"
            )

    @property
    def has_several_labels(self) -> bool:
        """Whether a text may have several labels."""
        return self.multi_label or not isinstance(self.columns.label, str)

    def fixed_lengths(self, *, on_tpu: bool) -> tuple[int, ...]:
        """Tokens that batches may have, the last is `max_seq_length`; empty: any."""
        lengths = self.lengths
        if lengths is None:
            is_fixed = on_tpu or (self.jit_compile and self.length_multiple == 1)
            # run_classifier.py has 128 as its default, run_squad.py 384.
            lengths = (64, 128, 384) if is_fixed else ()
        shorter = tuple(n for n in lengths if n < self.max_seq_length)
        return (*shorter, self.max_seq_length) if lengths else ()

    @property
    def decided_adamw_mode(self) -> AdamwMode:
        """`adamw_mode`, what is `auto` decided by the task."""
        if self.adamw_mode == "auto":
            return "corrected" if self.task == "embedding" else "google"
        return self.adamw_mode

    def are_batches_by_length(self, task: tasks.Task) -> bool:
        """Whether batches of a task hold examples of about the same length."""
        if self.batches == "auto":
            return task.kind not in ("tagging", "embedding")
        return self.batches == "by_length"

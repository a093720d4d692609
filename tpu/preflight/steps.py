"""The steps to compile before a TPU is rented, with the sizes of their inputs."""

import dataclasses
from typing import Literal

from bert_keras.core import chips, files, manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings import (
    architecture,
    finetuning,
    pipelines,
    pretraining,
    strict,
    tasks,
)
from bert_keras.data import features
from bert_keras.kinds import catalogue, registry
from bert_keras.kinds.kind import Feature, Labelled
from bert_keras.kinds.text import glue


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One chip's share of a step of a data-parallel slice."""

    purpose: Literal["training", "evaluation"]
    task: tasks.Task
    """`pretraining`, or what is fine-tuned."""
    bert_config: architecture.BertConfig
    optimizer: pretraining.OptimizerConfig
    num_train_steps: int
    precision: architecture.Precision
    next_sentence: bool
    dropout_prob: float
    """Of a fine-tuned head's input."""
    batch_size: int
    """Examples of one chip."""
    max_seq_length: int
    num_predictions: int
    """Masked positions of an example; without meaning in fine-tuning."""
    num_slots: int
    """Instances that a packed row has room for; 0: rows are not packed."""
    num_parts: int
    """Parts in which the chip computes its examples, one after the other."""
    recompute: architecture.Recompute
    num_chips: int
    seed: int

    @property
    def name(self) -> str:
        """A name for people: `pretraining, training`."""
        return f"{self.task.kind}, {self.purpose}"

    def batch(self) -> dict[str, Feature]:
        """Shape and dtype of each feature of a chip's batch. Tuned models are evaluated
        by their outputs, so their batches have no labels."""
        rows, length = self.batch_size, self.max_seq_length
        kind = registry.find(self.task.kind)
        is_training = self.purpose == "training"
        if isinstance(kind, Labelled):
            batch = kind.features(self.task, rows, length, has_labels=is_training)
        else:
            mask = "instance_ids" if self.num_slots else "input_mask"
            tokens, slots = (rows, length), (rows, self.num_predictions)
            batch: dict[str, Feature] = {
                **dict.fromkeys(("input_ids", mask, "segment_ids"), (tokens, "int32")),
                "masked_lm_positions": (slots, "int32"),
                "masked_lm_ids": (slots, "int32"),
                "masked_lm_weights": (slots, "float32"),
            }
            if self.next_sentence:
                labels = (rows, self.num_slots or 1)
                batch["next_sentence_labels"] = (labels, "int32")
        if is_training:
            per_instance = (rows, self.num_slots) if self.num_slots else (rows,)
            batch[features.DROPOUT_SEEDS] = (per_instance, "int32")
        return batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refused:
    operation: str
    scope: str
    """Its name, with those of the layers that it is in."""
    reason: str


def plan(
    settings: pretraining.PretrainingConfig,
    device: chips.Device,
    *,
    examples: str | None = None,
    max_seq_length: int | None = None,
    task: str | None = None,
    global_batch_size: int | None = None,
) -> list[Step]:
    """Returns the steps of a run: one that trains and one that evaluates.

    Their shapes are those of `examples`, a directory, or `max_seq_length`. The task to
    fine-tune on, by its name, is pre-training with `None`, and `global_batch_size` that
    of the settings, or of the task.
    """
    # 1. The shapes of examples, and the size of their vocabulary.
    if (examples is None) == (max_seq_length is None):
        raise InputError("give the shapes with either --examples or --max_seq_length")
    if examples is None:
        values = {"max_seq_length": max_seq_length}
        shapes = strict.build_config(pipelines.ExamplesConfig, values)
        vocab_size = architecture.BertConfig().vocab_size
    else:
        contents = manifest.read_manifest(examples, kind="examples")
        path = files.join(examples, manifest.MANIFEST_NAME)
        shapes = features.examples_config(contents.config, origin=path)
        vocab_size = contents.vocab_size
    bert_config = settings.model.with_vocab_size(vocab_size or 0)
    if shapes.max_seq_length > bert_config.max_position_embeddings:
        raise InputError(
            f"sequences of {shapes.max_seq_length} tokens, but "
            "`model.max_position_embeddings` is "
            f"{bert_config.max_position_embeddings}: raise it or take shorter ones"
        )
    num_predictions = shapes.num_row_predictions
    if settings.model.attention == "left_to_right":
        # Every token but the last predicts the one after it.
        num_predictions = shapes.max_seq_length - 1
    # 2. The task, which has an optimizer and a batch of its own.
    tuned = finetuning.FinetuningConfig(task=task or "text")
    heads, optimizer = tasks.Task(kind="pretraining"), settings.optimizer
    batch_size = settings.global_batch_size
    if task is not None:
        heads, batch_size = _task(tuned), tuned.batch_size
        optimizer = pretraining.OptimizerConfig(
            adamw_mode=tuned.decided_adamw_mode,
            max_grad_norm=tuned.max_grad_norm,
            learning_rate=tuned.learning_rate,
        )
    # 3. What one chip computes.
    if settings.precision == "mixed_float16":
        raise InputError(
            f"{device.chip.name} multiplies in float32 and bfloat16, got `precision="
            f"{settings.precision}`: leave it out, and it is what suits the device"
        )
    batch_size = global_batch_size or batch_size
    num_parts = settings.gradient_accumulation_steps
    sharers = device.num_chips * num_parts
    if batch_size % sharers:
        raise InputError(
            f"a batch of {batch_size} cannot be shared equally by {device.num_chips} "
            f"chips with `gradient_accumulation_steps` {num_parts}: make "
            f"--global_batch_size a multiple of {sharers}"
        )
    is_auto = settings.precision == "auto"
    training = Step(
        purpose="training",
        task=heads,
        bert_config=bert_config,
        optimizer=optimizer,
        num_train_steps=settings.num_train_steps,
        precision="mixed_bfloat16" if is_auto else settings.precision,
        next_sentence=settings.next_sentence and shapes.packing == "sentence_pairs",
        dropout_prob=tuned.dropout_prob,
        batch_size=batch_size // device.num_chips,
        max_seq_length=shapes.max_seq_length,
        num_predictions=num_predictions,
        num_slots=shapes.num_slots if shapes.pack_instances else 0,
        num_parts=num_parts,
        recompute=settings.recompute,
        num_chips=device.num_chips,
        seed=settings.seed,
    )
    return [training, dataclasses.replace(training, purpose="evaluation")]


def _task(settings: finetuning.FinetuningConfig) -> tasks.Task:
    kind = catalogue.task_kind(settings)
    if kind == "embedding":
        raise InputError(
            "`preflight` does not know --task embedding, whose texts are compared over "
            "all chips: take --task choice, which computes four texts for each example"
        )
    if not registry.find(kind).has_labels:
        return tasks.Task(kind=kind)
    official = glue.TASKS.get(settings.task)
    labels = official.labels if official else ("0", "1")
    return tasks.Task(kind=kind, labels=labels)

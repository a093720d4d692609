"""Work of a run: examples, steps, FLOPs and bytes, from its configuration alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bert_keras import config, finetuning_config
from bert_keras.errors import InputError
from bert_keras.model import flops

VOCAB_SIZE = 30522
"""Entries, where a configuration names none."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Steps on examples of one length."""

    name: str
    max_seq_length: int
    num_steps: int
    batch_size: int
    flops_per_example: int
    """Of a training step."""
    evaluation_flops: float = 0.0
    """Of all evaluations on the way."""

    @property
    def num_examples(self) -> int:
        return self.num_steps * self.batch_size

    @property
    def flops(self) -> float:
        return self.num_examples * self.flops_per_example + self.evaluation_flops


@dataclass(frozen=True, kw_only=True)
class Work:
    """A run on paper."""

    title: str
    model: config.BertConfig
    stages: tuple[Stage, ...]
    num_weights: int
    save_checkpoint_steps: int
    save_checkpoint_seconds: float
    """Seconds without a checkpoint after which there is one more; infinite: none."""
    num_checkpoints: int

    @property
    def checkpoint_bytes(self) -> int:
        """Weights and two moments of each, as float32."""
        return 3 * 4 * self.num_weights

    @property
    def flops(self) -> float:
        return sum(stage.flops for stage in self.stages)

    @property
    def num_steps(self) -> int:
        return sum(stage.num_steps for stage in self.stages)


def pretraining(settings: config.PretrainingConfig, lengths: Sequence[int]) -> Work:
    """The work of `pretrain`.

    Args:
        settings: of the run.
        lengths: tokens of the examples of each phase; none: 128, and 512 in a second
            phase. One, as one directory of examples, makes one phase.

    Raises:
        InputError: there are fewer or more phases than lengths.
    """
    phases = settings.phases
    if not lengths:
        lengths = (128, 512)[: len(phases)]
    if len(lengths) == 1:
        phases = (phases[0].model_copy(update={"fraction": 1.0}),)
    if len(lengths) != len(phases):
        raise InputError(
            f"--max_seq_length: expected {len(phases)} lengths, one for each phase, or "
            f"one for a single phase, got {len(lengths)}"
        )
    model = settings.model.with_vocab_size(settings.model.vocab_size or VOCAB_SIZE)
    evaluate_steps = settings.evaluate_steps or settings.save_checkpoint_steps
    share, done, stages = 0.0, 0, []
    for number, (phase, length) in enumerate(zip(phases, lengths, strict=True), 1):
        share += phase.fraction
        last = round(share * settings.num_train_steps)
        batch_size = phase.global_batch_size or settings.global_batch_size
        examples = config.ExamplesConfig(
            max_seq_length=length, pack_instances=settings.pack_instances
        )
        each = flops.pretraining_flops_per_example(
            model,
            max_seq_length=length,
            num_predictions=examples.num_row_predictions,
            next_sentence=settings.next_sentence,
            num_instances=examples.num_slots,
        )
        evaluations = last // evaluate_steps - done // evaluate_steps
        evaluated = evaluations * settings.num_eval_steps * batch_size
        stages.append(
            Stage(
                name=f"phase {number}",
                max_seq_length=length,
                num_steps=last - done,
                batch_size=batch_size,
                flops_per_example=each,
                # The forward pass is a third of a step.
                evaluation_flops=evaluated * each / 3,
            )
        )
        done = last
    return Work(
        title=f"pre-training, {_size(model)}",
        model=model,
        stages=tuple(stages),
        num_weights=num_weights(model, heads=True),
        save_checkpoint_steps=settings.save_checkpoint_steps,
        save_checkpoint_seconds=_seconds(settings.save_checkpoint_minutes),
        num_checkpoints=settings.num_checkpoints + settings.num_best_checkpoints,
    )


def finetuning(
    settings: finetuning_config.FinetuningConfig,
    model: config.ModelConfig,
    num_examples: int,
) -> Work:
    """The work of `finetune`: the encoder's, since heads of tasks are small.

    Args:
        settings: of the run.
        model: the encoder.
        num_examples: labelled examples (of SQuAD, windows) to train on.
    """
    sizes = model.with_vocab_size(model.vocab_size or VOCAB_SIZE)
    # A last batch that is not full is a step too.
    steps = math.ceil(settings.num_train_epochs * num_examples / settings.batch_size)
    stage = Stage(
        name=settings.task,
        max_seq_length=settings.max_seq_length,
        num_steps=steps,
        batch_size=settings.batch_size,
        flops_per_example=flops.pretraining_flops_per_example(
            sizes,
            max_seq_length=settings.max_seq_length,
            num_predictions=0,
            next_sentence=False,
        ),
    )
    return Work(
        title=f"fine-tuning on {settings.task}, {_size(sizes)}",
        model=sizes,
        stages=(stage,),
        num_weights=num_weights(sizes, heads=False),
        save_checkpoint_steps=settings.save_checkpoint_steps or steps,
        save_checkpoint_seconds=_seconds(settings.save_checkpoint_minutes),
        num_checkpoints=1,
    )


def num_weights(model: config.BertConfig, *, heads: bool) -> int:
    """Trained numbers of the encoder and its pooler, and of the pre-training heads."""
    hidden = model.hidden_size
    norm = 2 * hidden
    embeddings = model.vocab_size + model.max_position_embeddings
    encoder = (embeddings + model.type_vocab_size) * hidden + norm
    inner = model.intermediate_size
    layer = 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden
    pooler = hidden * hidden + hidden
    total = encoder + model.num_hidden_layers * (layer + 2 * norm) + pooler
    if heads:
        # The table of words is the embedding's own.
        total += hidden * hidden + hidden + norm + model.vocab_size
        total += 2 * hidden + 2
    return total


def _seconds(minutes: float | None) -> float:
    return math.inf if minutes is None else 60 * minutes


def _size(model: config.BertConfig) -> str:
    return f"{model.num_hidden_layers} layers of {model.hidden_size}"

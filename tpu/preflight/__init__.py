"""Whether our steps compile for a TPU and fit, and how fast they can be, without it.

Each step of a run (training, evaluation; of pre-training or of a task) is lowered as
one chip of the slice would run it and compiled by libtpu for that chip. Figures are the
compiler's; times are lower limits that follow from them and the chip's data sheet.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bert_keras.core import chips, files, manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning, strict
from bert_keras.data import features
from bert_keras.kinds import catalogue, registry
from bert_keras.kinds.text import glue
from bert_keras.tpu.preflight import compiling, steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """A step and what the compiler says of it."""

    step: steps.Step
    compiled: compiling.Compiled
    chip: chips.Chip

    @property
    def fits(self) -> bool:
        """Whether it compiles into the chip's memory."""
        compiled = self.compiled
        return not (compiled.refused or compiled.is_too_large) and (
            compiled.memory <= self.chip.usable_memory
        )

    @property
    def seconds(self) -> tuple[float, float]:
        """Least time of a step, by its arithmetic and by the bytes that it moves."""
        return (
            self.compiled.flops / self.chip.flops,
            self.compiled.moved_bytes / self.chip.bandwidth,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to look at."""

    settings: config.PretrainingConfig
    """The model, the optimizer and how a batch is cut."""
    device: chips.Device
    examples: files.Path | None = None
    """Directory made by `bert-keras examples`, whose shapes are taken."""
    max_seq_length: int | None = None
    """Instead of `examples`."""
    task: str | None = None
    """Name of a task to fine-tune on; `None`: pre-training."""
    global_batch_size: int | None = None
    """Examples of a step on all chips; `None`: the settings', of a task its own."""


def plan(request: Request) -> list[steps.Step]:
    """The steps of a run: those that train and those that evaluate.

    Raises:
        InputError: the examples are unusable, or the batch cannot be shared equally.
    """
    settings, device = request.settings, request.device
    examples, vocab_size = _examples(request)
    tuned = finetuning.FinetuningConfig(task=request.task or "text")
    task, optimizer = config.Task(kind="pretraining"), settings.optimizer
    batch_size = settings.global_batch_size
    if request.task is not None:
        task, batch_size = _task(tuned), tuned.batch_size
        optimizer = config.OptimizerConfig(
            adamw_mode=tuned.decided_adamw_mode,
            max_grad_norm=tuned.max_grad_norm,
            learning_rate=tuned.learning_rate,
        )
    bert_config = settings.model.with_vocab_size(vocab_size)
    if examples.max_seq_length > bert_config.max_position_embeddings:
        raise InputError(
            f"sequences of {examples.max_seq_length} tokens, but "
            "`model.max_position_embeddings` is "
            f"{bert_config.max_position_embeddings}: raise it or take shorter ones"
        )
    num_predictions = examples.num_row_predictions
    if settings.model.attention == "left_to_right":
        num_predictions = examples.max_seq_length - 1
    training = steps.Step(
        purpose="training",
        task=task,
        bert_config=bert_config,
        optimizer=optimizer,
        num_train_steps=settings.num_train_steps,
        precision=_precision(settings.precision, device),
        next_sentence=settings.next_sentence and examples.packing == "sentence_pairs",
        dropout_prob=tuned.dropout_prob,
        batch_size=_share(
            request.global_batch_size or batch_size,
            device,
            num_parts=settings.gradient_accumulation_steps,
        ),
        max_seq_length=examples.max_seq_length,
        num_predictions=num_predictions,
        num_slots=examples.num_slots if examples.pack_instances else 0,
        num_parts=settings.gradient_accumulation_steps,
        recompute=settings.recompute,
        num_chips=device.num_chips,
        seed=settings.seed,
    )
    return [training, dataclasses.replace(training, purpose="evaluation")]


def _precision(asked: config.Precision, device: chips.Device) -> config.Precision:
    """What a run on a TPU computes in. Raises InputError: a TPU has no float16."""
    if asked == "mixed_float16":
        raise InputError(
            f"{device.chip.name} multiplies in float32 and bfloat16, got `precision="
            f"{asked}`: leave it out, and it is what suits the device"
        )
    return "mixed_bfloat16" if asked == "auto" else asked


def _examples(request: Request) -> tuple[config.ExamplesConfig, int]:
    """The shapes of examples, and the entries of their vocabulary."""
    if (request.examples is None) == (request.max_seq_length is None):
        raise InputError("give the shapes with either --examples or --max_seq_length")
    if request.examples is None:
        values = {"max_seq_length": request.max_seq_length}
        made_with = strict.build_config(config.ExamplesConfig, values)
        return made_with, config.BertConfig().vocab_size
    found = manifest.read_manifest(
        request.examples, kind="examples", verb="bert-keras examples"
    )
    path = files.join(request.examples, manifest.MANIFEST_NAME)
    return features.examples_config(found.config, origin=path), found.vocab_size


def _task(settings: finetuning.FinetuningConfig) -> config.Task:
    kind = catalogue.task_kind(settings)
    if kind == "embedding":
        raise InputError(
            "`preflight` does not know --task embedding, whose texts are compared over "
            "all chips: take --task choice, which computes four texts for each example"
        )
    labels: Sequence[str] | None = None
    if registry.find(kind).has_labels:
        labels = ("0", "1")
        if settings.task in glue.TASKS:
            labels = glue.TASKS[settings.task].labels
    return config.Task(kind=kind, labels=None if labels is None else tuple(labels))


def _share(batch_size: int, device: chips.Device, *, num_parts: int) -> int:
    sharers = device.num_chips * num_parts
    if batch_size % sharers:
        raise InputError(
            f"a batch of {batch_size} cannot be shared equally by {device.num_chips} "
            f"chips with `gradient_accumulation_steps` {num_parts}: make "
            f"--global_batch_size a multiple of {sharers}"
        )
    return batch_size // device.num_chips


def check(request: Request) -> list[Checked]:
    """Compiles the steps of a run for a device.

    Raises:
        InputError: see `plan` and `compiling.compile_step`.
    """
    return [
        Checked(
            step=step,
            compiled=compiling.compile_step(step, request.device),
            chip=request.device.chip,
        )
        for step in plan(request)
    ]


def report(device: chips.Device, checked: Sequence[Checked]) -> dict[str, Any]:
    """The steps of a run as JSON has them."""
    return {
        "device": device.name,
        "num_chips": device.num_chips,
        "num_hosts": device.num_hosts,
        "steps": [facts(one) for one in checked],
    }


def facts(checked: Checked) -> dict[str, Any]:
    """A checked step as JSON has it."""
    compute_seconds, memory_seconds = checked.seconds
    return {
        "step": checked.step.name,
        "batch_size": checked.step.batch_size,
        "num_chips": checked.step.num_chips,
        "max_seq_length": checked.step.max_seq_length,
        "fits": checked.fits,
        "needed_bytes": checked.compiled.memory,
        "usable_bytes": checked.chip.usable_memory,
        "least_seconds": max(compute_seconds, memory_seconds),
        **dataclasses.asdict(checked.compiled),
    }

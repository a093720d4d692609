"""Whether our steps compile for a TPU and fit, and how fast they can be, without it.

Each step of a run (training, evaluation; of pre-training or of a task) is lowered as
one chip of the slice would run it and compiled by libtpu for that chip. Figures are the
compiler's; times are lower limits that follow from them and the chip's data sheet.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

from bert_keras import chips, config, files, finetuning_config, manifest, strict_model
from bert_keras.data import features
from bert_keras.errors import InputError
from bert_keras.tasks import catalogue, glue
from bert_keras.tpu.preflight import compiling, estimate, hlo, search, steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """A step and what the compiler says of it."""

    step: steps.Step
    compiled: compiling.Compiled
    chip: chips.Chip
    settings: str = ""
    """That differ from those asked for."""

    @property
    def fits(self) -> bool:
        """Whether it compiles into the chip's memory."""
        return search.fits(self.compiled, self.chip.usable_memory)

    @property
    def seconds(self) -> tuple[float, float]:
        """Least time of a step, by its arithmetic and by the bytes that it moves."""
        dtype = dtype_of(self.step.precision)
        return (
            self.compiled.flops / (self.chip.teraflops[dtype] * 1e12),
            self.compiled.moved_bytes / self.chip.bandwidth,
        )


def dtype_of(precision: config.Precision) -> str:
    """The dtype of the factors of a step's products."""
    return precision.removeprefix("mixed_")


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
    fast: bool = False
    """Compile models of fewer layers and go on from there in a line."""
    largest_batch: bool = False
    """Look for the largest batch that fits, with two to five more compilations."""


def plan(request: Request) -> list[steps.Step]:
    """The steps of a run: those that train and those that evaluate.

    Raises:
        InputError: the examples are unusable, or the batch cannot be shared equally.
    """
    settings, device = request.settings, request.device
    examples, vocab_size = _examples(request)
    if settings.pack_instances:
        examples = examples.model_copy(update={"pack_instances": True})
    tuned = finetuning_config.FinetuningConfig(task=request.task or "text")
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
        precision=_precision(settings.precision, device.chip),
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


def _precision(asked: config.Precision, chip: chips.Chip) -> config.Precision:
    """What a run on the chip computes in.

    Raises:
        InputError: the chip does not multiply in it.
    """
    if asked == "auto":
        return "mixed_bfloat16" if chip.flops("bfloat16") else "float32"
    if chip.flops(dtype_of(asked)) is None:
        raise InputError(
            f"{chip.name} multiplies in {', '.join(chip.teraflops)}, got "
            f"`precision={asked}`: leave it out, and it is what suits the device"
        )
    return asked


def _examples(request: Request) -> tuple[config.ExamplesConfig, int]:
    """The shapes of examples, and the entries of their vocabulary."""
    if (request.examples is None) == (request.max_seq_length is None):
        raise InputError("give the shapes with either --examples or --max_seq_length")
    if request.examples is None:
        values = {"max_seq_length": request.max_seq_length}
        made_with = strict_model.build_config(config.ExamplesConfig, values)
        return made_with, config.BertConfig().vocab_size
    found = manifest.read_manifest(
        request.examples, kind="examples", verb="bert-keras examples"
    )
    path = files.join(request.examples, manifest.MANIFEST_NAME)
    return features.examples_config(found.config, origin=path), found.vocab_size


def _task(settings: finetuning_config.FinetuningConfig) -> config.Task:
    kind = catalogue.task_kind(settings)
    if kind == "embedding":
        raise InputError(
            "`preflight` does not know --task embedding, whose texts are compared over "
            "all chips: take --task choice, which computes four texts for each example"
        )
    labels: Sequence[str] | None = None
    if kind in ("classification", "tagging"):
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What was found for a request."""

    request: Request
    method: Literal["compiled", "extrapolated", "estimated"]
    """Whole steps; those of fewer layers; none, counted by ourselves."""
    steps: list[Checked]
    remedies: list[Checked]
    """With which the training step fits that does not."""
    largest: Checked | None
    """The training step with the most examples that fit, if they were looked for."""


def check(request: Request) -> Report:
    """Compiles the steps of a run for a device.

    Raises:
        InputError: see `plan` and `compiling.compile_step`.
    """
    chip = request.device.chip
    usable = chip.usable_memory
    compile_ = functools.partial(compiling.compile_step, device=request.device)
    method: Any = "compiled"
    if chip.kind == "gpu":
        method, compile_ = "estimated", estimate.estimate
    elif request.fast:
        method, compile_ = "extrapolated", functools.partial(extrapolated, compile_)
    checked = [
        Checked(step=step, compiled=compile_(step), chip=chip) for step in plan(request)
    ]
    training = checked[0]
    remedies, largest = [], None
    if not training.compiled.refused:
        arguments = training.step, training.compiled
        if not training.fits:
            remedies = [
                Checked(step=step, compiled=compiled, chip=chip, settings=settings)
                for settings, step, compiled in search.remedies(
                    *arguments, usable=usable, compile_=compile_
                )
            ]
        if request.largest_batch:
            found = search.largest_batch(*arguments, usable=usable, compile_=compile_)
            if found is not None:
                step = dataclasses.replace(training.step, batch_size=found.num_rows)
                largest = Checked(step=step, compiled=found.compiled, chip=chip)
    return Report(
        request=request,
        method=method,
        steps=checked,
        remedies=remedies,
        largest=largest,
    )


_FIGURES = tuple(
    field.name
    for field in dataclasses.fields(compiling.Compiled)
    if field.type in (float, "float") and field.name != "seconds"
)
"""Figures of a step that grow with each layer."""


FAST_LAYERS = (6, 8)
"""Layers of the models that are compiled to extrapolate from. Of few layers, the most
memory is needed at the update, with all gradients; of more, at the end of the forward
pass, with what each layer keeps. The bytes moved are in no line below six layers: from
three and four layers, those of BERT-BASE come out 6.5 % too large, from four and six
16 % too small."""


def extrapolated(compile_: search.Compile, step: steps.Step) -> compiling.Compiled:
    """A step in a line through those of models with fewer layers."""
    fewer, more = FAST_LAYERS
    if step.num_layers <= more:
        return compile_(step)
    compiled = [compile_(with_layers(step, number)) for number in FAST_LAYERS]
    if compiled[0].refused:
        return compiled[0]
    figures = [{name: getattr(one, name) for name in _FIGURES} for one in compiled]
    return compiling.Compiled(
        seconds=sum(one.seconds for one in compiled),
        is_too_large=any(one.is_too_large for one in compiled),
        **hlo.extrapolate(*figures, steps=(step.num_layers - fewer) / (more - fewer)),
    )


def with_layers(step: steps.Step, number: int) -> steps.Step:
    """A step of the same model with so many layers."""
    sizes = step.bert_config.model_copy(update={"num_hidden_layers": number})
    return dataclasses.replace(step, bert_config=sizes)


def report_facts(report: Report) -> dict[str, Any]:
    """A report as JSON has it."""
    device = report.request.device
    return {
        "device": device.name,
        "num_chips": device.num_chips,
        "num_hosts": device.num_hosts,
        "method": report.method,
        "steps": [facts(one) for one in report.steps],
        "remedies": [facts(one) for one in report.remedies],
        "largest": None if report.largest is None else facts(report.largest),
    }


def facts(checked: Checked) -> dict[str, Any]:
    """A checked step as JSON has it."""
    compute_seconds, memory_seconds = checked.seconds
    return {
        "step": checked.step.name,
        "settings": checked.settings,
        "batch_size": checked.step.batch_size,
        "num_chips": checked.step.num_chips,
        "max_seq_length": checked.step.max_seq_length,
        "fits": checked.fits,
        "needed_bytes": checked.compiled.memory,
        "usable_bytes": checked.chip.usable_memory,
        "least_seconds": max(compute_seconds, memory_seconds),
        **dataclasses.asdict(checked.compiled),
    }

"""`bert-keras plan`: steps, FLOPs, hours, dollars and disk of a run to come.

Pre-training is counted from its configuration alone; fine-tuning from the lengths of
the examples in its file, in the batches that training makes of them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, pipelines, pretraining
from bert_keras.core.settings.finetuning import FinetuningConfig
from bert_keras.model import flops

if TYPE_CHECKING:
    from bert_keras.data import tokenization

_MEASURED_WORDS = 3.3e9
_CORE_HOURS, _OF_EXAMPLES, _OF_DUPLICATE = 4.7, 0.43, 0.214
"""Core-hours for that many words of English (benchmarks/results/data.md): of `corpus`
and `vocab`; of `examples`, for each length, and for each length and duplicate."""
_DOCUMENT_BYTES = 2.31
"""Bytes of gzipped documents, for each word (benchmarks/results/disk_and_rate.md)."""
_TOKENS_PER_WORD = {128: 1.79, 512: 2.11}
"""Tokens of the examples, padding included, for each word and duplicate."""
PACKED_TOKENS_PER_WORD = 1.38
"""Tokens of packed examples: pieces, [CLS] and [SEP] (benchmarks/results/
strict_small.md)."""
_BYTES_PER_TOKEN = {"static": {128: 6.33, 512: 5.11}, "dynamic": {128: 2.31, 512: 1.99}}
"""Bytes of records without compression, for each of these tokens."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    name: str
    num_steps: int
    num_sequences: int
    num_tokens: int
    """Tokens of all sequences, padding included."""
    training_flops: int
    evaluation_flops: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Work:
    title: str
    num_weights: int
    stages: tuple[Stage, ...]
    disk_bytes: dict[str, float]
    """By what lies there."""
    core_hours: float | None = None
    """Hours of one processor core that prepares the data; `None`: it is there."""


def plan_pretraining(
    settings: pretraining.PretrainingConfig,
    examples: Sequence[pipelines.ExamplesConfig],
    *,
    num_words: float | None = None,
) -> Work:
    """Returns the work of `pretrain` on examples of one phase or of all phases.
    `num_words` of text are prepared; `None`: the data exist already."""
    usual = architecture.BertConfig().vocab_size
    model = settings.model.with_vocab_size(settings.model.vocab_size or usual)
    weights = flops.num_weights(model, heads=True)
    num_saved = settings.num_checkpoints + settings.num_best_checkpoints
    disk_bytes, core_hours = _checkpoint_bytes(weights, num_saved), _CORE_HOURS
    if num_words is not None:
        disk_bytes["documents"] = num_words * _DOCUMENT_BYTES
    stages = []
    every = settings.evaluate_steps or settings.save_checkpoint_steps
    planned = zip(examples, settings.planned_phases(len(examples)), strict=True)
    for number, (made, (phase, first, last)) in enumerate(planned, start=1):
        # 1. Time and disk of the examples of the phase, if they do not exist yet.
        length, num_copies = made.max_seq_length, made.num_duplicates
        if num_words is not None:
            core_hours += _OF_EXAMPLES + _OF_DUPLICATE * num_copies
            per_word = _between(_TOKENS_PER_WORD, length)
            if made.pack_instances:
                per_word = PACKED_TOKENS_PER_WORD
            tokens = num_words * num_copies * per_word
            size = tokens * _between(_BYTES_PER_TOKEN[made.masking], length)
            disk_bytes[f"examples of {length}"] = size
        # 2. Arithmetic of training on them, where the phase has steps.
        batch_size = phase.global_batch_size or settings.global_batch_size
        step, evaluation = step_flops(settings, model, made, batch_size)
        num_sequences = (last - first) * batch_size
        if num_sequences:
            stage = Stage(
                name=f"phase {number}",
                num_steps=last - first,
                num_sequences=num_sequences,
                num_tokens=num_sequences * length,
                training_flops=(last - first) * step,
                # The multiples of `every` after `first`, up to `last`.
                evaluation_flops=(last // every - first // every) * evaluation,
            )
            stages.append(stage)
    share = num_words and num_words / _MEASURED_WORDS
    return Work(
        title=f"pre-training, {_size(model)}",
        num_weights=weights,
        stages=tuple(stages),
        disk_bytes=disk_bytes,
        core_hours=share and core_hours * share,
    )


def step_flops(
    settings: pretraining.PretrainingConfig,
    model: architecture.BertConfig,
    examples: pipelines.ExamplesConfig,
    batch_size: int,
) -> tuple[int, float]:
    """Returns the operations of a training step, Muon's included, and of an evaluation
    of `num_eval_steps` batches."""
    batch = batch_size * flops.pretraining_flops_per_example(
        model,
        max_seq_length=examples.max_seq_length,
        num_predictions=examples.num_row_predictions,
        next_sentence=settings.next_sentence,
        num_instances=examples.num_slots,
    )
    step = batch
    if settings.optimizer.name == "muon":
        heads = settings.next_sentence
        step += flops.muon_flops_per_step(model, next_sentence=heads)
    # The forward pass is a third of a step.
    return step, settings.num_eval_steps * batch / 3


def finetuning(
    settings: FinetuningConfig,
    model: architecture.ModelConfig,
    train: str | Path,
    tokenizer: "tokenization.Tokenizer",
) -> Work:
    """Returns the work of `finetune`: the encoder's, since heads of tasks are small."""
    # Not at the top: they load TensorFlow, which the plan of a pre-training needs not.
    import numpy as np

    from bert_keras.kinds import catalogue, splits
    from bert_keras.training.finetuning import learning

    sizes = model.with_vocab_size(len(tokenizer.vocabulary))
    task, _, (data,) = splits.read(catalogue.find(settings), train, [], settings)
    inputs = data.encode(task, tokenizer, settings)
    # 1. The first epoch of training: tokens and arithmetic of its batches.
    fixed = settings.fixed_lengths(on_tpu=False)
    trained = learning.training_batches(
        settings.model_copy(update={"lengths": fixed}),
        inputs,
        by_length=settings.are_batches_by_length(task),
        num_replicas=1,
    )
    padded_length = trained.padded_length or int
    tokens = forward_and_back = 0
    for rows in trained.epoch(0):
        length = padded_length(int(inputs.lengths[rows].max()))
        num_rows = settings.batch_size if fixed else len(rows)
        tokens += num_rows * length
        forward_and_back += num_rows * flops.encoder_flops_per_example(sizes, length)
    # 2. All epochs.
    per_epoch, num_steps = learning.num_steps(settings, len(inputs.lengths))
    epochs = num_steps / per_epoch
    # Choices and pairs: several texts in each row.
    num_texts = math.prod(inputs.batch(np.arange(1))["input_mask"].shape[1:-1])
    stage = Stage(
        name=settings.task,
        num_steps=num_steps,
        num_sequences=round(epochs * len(inputs.lengths)),
        num_tokens=round(epochs * num_texts * tokens),
        training_flops=round(epochs * num_texts * forward_and_back),
    )
    weights = flops.num_weights(sizes, heads=False)
    return Work(
        title=f"fine-tuning on {settings.task}, {_size(sizes)}",
        num_weights=weights,
        stages=(stage,),
        disk_bytes=_checkpoint_bytes(weights, 1),
    )


def facts(
    work: Work,
    *,
    sequences_per_second: Sequence[float],
    teraflops: float | None,
    price_per_hour: float | None,
) -> dict[str, Any]:
    """Returns the plan for programs, with hours if a rate is given. One rate serves all
    phases, or each phase has its own; `price_per_hour`: dollars of the whole machine.
    """
    # 1. The rate of each stage; none if none is given.
    stages = work.stages
    requested = [*sequences_per_second, *([] if teraflops is None else [teraflops])]
    if not all(1e-6 < rate < math.inf for rate in requested):
        raise InputError(f"expected rates above 0, got {' '.join(map(str, requested))}")
    if teraflops is None and len(sequences_per_second) not in (0, 1, len(stages)):
        raise InputError(
            f"--sequences_per_second: expected one rate, or {len(stages)}, one "
            f"for each phase, got {len(sequences_per_second)}"
        )
    measured = zip(sequences_per_second, stages, strict=False)
    # Operations a second, of the sequences a second that were measured.
    rates = [rate * s.training_flops / s.num_sequences for rate, s in measured]
    rates = rates if teraflops is None else [teraflops * 1e12]
    rates *= len(stages) if len(rates) == 1 else 1
    # 2. What follows for each stage, and for all of them.
    values = asdict(work)
    for stage in values["stages"]:
        stage["flops"] = stage["training_flops"] + stage["evaluation_flops"]
    values["flops"] = sum(stage["flops"] for stage in values["stages"])
    if rates:
        for stage, rate in zip(values["stages"], rates, strict=True):
            stage["hours"] = stage["flops"] / rate / 3600
        values["hours"] = sum(stage["hours"] for stage in values["stages"])
    if price_per_hour is not None:
        if not rates:
            raise InputError(
                "--price_per_hour needs the hours: give --sequences_per_second, as "
                "training prints it, or --teraflops"
            )
        if not 0 <= price_per_hour < math.inf:
            raise InputError(
                f"--price_per_hour: expected 0 or more, got {price_per_hour:g}"
            )
        values["dollars"] = values["hours"] * price_per_hour
    return values


def lines(values: dict[str, Any]) -> Iterator[str]:
    units = {"TB": 1e12, "GB": 1e9, "MB": 1e6}
    disk = values["disk_bytes"]
    yield f"{values['title']}: {values['num_weights'] / 1e6:,.1f} million weights"
    for stage in values["stages"]:
        length = stage["num_tokens"] / stage["num_sequences"]
        yield (
            f"{stage['name']}: {stage['num_steps']:,} steps, "
            f"{stage['num_sequences']:,} sequences of {length:,.4g} tokens with "
            f"padding: {_cost(stage)}"
        )
    if values["core_hours"] is not None:
        yield f"data: about {values['core_hours']:,.1f} hours of one processor core"
    for name, size in disk.items():
        yield f"disk, {name}: {_with_unit(size, units)}"
    yield f"disk: {_with_unit(sum(disk.values()), units)}"
    yield f"all: {_cost(values)}"
    if "hours" not in values:
        yield "for hours give --sequences_per_second, as training prints it"


def _cost(values: dict[str, Any]) -> str:
    units = {"EFLOP": 1e18, "PFLOP": 1e15, "TFLOP": 1e12}
    parts = [_with_unit(values["flops"], units)]
    if "hours" in values:
        hours = values["hours"]
        parts.append(
            f"{hours:,.1f} hours" if hours >= 1 else f"{60 * hours:.2g} minutes"
        )
    if "dollars" in values:
        parts.append(f"${values['dollars']:,.2f}")
    return ", ".join(parts)


def _checkpoint_bytes(weights: int, num_kept: int) -> dict[str, float]:
    """Returns the bytes of checkpoints, one more while it is written. Each holds the
    weights and two moments of each weight, as float32."""
    return {f"{num_kept + 1} checkpoints": (num_kept + 1) * 3 * 4 * weights}


def _between(measured: dict[int, float], length: int) -> float:
    """Interpolates between the two measured lengths; beyond them takes the nearer."""
    (short, first), (long, last) = sorted(measured.items())
    share = (min(max(length, short), long) - short) / (long - short)
    return first + share * (last - first)


def _size(model: architecture.BertConfig) -> str:
    return f"{model.num_hidden_layers} layers of {model.hidden_size}"


def _with_unit(number: float, sizes: dict[str, float]) -> str:
    """Writes a number in the largest unit that it reaches, or in the smallest."""
    fitting = [unit for unit, size in sizes.items() if number >= size]
    unit = (fitting or list(sizes)[-1:])[0]
    return f"{number / sizes[unit]:,.3g} {unit}"

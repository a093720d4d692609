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
from bert_keras.core.settings import config, strict
from bert_keras.core.settings.finetuning import FinetuningConfig
from bert_keras.data import tokenization
from bert_keras.model import flops

if TYPE_CHECKING:
    import numpy as np

_VOCAB_SIZE = 30522
"""Entries, where a configuration names none."""
_MEASURED_WORDS = 3.3e9
_CORE_HOURS, _OF_EXAMPLES, _OF_DUPLICATE = 4.7, 0.43, 0.214
"""Core-hours for that many words of English (benchmarks/results/data.md): of `corpus`
and `vocab`; of `examples`, for each length, and for each length and duplicate."""
_DOCUMENT_BYTES = 2.31
"""Bytes of gzipped documents, for each word (benchmarks/results/disk_and_rate.md)."""
_TOKENS_PER_WORD = {128: 1.79, 512: 2.11}
"""Tokens of the examples, padding included, for each word and duplicate."""
_BYTES_PER_TOKEN = {
    "static": {128: 6.33, 512: 5.11},
    "dynamic": {128: 2.31, 512: 1.99},
}
"""Bytes of records without compression, for each of these tokens."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Steps of one kind."""

    name: str
    num_steps: int
    num_sequences: int
    num_tokens: int
    """Tokens of all sequences, padding included."""
    training_flops: int
    evaluation_flops: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """A run on paper."""

    title: str
    num_weights: int
    stages: tuple[Stage, ...]
    disk_bytes: dict[str, float]
    """By what lies there."""
    core_hours: float | None = None
    """Hours of one processor core that prepares the data; `None`: it is there."""


def pretraining(
    settings: config.PretrainingConfig,
    lengths: Sequence[int],
    *,
    num_words: float | None = None,
    masking: str = "static",
) -> Work:
    """Returns the work of `pretrain`.

    Args:
        settings: of the run.
        lengths: tokens of the examples of each phase; empty: 128, and 512 in a second
            phase. A single length makes a single phase.
        num_words: words of text to prepare; `None`: the data are there.
        masking: of the examples that are prepared.

    Raises:
        InputError: there are fewer or more phases than lengths, or a length is too
            small.
    """
    lengths = lengths or (128, 512)[: len(settings.phases)]
    model = settings.model.with_vocab_size(settings.model.vocab_size or _VOCAB_SIZE)
    evaluate_steps = settings.evaluate_steps or settings.save_checkpoint_steps
    stages = []
    planned = settings.planned_phases(len(lengths))
    for number, (length, (phase, first, last)) in enumerate(
        zip(lengths, planned, strict=True), 1
    ):
        if last == first:
            continue
        batch_size = phase.global_batch_size or settings.global_batch_size
        examples = strict.build_config(
            config.ExamplesConfig, {"max_seq_length": length}
        )
        each = flops.pretraining_flops_per_example(
            model,
            max_seq_length=length,
            num_predictions=examples.num_row_predictions,
            next_sentence=settings.next_sentence,
        )
        evaluations = last // evaluate_steps - first // evaluate_steps
        num_sequences = (last - first) * batch_size
        stages.append(
            Stage(
                name=f"phase {number}",
                num_steps=last - first,
                num_sequences=num_sequences,
                num_tokens=num_sequences * length,
                training_flops=num_sequences * each,
                # The forward pass is a third of a step.
                evaluation_flops=evaluations
                * (settings.num_eval_steps * batch_size * each / 3),
            )
        )
    weights = num_weights(model, heads=True)
    kept = settings.num_checkpoints + settings.num_best_checkpoints
    disk_bytes = _checkpoint_bytes(weights, kept)
    core_hours = None
    if num_words is not None:
        copies = config.ExamplesConfig(masking=masking).num_duplicates
        disk_bytes["documents"] = num_words * _DOCUMENT_BYTES
        for length in lengths:
            tokens = num_words * copies * _between(_TOKENS_PER_WORD, length)
            disk_bytes[f"examples of {length}"] = tokens * _between(
                _BYTES_PER_TOKEN[masking], length
            )
        core_hours = _CORE_HOURS + len(lengths) * (
            _OF_EXAMPLES + _OF_DUPLICATE * copies
        )
        core_hours *= num_words / _MEASURED_WORDS
    return Work(
        title=f"pre-training, {_size(model)}",
        num_weights=weights,
        stages=tuple(stages),
        disk_bytes=disk_bytes,
        core_hours=core_hours,
    )


def finetuning(
    settings: FinetuningConfig,
    model: config.ModelConfig,
    train: str | Path,
    tokenizer: tokenization.Tokenizer,
) -> Work:
    """Returns the work of `finetune`: the encoder's, since heads of tasks are small.

    Args:
        settings: of the run.
        model: the encoder.
        train: file to train on.
        tokenizer: of the encoder.
    """
    # Not at the top: they load TensorFlow, which the plan of a pre-training needs not.
    import numpy as np

    from bert_keras.kinds import held_out_parts
    from bert_keras.training.finetuning import loop

    sizes = model.with_vocab_size(len(tokenizer.vocabulary))
    task, _, (data,) = held_out_parts.read(train, [], settings)
    inputs = data.encode(task, tokenizer, settings)
    batches = list(_batches(settings, task, inputs.lengths))
    per_epoch, num_steps = loop.num_steps(settings, len(inputs.lengths))
    epochs = num_steps / per_epoch
    # Choices and pairs: several texts in each row.
    num_texts = math.prod(inputs.batch(np.arange(1))["input_mask"].shape[1:-1])
    forward_and_back = sum(
        num_rows
        * flops.pretraining_flops_per_example(
            sizes, max_seq_length=length, num_predictions=0, next_sentence=False
        )
        for num_rows, length in batches
    )
    tokens = sum(num_rows * length for num_rows, length in batches)
    stage = Stage(
        name=settings.task,
        num_steps=num_steps,
        num_sequences=round(epochs * len(inputs.lengths)),
        num_tokens=round(epochs * num_texts * tokens),
        training_flops=round(epochs * num_texts * forward_and_back),
    )
    weights = num_weights(sizes, heads=False)
    return Work(
        title=f"fine-tuning on {settings.task}, {_size(sizes)}",
        num_weights=weights,
        stages=(stage,),
        disk_bytes=_checkpoint_bytes(weights, 1),
    )


def _batches(
    settings: FinetuningConfig,
    task: config.Task,
    lengths: "np.ndarray",
) -> Iterator[tuple[int, int]]:
    """Rows and tokens of a row of each batch of the first epoch, as training has them.

    Args:
        settings: of the run.
        task: that it learns.
        lengths: tokens of each input.
    """
    from bert_keras.training.finetuning import batches

    fixed = settings.fixed_lengths(on_tpu=False)
    settings = settings.model_copy(update={"lengths": fixed})
    shapes = batches.BatchShapes.of(settings)
    packer = shapes.packer(settings.batch_size, 1, settings.gradient_accumulation_steps)
    padded_length = shapes.length_of(1) or int
    for rows in batches.epoch_batches(
        lengths,
        batch_size=settings.batch_size,
        by_length=settings.are_batches_by_length(task),
        seed=settings.seed,
        epoch=0,
    ):
        if packer is not None:
            plan = packer.plan(lengths[rows])
            yield plan.num_rows, plan.length
        else:
            num_rows = settings.batch_size if fixed else len(rows)
            yield num_rows, padded_length(int(lengths[rows].max()))


def num_weights(model: config.BertConfig, *, heads: bool) -> int:
    """Trained numbers of the encoder and its pooler, and of the pre-training heads."""
    hidden, inner = model.hidden_size, model.intermediate_size
    norm, dense = 2 * hidden, hidden * hidden + hidden
    tables = model.vocab_size + model.max_position_embeddings + model.type_vocab_size
    layer = 4 * dense + 2 * hidden * inner + inner + hidden + 2 * norm
    total = tables * hidden + norm + model.num_hidden_layers * layer + dense
    # The table of words is the embedding's own.
    return total + heads * (dense + norm + model.vocab_size + 2 * hidden + 2)


def rates(
    work: Work, *, sequences_per_second: Sequence[float], teraflops: float | None
) -> list[float] | None:
    """Returns the operations a second of each stage; `None`: no rate is given.

    Raises:
        InputError: a rate is not positive, or there are as many as neither one nor the
            phases.
    """
    given = [*sequences_per_second, *([] if teraflops is None else [teraflops])]
    if not given:
        return None
    if not all(1e-6 < rate < math.inf for rate in given):
        raise InputError(f"expected rates above 0, got {' '.join(map(str, given))}")
    if teraflops is not None:
        return [teraflops * 1e12] * len(work.stages)
    per_second = [
        rate * stage.training_flops / stage.num_sequences
        for rate, stage in zip(sequences_per_second, work.stages, strict=False)
    ]
    if len(sequences_per_second) == 1:
        return per_second * len(work.stages)
    if len(sequences_per_second) != len(work.stages):
        raise InputError(
            f"--sequences_per_second: expected one rate, or {len(work.stages)}, one "
            f"for each phase, got {len(sequences_per_second)}"
        )
    return per_second


def facts(
    work: Work, flops_per_second: Sequence[float] | None, price_per_hour: float | None
) -> dict[str, Any]:
    """Returns the plan for programs.

    Args:
        work: the run.
        flops_per_second: see `rates`.
        price_per_hour: US dollars of the whole machine; `None`: not asked for.
    """
    found = asdict(work)
    for stage in found["stages"]:
        stage["flops"] = stage["training_flops"] + stage["evaluation_flops"]
    found["flops"] = sum(stage["flops"] for stage in found["stages"])
    if flops_per_second is None:
        if price_per_hour is not None:
            raise InputError(
                "--price_per_hour needs the hours: give --sequences_per_second, as "
                "training prints it, or --teraflops"
            )
        return found
    for stage, rate in zip(found["stages"], flops_per_second, strict=True):
        stage["hours"] = stage["flops"] / rate / 3600
    found["hours"] = sum(stage["hours"] for stage in found["stages"])
    if price_per_hour is not None:
        if not 0 <= price_per_hour < math.inf:
            raise InputError(
                f"--price_per_hour: expected 0 or more, got {price_per_hour:g}"
            )
        found["dollars"] = found["hours"] * price_per_hour
    return found


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The lines of a plan."""
    yield f"{found['title']}: {found['num_weights'] / 1e6:,.1f} million weights"
    for stage in found["stages"]:
        length = stage["num_tokens"] / stage["num_sequences"]
        yield (
            f"{stage['name']}: {stage['num_steps']:,} steps, "
            f"{stage['num_sequences']:,} sequences of {length:,.4g} tokens with "
            f"padding: {_cost(stage)}"
        )
    if found["core_hours"] is not None:
        yield f"data: about {found['core_hours']:,.1f} hours of one processor core"
    for name, size in found["disk_bytes"].items():
        yield f"disk, {name}: {_bytes(size)}"
    yield f"disk: {_bytes(sum(found['disk_bytes'].values()))}"
    yield f"all: {_cost(found)}"
    if "hours" not in found:
        yield "for hours give --sequences_per_second, as training prints it"


def _cost(found: dict[str, Any]) -> str:
    units = {"EFLOP": 1e18, "PFLOP": 1e15, "TFLOP": 1e12}
    parts = [_with_unit(found["flops"], units)]
    if "hours" in found:
        hours = found["hours"]
        parts.append(
            f"{hours:,.1f} hours" if hours >= 1 else f"{60 * hours:.2g} minutes"
        )
    if "dollars" in found:
        parts.append(f"${found['dollars']:,.2f}")
    return ", ".join(parts)


def _checkpoint_bytes(weights: int, num_kept: int) -> dict[str, float]:
    """Weights and two moments of each, as float32; one more while it is written."""
    return {f"{num_kept + 1} checkpoints": (num_kept + 1) * 3 * 4 * weights}


def _between(measured: dict[int, float], length: int) -> float:
    """Between the two lengths that were measured; beyond them, the nearer one's."""
    (short, first), (long, last) = sorted(measured.items())
    share = (min(max(length, short), long) - short) / (long - short)
    return first + share * (last - first)


def _size(model: config.BertConfig) -> str:
    return f"{model.num_hidden_layers} layers of {model.hidden_size}"


def _bytes(number: float) -> str:
    return _with_unit(number, {"TB": 1e12, "GB": 1e9, "MB": 1e6})


def _with_unit(number: float, sizes: dict[str, float]) -> str:
    """In the largest unit that it has one of, or the smallest."""
    fitting = [unit for unit, size in sizes.items() if number >= size]
    unit = (fitting or list(sizes)[-1:])[0]
    return f"{number / sizes[unit]:,.3g} {unit}"

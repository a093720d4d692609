"""Which model for a budget, and what to expect of it: `bert-keras plan --budget`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bert_keras.core.errors import InputError
from bert_keras.core.settings import loading, pipelines, pretraining
from bert_keras.model import flops, measured_runs

RECIPE, EXAMPLES, VOCAB_SIZE = "strict_small", "strict_small_examples", 8000
_SMALL = (
    "model.hidden_size=256",
    "model.num_attention_heads=4",
    "model.intermediate_size=1024",
    "model.initializer_range=0.035",
    "optimizer.learning_rate=2e-3",
    "global_batch_size=32",
)
_KINDS = (
    (0.2, _SMALL, 0.3),
    (0.6, _SMALL, None),
    (4, (), 0.3),
    (math.inf, ("optimizer.learning_rate=1.5e-3",), None),
)
"""Kinds of runs, as measured: PFLOP below which a kind is chosen, its settings, and the
share of the steps in which the rate falls (`None`: it falls from the warm-up on)."""
_TOKENS_PER_WORD = 1.45
"""Of the examples: pieces, [CLS] and [SEP], for each word by white space."""
_MAX_EPOCHS = 10
"""How often the text may be read, as in measured runs."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    petaflop: float
    settings: list[str]
    """To `--set` in the recipe."""
    num_epochs: float | None
    """How often the text is read; `None`: its size is not known."""
    expected_loss: float | None
    """Of masked tokens; like `expected_minimal_pairs`, `None`: nobody knows."""
    expected_minimal_pairs: float | None
    """Right pairs of BLiMP, %."""
    is_measured: bool
    """Whether runs that cost as much were measured."""


def load(settings: Sequence[str]) -> pretraining.PretrainingConfig:
    """Returns the recipe with `Choice.settings`."""
    values = [*settings, f"model.vocab_size={VOCAB_SIZE}"]
    return loading.load(pretraining.PretrainingConfig, RECIPE, values)


def choose(petaflop: float, *, num_words: float | None) -> Choice:
    """Returns size, rate and steps for so many operations."""
    _, kind_settings, decay_share = next(k for k in _KINDS if petaflop < k[0])
    run = load(kind_settings)
    examples = loading.load(pipelines.ExamplesConfig, EXAMPLES)
    each = flops.pretraining_flops_per_example(
        run.model,
        max_seq_length=examples.max_seq_length,
        num_predictions=examples.num_row_predictions,
        next_sentence=False,
    )
    steps = int(petaflop * 1e15 / each / run.global_batch_size)
    if steps < 1000:
        raise InputError(
            f"--budget: {petaflop:.2g} PFLOP are {steps:,} steps of the smallest model "
            "of the budgets, which needs 1,000 to learn anything: give it more hours"
        )
    decay_steps = round(decay_share * steps) if decay_share else "null"
    settings = [
        *kind_settings,
        f"num_train_steps={steps}",
        f"optimizer.warmup_steps={steps // 30}",
        f"optimizer.decay_steps={decay_steps}",
    ]
    tokens = steps * run.global_batch_size * examples.max_seq_length
    num_epochs = num_words and tokens / (num_words * _TOKENS_PER_WORD)
    loss, pairs = None, None
    if (num_epochs or 0) <= _MAX_EPOCHS:
        loss, pairs = measured_runs.expected_scores(petaflop) or (None, None)
    return Choice(
        petaflop=petaflop,
        settings=settings,
        num_epochs=num_epochs,
        expected_loss=loss,
        expected_minimal_pairs=pairs,
        is_measured=petaflop <= measured_runs.RUNS[-1].petaflop,
    )


def lines(choice: Choice) -> Iterator[str]:
    options = "".join(f" --set {setting}" for setting in choice.settings)
    yield f"bert-keras pretrain --config {RECIPE}{options}"
    if choice.num_epochs is not None:
        yield f"the text is read {choice.num_epochs:,.1f} times"
    if choice.expected_loss is None:
        yield (
            "nobody knows what to expect: no run near it was measured; ten times the "
            f"text and {measured_runs.MAX_PETAFLOP:.0f} PFLOP are the limits"
        )
        return
    how = "between measured runs"
    if not choice.is_measured:
        largest = measured_runs.RUNS[-1].petaflop
        how = f"beyond the measured runs, of {largest} PFLOP at most"
    yield (
        f"to expect of ten million English words: masked-LM loss "
        f"{choice.expected_loss:.2f}, BLiMP {choice.expected_minimal_pairs:.0f}, {how}"
    )

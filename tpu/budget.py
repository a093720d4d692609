"""Which model for a budget, and what to expect of it: `bert-keras plan --budget`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bert_keras.core.errors import InputError
from bert_keras.core.settings import loading, pipelines, pretraining
from bert_keras.report import measured_runs
from bert_keras.tpu import plan

RECIPE, VOCAB_SIZE = "strict_small", 16000
_LARGE = (
    *("model.hidden_size=384", "model.num_attention_heads=6"),
    *("model.intermediate_size=1536", "model.initializer_range=0.03"),
    "optimizer.learning_rate=1.5e-3",
)
_KINDS = ((0.7, ("global_batch_size=32",)), (3.5, ()), (math.inf, _LARGE))
"""Kinds of runs, as measured, the last of rows of sentences: PFLOP below which a kind
is chosen, and its settings."""
_MAX_EPOCHS = 10
"""How often the text may be read, as in measured runs."""
_MAX_PETAFLOP = 21
"""Three times the cost of the largest model of these kinds that was measured, of rows
of sentences."""
_LARGER = ("bert_mini", "bert_small", "bert_medium", "bert_base", "bert_large")
"""Recipes for more computing than was measured."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    petaflop: float
    """Of the whole run, evaluations included."""
    settings: list[str]
    """To `--set` in the recipe."""
    num_epochs: float | None
    """How often the text is read; `None`: its size is not known."""
    expected_loss: float | None
    """Of masked tokens, 15 % of the text's; `None`: no measured run was like it."""
    expected_minimal_pairs: float | None
    """Right pairs of BLiMP, %; `None`: no measured run was like it."""
    is_measured: bool
    """Whether a run that cost as much was measured; if not, the scores are of one that
    cost less."""


def load(settings: Sequence[str]) -> pretraining.PretrainingConfig:
    """Returns the recipe with `Choice.settings`."""
    values = [*settings, f"model.vocab_size={VOCAB_SIZE}"]
    return loading.load(pretraining.PretrainingConfig, RECIPE, values)


def examples() -> pipelines.ExamplesConfig:
    return loading.load(pipelines.ExamplesConfig, f"{RECIPE}_examples")


def choose(hours: float, teraflops: float, *, num_words: float | None) -> Choice:
    """Returns size, rate and steps for so many hours of devices that reach so many
    10^12 operations a second together."""
    # 3,600 seconds an hour, 1,000 TFLOP a PFLOP.
    petaflop = 3.6 * hours * teraflops
    if not (hours > 0 and 0 < petaflop < 1e9):
        raise InputError(
            f"--budget, --teraflops: expected numbers above 0, got {hours:g} and "
            f"{teraflops:g}"
        )
    if petaflop > _MAX_PETAFLOP:
        # Recipes of the paper's sizes, and their hours.
        recipes = []
        for name in _LARGER:
            run = loading.load(pretraining.PretrainingConfig, name)
            made = [pipelines.ExamplesConfig(max_seq_length=n) for n in (128, 512)]
            stages = plan.plan_pretraining(run, made).stages
            flops = sum(s.training_flops + s.evaluation_flops for s in stages)
            recipes.append(f"{name} ({flops / teraflops / 3.6e15:,.0f} hours)")
        raise InputError(
            f"--budget: {petaflop:,.0f} PFLOP are beyond what was measured of small "
            f"models ({_MAX_PETAFLOP} at most): take a recipe of the paper's sizes, "
            f"{', '.join(recipes)}; `bert-keras plan --config RECIPE` has more"
        )
    _, kind_settings = next(kind for kind in _KINDS if petaflop < kind[0])
    run, made = load(kind_settings), examples()
    model = run.model.with_vocab_size(VOCAB_SIZE)
    step, evaluation = plan.step_flops(run, model, made, run.global_batch_size)
    every = run.evaluate_steps or run.save_checkpoint_steps
    steps = int(petaflop * 1e15 / (step + evaluation / every))
    if steps < 1000:
        raise InputError(
            f"--budget: {petaflop:.2g} PFLOP are {steps:,} steps of the smallest model "
            "of the budgets, which needs 1,000 to learn anything: give it more hours"
        )
    settings = [
        *kind_settings,
        f"num_train_steps={steps}",
        f"optimizer.warmup_steps={steps // 30}",
    ]
    tokens = steps * run.global_batch_size * made.max_seq_length
    num_epochs = num_words and tokens / (num_words * plan.PACKED_TOKENS_PER_WORD)
    loss, pairs = None, None
    trained = steps * step / 1e15
    if (num_epochs or 0) <= _MAX_EPOCHS:
        loss, pairs = measured_runs.expected_scores(trained) or (None, None)
    return Choice(
        petaflop=petaflop,
        settings=settings,
        num_epochs=num_epochs,
        expected_loss=loss,
        expected_minimal_pairs=pairs,
        is_measured=trained <= measured_runs.RUNS[-1].petaflop,
    )


def lines(choice: Choice) -> Iterator[str]:
    options = "".join(f" --set {setting}" for setting in choice.settings)
    yield f"bert-keras pretrain --config {RECIPE}{options}"
    if choice.num_epochs is not None:
        yield f"the text is read {choice.num_epochs:,.1f} times"
    if choice.expected_loss is None:
        yield (
            "no scores to expect: no measured run read its text more than "
            f"{_MAX_EPOCHS} times, or cost as little"
        )
        return
    how = "between measured runs"
    if not choice.is_measured:
        largest = measured_runs.RUNS[-1].petaflop
        how = f"as the largest measured run has, which cost less: {largest} PFLOP"
    own = choice.expected_loss + measured_runs.OWN_EVALUATION
    masked = 100 * examples().masked_lm_prob
    yield (
        f"to expect of ten million English words: BLiMP "
        f"{choice.expected_minimal_pairs:.0f}, and a masked-LM loss of "
        f"{choice.expected_loss:.2f} with 15 % of the tokens masked, {how}; the run's "
        f"last evaluations mask {masked:.0f} %, where it is about {own:.1f}"
    )

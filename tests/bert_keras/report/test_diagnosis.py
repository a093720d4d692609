"""Planted faults are named, and sound runs have no finding; expectations are those of
the recorded page, and lines between its runs."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from bert_keras.checkpoints import run_directory
from bert_keras.core.settings import loading, pretraining
from bert_keras.report import diagnosis, measured_runs
from bert_keras.report.measured_runs import RUNS
from bert_keras.report.scalar_log import Curve

SOUND = {
    **{"num_examples": 2000, "num_shards": 50, "num_records": 100_000},
    **{"pieces_per_word": 1.4, "unknown_share": 0.0002, "repeated_share": 0.01},
    **{"padding_share": 0.1, "masked_share": 0.15, "entropy": 6.6},
    "tokens_per_example": 110,
}
FAST = {
    "num_train_steps": 3400,
    "model": {"hidden_size": 256, "num_attention_heads": 4, "initializer_range": 0.035},
    "optimizer": {"name": "muon", "learning_rate": 2e-3, "warmup_steps": 200},
}
RECIPES = [
    name
    for name in loading.recipe_names()
    if name.startswith(("bert_", "ablation", "demo"))
    and name not in ("demo_finetune", "ablation_ltr_bilstm")
]
PLATEAU = 6.6 + 2 * np.exp(-np.linspace(0, 8, 340))
FALLING = 3.4 + 5 * np.exp(-np.linspace(0, 4, 340))


def flat(**values):
    settings = pretraining.PretrainingConfig(**(FAST | values))
    return run_directory.flat(settings.model_dump(mode="json"))


def sample(**values):
    return diagnosis.TextSample(**(SOUND | values))


def curve(values):
    return Curve(10 * np.arange(1, len(values) + 1), np.array(values, float))


def causes(settings=None, text=None, *, held_out=None, **train):
    settings, text = settings or flat(), text or sample()
    train = {"masked_lm_loss": FALLING, "gradient_norm": [1.5] * 340, **train}
    findings = diagnosis.start_findings(settings, text, is_further_training=False)
    return findings | diagnosis.curve_findings(
        settings,
        {name: curve(values) for name, values in train.items()},
        None if held_out is None else curve(held_out),
        text,
    )


def scaled(scale: float):
    return {"settings": flat(model=FAST["model"] | {"initializer_range": scale})}


def tuned(**values):
    return {"settings": flat(optimizer=FAST["optimizer"] | values)}


@pytest.mark.parametrize(
    ("fault", "cause", "says"),
    [
        (
            *({"text": sample(unknown_share=0.03)}, "unknown words"),
            "3.0% of the pieces are [UNK], where 0.1 % are usual",
        ),
        (
            *({"text": sample(pieces_per_word=3.4)}, "vocabulary"),
            "3.4 pieces a word, where 1.2 to 2 are usual: make the vocabulary of this "
            "text, unless no spaces stand between words",
        ),
        (
            *({"text": sample(repeated_share=0.6)}, "repeated text"),
            "60% of the text comes more than three times",
        ),
        (
            *({"text": sample(masked_share=0.8)}, "masks"),
            "80.0% of the pieces are to be predicted, where 15 to 40 % are usual",
        ),
        ({"text": sample(padding_share=0.7)}, "padding", "make shorter examples"),
        (
            {"text": sample(num_shards=1), "settings": flat(shuffle_buffer_size=500)},
            *("order", "100,000 examples in 1 shards are shuffled 500 at a time"),
        ),
        (tuned(warmup_steps=1500), "warm-up", "rises for 1,500 of 3,400 steps"),
        (
            *(tuned(warmup_steps=0), "warm-up"),
            "rises for 0 of 3,400 steps: set `optimizer.warmup_steps` to about a tenth",
        ),
        (
            *(tuned(learning_rate=1e-5), "rate too low"),
            "3,400 steps at a rate of up to 1e-05 move a weight by about 0.034 at "
            "most, and initial weights are of a size of 0.035",
        ),
        (
            *(tuned(learning_rate=0.05), "rate too high"),
            "is 0.05, where 1e-4 to 3e-3 are usual",
        ),
        (
            tuned(max_grad_norm=1e-4) | {"gradient_norm": [1e-4] * 340},
            *("max grad norm", "`optimizer.max_grad_norm` is 0.0001, where 1 is usual"),
        ),
        (
            *(tuned(weight_decay_rate=10), "weight decay rate"),
            "`optimizer.weight_decay_rate` is 10, where 0.01 to 0.1 is usual",
        ),
        *(
            (
                *(scaled(scale), "initializer range"),
                f"`model.initializer_range` is {scale}, where 0.02 is usual",
            )
            for scale in (0.001, 0.25)
        ),
        (
            *({"masked_lm_loss": PLATEAU}, "stuck"),
            "the masked-LM loss is 6.60, no better than the 6.60 of a model that only "
            "knows how frequent pieces are",
        ),
        (
            {"masked_lm_loss": [*FALLING[:40], *[5.5] * 300]},
            *("behind", "the masked-LM loss is 5.50, where "),
        ),
        (
            {"masked_lm_loss": [*FALLING[:170], *FALLING[:170][::-1]]},
            *("diverged", "rose from 4.16 to 7.59: lower"),
        ),
        ({"gradient_norm": [40.0] * 340}, "clipping", "most of 40 to 1: raise"),
        (
            {"skipped_steps": np.arange(340)},
            *("skipped steps", "339 of 3,400 steps were skipped"),
        ),
        (
            {"held_out": [5.0, 4.0, 4.1, 4.4]},
            *("learnt by heart", "rose from 4.00 at step 20 to 4.40"),
        ),
    ],
)
def test_a_fault_is_named_and_nothing_else(fault, cause, says):
    found = causes(**fault)
    assert list(found) == [cause]
    assert says in found[cause]
    assert "\n" not in found[cause]
    assert not found[cause].endswith(".")


def test_a_small_scale_is_a_reason_to_be_stuck():
    assert causes(**scaled(0.02)) == {}
    found = causes(**scaled(0.02), masked_lm_loss=PLATEAU)
    assert "try `model.initializer_range=0.05`" in found["stuck"]


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_sound(name):
    settings = loading.load(pretraining.PretrainingConfig, name, [])
    settings = run_directory.flat(settings.model_dump(mode="json"))
    assert not diagnosis.start_findings(settings, sample(), is_further_training=False)


def test_trained_weights_may_move_a_little():
    slow = tuned(learning_rate=1e-5)["settings"]
    assert not diagnosis.start_findings(slow, sample(), is_further_training=True)


@pytest.mark.parametrize(
    "curves",
    [
        {},
        # Too early to tell, and a rate that still rises.
        {"masked_lm_loss": PLATEAU[:90]},
        {"masked_lm_loss": [np.nan] * 340},
        {"masked_lm_loss": np.where(np.arange(340) % 50 == 7, np.inf, FALLING)},
        {"held_out": [5.0, 4.0, 4.2]},
        {"held_out": [np.nan, np.nan]},
        {"gradient_norm": [0.5, 60.0] * 170},
    ],
)
def test_sound_curves(curves):
    assert causes(**curves) == {}


def test_usual_losses_count_tokens_and_entropy():
    """10 steps of 64 examples of 110 tokens are as many tokens as 20 of 32."""
    large = diagnosis.usual_losses(flat(global_batch_size=64), sample(), 3000)
    assert large == diagnosis.usual_losses(flat(global_batch_size=32), sample(), 6000)
    phases = [{"fraction": 1, "global_batch_size": 64}]
    of_phase = diagnosis.usual_losses(flat(phases=phases), sample(), 3000)
    assert of_phase == large
    low, high = diagnosis.usual_losses(
        flat(global_batch_size=64), sample(entropy=3.3), 3000
    )
    assert (2 * low, 2 * high) == pytest.approx(large)
    assert diagnosis.usual_losses(flat(), None, 3000) is None
    left_to_right = flat(model=FAST["model"] | {"attention": "left_to_right"})
    assert diagnosis.usual_losses(left_to_right, sample(), 3000) is None
    assert diagnosis.usual_losses(flat(global_batch_size=8), sample(), 1000) is None


def test_another_phase_does_not_count():
    """Longer sequences and fewer masks change the loss."""
    jump = [*FALLING[:170], *(FALLING[:170] + 2)]
    settings = flat()
    found = diagnosis.curve_findings(
        settings, {"masked_lm_loss": curve(jump)}, None, sample(), first_step=1700
    )
    assert found == {}


PAGE = Path(__file__).parents[3] / "benchmarks/results/strict_small.md"


def test_runs_are_those_of_the_page():
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition("## By cost")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d.*) \|$", table, re.MULTILINE)
    found = [tuple(map(float, row.split(" | ")[1:])) for row in rows]
    millions = [run._replace(num_tokens=run.num_tokens / 1e6) for run in RUNS]
    assert found == millions
    entropy = re.search(r"entropy of ([\d.]+) nats", table)
    assert float(entropy[1]) == measured_runs.ENTROPY


@pytest.mark.parametrize("run", RUNS)
def test_a_measured_run_may_expect_its_own_scores(run):
    expected = measured_runs.expected_scores(run.petaflop)
    assert expected == pytest.approx((run.loss, run.minimal_pairs))


def test_between_and_beyond_runs():
    low, high = RUNS[-2:]
    between = math.sqrt(low.petaflop * high.petaflop)
    means = [(start + end) / 2 for start, end in zip(low[2:], high[2:], strict=True)]
    assert measured_runs.expected_scores(between) == pytest.approx(means)
    # Beyond the last run nobody knows more.
    assert measured_runs.expected_scores(9 * high.petaflop) == pytest.approx(high[2:])
    for petaflop in (0.9 * RUNS[0].petaflop, 0, math.nan):
        assert measured_runs.expected_scores(petaflop) is None


def test_the_band_has_the_measured_losses_in_it():
    for run in RUNS[1:]:
        low, high = measured_runs.usual_losses(
            run.num_tokens, entropy=measured_runs.ENTROPY
        )
        assert low < run.loss < high
    last = RUNS[-1].num_tokens
    bands = [
        measured_runs.usual_losses(factor * last, entropy=6.0) for factor in (1, 100)
    ]
    assert bands[0] == bands[1]
    assert measured_runs.usual_losses(1e6, entropy=6.0) is None

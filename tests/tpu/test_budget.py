"""`bert-keras plan --budget`: the plan of the chosen run is the budget."""

import pytest

from bert_keras.commands import main as cli
from bert_keras.core.settings import loading, pretraining
from bert_keras.tpu import budget
from tests.tpu.test_plan import planned


@pytest.mark.parametrize("hours", [0.4, 1, 6, 14])
def test_the_chosen_run_takes_the_budget(hours, capsys):
    """Evaluations come on top, and the plan counts fewer masks."""
    found = planned(f"--budget {hours} --teraflops 0.1", capsys)
    assert found["hours"] == pytest.approx(hours, rel=0.12)
    chosen = found["budget"]
    assert chosen["petaflop"] == pytest.approx(hours * 0.36)
    run = loading.load(pretraining.PretrainingConfig, budget.RECIPE, chosen["settings"])
    assert run.num_train_steps == found["stages"][0]["num_steps"]
    assert 0 < run.optimizer.warmup_steps < run.num_train_steps / 29


@pytest.mark.parametrize(
    ("petaflop", "hidden_size", "rate", "decay_share"),
    [
        # The measured runs, whose rates fell so.
        (0.109, 256, 2e-3, 0.3),
        (0.318, 256, 2e-3, None),
        (2.39, 384, 2.5e-3, 0.3),
        (6.2, 384, 1.5e-3, None),
    ],
)
def test_a_budget_has_the_settings_of_the_measured_run_nearby(
    petaflop, hidden_size, rate, decay_share
):
    run = budget.load(budget.choose(petaflop, num_words=None).settings)
    assert run.model.hidden_size == hidden_size
    assert run.optimizer.learning_rate == rate
    decay = run.optimizer.decay_steps
    assert (decay and round(decay / run.num_train_steps, 2)) == decay_share


def test_what_is_printed(capsys):
    arguments = "plan --budget 2 --teraflops 0.33 --words 1e7"
    assert cli.main(arguments.split()) == 0
    command, epochs, expected, plan, *_ = capsys.readouterr().out.splitlines()
    assert command == (
        "bert-keras pretrain --config strict_small --set num_train_steps=6360 "
        "--set optimizer.warmup_steps=212 --set optimizer.decay_steps=1908"
    )
    assert epochs == "the text is read 3.6 times"
    assert expected.startswith("to expect of ten million English words: masked-LM")
    assert expected.endswith("between measured runs")
    assert plan == "pre-training, 4 layers of 384: 10.5 million weights"


def test_more_than_was_measured_is_said(capsys):
    found = planned("--budget 10 --teraflops 0.33 --words 1e8", capsys)["budget"]
    assert not found["is_measured"]
    assert found["num_epochs"] == pytest.approx(1.8, rel=0.05)
    _, _, expected = budget.lines(budget.Choice(**found))
    assert expected.endswith("beyond the measured runs, of 6.2 PFLOP at most")
    assert budget.choose(2, num_words=1e7).is_measured


def test_what_nobody_knows_is_not_guessed():
    """More computing than was measured, and a text that is read too often."""
    for choice in (
        budget.choose(1000, num_words=None),
        budget.choose(2, num_words=1e6),
    ):
        assert choice.expected_loss is choice.expected_minimal_pairs is None
        *_, unknown = budget.lines(choice)
        assert unknown == (
            "nobody knows what to expect: no run near it was measured; ten times the "
            "text and 19 PFLOP are the limits"
        )
    assert budget.choose(2, num_words=1e7).expected_loss is not None

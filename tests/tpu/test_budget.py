"""`bert-keras plan --budget`: the plan of the chosen run is the budget."""

import pytest

from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.core.settings import loading, pretraining
from bert_keras.tpu import budget
from tests.tpu.test_plan import planned


@pytest.mark.parametrize("hours", [0.5, 1, 6, 14])
def test_the_chosen_run_takes_the_budget(hours, capsys):
    """The plan of the chosen run, evaluations and optimizer included."""
    found = planned(f"--budget {hours} --teraflops 0.1", capsys)
    assert found["hours"] == pytest.approx(hours, rel=0.01)
    chosen = found["budget"]
    assert chosen["petaflop"] == pytest.approx(hours * 0.36)
    run = loading.load(pretraining.PretrainingConfig, budget.RECIPE, chosen["settings"])
    assert run.num_train_steps == found["stages"][0]["num_steps"]
    assert 0 < run.optimizer.warmup_steps < run.num_train_steps / 29


@pytest.mark.parametrize(
    ("petaflop", "hidden_size", "rate"),
    [
        *((0.148, 256, 2e-3), (1.79, 256, 2e-3)),
        # 2.75 with 8,000 pieces, 7.13 of rows of sentences.
        *((2.75, 256, 2e-3), (7.13, 384, 1.5e-3)),
    ],
)
def test_a_budget_has_the_settings_of_the_measured_run_nearby(
    petaflop, hidden_size, rate
):
    run = budget.load(budget.choose(1.05 * petaflop / 3.6, 1, num_words=1e9).settings)
    assert run.model.hidden_size == hidden_size
    assert run.optimizer.learning_rate == rate
    assert run.optimizer.decay_steps is None


def test_what_is_printed(capsys):
    arguments = "plan --budget 1 --teraflops 0.33 --words 1e7"
    assert cli.main(arguments.split()) == 0
    command, epochs, expected, plan, *_ = capsys.readouterr().out.splitlines()
    assert command == (
        "bert-keras pretrain --config strict_small --set num_train_steps=4974 "
        "--set optimizer.warmup_steps=165"
    )
    assert epochs == "the text is read 3.0 times"
    assert expected == (
        "to expect of ten million English words: BLiMP 69, and a masked-LM loss of "
        "3.63 with 15 % of the tokens masked, between measured runs; the run's last "
        "evaluations mask 30 %, where it is about 4.1"
    )
    assert plan == "pre-training, 4 layers of 256: 7.4 million weights"


def test_more_than_was_measured_is_said(capsys):
    found = planned("--budget 10 --teraflops 0.33 --words 1e8", capsys)["budget"]
    assert not found["is_measured"]
    assert found["num_epochs"] == pytest.approx(1.42, rel=0.01)
    _, _, expected = budget.lines(budget.Choice(**found))
    assert "as the largest measured run has, which cost less: 1.79 PFLOP" in expected
    assert budget.choose(0.4, 1, num_words=1e7).is_measured


def test_what_nobody_knows_is_not_guessed():
    """A text that is read more often than any was, and a model of another size."""
    choice = budget.choose(0.6, 1, num_words=1e6)
    assert choice.expected_loss is choice.expected_minimal_pairs is None
    *_, unknown = budget.lines(choice)
    assert unknown == (
        "no scores to expect: no measured run read its text more than 10 times, or "
        "cost as little"
    )
    with pytest.raises(InputError, match=r"bert_base \(67 hours\), bert_large \(230 "):
        budget.choose(8, 100, num_words=None)


def test_the_plan_of_a_recipe_has_its_own_examples(capsys):
    """Packed rows with 30 % masked, and Muon: the run that was measured."""
    found = planned("--config strict_small --set model.vocab_size=16000", capsys)
    (stage,) = found["stages"]
    assert stage["training_flops"] / 1e15 == pytest.approx(1.793, rel=1e-3)

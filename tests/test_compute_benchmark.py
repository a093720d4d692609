"""The benchmark of recipes: what it reads, counts and says."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import compute
import compute_page
import longer_positions

PLAN = {
    "recipes": {
        "fast": {
            "config": "bert_mini_fast",
            "examples": [64, 128],
            "scored": ["plain_64", 128],
            "rates": ["2e-3"],
            "seeds": [1, 2],
        },
        "paper": {
            "config": "bert_mini",
            "examples": [128, 512],
            "scored": [128, 512],
            "rates": ["5e-4", "1e-3"],
            "seeds": [1],
            "trial_steps": 330,
            "set": ["global_batch_size=32"],
        },
    },
    "tasks": {"MRPC": {"folder": "glue", "score": "f1", "rates": ["1e-4", "3e-4"]}},
}
FAST = [compute.Run("fast", "2e-3", seed) for seed in (1, 2)]
TRIALS = [compute.Run("paper", rate, 1, is_trial=True) for rate in ("5e-4", "1e-3")]


def write_scores(work, run, **ends):
    (work / "runs").mkdir(exist_ok=True)
    end = {
        length.removeprefix("at_"): {"masked_lm_loss": loss, "masked_lm_accuracy": 0.3}
        for length, loss in ends.items()
    }
    run.path(work, ".json").write_text(json.dumps({"points": {}, "end": end}))


def write_task(work, run, rate, score):
    path = compute.task_path(work, run, task="MRPC", rate=rate)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"eval": {"accuracy": 0.0, "f1": score}}))


def test_log_lines_are_read():
    first = "steps 1 to 40: 99 examples\nstep 1/40  loss 9\nstep 20/40  loss 8\nstep 3"
    assert (compute.first_step(first), compute.last_step(first)) == (0, 20)
    resumed = "resuming after step 30 from runs/a/checkpoints/step-0000000030.npz\n"
    assert (compute.first_step(resumed), compute.last_step(resumed)) == (30, 30)
    assert compute.first_step("checking sizes of 3 shards") is None


def test_a_cost_lies_between_samples():
    samples = [compute.Sample(10.0, 1), compute.Sample(14.0, 1)]
    samples += [compute.Sample(20.0, 21), compute.Sample(30.0, 40)]
    assert compute.cost_at(samples, 1) == 14.0
    assert compute.cost_at(samples, 11) == 17.0
    assert compute.cost_at(samples, 40) == 30.0
    assert compute.cost_at([], 5) == 0.0


def test_the_rate_of_a_run_is_that_of_its_best_trial(tmp_path):
    assert compute.trials(PLAN, "fast") == []
    assert compute.full_runs(tmp_path, PLAN, "fast") == FAST
    assert compute.trials(PLAN, "paper") == TRIALS
    for run, loss in zip(TRIALS, (6.0, 5.0), strict=True):
        with pytest.raises(FileNotFoundError):
            compute.full_runs(tmp_path, PLAN, "paper")
        write_scores(tmp_path, run, at_128=loss)
    best = compute.Run("paper", "1e-3", 1)
    assert compute.full_runs(tmp_path, PLAN, "paper") == [best]
    assert compute.finished_runs(tmp_path, PLAN) == {}
    write_scores(tmp_path, FAST[1], at_128=4.0)
    assert compute.finished_runs(tmp_path, PLAN) == {"fast": [FAST[1]]}


def test_trials_are_shorter_and_on_the_first_examples(tmp_path):
    run = TRIALS[1]
    trial = compute.command(tmp_path, PLAN, run)
    whole = compute.command(tmp_path, PLAN, run._replace(is_trial=False))
    examples = [f"{tmp_path}/examples_128", f"{tmp_path}/examples_512"]
    assert whole[3:9] == ["pretrain", "--config", "bert_mini", "--examples", *examples]
    common = ["global_batch_size=32", *compute.SETTINGS, "seed=1"]
    common += ["optimizer.learning_rate=1e-3"]
    assert whole[9:] == compute.as_options(common)
    assert "num_eval_shards=4" in common
    steps = ["num_train_steps=330", "save_checkpoint_steps=330"]
    assert trial[7:] == [examples[0], *compute.as_options([*common, *steps])]


def test_phases_of_a_run_end_where_training_ends_them(tmp_path):
    fractions = "[{fraction: 0.7}, {fraction: 0.2}, {fraction: 0.1}]"
    text = f"num_train_steps: 3400\nphases: {fractions}"
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "inputs.json").write_text('{"examples_sha256": ["a", "b", "c"]}')
    assert compute.phase_ends(tmp_path) == [2380, 3060, 3400]
    (tmp_path / "inputs.json").write_text('{"examples_sha256": "a"}')
    assert compute.phase_ends(tmp_path) == [3400]


def test_the_plan_has_a_length_for_each_phase():
    from bert_keras import config, config_files

    plan = compute.read_plan()
    for recipe in plan["recipes"].values():
        found = config_files.load(config.PretrainingConfig, recipe["config"])
        assert len(found.phases) == len(recipe["examples"]) == len(recipe["scored"])
        assert {*recipe["examples"], *recipe["scored"]} <= set(plan["examples"])
        assert {str(name) for name in recipe["scored"]} <= set(compute.NUM_SCORED)


def test_tasks_take_the_rate_that_was_best_for_the_first_run(tmp_path):
    for rate, score in (("1e-4", 0.7), ("3e-4", 0.8)):
        write_task(tmp_path, FAST[0], rate, score)
    write_task(tmp_path, FAST[1], "1e-4", 0.9)
    assert compute.best_rate(tmp_path, PLAN, FAST[0], "MRPC") == "3e-4"
    assert "| fast (2) | 80.0 (1) |" in compute_page.task_table(
        tmp_path, PLAN, {"fast": FAST}
    )
    write_task(tmp_path, FAST[1], "3e-4", 0.6)
    write_task(tmp_path, None, "3e-4", 0.5)
    lines = compute_page.task_table(tmp_path, PLAN, {"fast": FAST}).splitlines()
    assert lines[0] == "| weights | MRPC, f1 |"
    assert lines[2:] == [
        "| fast, rate 2e-3, seed 1: tuned at 1e-4 | 70.0 |",
        "| fast, rate 2e-3, seed 1: tuned at 3e-4 | 80.0 |",
        "| fast (2) | 70.0 ± 14.1 |",
        "| no pre-training (1) | 50.0 |",
    ]


def test_deviations_need_two_values():
    assert compute_page.mean_and_deviation([]) == ""
    assert compute_page.mean_and_deviation([28.9]) == "28.9"
    assert compute_page.mean_and_deviation([28.0, 29.0, 30.0]) == "29.0 ± 1.0"
    assert compute_page.mean_and_deviation([1.0, 2.0], ".2f") == "1.50 ± 0.71"


def test_a_row_of_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(compute_page, "petaflops", lambda *_: 0.2)
    for run, loss in zip(FAST, (4.0, 5.0), strict=True):
        write_scores(tmp_path, run, at_128=loss)
        run.path(tmp_path, ".cost.csv").write_text("9.0,1\n2400.4,4000\n")
    assert compute_page.row(tmp_path, PLAN, FAST[:1]) == [
        *("fast, rate 2e-3, seed 1", "2,400", "4,000", "0.20"),
        *("4.000", "30.0", "", ""),
    ]
    assert compute_page.row(tmp_path, PLAN, FAST) == [
        *("fast, mean of 2", "2,400 ± 0", "4,000", "0.20"),
        *("4.500 ± 0.707", "30.0 ± 0.0", "", ""),
    ]


def test_operations_are_counted_by_phase(tmp_path, monkeypatch):
    """3 x 2 x weights x tokens, and two products of length x length, hand counted."""
    from bert_keras import config, manifest
    from bert_keras.data import features

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "vocab_size": 50}
    directory = FAST[0].path(tmp_path)
    directory.mkdir(parents=True)
    (directory / "bert_config.json").write_text(json.dumps(sizes))
    (directory / "inputs.json").write_text('{"examples_sha256": ["a", "b"]}')
    phases = [{"fraction": share, "global_batch_size": n} for share, n in PHASES]
    facts = {"num_train_steps": 10, "global_batch_size": 4, "phases": phases}
    text = yaml.safe_dump(facts | {"next_sentence": False})
    (directory / "config.yaml").write_text(text)
    made = {
        tmp_path / f"examples_{length}": config.ExamplesConfig(
            max_seq_length=length, max_predictions_per_seq=5
        )
        for length in (64, 128)
    }
    monkeypatch.setattr(manifest, "read_manifest", lambda *_, **__: manifest)
    monkeypatch.setattr(manifest, "config", None, raising=False)
    monkeypatch.setattr(features, "examples_config", lambda _, origin: made[origin])

    def operations(length):
        layer = length * (4 * 8 * 8 + 2 * 8 * 16) + 2 * length * length * 8
        return 3 * 2 * (layer + 5 * (8 * 8 + 8 * 50))

    expected = 8 * 4 * operations(64) + 2 * 1 * operations(128)
    found = compute_page.petaflops(tmp_path, PLAN, FAST[0])
    assert found == pytest.approx(expected / 1e15)


PHASES = [(0.8, None), (0.2, 1)]


def test_the_run_of_two_hours_is_that_of_its_page():
    """2:06:11 in all, 42 minutes of it at 512 tokens, 1.85 of two cores busy."""
    costs, steps = compute_page.long_run_costs(), compute_page.LONG_RUN_STEPS
    change, end = steps.index(15_750), steps.index(17_500)
    assert costs[end] == pytest.approx(1.85 * 7571)
    assert costs[change] == pytest.approx(1.85 * (7571 - 42.4 * 60), rel=0.001)
    assert costs == sorted(costs)
    for term, values in (("accuracy", (28.9, 22.2)), ("loss", (4.29, 5.02))):
        found = compute_page.LONG_RUN[f"masked_lm_{term}"]
        assert (len(found), found[change], found[end]) == (len(costs), *values)


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("as they were initialised", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("repeated", [0, 1, 2, 3, 4, 2, 3, 1, 2, 3]),
        ("repeated, every second time backwards", [0, 1, 2, 3, 3, 2, 1, 1, 2, 3]),
        (
            "stretched",
            [0, 4 / 9, 8 / 9, 4 / 3, 16 / 9, 20 / 9, 8 / 3, 28 / 9, 32 / 9, 4],
        ),
        # What these are is tested with `position_growth`.
        ("extrapolated, 95 % of the variance, 1 rows", None),
    ],
)
def test_tables_of_longer_positions(way, expected):
    table = np.arange(10.0)[:, None] * np.ones(3)
    found = longer_positions.ways()[way](table.copy(), 5)
    assert found.shape == table.shape
    if expected is None:
        np.testing.assert_array_equal(found[:4], table[:4])
        assert not np.array_equal(found[4:], table[4:])
    else:
        np.testing.assert_allclose(found, np.outer(expected, np.ones(3)))

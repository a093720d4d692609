"""The benchmark of recipes: what it reads, counts and says."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[1] / "benchmarks/compute.py"
spec = importlib.util.spec_from_file_location("compute", PATH)
compute = importlib.util.module_from_spec(spec)
sys.modules["compute"] = compute
spec.loader.exec_module(compute)

RUN = compute.Run(recipe="mini", rate="1e-3", seed=2, is_trial=False)
PLAN = {
    "trial_fraction": 0.25,
    "recipes": {
        "mini": {
            "config": "bert_mini",
            "examples": [128, 512],
            "num_train_steps": 480,
            "set": ["global_batch_size=32"],
        }
    },
}


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


def test_a_run_is_known_by_its_name(tmp_path):
    trial = compute.Run(recipe="mini", rate="5e-4", seed=1, is_trial=True)
    (tmp_path / "scores").mkdir()
    for run in (RUN, trial):
        (tmp_path / "scores" / f"{run.name}.json").write_text(
            json.dumps({"40": {"masked_lm_loss": 7.0}, "120": {"masked_lm_loss": 5.0}})
        )
    assert compute.finished_runs(tmp_path) == [RUN, trial]
    assert compute.final_score(tmp_path, trial) == {"masked_lm_loss": 5.0}


@pytest.mark.parametrize(("is_trial", "num_steps"), [(False, 480), (True, 120)])
def test_every_run_has_the_same_held_out_shards(tmp_path, is_trial, num_steps):
    run = compute.Run(recipe="mini", rate="1e-3", seed=2, is_trial=is_trial)
    words = compute.command(tmp_path, PLAN, run)
    assert words[3:9] == [
        *("pretrain", "--config", "bert_mini", "--examples"),
        *(f"{tmp_path}/examples/128", f"{tmp_path}/examples/512"),
    ]
    assert words[9:] == [
        word
        for setting in (
            *("global_batch_size=32", "seed=2", "optimizer.learning_rate=1e-3"),
            f"num_train_steps={num_steps}",
            f"save_checkpoint_steps={num_steps // 12}",
            *("num_checkpoints=1000", f"evaluate_steps={num_steps}"),
            *("num_eval_steps=1", "num_eval_shards=3"),
        )
        for word in ("--set", setting)
    ]


def test_deviations_need_two_values():
    assert compute.mean_and_deviation([28.9]) == "28.9"
    assert compute.mean_and_deviation([28.0, 29.0, 30.0]) == "29.0 ± 1.0"
    assert compute.mean_and_deviation([1.0, 2.0], ".2f") == "1.50 ± 0.71"


def test_a_task_counts_when_every_seed_was_tuned(tmp_path):
    def write(rate, seed, accuracy):
        path = compute.task_path(tmp_path, RUN, task="MRPC", rate=rate, seed=seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"eval": {"accuracy": accuracy}}))

    for rate, values in {"1e-4": (0.6, 0.7, 0.8), "3e-4": (0.7, 0.8, 0.9)}.items():
        for seed, accuracy in zip(compute.TASK_SEEDS, values, strict=True):
            assert compute.task_score(tmp_path, RUN, "MRPC") is None
            write(rate, seed, accuracy)
    assert compute.task_score(tmp_path, RUN, "MRPC") == pytest.approx(0.8)

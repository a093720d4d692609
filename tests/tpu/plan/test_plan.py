"""`bert-keras plan` against calculations by hand, a run of two hours, and itself."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_keras import cli, config, config_files
from bert_keras.tpu.plan import data, prices, speed, work

REPOSITORY = Path(__file__).resolve().parents[3]
LONG_RUN = REPOSITORY / "benchmarks/long_run.yaml"


def plan(arguments: str, capsys) -> dict:
    assert cli.main(["plan", "--json", *arguments.split()]) == 0
    return json.loads(capsys.readouterr().out)


# By hand: the sums are written out in the recipes, "Cost: ... hours at 100 TFLOP/s".


@pytest.mark.parametrize("recipe", ["bert_base", "bert_large"])
def test_hand_calculation_of_a_pre_training(recipe, capsys):
    text = config_files.recipe_text(recipe).replace("\n# ", " ")
    eflop, hours = re.search(r"= ([\d.]+) EFLOP: (\d+) hours at 100", text).groups()
    found = plan(
        f"--config {recipe} --on v5e-8 --rate v5e-8=100 --set num_eval_steps=1", capsys
    )
    trained = sum(stage["flops"] for stage in found["stages"])
    # One batch of evaluation every 1,000 steps is a three-thousandth.
    assert trained / 1e18 == pytest.approx(float(eflop), rel=3e-3)
    (offer,) = found["offers"]
    assert offer["hours"] == pytest.approx(float(hours), rel=1e-2)
    assert offer["on_demand_dollars"] == pytest.approx(offer["hours"] * 8 * 1.20)
    steps = [stage["num_steps"] for stage in found["stages"]]
    assert steps == [900_000, 100_000]


def test_hand_calculation_of_a_fine_tuning(capsys):
    text = config_files.recipe_text("glue_mnli").replace("\n# ", " ")
    steps, pflop, minutes = re.search(
        r"BASE: ([\d,]+) steps.*= (\d+) PFLOP: (\d+) minutes at 100 TFLOP/s", text
    ).groups()
    found = plan(
        "--config glue_mnli --num_examples 392702 --on h100 --rate h100=100", capsys
    )
    assert found["stages"][0]["num_steps"] == int(steps.replace(",", ""))
    assert found["flops"] / 1e15 == pytest.approx(float(pflop), rel=0.01)
    assert found["offers"][0]["hours"] * 60 == pytest.approx(float(minutes), rel=0.05)


def test_it_foretells_the_run_of_two_hours(capsys):
    """The speed comes from another measurement: see `tpu/plan/speed.py`."""
    page = (REPOSITORY / "benchmarks/results/long_run.md").read_text()
    hours, minutes, seconds = re.search(
        r"^(\d):(\d+):(\d+) in 3 proc", page, re.M
    ).groups()
    took = int(hours) + int(minutes) / 60 + int(seconds) / 3600
    found = plan(f"--config {LONG_RUN} --on cpu", capsys)
    (offer,) = found["offers"]
    assert offer["hours"] == pytest.approx(took, rel=0.1)
    # It was interrupted twice in that time.
    assert offer["hours"] < offer["spot_hours"] < 1.1 * took


# Parts


@pytest.mark.parametrize("heads", [True, False])
def test_weights_are_those_of_the_network(heads):
    from bert_keras.model import networks, pretrainer

    sizes = config.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    network = (
        pretrainer.BertPretrainer(sizes) if heads else networks.BertClassifier(sizes, 2)
    )
    if not network.built:
        network.build()
    extra = 0 if heads else 16 * 2 + 2
    assert network.count_params() == work.num_weights(sizes, heads=heads) + extra


def test_data_is_what_was_measured():
    """The figures of benchmarks/results/disk_and_rate.md and data.md."""
    found = data.prepare(13_150_099, [128], config.ExamplesConfig())
    assert found.examples[0].number == pytest.approx(1_842_239, rel=0.01)
    assert found.examples[0].bytes == pytest.approx(1_492_080_336, rel=0.01)
    assert found.document_bytes == pytest.approx(30_386_785, rel=0.01)
    books = data.prepare(3_663_035, [512], config.ExamplesConfig())
    assert books.examples[0].number == pytest.approx(150_958, rel=0.01)
    assert books.examples[0].bytes == pytest.approx(395_117_591, rel=0.02)
    all_of_it = data.prepare(3.3e9, [128], config.ExamplesConfig())
    assert sum(all_of_it.core_hours.values()) == pytest.approx(7.3, rel=0.01)
    dynamic = config.ExamplesConfig(masking="dynamic")
    assert data.prepare(13_150_099, [128], dynamic).bytes < found.bytes / 15


def test_masks_that_are_drawn_in_training_take_less_disk(capsys):
    static, dynamic = (
        plan(f"--config bert_base --words 1e9 --masking {masking}", capsys)["data"]
        for masking in ("static", "dynamic")
    )
    sizes = [sum(e["bytes"] for e in found["examples"]) for found in (static, dynamic)]
    assert 20 < sizes[0] / sizes[1] < 35


def test_a_tpu_is_as_fast_as_its_roofline():
    base = config.BertConfig()
    one = speed.of_device("v5e-1", base, {})
    # 63.5 GB for 4.52 TFLOP, by libtpu's compiler: 819 GB/s are 58.3 TFLOP/s.
    assert one.short == pytest.approx(0.7 * 58.3e12, rel=0.01)
    assert speed.of_device("v5e-8", base, {}).long == pytest.approx(8 * one.long)
    assert "assumed" in one.reason
    assert speed.of_device("a100x8", base, {}).at(128) == pytest.approx(
        8 * 0.37 * 312e12
    )


def test_a_checkpoint_that_never_comes_in_time(capsys):
    found = plan("--config bert_base --on cpu", capsys)
    assert found["offers"][0]["spot_hours"] is None
    assert found["offers"][0]["lost_to_a_preemption_an_hour"] == 1.0
    saved = plan("--config bert_base --on cpu --set save_checkpoint_minutes=10", capsys)
    lost = saved["offers"][0]["lost_to_a_preemption_an_hour"]
    assert lost == pytest.approx((35 + 300) / 3600)


def test_prices_are_dated_and_have_sources(tmp_path, capsys):
    table = prices.load(None)
    assert table.date.year >= 2026
    assert all(price.source for price in table.hourly.values())
    own = tmp_path / "own.yaml"
    own.write_text(
        "date: 2027-01-01\n"
        "hourly:\n"
        "  v5e: {on_demand: 2, spot: 1, region: here, source: me}\n"
        "  cpu: {on_demand: 1, spot: null, region: here, source: me}\n"
        "storage: {monthly: 0.5, region: here, source: me}\n"
    )
    found = plan(f"--config bert_tiny --on v5e-8,v6e-8 --price {own}", capsys)
    v5e, v6e = found["offers"]
    assert v5e["on_demand_dollars"] == pytest.approx(v5e["hours"] * 16)
    assert v6e["on_demand_dollars"] is None
    assert found["storage_dollars_a_month"] == pytest.approx(found["bytes"] / 2e9)
    assert found["prices_of"] == "2027-01-01"


def test_the_table(capsys, tmp_path):
    picture = tmp_path / "plan.png"
    command = ["plan", "--config", "bert_base", "--words", "3.3e9"]
    assert cli.main([*command, "--drawing", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "phase 2: 100,000 steps of 256 examples of 512 tokens" in printed
    assert "9.8 core-hours (corpus 4.1, vocab 0.6, examples 5.1)" in printed
    rows = [line.split()[0] for line in printed.splitlines() if "%" in line]
    assert rows == ["v5e-8", "v6e-8", "h100x8", "a100x8", "cpu"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--on v5e-9", "v5e comes in slices of v5e-1, v5e-4"),
        ("--on a100x8,tpu", "no device 'tpu'"),
        ("--rate cpu", "--rate: expected DEVICE=TFLOPS, such as cpu=0.4, got cpu"),
        ("--rate cpu=nan", "--rate: expected DEVICE=TFLOPS"),
        ("--words -1", "--words: expected a number above 0, got -1"),
        ("--max_seq_length 128 256 512", "expected 2 lengths, one for each phase"),
        ("--num_examples 9 --words 9", "are for pre-training"),
        ("--price no.yaml", "no configuration 'no.yaml'"),
    ],
)
def test_mistakes(arguments, message, capsys):
    assert cli.main(["plan", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_it_loads_nothing_heavy():
    program = (
        "import sys; from bert_keras import cli; cli.main(['plan']); "
        "heavy = {'tensorflow', 'keras', 'numpy', 'apache_beam'}; "
        "print(sorted(heavy & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    assert done.stdout.splitlines()[-1] == "[]"

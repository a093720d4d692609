"""Rows of the training file that are kept for `bert-keras calibrate`."""

import argparse
import json
import shutil

import pytest

from bert_keras.checkpoints import run_directory
from bert_keras.commands import main as cli
from bert_keras.commands import parser
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.kinds import splits
from bert_keras.trust import calibrating
from tests.bert_keras.training.finetuning import test_finetune

COMMON = {"precision": 0.6, "confidence": 0.9}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of a command that sets rows aside, the command, and the training file."""
    folder = tmp_path_factory.mktemp("aside")
    init = test_finetune.make_init(folder / "init", test_finetune.BERT_CONFIG)
    rows = test_finetune.opinions(400, seed=1)
    train = test_finetune.write_tsv(folder / "train.tsv", rows)
    command = ["finetune", "--train", str(train), "--dev", "20%", "--calibrate", "25%"]
    command += ["--init", str(init), "--output_dir", str(folder / "run")]
    command += ["--set", "max_seq_length=24", "--set", "num_train_epochs=2"]
    assert cli.main([*command, "--set", "learning_rate=2e-3"]) == 0
    return folder / "run", [*command, "--set", "learning_rate=2e-3"], train


def part_of(train, run):
    """The lines that were set aside."""
    settings = run_directory.read_settings(run, finetuning.FinetuningConfig)
    part = splits.calibration_part(settings)
    return [
        line
        for line in train.read_text().splitlines()[1:]
        if part.holds(line.split("\t")[0] + "\0")
    ]


def test_they_are_neither_trained_nor_evaluated_on(made, caplog, capsys):
    run, command, train = made
    apart = part_of(train, run)
    results = run_directory.read_results(run)
    counts = [results[f"num_{name}_examples"] for name in ("train", "eval")]
    assert sum(counts) + len(apart) == 400 and 70 < len(apart) < 130
    lines = (run / "dev_answers.jsonl").read_text().splitlines()
    held_out = {json.loads(line)["text"] for line in lines}
    assert len(lines) == counts[1]
    assert not held_out & {line.split("\t")[0] for line in apart}
    report = json.loads((run / "data_report.json").read_text())
    assert [file["num_examples"] for file in report["files"]] == counts
    # The same command finds the same run; another share is another run.
    assert "calibration_fraction: 0.25" in (run / "config.yaml").read_text()
    assert cli.main(command) == 0
    assert "finished already" in caplog.text
    command = ["30%" if word == "25%" else word for word in command]
    assert cli.main(command) == 2
    assert "calibration_fraction" in capsys.readouterr().err


def test_calibrate_takes_exactly_them(made, tmp_path, capsys):
    run, _, train = made
    copy = shutil.copytree(run, tmp_path / "copy")
    same = tmp_path / "same.tsv"
    lines = [train.read_text().splitlines()[0], *part_of(train, run)]
    same.write_text("\n".join(lines) + "\n")
    from_file = calibrating.calibrate(copy, same, **COMMON)
    command = ["calibrate", "--model", str(run), "--precision", "0.6"]
    assert cli.main([*command, "--confidence", "0.9"]) == 0
    assert capsys.readouterr().out.startswith("Of 1,000 texts like these it answers")
    promise = run_directory.read_calibration(run)
    digests = {"data_sha256": from_file.data_sha256, "model_sha256": ""}
    assert promise.data_sha256 == splits.file_hash(train)
    assert promise.model_copy(update=digests) == from_file


def test_what_is_refused(made, tmp_path):
    run, _, train = made
    with pytest.raises(InputError, match="the run was trained on this very file"):
        calibrating.calibrate(run, train, **COMMON)
    # The training file has changed, and is gone.
    copy = shutil.copytree(run, tmp_path / "copy")
    path, moved = copy / run_directory.ENVIRONMENT_NAME, tmp_path / "train.tsv"
    values = json.loads(path.read_text())
    values["environment"]["train"] = str(moved)
    path.write_text(json.dumps(values))
    refusal = f"{moved}: is not the training file of {copy} any more, in which "
    for content in (None, train.read_text() + "one more\tgood\n"):
        if content is not None:
            moved.write_text(content)
        with pytest.raises(InputError, match=refusal + "--calibrate 25% are: put it"):
            calibrating.calibrate(copy, None, **COMMON)
    # A run that set none aside.
    config = (copy / "config.yaml").read_text()
    config = config.replace("calibration_fraction: 0.25", "calibration_fraction: 0.0")
    (copy / "config.yaml").write_text(config)
    with pytest.raises(InputError, match="`finetune --calibrate` set no rows aside"):
        calibrating.calibrate(copy, None, **COMMON)


def test_the_first_weights_have_not_seen_them(made, tmp_path, capsys):
    run, command, _ = made
    command = [str(tmp_path / "next") if w == str(run) else w for w in command]
    command[command.index("--init") + 1] = str(run)
    more = ["30%" if word == "25%" else word for word in command]
    assert cli.main(more) == 2
    refusal = f"--init {run}: was trained on rows of the same file that --calibrate "
    assert refusal in capsys.readouterr().err
    # The same share are the same rows.
    assert cli.main([*command, "--set", "num_train_epochs=0.1"]) == 0


@pytest.mark.parametrize("share", ["10", "0%", "100%", "1/5", "ten%"])
def test_shares_that_are_none(share, made, capsys):
    command = ["finetune", "--train", str(made[2]), "--dev", "10%", "--init", "bert"]
    assert cli.main([*command, "--output_dir", "x", "--calibrate", share]) == 2
    refusal = "--calibrate: expected a share above 0% and below 100%, such as 10%, got "
    assert refusal + share in capsys.readouterr().err


def test_the_runs_of_a_sweep_get_the_share():
    args = argparse.Namespace(task=None, config=None, set=["seed=1"], calibrate="12.5%")
    settings = parser.finetuning_settings(args)
    assert settings.calibration_fraction == 0.125
    # From which the commands of the runs are made.
    assert args.set == ["seed=1", "calibration_fraction=0.125"]

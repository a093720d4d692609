"""Rows of the training file that are kept for `bert-keras calibrate`."""

import argparse
import json
import shutil

import numpy as np
import pytest

from bert_keras.checkpoints import conversion, run_directory
from bert_keras.commands import main as cli
from bert_keras.commands import parser
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.kinds import splits
from bert_keras.trust import calibrating
from tests import make
from tests.bert_keras.training.finetuning import test_finetune
from tests.bert_keras.training.step import test_learner

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
    # The training file, wherever it is now.
    moved = shutil.copy(train, tmp_path / "moved.tsv")
    assert calibrating.calibrate(copy, moved, **COMMON) == promise.model_copy(
        update={"model_sha256": ""}
    )
    digests = {"data_sha256": from_file.data_sha256, "model_sha256": ""}
    assert promise.data_sha256 == splits.file_hash(train)
    assert promise.model_copy(update=digests) == from_file


def test_what_is_refused(made, tmp_path):
    run, _, train = made
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
        with pytest.raises(InputError, match=refusal + "--calibrate 25% are: give it"):
            calibrating.calibrate(copy, None, **COMMON)
    # A run that set none aside.
    copy = has_trained_on_all(made, tmp_path)
    with pytest.raises(InputError, match="`finetune --calibrate` set no rows aside"):
        calibrating.calibrate(copy, None, **COMMON)
    with pytest.raises(InputError, match="the run was trained on this very file"):
        calibrating.calibrate(copy, train, **COMMON)


@pytest.mark.slow
def test_a_relative_path_holds_in_any_folder(made, tmp_path, monkeypatch):
    run, command, train = made
    monkeypatch.chdir(train.parent)
    places = {str(train): train.name, str(run): str(tmp_path / "run")}
    command = [places.get(word, word) for word in command]
    assert cli.main([*command, "--set", "num_train_epochs=0.1"]) == 0
    monkeypatch.chdir(tmp_path)
    promise = calibrating.calibrate("run", None, precision=0.2, confidence=0.5)
    assert promise.data_sha256 == splits.file_hash(train)


def has_trained_on_all(made, folder):
    """A copy of the run that set no rows aside."""
    copy = shutil.copytree(made[0], folder / "whole")
    config = (copy / "config.yaml").read_text()
    config = config.replace("calibration_fraction: 0.25", "calibration_fraction: 0.0")
    (copy / "config.yaml").write_text(config)
    return copy


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


def distilling(made, output, teacher, *more):
    _, command, _ = made
    start = command.index("--init")
    words = ["distill", *command[1:start], *command[start + 4 :], "--labels"]
    words += ["--set", "num_train_epochs=0.1", "--output_dir", str(output)]
    return [*words, "--teacher", str(teacher), *more]


LAYERS = ("--set", "distillation.init_layers=[1]")


def test_a_teacher_has_not_seen_them(made, tmp_path, capsys):
    whole, output = has_trained_on_all(made, tmp_path), tmp_path / "small"
    for option, teacher, more in (
        ("teacher", whole, LAYERS),
        ("student", made[0], ("--student", str(whole))),
    ):
        assert cli.main(distilling(made, output, teacher, *more)) == 2
        refusal = f"--{option} {whole}: was trained on rows of the same file that "
        assert refusal in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.slow
def test_a_teacher_of_the_same_share_teaches(made, tmp_path):
    assert cli.main(distilling(made, tmp_path / "small", made[0], *LAYERS)) == 0


def test_plain_tags_are_refused_before_training(made, tmp_path, capsys):
    path, (_, command, _) = tmp_path / "tags.txt", made
    path.write_text("".join(f"a{n} N\nb{n} V\n\n" for n in range(200)))
    arguments = ["finetune", "--task", "tagging", "--train", str(path), *command[3:]]
    arguments[arguments.index("--output_dir") + 1] = str(tmp_path / "tags")
    assert cli.main(arguments) == 2
    refusal = "`calibration_fraction` is for answers that `bert-keras calibrate` can "
    refusal += "promise, got tags without entities: leave --calibrate out"
    assert refusal in capsys.readouterr().err
    assert not (tmp_path / "tags").exists()


SETTINGS = finetuning.FinetuningConfig(
    task="text",
    max_seq_length=24,
    batch_size=16,
    learning_rate=2e-3,
    calibration_fraction=0.25,
    save_checkpoint_steps=4,
    save_checkpoint_minutes=None,
)


def tune(made, output, **options):
    options = {"train": made[2], "dev": ["20%"], "output_dir": output, **options}
    results = make.finetune(SETTINGS, init=made[2].parent / "init", **options)
    return results, conversion.read(output).arrays


@pytest.fixture(scope="module")
def tuned(made):
    return tune(made, made[2].parent / "tuned")


@pytest.mark.slow
def test_killed_anywhere_is_never_killed(made, tuned, tmp_path, at_step, monkeypatch):
    class Killed(BaseException):
        """Nothing catches it, as nothing catches a signal that kills."""

    def die():
        raise Killed

    for step in (1, 5, 13):
        with pytest.raises(Killed):
            at_step(step, die)
            tune(made, tmp_path / "run")
        monkeypatch.undo()
    results, arrays = tune(made, tmp_path / "run")
    assert results["eval"] == tuned[0]["eval"]
    for name, values in tuned[1].items():
        assert arrays[name].tobytes() == values.tobytes(), name
    # The promise is of the same rows and of the same answers.
    written = [
        calibrating.calibrate(run, None, **COMMON)
        and (run / run_directory.CALIBRATION_NAME).read_bytes()
        for run in (tmp_path / "run", made[2].parent / "tuned")
    ]
    assert written[0] == written[1]


@pytest.mark.slow
def test_two_replicas_train_as_one_device(made, tuned, tmp_path):
    results, arrays = tune(made, tmp_path / "two", strategy=test_learner.mirrored(2))
    counts = ("num_train_examples", "num_eval_examples")
    assert [results[name] for name in counts] == [tuned[0][name] for name in counts]
    assert results["eval"] == pytest.approx(tuned[0]["eval"], rel=1e-4)
    for name, values in tuned[1].items():
        # The gradient of these biases may be 0, so Adam scales up its rounding.
        atol = 1e-4 if name.endswith(("key/bias", "classifier/bias")) else 1e-5
        np.testing.assert_allclose(arrays[name], values, rtol=0, atol=atol)
    one, two = (
        calibrating.calibrate(run, None, **COMMON)
        for run in (made[2].parent / "tuned", tmp_path / "two")
    )
    assert two.threshold == pytest.approx(one.threshold, abs=1e-4)
    assert (two.num_answered, two.num_wrong) == (one.num_answered, one.num_wrong)


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

"""Sweeps over folds: each run learns from all of them but one."""

import json
from pathlib import Path

import pytest

from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.core.settings import sweeps
from bert_keras.lab.sweep import planning, running, summary
from tests.bert_keras.lab.sweep.test_sweep_runs import FAKE, calls, command_in, rows


def find(task="text", **given) -> tuple[planning.Fold, ...]:
    nothing = {"train": None, "dev": None, "data": None, "num_folds": None}
    return planning.find_folds(task, **(nothing | given))


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in ("10", "2"):
        (tmp_path / f"part_{name}").mkdir()
        for file in ("train", "dev"):
            path = tmp_path / f"part_{name}/{file}.tsv"
            path.write_text(f"text\tlabel\n{file} {name}\ta\nother\tb\n")
    (tmp_path / "train.tsv").write_text("text\tlabel\na text\ta\nother\tb\n")
    (tmp_path / "init").write_text("weights")
    return tmp_path


def test_folds_of_one_file():
    assert find(train="all.tsv", num_folds=3) == (
        ("1", "all.tsv", ("1/3",)),
        ("2", "all.tsv", ("2/3",)),
        ("3", "all.tsv", ("3/3",)),
    )
    whole = find(train="train.tsv", dev=["dev.tsv"])
    assert whole == ((None, "train.tsv", ("dev.tsv",)),)


def test_folds_of_files(folder):
    pattern = f"{folder}/part_{{fold}}"
    of_files = find(train=f"{pattern}/train.tsv", dev=[f"{pattern}/dev.tsv", "b.tsv"])
    assert of_files == tuple(
        (name, f"{part}/train.tsv", (f"{part}/dev.tsv", "b.tsv"))
        for name, part in (("2", f"{folder}/part_2"), ("10", f"{folder}/part_10"))
    )
    for part in folder.glob("part_*"):
        for name in ("train.csv", "val.csv"):
            (part / name).write_text("")
    of_folders = find("SWAG", data=pattern)
    assert [f.name for f in of_folders] == ["2", "10"]
    assert of_folders[1].dev == (f"{folder}/part_10/val.csv",)
    # One folder, whose training file is divided.
    divided = find("SWAG", data=f"{folder}/part_2", num_folds=2)
    train = f"{folder}/part_2/train.csv"
    assert divided == (("1", train, ("1/2",)), ("2", train, ("2/2",)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train": "a.tsv", "dev": ["b.tsv"], "num_folds": 2}, "leave --dev out"),
        ({"num_folds": 2}, "`folds` divides a training file: give it with --train"),
        ({"train": "{fold}.tsv", "num_folds": 2}, "give one of them"),
        ({"train": "a.tsv", "dev": ["{fold}"]}, "--train: expected {fold} once, as in"),
        ({"train": "{fold}/{fold}", "dev": ["b"]}, "expected {fold} once"),
        ({"train": "no{fold}.tsv", "dev": ["{fold}"]}, "two folds or more, found 0"),
        (
            {"train": "part_{fold}/train.tsv", "dev": ["b", "{fold}"]},
            "--dev: expected {fold} in the first name, as in --train, got b",
        ),
        ({"dev": ["{fold}"]}, "--train: expected {fold} once, as in --dev, got nothin"),
        ({"train": "part_{fold}/train.tsv"}, "give the files with --train and --dev"),
    ],
)
def test_folds_that_are_none(folder, monkeypatch, given, message):
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=message):
        find(**given)


def test_the_whole_grid_comes_first_on_the_first_fold():
    folds = find(train="a.tsv", num_folds=2)
    command = planning.Command(init="x", folds=folds)
    settings = sweeps.SweepConfig(grid={"batch_size": [8, 16]}, num_restarts=2)
    runs = planning.plan_runs(settings, command)
    assert [run.name for run in runs] == [
        f"fold={fold},batch_size={size},seed={seed}"
        for seed in (12345, 12346)
        for fold in (1, 2)
        for size in (8, 16)
    ]
    arguments = command.arguments(runs[2], Path("out"))
    assert arguments[arguments.index("--dev") + 1] == "2/2"
    # Another fold is another run, though its settings are the same.
    assert planning.merge_plans(runs[:2], runs) == (runs, [])


def run_folds(folder: Path, num_folds: int | None = 3, rates=(4e-5,), **changes):
    if "folds" not in changes:
        changes["folds"] = find(train=str(folder / "train.tsv"), num_folds=num_folds)
    settings = sweeps.SweepConfig(grid={"learning_rate": rates}, folds=num_folds)
    options = {"output_dir": folder / "out", "num_jobs": 3, "runner": FAKE}
    state = running.run_sweep(settings, command_in(folder, **changes), **options)
    return summary.lines(state)


def test_folds_have_a_mean_and_are_resumed(folder):
    run_folds(folder)
    names = [f"fold={n},learning_rate=4e-05,seed=7" for n in (1, 2, 3)]
    assert calls(folder) == names
    (folder / f"out/runs/{names[1]}/results.json").unlink()
    # A point more costs its own folds only.
    printed = run_folds(folder, rates=(3e-5, 4e-5))
    others = [name.replace("4e-05", "3e-05") for name in names]
    assert calls(folder) == sorted([*others, names[1]])
    # Seed 7 makes one answer of 50 wrong, each fold one more, 1e-5 of the rate ten.
    assert [line.replace("*", "")[:41] for line in printed[2:4]] == [
        "| 3e-05 | 3 | 0.9400 | 0.0200 | 0.9600 | ",
        "| 4e-05 | 3 | 0.7400 | 0.0200 | 0.7600 | ",
    ]
    assert printed[-1] == (
        "Chosen: fold=1,learning_rate=3e-05,seed=7, accuracy 0.9600 on dev, the best "
        "run of the point with the best mean, 0.9400 ± 0.0200 over 3 folds."
    )
    assert [row["fold"] for row in rows(folder)] == [*"112233"]
    facts = json.loads((folder / "out/sweep.json").read_text())
    assert (facts["chosen"]["fold"], facts["choose"]) == ("1", "mean")
    page = (folder / "out/report.md").read_text()
    assert "Each run learnt from all folds but one" in page
    with pytest.raises(InputError, match="begun by another run, with"):
        run_folds(folder, 4)


def test_files_of_folds_may_not_change(folder):
    pattern = f"{folder}/part_{{fold}}"
    of_files = find(train=f"{pattern}/train.tsv", dev=[f"{pattern}/dev.tsv"])
    run_folds(folder, None, folds=of_files, rates=(3e-5, 4e-5))
    assert [row["fold"] for row in rows(folder)] == ["2", "2", "10", "10"]

    def change_inputs(fold: str, rate: str, sha256: str) -> None:
        path = folder / f"out/runs/fold={fold},learning_rate={rate},seed=7/inputs.json"
        values = json.loads(path.read_text()) | {"train_sha256": sha256}
        path.write_text(json.dumps(values))

    # Data that changed while it ran is noticed within a fold; other folds differ.
    for fold in ("2", "10"):
        for rate in ("3e-05", "4e-05"):
            change_inputs(fold, rate, fold)
    run_folds(folder, None, folds=of_files)
    change_inputs("2", "4e-05", "other")
    with pytest.raises(
        InputError, match="`train_sha256` of fold=2,learning_rate=4e-05"
    ):
        run_folds(folder, None, folds=of_files)
    (folder / "part_10/dev.tsv").write_text("text\tlabel\nother\ta\n")
    with pytest.raises(InputError, match="begun by another run, with dev_sha256="):
        run_folds(folder, None, folds=of_files)


def test_a_sweep_needs_a_grid_or_folds(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    arguments = ["sweep", "--train", "train.tsv", "--init", "init", "--output_dir", "o"]
    for options, message in (
        (("--dev", "part_2/dev.tsv"), "give a grid with --sweep, or folds with"),
        (("--folds", "1"), "`folds`: input should be greater than or equal to 2"),
    ):
        assert cli.main([*arguments, *options]) == 2
        assert message in capsys.readouterr().err
    assert not (folder / "o").exists()

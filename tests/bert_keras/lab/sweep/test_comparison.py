"""Comparisons with a stand-in for tuning: what is run, resumed, said and refused."""

import json
import logging
import random
import re
import sys
from pathlib import Path

import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import sweeps
from bert_keras.lab.sweep import (
    bootstrap,
    comparison_page,
    planning,
    ranking,
    scores,
)
from bert_keras.lab.sweep import comparison as comparisons

FAKE = (sys.executable, str(Path(__file__).with_name("fake_finetune.py")))


@pytest.fixture
def folder(tmp_path) -> Path:
    generator = random.Random(1)
    for name, rows in (("train", 100), ("dev", 400)):
        lines = ["text\tlabel"]
        for _ in range(rows):
            words = generator.choices("lorem ipsum dolor sit amet".split(), k=4)
            lines.append(f"{' '.join(words)}\t{generator.choice('ab')}")
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    for name, share in (("good", 0.9), ("near", 0.89), ("weak", 0.6)):
        (tmp_path / name).write_text(f"{share}")
    return tmp_path


def compare(folder: Path, *models: str, output="out", **changes) -> list[str]:
    return comparisons.run_comparison(
        comparison_of(folder, *models, **changes),
        output_dir=folder / output,
        num_jobs=2,
        runner=FAKE,
    )


def comparison_of(folder: Path, *models: str, **changes) -> comparisons.Comparison:
    values = {"fractions": (1.0,), "num_seeds": 1, "task": "text", "overrides": ()}
    values |= {"models": [str(folder / model) for model in models]} | changes
    command = planning.Command(
        train=str(folder / "train.tsv"),
        dev=(str(folder / "dev.tsv"),),
        **{key: values.pop(key) for key in ("task", "overrides")},
    )
    return comparisons.Comparison(command=command, **values)


def calls(folder: Path) -> list[str]:
    """The runs that were begun since this was last asked."""
    path = folder / "calls.txt"
    lines = path.read_text().splitlines() if path.is_file() else []
    path.unlink(missing_ok=True)
    return sorted(re.sub("model=[^,]*,", "", line) for line in lines)


def test_what_the_figures_say(folder, monkeypatch):
    monkeypatch.undo()
    models = ("weak", "good", "near")
    sentences = compare(folder, *models, num_seeds=3, from_scratch=True)
    first, full = sentences
    assert first == (
        "With 100 labelled examples, a model is worth it: clearly better than "
        "commonest answer and TF-IDF, linear."
    )
    clear, unclear = full.split("; the figures do not tell it from ")
    assert re.match("With 100 labelled examples (good|near) is best, accuracy ", clear)
    assert "; it is better than " in clear and "weak (by 0." in full
    assert "weak, random (by 0." in clear
    assert re.match(r"(near|good) \(by ", unclear)
    facts = json.loads((folder / "out/comparison.json").read_text())
    assert facts["said"] == sentences
    text = (folder / "out/report.md").read_text()
    assert f"**{first}**" in text.replace("&#45;", "-")
    rows = [line for line in text.splitlines() if line.startswith("| good |")]
    assert rows[0].count("±") == 1 and rows[1:] == ["| good | 0:00:20 |"]
    assert (folder / "out/scores.png").read_bytes().startswith(b"\x89PNG")


def test_it_resumes_and_takes_more(folder):
    compare(folder, "good", num_seeds=2)
    runs = ("train_fraction=1,seed=12345", "train_fraction=1,seed=12346")
    assert calls(folder) == [f"good {run}" for run in runs]
    baselines = {
        path: path.stat().st_mtime_ns
        for path in (folder / "out/runs").glob("baseline=*/*.json")
    }
    assert len(baselines) == 2 * 2
    more = {"fractions": (1.0, 0.1), "num_seeds": 1}
    sentences = compare(folder, "good", "weak", **more)
    fewer = "train_fraction=0.1,seed=12345"
    assert calls(folder) == [f"good {fewer}", f"weak {fewer}", f"weak {runs[0]}"]
    assert all(path.stat().st_mtime_ns == time for path, time in baselines.items())
    assert compare(folder, "good", "weak", **more) == sentences
    assert sentences[-1].startswith("With 10 labelled examples ")
    # Fewer shares: the others stay and are not shown.
    assert len(compare(folder, "good")) < len(sentences)
    assert calls(folder) == []


def test_failed_and_stuck_runs_are_named(folder):
    (folder / "frail").write_text("0.9 12345")
    (folder / "stuck").write_text("0.9 stuck")
    compare(folder, "frail", "stuck", num_seeds=2)
    text = (folder / "out/report.md").read_text()
    assert "Runs that failed and are left out: 1 of frail." in text
    assert (
        "Runs that learnt nothing, at the majority class, and count: 2 of stuck."
    ) in text
    facts = json.loads((folder / "out/comparison.json").read_text())
    # A first run that fails stops no other.
    assert [run["seed"] for run in facts["contenders"][2]["runs"]] == [12346]
    with pytest.raises(InputError, match="frail: no run has a score"):
        compare(folder, "frail", output="other")


def test_files_that_have_changed_since(folder, caplog):
    with caplog.at_level(logging.INFO):
        sentences = compare(folder, "good")
    messages = caplog.messages
    assert messages[-1] == f"report in {folder}/out/report.md"
    assert "1 runs, 0 finished already" in messages
    assert any(re.match(r"\[1/1\] model=good,.*: accuracy 0\.", m) for m in messages)
    # Figures of a baseline that are gone are made again.
    for path in (folder / "out/runs").glob("baseline=*/results.json"):
        path.write_text("{}")
    assert compare(folder, "good") == sentences
    # Answers to other examples are refused.
    path = next((folder / "out/runs").glob("model=*/dev_answers.jsonl"))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match="not about the same examples as"):
        compare(folder, "good")
    # Other data is another comparison.
    (folder / "dev.tsv").write_text("text\tlabel\nx\ta\ny\tb\n")
    with pytest.raises(InputError, match="dev_sha256"):
        compare(folder, "good")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fractions": (0.0,)}, "--fractions: expected shares above 0, at most 1"),
        ({"fractions": (2.0,)}, "got 2"),
        ({"num_seeds": 0}, "--seeds must be at least 1, got 0"),
        ({"task": "span"}, "`compare` is for texts and tagged words, got .* span"),
        ({"overrides": ("train_fraction=0.5",)}, "what --fractions says"),
        ({"models": ["a", "./a"]}, "a model is there twice"),
        ({"models": []}, "expected one model or more"),
        (
            {"models": ["good", "good, random"], "from_scratch": True},
            "--from_scratch: 'good, random' is also a model's name",
        ),
    ],
)
def test_what_is_refused_leaves_nothing(folder, changes, message):
    with pytest.raises(InputError, match=message):
        compare(folder, "good", **changes)
    assert not (folder / "out").exists()


def test_models_are_named_by_as_much_of_their_paths_as_tells_them_apart(folder):
    for models, names in (
        (("a/run", "b/run/", "b/other"), ["a/run", "b/run", "b/other"]),
        (("x/published", "own"), ["published", "own"]),
    ):
        named = comparisons._name_models(comparison_of(folder, *models))
        assert [model.name for model in named] == names
        inits = [str(folder / model).rstrip("/") for model in models]
        assert [model.init for model in named] == inits


RUNS = planning.plan_runs(
    sweeps.SweepConfig(grid={"train_fraction": [1.0]}, num_restarts=2),
    planning.Command(train="train.tsv", dev=("dev.tsv",)),
)


def candidate(name: str, score: float, *, is_baseline=False) -> ranking.Candidate:
    outcomes = tuple(
        scores.Outcome(
            run=run, score=score, evaluation={}, seconds=1, num_train_examples=100
        )
        for run in RUNS
    )
    point = scores.Point(values=(name, 1.0), outcomes=outcomes)
    return ranking.Candidate(name=name, is_baseline=is_baseline, points={1.0: point})


def report_of(best: ranking.Candidate, *others) -> comparison_page.Report:
    return comparison_page.Report(
        task="text",
        metric="accuracy",
        num_dev=50,
        candidates=(best, *(other for other, _ in others)),
        rankings=(
            ranking.Ranking(fraction=1.0, num_examples=100, best=best, others=others),
        ),
        num_seeds=2,
        num_jobs=1,
        settings={},
    )


def test_no_model_is_called_worth_it_that_is_not_clearly_better():
    baseline = candidate("linear", 0.8, is_baseline=True)
    model = candidate("model", 0.82)
    unclear = bootstrap.Interval(0.02, -0.01, 0.05)
    first, second = comparison_page.sentences(report_of(model, (baseline, unclear)))
    assert first == (
        "At no number of labels here is a model clearly better than linear."
    )
    assert second == (
        "With 100 labelled examples model is best, accuracy 0.820 ± 0.000; the figures "
        "do not tell it from linear (by 0.020, -0.010 to 0.050)."
    )
    # A baseline that is best, however clearly, makes no model worth it.
    clear = bootstrap.Interval(0.02, 0.01, 0.05)
    first, _ = comparison_page.sentences(report_of(baseline, (model, clear)))
    assert first.startswith("At no number of labels")
    first, second = comparison_page.sentences(report_of(model, (baseline, clear)))
    assert first == (
        "With 100 labelled examples, a model is worth it: clearly better than linear."
    )
    assert "it is better than linear (by 0.020, 0.010 to 0.050)." in second


def test_a_handful_of_dev_examples_tells_nothing(folder):
    """Of one or two, all resamples are alike, and any difference would look clear."""
    (folder / "dev.tsv").write_text("text\tlabel\n" + "lorem\ta\nlorem\tb\n" * 9)
    (folder / "perfect").write_text("1")
    first, second = compare(folder, "perfect", num_seeds=2)
    assert first.startswith("At no number of labels here is a model clearly better")
    assert second.endswith("perfect is best, accuracy 1.000 ± 0.000.")
    page = (folder / "out/report.md").read_text()
    assert "The dev file has 18 examples: with fewer than 20 no difference is" in page


def test_a_model_that_cannot_be_used_is_told_before_others_are_tuned(folder):
    with pytest.raises(InputError, match="missing: no such checkpoint"):
        comparisons.run_comparison(
            comparison_of(folder, "good", "missing", fractions=(0.1, 1.0)),
            output_dir=folder / "out",
            runner=FAKE,
        )
    runs = [
        "good train_fraction=0.1,seed=12345",
        "missing train_fraction=0.1,seed=12345",
    ]
    assert calls(folder) == runs

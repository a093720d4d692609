"""Comparisons with a stand-in for tuning: what is run, resumed, said and refused."""

import base64
import dataclasses
import json
import logging
import random
import re
from pathlib import Path

import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import sweeps
from bert_keras.lab.sweep import planning, ranking, running, scores, summary
from tests.bert_keras.lab.sweep.test_sweep_runs import FAKE, calls, command_in


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


def compare(
    folder: Path, *models: str, output="out", task="text", overrides=(), **changes
) -> list[str]:
    options = {"fractions": (1.0,), "num_seeds": 1} | changes
    paths = options.pop("models", [str(folder / model) for model in models])
    scratch = options.pop("from_scratch", False)
    at_work = {"num_jobs": options.pop("num_jobs", 2), "runner": FAKE}
    command = command_in(folder, init="", task=task, overrides=overrides)
    settings = planning.plan_comparison(command.settings(), **options)
    named = planning.name_models(paths, from_scratch=scratch)
    command = dataclasses.replace(command, models=named)
    at_work["output_dir"] = folder / output
    return summary.lines(running.run_sweep(settings, command, **at_work))


def facts_of(folder: Path) -> dict:
    return json.loads((folder / "out/sweep.json").read_text())


def test_what_the_figures_say(folder, monkeypatch):
    monkeypatch.undo()
    models = ("weak", "good", "near")
    sentences = compare(folder, *models, num_seeds=3, from_scratch=True)
    first, full = sentences
    assert first == (
        "With 100 labelled examples, a model is worth it: significantly better than "
        "most common answer and TF-IDF, linear."
    )
    better, similar = full.split("; it is not significantly better than ")
    best = "With 100 labelled examples (good|near) has the highest accuracy, "
    assert re.match(best, better)
    assert "; it is significantly better than " in better and "weak (by 0." in full
    assert "weak, random (by 0." in better
    assert re.match(r"(near|good) \(by ", similar)
    facts = facts_of(folder)
    assert [*facts] == [
        *("task", "metric", "goal", "choose", "chosen", "points", "baselines"),
        *("confidence", "differences", "conclusions"),
    ]
    assert facts["conclusions"] == sentences
    (difference,) = facts["differences"]
    numbers = ("num_train_examples", "num_dev_examples", "model_beats_baselines")
    assert [difference[name] for name in numbers] == [100, 400, True]
    names = [other["name"] for other in difference["others"]]
    assert {*difference["best"], *names} == {
        *("weak", "good", "near", "weak, random", "most common answer"),
        "TF-IDF, linear",
    }
    page = (folder / "out/report.md").read_text()
    assert page.startswith(f"# Comparison: text\n\n**{first}**\n\n12 of 12 runs have")
    assert page.index("## Paired differences") < page.index("## Baselines")
    assert "- TF-IDF, linear: scikit-learn's logistic regression" in page
    assert (folder / "out/scores.png").read_bytes().startswith(b"\x89PNG")
    assert not (folder / "out/learning_curve.png").exists()
    page = (folder / "out/report.html").read_text()
    picture = base64.b64encode((folder / "out/scores.png").read_bytes()).decode()
    assert page.count(f'src="data:image/png;base64,{picture}"') == 1
    assert page.index(f"<strong>{first}</strong>") < page.index(">Baselines</h2>")


def test_three_shares_tell_what_more_labels_would_bring(folder):
    sentences = compare(folder, "good", fractions=(0.3, 0.6, 1.0), num_seeds=2)
    assert sentences[-1].startswith("With twice the labels (200) expect accuracy 0.")
    assert sentences[-1] in (folder / "out/report.md").read_text()


def test_it_resumes_and_takes_more(folder):
    compare(folder, "good", num_seeds=2)
    runs = ("train_fraction=1,seed=12345", "train_fraction=1,seed=12346")
    assert calls(folder) == [f"model=good,{run}" for run in runs]
    files = (folder / "out/runs").glob("baseline=*/results.json")
    baselines = {path: path.stat().st_mtime_ns for path in files}
    assert len(baselines) == 2 * 2
    more = {"fractions": (1.0, 0.1), "num_seeds": 1}
    sentences = compare(folder, "good", "weak", **more)
    fewer = "train_fraction=0.1,seed=12345"
    begun = ("good", fewer), ("weak", fewer), ("weak", runs[0])
    assert calls(folder) == [f"model={model},{run}" for model, run in begun]
    assert all(path.stat().st_mtime_ns == time for path, time in baselines.items())
    assert sentences[-1].startswith("With 10 labelled examples ")
    assert (folder / "out/learning_curve.png").exists()
    # The same command again writes the same files.
    names = ("sweep.json", "report.md", "report.html", "results.tsv")
    written = [(folder / "out" / name).read_bytes() for name in names]
    assert compare(folder, "good", "weak", **more) == sentences
    assert written == [(folder / "out" / name).read_bytes() for name in names]
    # All runs of the directory are compared, as in a sweep.
    assert compare(folder, "good") == sentences
    assert calls(folder) == []


def test_failed_and_stuck_runs_are_named(folder):
    (folder / "frail").write_text("0.9 12345")
    (folder / "stuck").write_text("0.9 stuck")
    compare(folder, "frail", "stuck", num_seeds=2)
    page = (folder / "out/report.md").read_text()
    assert "1 of them failed and 2 at the majority class" in page
    # A first run that fails stops no other.
    states = {
        point["point"]["model"]: [run["state"] for run in point["runs"]]
        for point in facts_of(folder)["points"]
    }
    assert states == {"frail": ["failed", "finished"], "stuck": ["majority"] * 2}
    with pytest.raises(InputError, match="^frail: no run has a score: .*report.html"):
        compare(folder, "frail", "good", output="other")


def test_files_that_have_changed_since(folder, caplog):
    with caplog.at_level(logging.INFO):
        sentences = compare(folder, "good")
    messages = caplog.messages
    assert messages[-1] == f"report in {folder}/out/report.html"
    assert "1 runs, 0 finished already" in messages
    assert any(re.match(r"\[1/1\] model=good,.*: accuracy 0\.", m) for m in messages)
    # Results of a baseline that are gone are computed again.
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
        ({"models": ["a", "./a"]}, "the same model is given twice"),
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
        paths = [str(folder / model) for model in models]
        named = planning.name_models(paths, from_scratch=False)
        assert [model.name for model in named] == names
        assert [model.init for model in named] == [path.rstrip("/") for path in paths]


def point(name: str, *values: float, is_baseline=False) -> scores.Point:
    model = planning.Model(name=name, init="x", is_baseline=is_baseline)
    grid = {"train_fraction": [1.0]}
    settings = sweeps.SweepConfig(grid=grid, num_restarts=len(values))
    runs = planning.plan_runs(settings, command_in(Path(), models=(model,)))
    outcomes = tuple(
        scores.Outcome(run=run, score=score, evaluation={}, num_train_examples=100)
        for run, score in zip(runs, values, strict=True)
    )
    return scores.Point(values=(name, 1.0), outcomes=outcomes)


LINEAR = point("linear", 0.8, 0.8, is_baseline=True)
MODEL = point("model", 0.82, 0.82)
WIDE, NARROW = ranking.Interval(0.02, -0.01, 0.05), ranking.Interval(0.02, 0.01, 1)
NOT_WORTH = (
    "No model here is significantly better than linear, with any number of labels."
)
WORTH = (
    "With 100 labelled examples, a model is worth it: significantly better than linear."
)
HIGHEST = "With 100 labelled examples model has the highest accuracy, 0.820 ± 0.000; "


@pytest.mark.parametrize(
    ("points", "differences", "first", "second"),
    [
        (
            *((MODEL, LINEAR), (WIDE,), NOT_WORTH),
            f"{HIGHEST}it is not significantly better than linear (by 0.020, -0.010 to "
            "0.050).",
        ),
        (
            *((MODEL, LINEAR), (NARROW,), WORTH),
            f"{HIGHEST}it is significantly better than linear (by 0.020, 0.010 to "
            "1.000).",
        ),
        # A baseline with the highest score, however clearly, makes no model worth it.
        (
            *((point("linear", 0.84, 0.84, is_baseline=True), MODEL), (NARROW,)),
            *(NOT_WORTH, "With 100 labelled examples linear has the highest accuracy,"),
        ),
        # Ties: none of them is called the best.
        (
            (MODEL, point("other", 0.81, 0.83), LINEAR),
            *((ranking.Interval(0.0, -0.1, 0.1), NARROW), WORTH),
            "With 100 labelled examples model and other are tied for the highest "
            "accuracy, 0.820 ± 0.000; model is significantly better than linear (by "
            "0.020, 0.010 to 1.000).",
        ),
        (
            *((point("linear", 0.8, is_baseline=True), point("model", 0.8)), (None,)),
            "One seed does not show how far scores vary from training to training, so "
            "no difference is called significant: give more with --seeds.",
            "With 100 labelled examples linear and model are tied for the highest "
            "accuracy, 0.800.",
        ),
    ],
)
def test_conclusions(points, differences, first, second):
    best, *others = points
    pairs = tuple(zip(others, differences, strict=True))
    ranked = ranking.Ranking(num_labels=100, num_dev=50, first=best, others=pairs)
    sentences = ranking.conclusions([ranked], "accuracy")
    assert sentences[0] == first and sentences[1].startswith(second)


def test_a_handful_of_dev_examples_tells_nothing(folder):
    """Of one or two, all resamples are alike, and any difference would look clear."""
    (folder / "dev.tsv").write_text("text\tlabel\n" + "lorem\ta\nlorem\tb\n" * 9)
    (folder / "perfect").write_text("1")
    first, second = compare(folder, "perfect", num_seeds=2)
    assert first.startswith("No model here is significantly better than")
    assert second.endswith("perfect has the highest accuracy, 1.000 ± 0.000.")
    page = (folder / "out/report.md").read_text()
    assert "The dev file has 18 examples: with fewer than 20 no difference is" in page


def test_a_model_that_cannot_be_used_is_told_before_others_are_tuned(folder):
    with pytest.raises(InputError, match="missing: no such checkpoint"):
        compare(folder, "good", "missing", fractions=(0.1, 1.0), num_jobs=1)
    assert calls(folder) == [
        f"model={model},train_fraction=0.1,seed=12345" for model in ("good", "missing")
    ]

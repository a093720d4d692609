"""What a sweep plans, how it judges and chooses, and what it writes."""

import dataclasses
import io
import itertools
import json
import math
from pathlib import Path

import pytest

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, loading, strict, sweeps
from bert_keras.kinds import catalogue, registry
from bert_keras.lab.sweep import drawings, planning, running, scores, summary

FILES = (planning.Fold(None, "train.tsv", ("dev.tsv",)),)


def command(*overrides, **changes) -> planning.Command:
    common = {"folds": FILES, "init": "bert_base", "overrides": overrides}
    return planning.Command(**(common | changes))


def plan(*overrides, num_restarts=1, **grid) -> list[planning.Run]:
    settings = sweeps.SweepConfig(grid=grid, num_restarts=num_restarts)
    return planning.plan_runs(settings, command(*overrides))


RUN = plan(learning_rate=[5e-5])[0]


# === Plan ===


@pytest.mark.parametrize(
    ("recipe", "overrides", "expected"),
    [
        # Appendix A.3.
        ("sweep_paper", (), ((16, 32), (5e-5, 3e-5, 2e-5), (2, 3, 4))),
        # Section 4.1, whatever else is configured.
        (
            *("sweep_glue", ("batch_size=8", "num_train_epochs=9")),
            ((32,), (5e-5, 4e-5, 3e-5, 2e-5), (3,)),
        ),
    ],
)
def test_the_grids_of_the_paper(recipe, overrides, expected):
    settings = loading.load(sweeps.SweepConfig, recipe)
    runs = planning.plan_runs(settings, command(*overrides))
    keys = ("batch_size", "learning_rate", "num_train_epochs")
    points = [tuple(map(run.value, keys)) for run in runs]
    assert points == [*itertools.product(*expected)]
    assert (settings.choose, settings.num_restarts) == (None, 1)
    if not overrides:
        assert runs[0].name == (
            "batch_size=16,learning_rate=5e-05,num_train_epochs=2,seed=12345"
        )
        assert runs[0].overrides == (
            *("batch_size=16", "learning_rate=5e-05", "num_train_epochs=2.0"),
            "seed=12345",
        )


def test_what_a_run_is_given_gives_its_settings():
    grid = {"learning_rate": ["1e-4", 2], "document_context": [True, False]}
    grid |= {"precision": ["mixed_bfloat16"], "span.doc_stride": [64]}
    common = command("batch_size=4", task="tagging", recipe="demo_finetune")
    runs = planning.plan_runs(sweeps.SweepConfig(grid=grid), common)
    assert [run.name for run in runs] == [
        f"learning_rate={rate},document_context={context},precision=mixed_bfloat16,"
        "span.doc_stride=64,seed=12345"
        for rate in ("0.0001", "2")
        for context in ("true", "false")
    ]
    for run in runs:
        arguments = common.arguments(run, Path("out"))
        pairs = itertools.pairwise(arguments)
        given = ["task=tagging", *(b for a, b in pairs if a == "--set")]
        loaded = loading.load(finetuning.FinetuningConfig, "demo_finetune", given)
        assert loaded == run.settings
    assert [*map(runs[0].value, ("num_train_epochs", "span.doc_stride"))] == [10, 64]


def test_the_command_of_a_run():
    dev = ("matched.tsv", "mismatched.tsv")
    options = {"task": "MNLI", "folds": (FILES[0]._replace(dev=dev),)}
    options |= {"recipe": "mnli.yaml", "from_scratch": True, "strategy": "gpu"}
    common = command("batch_size=4", **options)
    assert common.arguments(RUN, Path("out/runs/1")) == [
        *("finetune", "--task", "MNLI", "--train", "train.tsv"),
        *("--init", "bert_base", "--config", "mnli.yaml", "--strategy", "gpu"),
        *("--output_dir", "out/runs/1", "--dev", "matched.tsv", "mismatched.tsv"),
        *("--from_scratch", "--set", "batch_size=4"),
        *("--set", "learning_rate=5e-05", "--set", "seed=12345"),
    ]


SHARES = ("attention_probs_dropout_prob", "hidden_dropout_prob", "train_fraction")
SHARES += ("learning_rate", "warmup_proportion", "weight_decay_rate")
NUMBERS_OF = ("gradient_accumulation_steps", "max_skipped_steps", "length_multiple")
NUMBERS_OF += ("num_train_epochs", "batch_size", "max_seq_length")


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"lerning_rate": [1e-5]}, "no key 'lerning_rate'; did you mean 'learning_rat"),
        ({"batch_size": [0]}, "`batch_size`: input should be greater than 0, got 0"),
        ({"seed": [1, 2]}, "`grid.seed`: a seed is nothing to choose by: set `num_r"),
        ({"task": ["RTE"]}, "`grid.task`: its values would be scored on different"),
        ({"columns.text": ["a"]}, "`grid.columns.text`: its values would be scored"),
        ({"regression": [True, False]}, "`grid.regression`: its values would be"),
        ({"learning_rate": [5e-5, "0.00005"]}, "`grid`: learning_rate=5e-05,seed=123"),
        (
            dict.fromkeys(SHARES, [0.1]) | dict.fromkeys(NUMBERS_OF, [8]),
            "a run's directory would be called attention_pro.*, 2.. characters, at mos",
        ),
    ],
)
def test_a_grid_that_cannot_be_run(grid, message):
    with pytest.raises(InputError, match=message):
        plan(**grid)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"grid": {"batch_size": 16}}, r"`grid.batch_size` is a list of values, such "),
        ({"grid": {"batch_size": []}}, r"such as \[16, 32\], got \[\]"),
        ({"grid": {"batch_size": [[1], 2]}}, r"got \[\[1\], 2\]"),
        ({"grid": {"span": [{"doc_stride": 1}]}}, r"`grid.span` is a list of values"),
        ({"grid": [1]}, r"`grid`: input should be a valid dictionary, got \[1\]"),
        ({"num_restarts": 0}, "`num_restarts`: input should be greater than 0, got 0"),
    ],
)
def test_a_configuration_that_cannot_be_used(values, message):
    with pytest.raises(InputError, match=message):
        strict.build_config(sweeps.SweepConfig, values)


def test_models_are_the_last_axis_of_each_seed():
    models = (
        planning.Model(name="a/run", init="/a/run"),
        planning.Model(name="b, random", init="/b", from_scratch=True),
    )
    settings = sweeps.SweepConfig(grid={"train_fraction": [0.1, 1]}, num_restarts=2)
    common = command(models=models, init="")
    runs = planning.plan_runs(settings, common)
    assert [run.name for run in runs] == [
        f"model={model},train_fraction={fraction},seed={seed}"
        for seed in (12345, 12346)
        for fraction in ("0.1", "1")
        for model in ("a%2Frun", "b%2C%20random")
    ]
    assert [run.value("model") for run in runs[:2]] == ["a/run", "b, random"]
    first, second = (common.arguments(run, Path("out")) for run in runs[:2])
    assert second[second.index("--init") + 1] == "/b"
    assert "--from_scratch" in second and "--from_scratch" not in first
    # Beside others, a model may need a longer name; its runs stay.
    longer = models[0].model_copy(update={"name": "x/a/run"})
    renamed = planning.plan_runs(settings, command(models=(longer,), init=""))
    merged, others = planning.merge_plans(runs, renamed)
    assert [run.name for run in merged] == [run.name for run in runs[::2]]
    assert {run.value("model") for run in merged} == {"x/a/run"}
    assert others == runs[1::2]
    # Another model under the same name.
    moved = models[0].model_copy(update={"init": "/c/run"})
    planned = planning.plan_runs(settings, command(models=(moved,), init=""))
    with pytest.raises(InputError, match="a%2Frun,.* is a run of another model"):
        planning.merge_plans(runs, planned)


def test_the_same_settings_are_the_same_run():
    earlier = plan(learning_rate=[1e-5, 2e-5])
    planned = plan(batch_size=[16, 32], learning_rate=[2e-5, 3e-5])
    merged, others = planning.merge_plans(earlier, planned)
    assert [run.name for run in merged] == [
        "batch_size=16,learning_rate=2e-05,seed=12345",
        "batch_size=16,learning_rate=3e-05,seed=12345",
        "learning_rate=2e-05,seed=12345",
        "batch_size=32,learning_rate=3e-05,seed=12345",
    ]
    assert others == earlier[:1]


# === Judging ===


def settings_of(task, **changes) -> finetuning.FinetuningConfig:
    return finetuning.FinetuningConfig(task=task, **changes)


def main_metric(name: str, **options) -> str:
    settings = settings_of(name, **options)
    return catalogue.find(settings).main_metric(settings, None)


def test_metrics_of_all_tasks():
    """As the tables of the paper have them."""
    assert {name: main_metric(name) for name in catalogue.NAMES} == {
        **{"text": "accuracy", "tagging": "f1", "span": "f1", "choice": "accuracy"},
        **{"CoLA": "matthews", "SST-2": "accuracy", "MRPC": "f1", "STS-B": "spearman"},
        **{"QQP": "f1", "MNLI": "accuracy", "QNLI": "accuracy", "RTE": "accuracy"},
        **{"WNLI": "accuracy", "AX": "matthews", "SQuAD1.1": "f1"},
        **{"SQuAD2.0": "best_f1", "TriviaQA": "f1", "SWAG": "accuracy"},
        **{"CoNLL-2003": "f1", "embedding": "recall_at_10"},
        **{"ranking": "ndcg_at_10"},
    }
    assert main_metric("text", regression=True) == "pearson"
    kinds = {n: catalogue.task_kind(settings_of(n)) for n in ("STS-B", "SWAG", "RTE")}
    assert kinds == {"STS-B": "regression", "SWAG": "choice", "RTE": "classification"}
    with pytest.raises(InputError, match="did you mean 'MRPC'"):
        main_metric("MRPX")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("accuracy", "max")),
        ({"metric": "f1"}, ("f1", "max")),
        ({"metric": "loss"}, ("loss", "min")),
        ({"metric": "loss", "goal": "max"}, ("loss", "max")),
        ({"metric": "distance", "goal": "min"}, ("distance", "min")),
    ],
)
def test_the_criterion(changes, expected, tmp_path):
    (tmp_path / "train.tsv").write_text("text\tlabel\nx\ta\ny\tb\n")
    settings = sweeps.SweepConfig(**changes)
    files = FILES[0]._replace(train=str(tmp_path / "train.tsv"))
    texts = command(task="text", folds=(files,))
    criterion = running.make_criterion(settings, texts)
    assert (criterion.metric, criterion.goal) == expected


def answered(labels, predictions):
    pairs = zip(labels, predictions, strict=True)
    return [{"label": label, "prediction": prediction} for label, prediction in pairs]


def tagged(labels, predictions):
    return [{"labels": labels.split(), "prediction": predictions.split()}]


MAJORITY = [
    ("a" * 6 + "b" * 4, "a" * 10, 'always "a"'),
    ("a" * 6 + "b" * 4, "b" * 10, 'always "b"'),
    ("a" * 6 + "b" * 4, "aaaaaaabbb", None),
    # 199 of 200 the same: marked if no better than that, else not.
    ("a" * 120 + "b" * 80, "b" + "a" * 199, '99.5% are "a"'),
    ("b" + "a" * 199, "b" + "a" * 199, None),
    ("ba" + "a" * 198, "ab" + "a" * 198, '99.5% are "a"'),
    # Varied answers that have nothing to do with the labels.
    ("aabb", "abab", "the Matthews correlation is 0"),
    ("aabbc", "aabbc", None),
    ("aaaa", "aaab", None),
    # Of worse than chance, something was learnt.
    ("aabb", "bbaa", None),
]
NUMBERS = [0.0, 5.0, 2.5, 1.0]


@pytest.mark.parametrize(
    ("kind", "evaluation", "answers", "sign"),
    [
        *(("classification", {}, answered(*row), sign) for *row, sign in MAJORITY),
        ("choice", {}, answered([0, 1, 2, 3], [2, 2, 2, 2]), "always 2"),
        ("choice", {}, answered([0, 1, 2, 3], [0, 1, 2, 2]), None),
        ("tagging", {"f1": 0.0}, None, "no entity is right"),
        ("tagging", {"f1": 0.01}, None, None),
        ("tagging", {"accuracy": 0.5}, tagged("NN VB", "NN NN"), 'always "NN"'),
        ("tagging", {"accuracy": 1.0}, tagged("NN VB", "NN VB"), None),
        ("span", {"f1": 0.75}, None, "F1 is 0.75 %"),
        ("span", {"f1": 50.07}, [{"prediction": ""}] * 9, 'always ""'),
        (
            "span",
            {"f1": 50.07},
            [{"prediction": text} for text in ("", "a", "b")],
            None,
        ),
        ("regression", {}, answered(NUMBERS, [2.6] * 4), "always about 2.6"),
        ("regression", {}, answered(NUMBERS, [2.6, 2.9, 2.6, 2.6]), None),
        ("regression", {}, answered([1.7e308, -1.7e308], [1e308, 1e308]), None),
        *(
            (kind, {"f1": 60.0}, None, None)
            for kind in ("classification", "regression", "choice", "span")
        ),
    ],
)
def test_signs_of_having_learnt_nothing(kind, evaluation, answers, sign):
    assert registry.labelled(kind).sign(evaluation, answers) == sign


STUCK = answered("ab", "aa")


@pytest.mark.parametrize(
    ("evaluation", "answers", "expected"),
    [
        ({"loss": 0.4, "accuracy": 0.75}, None, ("finished", 0.75, None, None)),
        ({"accuracy": 0.5}, STUCK, ("majority", 0.5, None, 'always "a"')),
        (
            {"accuracy": math.nan},
            STUCK,
            ("failed", None, "accuracy is not finite", None),
        ),
        *(
            (
                *({"accuracy": 0.5, "loss": loss}, STUCK),
                ("failed", None, "loss on dev is not finite", None),
            )
            # A loss that no run can have is none; in the file NaN is null.
            for loss in (1e308, -1e308, math.nan, None)
        ),
    ],
)
def test_what_a_run_came_to(evaluation, answers, expected, tmp_path):
    path = tmp_path / "runs" / RUN.name
    path.mkdir(parents=True)
    (path / "results.json").write_text(
        files.to_json({"seconds": 3.0, "eval": evaluation})
    )
    if answers:
        rest = {"text": "x", "line": 2, "probabilities": {"a": 0.5, "b": 0.5}}
        lines = [files.to_json(answer | rest) + "\n" for answer in answers]
        (path / "dev_answers.jsonl").write_text("".join(lines))
    (found,) = scores.read_outcomes(tmp_path, [RUN], metric="accuracy").values()
    assert (found.state, found.score, found.failure, found.majority) == expected
    assert found.seconds == 3.0


# === Choosing ===

RATES = (5e-5, 3e-5, 2e-5)


def outcomes(table, *, metric="accuracy") -> list[scores.Outcome]:
    """Of runs on `RATES`; a row for each seed: a score, or why there is none."""
    runs = plan(learning_rate=list(RATES), num_restarts=max(len(table), 1))
    cells = [cell for row in table for cell in row]
    return [
        scores.Outcome(run=run, score=None, evaluation={}, failure=cell)
        if isinstance(cell, str)
        else scores.Outcome(run=run, score=cell, evaluation={metric: cell}, seconds=2.0)
        for run, cell in zip(runs[: len(cells)], cells, strict=True)
    ]


TABLE = [
    # 5e-5, 3e-5, 2e-5
    [0.91, 0.87, 0.80],
    [0.60, 0.88, "<b>| *x*\n\ny"],
    [0.80, 0.86, 0.99],
]


@pytest.mark.parametrize(
    ("table", "choose", "goal", "expected"),
    [
        (TABLE, "best", "max", ((2e-5,), 2)),
        (TABLE, "best", "min", ((5e-5,), 1)),
        # The highest mean, 0.895, is that of the point with a failed run.
        (TABLE, "mean", "max", ((3e-5,), 1)),
        (TABLE, "mean", "min", ((5e-5,), 1)),
        ([["no", "no", "no"]], "best", "max", None),
        ([["no", "no", "no"]], "mean", "max", None),
        ([], "best", "max", None),
        ([["no", 0.5, "no"]], "mean", "max", ((3e-5,), 0)),
        # The first of equals.
        ([[0.5, 0.7, 0.7], [0.1, 0.7, 0.7]], "best", "max", ((3e-5,), 0)),
    ],
)
def test_the_choice(table, choose, goal, expected):
    criterion = scores.Criterion(metric="accuracy", goal=goal, choose=choose)
    state = dataclasses.replace(state_of([]), **planned(outcomes(table)))
    choice = dataclasses.replace(state, criterion=criterion).chosen
    if choice is not None:
        choice = choice[0].values, choice[1].run.settings.seed - 12345
    assert choice == expected


@pytest.mark.parametrize("choose", ["best", "mean"])
@pytest.mark.parametrize(
    ("majorities", "score"),
    [((0, 0, 0), 0.7), ((0, 1, 1), 0.5), ((0, 1, 0), 0.6), ((1, 1, 1), 0.7)],
)
def test_a_run_at_the_majority_class_is_chosen_only_if_all_are(
    choose, majorities, score
):
    runs = zip(outcomes([[0.5, 0.7, 0.6]]), majorities, strict=True)
    stuck = [
        dataclasses.replace(outcome, majority='always "1"' if is_stuck else None)
        for outcome, is_stuck in runs
    ]
    state = dataclasses.replace(state_of([], choose=choose), **planned(stuck))
    assert state.chosen[1].score == score
    told = "All runs are at the majority class, this one always"
    assert (told in summary.chosen_line(state)) == all(majorities)


# === What is written ===


def planned(found, num_runs=0) -> dict:
    """Outcomes with their runs, and runs that have not ended."""
    runs = {outcome.run.name: outcome.run for outcome in found}
    runs |= dict.fromkeys(map(str, range(num_runs - len(runs))))
    return {"runs": runs, "ended": {o.run.name: o for o in found}}


def state_of(table, directory="out dir", *, num_runs=0, choose="best"):
    stuck = [
        dataclasses.replace(o, majority='always "1"' if o.score == 0.6 else None)
        for o in outcomes(table)
    ]
    return summary.State(
        directory=Path(directory),
        settings=settings_of("MRPC"),
        keys=("learning_rate",),
        criterion=scores.Criterion(metric="accuracy", goal="max", choose=choose),
        **planned(stuck, num_runs),
    )


PAGE = """\
# Sweep: MRPC

**Chosen: learning_rate=5e-05,seed=12345, accuracy 0.9100 on dev, the best single \
run.**

6 of 6 runs have ended, 1 of them failed and 1 at the majority class.

`--model 'out dir/best'` gives it to `bert-keras predict`, `evaluate` and `export`.

| learning_rate | n | mean | deviation | best | failed | majority | labels | time |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| **5e-05** | **2** | **0.7550** | **0.2192** | **0.9100** | **0** | **1** |  | \
**0:00:02** |
| 3e-05 | 2 | 0.8750 | 0.0071 | 0.8800 | 0 | 0 |  | 0:00:02 |
| 2e-05 | 1 | 0.8000 |  | 0.8000 | 1 | 0 |  | 0:00:02 |

The columns n, mean, deviation (of the sample) and best are about the `accuracy` on \
dev of the runs that did not fail. Runs at the majority class, which learnt nothing, \
count. The chosen run is the best single run, as in the paper (section 4.1). The best \
of many runs was also lucky on dev: expect the mean of another run. The time is the \
mean wall time of a run on this machine. `results.tsv` lists each run, and `logs` has \
its output.

![accuracy of each run](scores.png)

## Failed runs

- `learning_rate=2e-05,seed=12346`: &#60;b&#62;&#124; &#42;x&#42; y

## Runs at the majority class

- `learning_rate=5e-05,seed=12346`: always "1"
"""


def page_of(state: summary.State) -> str:
    return "\n\n".join(summary.paragraphs(state)) + "\n"


def test_the_page():
    """What a process said is no markup."""
    assert page_of(state_of(TABLE[:2])) == PAGE
    page = page_of(state_of(TABLE[:2], num_runs=9, choose="mean"))
    for sentence in (
        "6 of 9 runs have ended",
        "Chosen: learning_rate=3e-05,seed=12346, accuracy 0.8800 on dev, the best run "
        "of the point with the best mean, 0.8750 ± 0.0071.",
        "The chosen run is the point with the best mean among those with the fewest",
    ):
        assert sentence in page
    assert "--model" not in page and "scores.png" not in page
    nothing = page_of(state_of([], num_runs=9))
    assert "0 of 9 runs have ended" in nothing and "No run has a score." in nothing


def test_the_table_of_runs(tmp_path):
    summary.write_tables(state_of([["a\tb\nc", 0.6, 0.5]], tmp_path))
    assert (tmp_path / "results.tsv").read_text() == (
        "run\tlearning_rate\tseed\tstate\taccuracy\tseconds\tnote\n"
        "runs/learning_rate=5e-05,seed=12345\t5e-05\t12345\tfailed\t\t\ta b c\n"
        "runs/learning_rate=3e-05,seed=12345\t3e-05\t12345\tmajority\t0.6\t2.0\t"
        'always "1"\n'
        "runs/learning_rate=2e-05,seed=12345\t2e-05\t12345\tfinished\t0.5\t2.0\t\n"
    )


def test_the_best_run_is_named_and_linked(tmp_path):
    for table, name in (
        ([[0.5, 0.7, 0.6]], "learning_rate=3e-05,seed=12345"),
        ([[0.5, 0.7, 0.8]], "learning_rate=2e-05,seed=12345"),
    ):
        (tmp_path / "runs" / name).mkdir(parents=True)
        summary.write_best(state_of(table, tmp_path))
        values = json.loads((tmp_path / "sweep.json").read_text())
        assert values["chosen"]["run"] == f"runs/{name}"
        assert (tmp_path / "best").resolve() == tmp_path.resolve() / "runs" / name
    run = {"seed": 12345, "state": "finished", "seconds": 2.0}
    run |= {"num_train_examples": None}
    points = []
    for rate, score in zip(RATES, (0.5, 0.7, 0.8), strict=True):
        best = run | {"run": f"runs/learning_rate={rate},seed=12345", "score": score}
        point = {"point": {"learning_rate": rate}, "mean": score, "deviation": None}
        points.append(point | {"runs": [best]})
    facts = {k: v for k, v in points[2].items() if k != "runs"}
    assert values == {
        "task": "MRPC",
        "metric": "accuracy",
        "goal": "max",
        "choose": "best",
        "chosen": {**best, **facts, "eval": {"accuracy": 0.8}},
        "points": points,
    }


def draw(table):
    state = state_of(table)
    options = {"criterion": state.criterion, "chosen": state.chosen, "title": ""}
    return drawings.draw_points(state.points, state.keys, **options)


def test_the_picture_shows_all_runs():
    plot = draw(TABLE).axes[0]
    names = [label.get_text() for label in plot.get_yticklabels()]
    assert names == ["5e-05", "3e-05", "2e-05"]
    assert (plot.get_ylabel(), plot.get_xlabel()) == ("learning_rate", "accuracy")
    handles, labels = plot.get_legend_handles_labels()
    assert labels == ["run", "at the majority class", "chosen", "mean ± deviation"]
    runs = [(0.91, 0), (0.8, 0), (0.87, 1), (0.88, 1), (0.86, 1), (0.8, 2), (0.99, 2)]
    dots = (runs, [(0.6, 0)], [(0.99, 2)])
    for handle, places in zip(handles[:3], dots, strict=True):
        assert [*map(tuple, handle.get_offsets().tolist())] == places
    means = handles[3].lines[0].get_xdata()
    assert list(means) == pytest.approx([0.77, 0.87, 0.895])
    (text,) = plot.texts
    assert (text.get_text(), text.xy) == ("1 failed", (1, 2))


def curve_state(fractions, *, rates=(1e-3,)) -> summary.State:
    """Runs of two seeds; the scores rise with the labels."""
    found = [
        scores.Outcome(
            run=run,
            score=run.settings.train_fraction / 2 + (run.settings.seed % 2) / 10,
            evaluation={},
            num_train_examples=int(1000 * run.settings.train_fraction),
        )
        for run in plan(num_restarts=2, learning_rate=rates, train_fraction=fractions)
    ]
    keys = ("learning_rate", "train_fraction")
    state = state_of([], "out", choose="mean")
    return dataclasses.replace(state, keys=keys, **planned(found))


def test_several_fractions_are_drawn_as_a_curve():
    state = curve_state((1, 0.1, 0.01), rates=(1e-3, 2e-3))
    assert list(state.curve) == ["0.001", "0.002"]
    assert state.curve["0.001"] == [
        (10, (pytest.approx(0.105), pytest.approx(0.005))),
        (100, (pytest.approx(0.15), pytest.approx(0.05))),
        (1000, (pytest.approx(0.6), pytest.approx(0.5))),
    ]
    plot = drawings.draw_curve(state.curve, metric="accuracy", title="MRPC").axes[0]
    assert plot.get_xscale() == "log" and plot.get_xlabel() == "labelled examples"
    assert plot.get_xticks().tolist() == [10, 100, 1000]
    handles, labels = plot.get_legend_handles_labels()
    assert labels == ["0.001", "0.002"]
    means = handles[0].lines[0]
    assert means.get_ydata() == pytest.approx([0.055, 0.1, 0.55])
    assert "(learning_curve.png)" in page_of(state)


def test_one_fraction_is_no_curve(tmp_path):
    for state in (curve_state((0.1,)), state_of(TABLE)):
        assert state.curve == {} and "learning_curve" not in page_of(state)
    state = dataclasses.replace(curve_state((0.1, 1)), directory=tmp_path)
    summary.write_pictures(state)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["learning_curve.png", "scores.png"]


def test_the_picture_of_very_many_points_has_the_best():
    points = [
        scores.Point(values=(n,), outcomes=tuple(outcomes([[1 - n / 200]])))
        for n in range(200)
    ]
    criterion = scores.Criterion(metric="accuracy", goal="min", choose="best")
    options = {"chosen": (points[-1], points[-1].outcomes[0]), "title": "MRPC"}
    image = drawings.draw_points(points, ["x"], criterion=criterion, **options)
    plot = image.axes[0]
    names = [label.get_text() for label in plot.get_yticklabels()]
    assert names == [str(n) for n in range(100, 200)]
    assert plot.get_title() == "MRPC: the best 100 of 200 points"
    assert image.get_figheight() < 50


def test_pictures_of_little():
    image = draw([["no", "no", "no"]])
    assert [text.get_text() for text in image.axes[0].texts] == ["1 failed"] * 3
    image.savefig(io.BytesIO())
    single = state_of([[0.5, 0.6, 0.7]])
    options = {"criterion": single.criterion, "chosen": None, "title": ""}
    (plot,) = drawings.draw_points(single.points[:1], single.keys, **options).axes
    assert [label.get_text() for label in plot.get_yticklabels()] == ["all runs"]

"""The benchmark of fine-tuning: its plan, its baselines, its page; nothing is trained.

One slow test trains: both implementations from the same tiny weights.
"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.finetuning import baselines, check, compare, page, speed
from bert_keras import config, finetuning_config
from bert_keras.tasks import (
    forms,
    glue,
    ner,
    squad,
    text,
    text_forms,
)

REPOSITORY = Path(__file__).resolve().parents[1]


# The plan.


def test_the_first_seeds_come_first():
    runs = compare.plan(
        ["MRPC", "SQuAD1.1"], seeds=None, implementations=None, precision="float32"
    )
    assert [run.name for run in runs] == [
        "MRPC.bert_keras.float32.seed-1",
        "MRPC.transformers.float32.seed-1",
        "SQuAD1.1.bert_keras.float32.seed-1",
        "SQuAD1.1.from_scratch.float32.seed-1",
        "MRPC.bert_keras.float32.seed-2",
        "MRPC.transformers.float32.seed-2",
        "MRPC.bert_keras.float32.seed-3",
        "MRPC.transformers.float32.seed-3",
    ]
    runs = compare.plan(
        ["RTE"], seeds=[7], implementations=["from_scratch"], precision="float32"
    )
    assert runs == [("RTE", "from_scratch", "float32", 7)]


@pytest.mark.parametrize("name", compare.TASKS)
def test_the_table_of_settings_is_sound(name):
    task = compare.TASKS[name]
    settings = compare.settings_of(task, compare.override_lines(task, ()))
    assert settings["task"] == task.data_set
    assert settings["learning_rate"] == task.settings["learning_rate"]
    if task.data_set in glue.TASKS:
        assert task.measure.metric in glue.TASKS[task.data_set].metrics
    else:
        assert task.measure.metric == "f1"
    if page.THEIRS in task.implementations:
        # Theirs cannot put documents around sentences.
        assert task.folder == "glue" or not settings["document_context"]


def test_the_commands_of_a_run():
    common = {
        "data": (Path("d/train.tsv"), Path("d/dev.tsv")),
        "init": Path("model"),
        "output": Path("runs/1"),
    }
    words = [
        *("--task", "RTE", "--train", "d/train.tsv", "--dev", "d/dev.tsv"),
        *("--init", "model", "--output_dir", "runs/1"),
        *("--set", "learning_rate=5e-05", "--set", "seed=3"),
    ]
    lines = ["learning_rate=5e-05", "seed=3"]

    def command(implementation):
        run = compare.Run("RTE", implementation, "float32", 3)
        return compare.command_of(run, lines, **common)

    ours = [sys.executable, "-m", "bert_keras.cli", "finetune", *words]
    assert command("bert_keras") == ours
    assert command("from_scratch") == [*ours, "--from_scratch"]
    peer = [sys.executable, "-m", "benchmarks.finetuning.peer"]
    assert command("transformers") == [*peer, *words]


def test_what_replaces_settings_comes_last():
    task = compare.TASKS["RTE"]
    lines = compare.override_lines(task, ["num_train_epochs=0.01"], seed=2)
    assert lines == [
        *("adamw_mode=corrected", "batch_size=32", "learning_rate=5e-05"),
        *(
            "num_train_epochs=5",
            "max_seq_length=256",
            "seed=2",
            "num_train_epochs=0.01",
        ),
    ]
    settings = compare.settings_of(task, lines)
    assert (settings["num_train_epochs"], settings["seed"]) == (0.01, 2)


def test_every_third_document_is_taken():
    documents = [f"-DOCSTART- -X- O O\n\nw{n} NN O O\n\n" for n in range(5)]
    third = compare.third_of_documents("".join(documents))
    assert third == documents[0] + documents[3]


def test_what_the_command_line_asks_for(tmp_path, capsys):
    common = ["--work", str(tmp_path), "--model", "model"]
    with pytest.raises(SystemExit):
        compare.parse([*common, "--tasks", "RTE"])
    assert "error: RTE needs --glue" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        compare.parse([*common, "--tasks", "SQuAD1.1", "--squad", "s"])
    assert "error: SST-2 needs --glue" in capsys.readouterr().err
    args = compare.parse(
        [*common, "--tasks", "SQuAD1.1", "--squad", "s", "--only", "scores"]
    )
    assert (args.only, args.squad) == (["scores"], Path("s"))
    # The page alone needs no data.
    assert compare.parse([*common, "--only"]).only == []


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A workshop whose runs only write what a run leaves, and count themselves."""
    program = """
import json, pathlib, sys
output = pathlib.Path(sys.argv[1])
output.mkdir(parents=True)
results = {"eval": {"accuracy": 0.75}, "seconds": 60.0, "steps": 5,
           "num_train_examples": 2, "num_eval_examples": 4}
(output / "results.json").write_text(json.dumps(results))
"""
    started = []

    def command_of(run, lines, *, data, init, output):
        started.append(run.name)
        return [sys.executable, "-c", program, str(output)]

    monkeypatch.setattr(compare, "command_of", command_of)
    monkeypatch.setattr(compare, "machine", lambda: "a machine")
    sizes = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12}
    (tmp_path / "package/model").mkdir(parents=True)
    config_path = tmp_path / "package/model/config.json"
    config_path.write_text(json.dumps({**sizes, "vocab_size": 30522}))
    write_tsv(tmp_path / "glue/RTE/train.tsv", ["not_entailment", "entailment"])
    write_tsv(tmp_path / "glue/RTE/dev.tsv", ["entailment"] * 3 + ["not_entailment"])

    def make(overrides=()):
        return compare.Workshop(
            tmp_path / "work",
            folders={"glue": tmp_path / "glue"},
            init=tmp_path / "package/model",
            overrides=overrides,
        )

    make.started = started
    return make


def write_tsv(path, labels):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{n}\tone text\tanother\t{label}\n" for n, label in enumerate(labels)]
    path.write_text("index\tsentence1\tsentence2\tlabel\n" + "".join(rows))


def test_what_is_done_is_not_done_again(workshop):
    run = compare.Run("RTE", "bert_keras", "float32", 1)
    for _ in range(2):
        workshop().train(run)
    workshop().train(run._replace(seed=2))
    assert workshop.started == [run.name, run._replace(seed=2).name]
    (first, _) = page.read_records(workshop().results)
    assert first == page.Record(
        task="RTE",
        implementation="bert_keras",
        precision="float32",
        seed=1,
        settings=first.settings,
        results={
            "eval": {"accuracy": 0.75},
            "seconds": 60.0,
            "steps": 5,
            "num_train_examples": 2,
            "num_eval_examples": 4,
        },
        machine="a machine",
    )
    assert first.settings["max_seq_length"] == 256
    message = "seed 1 has ended with other settings: batch_size is 32, not 16: choose"
    with pytest.raises(SystemExit, match=message):
        workshop(["batch_size=16"]).train(run)


def test_a_run_that_fails_ends_all(workshop, monkeypatch):
    fails = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr(compare, "command_of", lambda *args, **options: fails)
    with pytest.raises(SystemExit, match="failed with exit code 3: .*SystemExit"):
        workshop().train(compare.Run("RTE", "bert_keras", "float32", 1))
    assert page.read_records(workshop().results) == []


def test_the_page_of_a_workshop(workshop, tmp_path):
    path = tmp_path / "results/page.md"
    with pytest.raises(SystemExit, match="no finished run to write of"):
        workshop().write_page(path, command="python here")
    workshop().train(compare.Run("RTE", "bert_keras", "float32", 1))
    workshop().score_baseline("RTE")
    write_check(tmp_path / "work/check/SST-2")
    (tmp_path / "work/speed.json").write_text(json.dumps([SPEED_ROW]))
    workshop().write_page(path, command="python here")
    made = path.read_text()
    assert "```\npython here\n```\n\n- a machine\n\n## Scores\n" in made
    assert "| RTE | accuracy | float32 | 75.00 |  |  | 75.00 |  |  |" in made
    assert "of `package/model`: 6 layers, 384 wide, 12 heads, a voc" in made
    assert "![scores](page.png)" in made
    assert "| SST-2 | 2 | yes | 0.0e+00 | 0.0e+00 | 0.0e+00 | yes |" in made
    assert "| base | float32 | 48.0; 24.0; 40.0 | 32.0 (0.67); 24.0; 40.0 | " in made
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def write_check(directory):
    directory.mkdir(parents=True)
    for side in ("ours", "theirs"):
        (directory / f"{side}.json").write_text(json.dumps(STEPS))


def test_a_check_that_fails_ends_all(workshop, tmp_path):
    folder = tmp_path / "work/check/RTE"
    write_check(folder)
    workshop().compare("RTE")
    far = [STEPS[0]._replace(loss=0.51), STEPS[1]]
    (folder / "theirs.json").write_text(json.dumps(far))
    with pytest.raises(SystemExit, match="RTE: both .* do not compute the same"):
        workshop().compare("RTE")


# Baselines.


def texts(labels, *, regression=False):
    rows = [text.LabelledText("a", None, label, 1) for label in labels]
    return text_forms.TextDataset(
        path=Path("x.tsv"),
        rows=rows,
        has_labels=True,
        kind="regression" if regression else "classification",
    )


def test_the_commonest_label():
    how, scores = baselines.without_model(texts("0111"), texts("1101"))
    assert how == "always 1"
    assert scores["accuracy"] == 0.75
    assert scores["f1 of 0"] == 0
    assert scores["matthews"] == 0
    numbers = texts(["1", "2.5"], regression=True)
    how, scores = baselines.without_model(numbers, numbers)
    assert (how, scores["pearson"], scores["spearman"]) == ("the mean", 0, 0)
    assert scores["loss"] == pytest.approx(0.75**2)


def test_the_commonest_tag_of_each_word():
    def sentences(*lines):
        pairs = [[word.split("/") for word in line.split()] for line in lines]
        return forms.TaggingDataset(
            path=Path("x"),
            sentences=[
                ner.Sentence(tuple(w for w, _ in p), tuple(t for _, t in p), 0, 1)
                for p in pairs
            ],
            has_labels=True,
        )

    train = sentences("Ann/B-PER went/O", "Ann/B-PER in/O Ann/B-LOC")
    dev = sentences("Ann/B-PER met/O Bob/B-PER", "Ann/B-PER in/O Ann/B-LOC")
    how, scores = baselines.without_model(train, dev)
    assert how == "each word's commonest tag"
    # Right: the first two Ann; wrong: Bob is unknown, the last Ann is no person.
    assert (scores["precision"], scores["recall"]) == (2 / 3, 1 / 2)
    assert scores["accuracy"] == 4 / 6


def test_the_sentence_that_shares_most_words(tmp_path):
    context = "Ann lives in Rome. Bob lives in Paris, France! Who is he? The end"
    article = {
        "context": context,
        "qas": [
            {"id": id, "question": question, "answers": [answer]}
            for id, question, answer in (
                # The second sentence; it shares "paris" with the answer.
                ("a", "Where is Bob?", {"text": "Paris", "answer_start": 32}),
                # None shares a word: the first sentence.
                ("b", "When?", {"text": "Ann lives in Rome", "answer_start": 0}),
            )
        ],
    }
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [article]}]}))
    dev = forms.SpanDataset(path=path, questions=squad.read_squad(path))
    how, scores = baselines.without_model(dev, dev)
    assert how == "the sentence with most words of the question"
    assert scores["exact_match"] == 50
    # One word of five that were given, and of one that is right.
    assert scores["f1"] == pytest.approx(100 * (1 + 2 / 6) / 2)


# The page.

MEASURES = {
    "A": page.Measure(metric="accuracy", bound=89.0),
    "B": page.Measure(metric="f1", scale=1.0, bound=60.0),
    "C": page.Measure(metric="f1"),
}


def record(task, implementation, score, *, seed=1, **changed):
    metric = MEASURES[task].metric
    results = {"eval": {metric: score, "loss": 9.0}}
    if implementation != page.BASELINE:
        counts = {"num_train_examples": 67349, "num_eval_examples": 872}
        results |= {**counts, "steps": 6315, "seconds": 60.0 * seed}
    values = {
        "task": task,
        "implementation": implementation,
        "precision": "float32",
        "seed": seed,
        "settings": finetuning_config.FinetuningConfig().model_dump(mode="json"),
        "results": results,
        "machine": "one machine",
        **changed,
    }
    return page.Record(**values)


RECORDS = [
    record("A", page.BASELINE, 0.5, seed=0, settings={}),
    *(record("A", page.OURS, 0.9 + n / 100, seed=n) for n in (1, 2, 3)),
    *(record("A", page.THEIRS, 0.93 + n / 200, seed=n) for n in (1, 2, 3)),
    record("B", page.OURS, 59.5, precision="mixed_bfloat16"),
    record("B", page.SCRATCH, 12.25),
    record("C", page.OURS, 0.875),
    record("C", page.THEIRS, 0.87),
]


def test_scores_stand_beside_each_other():
    rows = page.rows_of(RECORDS, MEASURES)
    assert page.scores_table(rows, MEASURES).splitlines() == [
        "| task | metric | precision | no model | bert-keras from random "
        "weights | transformers | bert-keras | bound | against transformers |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| A | accuracy | float32 | 50.00 |  | 94.00 ± 0.50 (3) | 92.00 ± 1.00 (3) | "
        "89: reached | -2.00: **lower** |",
        "| B | f1 | float32 |  | 12.25 |  |  | 60 |  |",
        "| B | f1 | mixed_bfloat16 |  |  |  | 59.50 | 60: **missed** |  |",
        "| C | f1 | float32 |  |  | 87.00 | 87.50 |  | +0.50 (one run) |",
    ]


def test_lower_is_lower_by_more_than_their_deviation():
    def text_of(ours, theirs):
        cells = {
            page.OURS: page.Summary(ours, 3.0, 3),
            page.THEIRS: page.Summary(theirs, 0.5, 3),
        }
        return page.difference_text(page.Row("A", "float32", cells))

    assert text_of(90.0, 90.5) == "-0.50: not lower"
    assert text_of(90.0, 90.75) == "-0.75: **lower**"
    assert text_of(91.0, 90.5) == "+0.50: not lower"


def test_settings():
    assert page.settings_table(RECORDS, ["A"]).splitlines() == [
        "| task | train | dev | batch size | learning rate | num train epochs | warmup "
        "proportion | max seq length | dropout prob | steps |",
        "| " + " | ".join(["---"] * 10) + " |",
        "| A | 67,349 | 872 | 32 | 5e-05 | 3 | 0.1 | 128 | 0.1 | 6,315 |",
    ]


STEPS = [check.Step(0.5, 2.0, "a"), check.Step(0.4, 1.0, "b")]


def test_first_steps_are_compared():
    changed = [check.Step(0.500001, 2.00002, "a"), check.Step(0.4002, 5.0, "b")]
    found = check.compare(changed, STEPS)
    assert found[:2] == (2, True)
    assert found[2:] == pytest.approx((2e-6, 1e-5, 5e-4))
    assert found.is_close
    assert page.check_table({"A": found}).splitlines()[2:] == [
        "| A | 2 | yes | 2.0e-06 | 1.0e-05 | 5.0e-04 | yes |"
    ]
    other_tokens = [STEPS[0]._replace(digest="c"), STEPS[1]]
    far = [
        [STEPS[0]._replace(loss=0.50001), STEPS[1]],
        [STEPS[0]._replace(gradient_norm=2.001), STEPS[1]],
        [STEPS[0], STEPS[1]._replace(loss=0.401)],
        other_tokens,
    ]
    assert [check.compare(steps, STEPS).is_close for steps in far] == [False] * 4
    shown = page.check_table({"A": check.compare(other_tokens, STEPS)})
    assert "| A | 2 | **no** | 0.0e+00 | 0.0e+00 | 0.0e+00 | **no** |" in shown


def test_the_check_has_no_dropout():
    lines = check.still_settings({"batch_size": 16, "dropout_prob": 0.1})
    assert lines == ["batch_size=16", "dropout_prob=0.0", "precision=float32"]


TURNS = [
    speed.Turn(seconds=2.0, cpu_seconds=4.0, num_examples=n, num_tokens=40 * n, loss=n)
    for n in (64, 320, 96)
]
SPEED = {
    "examples_per_second": 48.0,
    "examples_per_cpu_second": 24.0,
    "tokens_per_example": 40.0,
    "last_loss": 96,
}
SPEED_ROW = {
    "size": "base",
    "precision": "float32",
    "speeds": {
        page.OURS: SPEED,
        page.THEIRS: {**SPEED, "examples_per_second": 32.0},
        "transformers_by_length": {**SPEED, "examples_per_second": 36.0},
    },
}


def test_speed_is_the_median_of_turns():
    found = speed.summarize(TURNS)
    assert found == SPEED_ROW["speeds"][page.OURS]
    assert page.speed_table([SPEED_ROW]).splitlines()[2:] == [
        "| base | float32 | 48.0; 24.0; 40.0 | 32.0 (0.67); 24.0; 40.0 | "
        "36.0 (0.75); 24.0; 40.0 |"
    ]
    assert set(SPEED_ROW["speeds"]) == set(speed.IMPLEMENTATIONS)
    left = speed.unmeasured(
        [SPEED_ROW], ["small", "base"], ["float32", "mixed_bfloat16"]
    )
    assert list(left) == [
        ("small", "float32"),
        ("small", "mixed_bfloat16"),
        ("base", "mixed_bfloat16"),
    ]


def test_the_whole_page(tmp_path):
    made = page.render(
        [*RECORDS, dataclasses.replace(RECORDS[0], machine="another machine")],
        MEASURES,
        model="a model",
        command="python -m benchmarks.finetuning.compare",
        picture="finetuning.png",
        agreements={},
        speeds=[],
    )
    headings = [line for line in made.splitlines() if line.startswith("#")]
    assert headings == [
        "# Fine-tuning a real trained model",
        "## Scores",
        "## Data and settings",
    ]
    assert "Full fine-tuning of all weights of a model.\n" in made
    assert "- another machine\n- one machine\n" in made
    assert "![scores](finetuning.png)" in made
    page.draw(page.rows_of(RECORDS, MEASURES), MEASURES, tmp_path / "scores.png")
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")


# Both implementations.


@pytest.fixture
def tiny_model(tmp_path):
    """A model of random weights in their format, lower-casing."""
    from bert_keras.checkpoints import hugging_face, weights
    from bert_keras.data import tokenization

    words = [f"{a}{b}" for a in "bdgklm" for b in "aeiou"]
    tokens = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words)
    shape = config.BertConfig(
        vocab_size=len(tokens),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    random = np.random.default_rng(1)
    arrays = {
        name: np.float32(name.endswith("gamma")) + 0.1 * random.standard_normal(shape)
        for name, shape in weights.all_shapes(shape, num_labels=1).items()
        if name.startswith("encoder/")
    }
    directory = tmp_path / "model"
    directory.mkdir()
    hugging_face.write(
        weights.Checkpoint(
            bert_config=shape,
            task=config.Task(kind="encoder"),
            arrays={name: np.float32(array) for name, array in arrays.items()},
            vocabulary=tokenization.Vocabulary(tokens),
            do_lower_case=True,
        ),
        directory,
    )
    return directory, words


@pytest.mark.slow
@pytest.mark.reference
def test_both_compute_the_same(tmp_path, tiny_model):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    model, words = tiny_model
    random = np.random.default_rng(2)
    lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"]
    for number in range(96):
        first, second = (
            " ".join(random.choice(words, random.integers(2, 9))).title()
            for _ in range(2)
        )
        lines.append(f"{int(number % 3 > 0)}\t1\t2\t{first}\t{second}\n")
    for name in ("train", "dev"):
        path = tmp_path / f"glue/MRPC/{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines))
    command = [
        *(sys.executable, "-W", "ignore", "-m", "benchmarks.finetuning.compare"),
        *("--glue", str(tmp_path / "glue"), "--work", str(tmp_path / "work")),
        *("--model", str(model), "--tasks", "MRPC", "--only", "scores", "check"),
        *("--seeds", "1", "--set", "max_seq_length=16"),
        *("--results", str(tmp_path / "page.md")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = {
        side: json.loads((tmp_path / f"work/check/MRPC/{side}.json").read_text())
        for side in ("ours", "theirs")
    }
    agreement = check.compare(
        *([check.Step(*step) for step in steps[side]] for side in ("ours", "theirs"))
    )
    # Six batches of 16 are an epoch: more would be of the next.
    assert agreement.num_steps == 6
    assert agreement.is_close
    made = (tmp_path / "page.md").read_text()
    assert "## The same computation" in made
    assert "| MRPC | f1 | float32 | 80.00 |  | " in made
    names = {path.stem for path in (tmp_path / "work/results").iterdir()}
    assert names == {
        "MRPC.baseline",
        "MRPC.bert_keras.float32.seed-1",
        "MRPC.transformers.float32.seed-1",
    }

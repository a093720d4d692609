import json

import pytest

from bert_keras.checkpoints import run_directory
from bert_keras.core.errors import InputError
from bert_keras.core.settings import (
    architecture,
    finetuning,
    pretraining,
    strict,
    tasks,
)
from bert_keras.data import features, tokenization

VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, "é"))


def make_run(directory, task):
    return run_directory.Run(
        directory=directory,
        task=task,
        bert_config=architecture.BertConfig(vocab_size=len(VOCABULARY)),
        vocabulary=VOCABULARY,
        do_lower_case=False,
    )


@pytest.fixture
def run(tmp_path):
    task = tasks.Task(kind="classification", labels=("à", "b"))
    run = make_run(tmp_path / "run", task)
    run_directory.create_run(
        run,
        finetuning.FinetuningConfig(task="text"),
        inputs={"train_sha256": "12", "dev_sha256": ["34"]},
    )
    return run


def read(directory):
    return run_directory.read_run(directory, kinds=("classification",), verb="finetune")


def test_a_run_is_read_as_it_was_written(run):
    again = read(run.directory)
    assert again == run
    assert again.tokenizer.tokenize("é") == ["é"]
    settings = run_directory.read_settings(run.directory, finetuning.FinetuningConfig)
    assert settings == finetuning.FinetuningConfig(task="text")
    assert run_directory.read_results(run.directory) is None
    run_directory.write_results(run.directory, {"eval": {"à": 1.0}})
    assert run_directory.read_results(run.directory) == {"eval": {"à": 1.0}}


def test_files_of_a_run(run):
    """People and other programs read them too."""
    names = {path.name for path in run.directory.iterdir()}
    assert names == {
        "config.yaml",
        "inputs.json",
        "bert_config.json",
        "tokenizer_config.json",
        "vocab.txt",
        "task.json",
    }
    text = (run.directory / "tokenizer_config.json").read_text()
    assert text == '{\n  "do_lower_case": false\n}\n'
    assert '"à",\n' in (run.directory / "task.json").read_text(encoding="utf-8")
    inputs = json.loads((run.directory / "inputs.json").read_text())
    assert inputs["train_sha256"] == "12" and inputs["dev_sha256"] == ["34"]
    assert inputs["num_train_epochs"] == 3.0


def test_settings_have_one_key_each_in_the_inputs():
    nested = {"seed": 1, "optimizer": {"learning_rate": 1e-4, "more": {"x": [{}]}}}
    assert run_directory.flat(nested) == {
        "seed": 1,
        "optimizer.learning_rate": 1e-4,
        "optimizer.more.x": [{}],
    }


def test_what_is_no_run_is_refused(run, tmp_path):
    with pytest.raises(InputError, match="`bert-keras finetune`, found no such dir"):
        read(tmp_path / "none")
    with pytest.raises(InputError, match="`bert-keras finetune`, found no task.json"):
        read(tmp_path)
    with pytest.raises(InputError, match="pretrain`, found one for classification"):
        run_directory.read_run(run.directory, kinds=("pretraining",), verb="pretrain")
    (run.directory / "task.json").write_text("{")
    with pytest.raises(InputError, match=r"task\.json: expected JSON: "):
        read(run.directory)
    (run.directory / "task.json").write_text('{"kind": "dancing"}')
    with pytest.raises(InputError, match=r"task\.json: .*kind"):
        read(run.directory)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("results", {"eval": {"loss": []}}, "`eval.loss`: input should be a valid num"),
        ("results", {"eval": 1}, "`eval`: input should be a valid dictionary, got 1"),
        ("results", {"steps": None}, "`steps`: input should be a valid integer, got N"),
        ("tokenizer_config", {}, "`do_lower_case`: .*field required"),
        (
            *("tokenizer_config", {"do_lower_case": "no"}),
            "`do_lower_case`: .*valid boolean, got 'no'",
        ),
    ],
)
def test_damaged_files_are_named(run, name, values, message):
    (run.directory / f"{name}.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=rf"{name}\.json: {message}"):
        read(run.directory)
        run_directory.read_results(run.directory)


def test_settings_that_may_change_on_the_way(tmp_path):
    """Also in runs that were begun when they might not."""

    def create(**changes):
        run_directory.create_run(
            make_run(tmp_path, tasks.Task(kind="pretraining")),
            strict.build_config(pretraining.PretrainingConfig, changes),
            inputs={"examples_sha256": ["12", "34"]},
            changeable=("jit_compile", "phases.*.gradient_accumulation_steps"),
        )

    def phases(*parts):
        return [{"fraction": 0.5, "gradient_accumulation_steps": n} for n in parts]

    create(phases=phases(None, 2), jit_compile=True)
    settings = strict.build_config(
        pretraining.PretrainingConfig, {"phases": phases(None, 2), "jit_compile": True}
    )
    as_before = {
        "examples_sha256": ["12", "34"],
        **run_directory.flat(settings.model_dump(mode="json")),
    }
    for inputs in (None, as_before):
        if inputs:
            (tmp_path / "inputs.json").write_text(json.dumps(inputs))
        create(phases=phases(4, 8), jit_compile=False)
        with pytest.raises(InputError, match="begun by another run, with phases="):
            create(phases=[{"fraction": 0.4}, {"fraction": 0.6}])

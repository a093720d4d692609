"""Model cards: what they say, what reads them, and what they keep to themselves."""

import shutil
from pathlib import Path

import pytest
import yaml

from bert_keras.checkpoints import run_directory
from bert_keras.commands import main as cli
from bert_keras.core import files
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import features, tokenization
from bert_keras.report import model_card
from tests import conftest, make
from tests.bert_keras.report import test_task_summaries

SETTINGS = finetuning.FinetuningConfig(
    max_seq_length=16, seed=7, long_texts="head_tail", learning_rate=3e-5
)
WHOLE = conftest.REPOSITORY / "tests/golden/model_card.md"


def make_run(directory: Path, **changes) -> Path:
    settings = SETTINGS.model_copy(update=changes.pop("settings", {}))
    run = run_directory.Run(
        directory=directory,
        task=tasks.Task(kind="classification", labels=("*bad*", "good")),
        bert_config=make.small_config(6, max_position_embeddings=32),
        vocabulary=tokenization.Vocabulary([*features.SPECIAL_TOKENS, "a"]),
        do_lower_case=True,
    )
    inputs = {"train_sha256": changes.pop("train", "1")}
    run_directory.create_run(run, settings, inputs=inputs)
    run_directory.describe_run(run, settings)
    results = {
        "steps": 12,
        "seconds": 7200.0,
        "num_parameters": 1234,
        "eval": {"accuracy": 0.75, "loss": 0.5},
        "environment": {
            "version": "0.1.0",
            "keras": "3.15.1",
            "host": "secret.host",
            "devices": "2 GPUs",
            "command": "bert-keras finetune --train /home/secret/train.tsv",
            "directory": "/home/secret",
            "init": "/home/secret/secret model/",
        },
    }
    run_directory.write_results(directory, results | changes)
    return directory


def report_of(directory: Path) -> None:
    lengths = {"median": 4, "percentile_95": 9, "longest": 20, "num_long": 1}
    changes = {"labels": {"*bad*": 4, "good": 4}, "num_repeated": 0}
    changes |= {"lengths": lengths | {"bin_width": 1, "counts": (8,)}}
    changes |= {"num_contradicted": 2, "contradicted": ("a secret text",)}
    file = test_task_summaries.file_report(num_examples=8, **changes)
    made = test_task_summaries.report(file, max_seq_length=16)
    path = directory / run_directory.DATA_REPORT_NAME
    files.write_json(path, made.model_dump(mode="json"))


def test_a_whole_card(tmp_path):
    run = make_run(tmp_path / "mine")
    report_of(run)
    other = {"eval": {"accuracy": 0.85, "loss": 0.6}}
    make_run(tmp_path / "other seed", settings={"seed": 8}, **other)
    make_run(tmp_path / "other rate", settings={"learning_rate": 1e-3}, **other)
    make_run(tmp_path / "other data", train="2", settings={"seed": 9}, **other)
    (tmp_path / "no run").mkdir()
    card = model_card.text(run, name="mine: a # model", form="hugging_face")
    assert card == WHOLE.read_text(encoding="utf-8")
    for secret in ("/home", "secret.host", "a secret text", str(tmp_path)):
        assert secret not in card


def test_a_seed_that_diverged_has_no_scores(tmp_path):
    """A score that is not finite is null in `results.json`."""
    run = make_run(tmp_path / "mine")
    report_of(run)
    for seed in (8, 9):
        scores = {"accuracy": 0.85 if seed == 8 else None, "loss": None}
        make_run(tmp_path / f"seed {seed}", settings={"seed": seed}, eval=scores)
    card = model_card.text(run, name="mine", form="hugging_face")
    assert "| accuracy | 0.7500 | 0.8000 ± 0.0707 (n = 2) |" in card
    assert "| loss | 0.5000 | 0.5000 (n = 1) |" in card


def test_names_are_literal_and_absent_baselines_a_dash(tmp_path):
    scores = {"f1 of *bad*": 0.5, "loss": 0.25, "accuracy": 0.75}
    baseline = {"f1 of *bad*": 0.125, "loss": None}
    run = make_run(tmp_path / "mine", eval=scores, eval_baseline=baseline)
    card = model_card.text(run, name="mine", form="onnx")
    assert "| f1 of &#42;bad&#42; | 0.5000 | 0.1250 |\n" in card
    assert "| loss | 0.2500 | – |\n| accuracy | 0.7500 | – |\n" in card


@pytest.mark.parametrize("form", model_card.LIBRARIES)
def test_thresholds_are_in_the_card(tmp_path, form):
    """Their exact values: an answer at the threshold depends on every digit."""
    thresholds = {"*bad*": 0.1234567836523056, "good": 0.5, "diverged": None}
    several = make_run(tmp_path / "several", thresholds=thresholds)
    card = model_card.text(several, name="mine", form=form)
    rows = "| &#42;bad&#42; | 0.123456784 |\n| good | 0.5 |\n\n"
    assert "| label | threshold |\n| --- | --- |\n" + rows in card
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["library_name"] == model_card.LIBRARIES[form]
    odds = make_run(tmp_path / "odds", eval={"f1": 80.0, "best_f1_thresh": -1.5})
    card = model_card.text(odds, name="mine", form=form)
    assert "less that of the best answer is above -1.5, chosen on" in card


def test_the_hub_reads_it(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    card = model_card.text(
        make_run(tmp_path / "mine"), name="x: [y] 'z'", form="saved_model"
    )
    data = hub.ModelCard(card).data
    assert (data.model_name, data.pipeline_tag) == ("x: [y] 'z'", "text-classification")
    found = {result.metric_type: result.metric_value for result in data.eval_results}
    assert found == {"accuracy": 0.75, "loss": 0.5}


def test_nothing_is_said_of_what_is_not_known(tmp_path):
    run = make_run(tmp_path / "mine", environment={})
    card = model_card.text(run, name="mine", form="onnx")
    assert "- hardware: not stated\n" in card
    assert "- made by bert-keras of unknown version\n" in card
    assert "start:" not in card
    (run / "results.json").unlink()
    assert model_card.text(run, name="mine", form="onnx") is None
    assert model_card.text(tmp_path, name="mine", form="onnx") is None


def test_the_command_writes_it(pretrained_run, tmp_path):
    """Of a pre-training: with what is known of its examples, while they are there."""
    run = shutil.copytree(pretrained_run, tmp_path / "run")
    converted = tmp_path / "converted"
    given = ["convert", "--input", str(run), "--output", str(converted)]
    assert cli.main([*given, "--to", "hugging_face"]) == 0
    card = (converted / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "- examples: 60 documents" in card
    assert "`global_batch_size=8`" in card and "# converted\n" in card
    results = run_directory.read_results(run)
    results["environment"]["examples"] = ["/gone/examples"]
    run_directory.write_results(run, results)
    card = model_card.text(run, name="again", form="hugging_face")
    assert "- examples: counts not stated, its manifest is gone" in card

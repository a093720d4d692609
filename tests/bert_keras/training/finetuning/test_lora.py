"""Runs with `lora_rank`: the laws of `test_laws_of_runs.py` hold for them, too; here is
what such a run keeps, and what is said where its base is not as it was."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_keras.checkpoints import conversion, run_directory
from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, loading
from bert_keras.inference import finetuned
from tests.bert_keras.training.finetuning import test_finetune
from tests.bert_keras.training.finetuning.test_finetune import opinions, write_tsv

SETTINGS = test_finetune.SETTINGS.model_copy(
    update={
        "lora_rank": 2,
        "lora_alpha": 6.0,
        "lora_targets": ("query", "value"),
        "num_train_epochs": 1.0,
        "task": "text",
    }
)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_tsv(folder / "train.tsv", opinions(32, seed=1))
    write_tsv(folder / "dev.tsv", opinions(9, seed=2))
    return folder


def tune(init: Path, files: Path, output: Path, **changes) -> Path:
    settings = changes.pop("settings", SETTINGS)
    data = files / "train.tsv", files / "dev.tsv"
    test_finetune.run_finetune(init, *data, output, settings=settings, **changes)
    return output


@pytest.fixture(scope="module")
def tuned(init, files) -> Path:
    # A copy of the base, which tests move and change.
    base = shutil.copytree(init, files / "base")
    return tune(base, files, files / "run")


QUERY = "encoder/layer_0/self_attention/query"
VALUE = "encoder/layer_0/self_attention/value"
KEPT = {
    f"{QUERY}/lora_kernel_a": (32, 2),
    f"{QUERY}/lora_kernel_b": (2, 32),
    f"{VALUE}/lora_kernel_a": (32, 2),
    f"{VALUE}/lora_kernel_b": (2, 32),
    "head/classifier/kernel": (32, 2),
    "head/classifier/bias": (2,),
}


def test_a_run_keeps_its_changes_alone(tuned):
    adapter = json.loads((tuned / "adapter.json").read_text())
    assert len(adapter.pop("base_sha256")) == 64
    assert adapter == {
        "base": str(tuned.with_name("base")),
        "rank": 2,
        "alpha": 6.0,
        "targets": ["query", "value"],
        "has_pooler": False,
    }
    file = safetensors_files.SafetensorsFile(tuned / "model.safetensors")
    assert file.shapes == KEPT
    # The whole model has all of its base's encoder.
    whole, base = (conversion.read(path).arrays for path in (tuned, adapter["base"]))
    for name in filter(lambda name: name.startswith("encoder/"), base):
        is_changed = name in (f"{QUERY}/kernel", f"{VALUE}/kernel")
        assert np.array_equal(whole[name], base[name]) != is_changed, name


def test_checkpoints_have_what_is_trained_and_its_moments(init, files, at_step):
    def stop():
        raise KeyboardInterrupt

    at_step(2, stop)
    output = files / "stopped"
    with pytest.raises(KeyboardInterrupt):
        tune(init, files, output, save_checkpoint_steps=1, num_train_epochs=2.0)
    [state] = (output / "checkpoints").glob("step-*")
    shapes = safetensors_files.SafetensorsFile(state).shapes
    of_weights = {k: v for k, v in shapes.items() if k.startswith("weights/")}
    assert sorted(of_weights.values()) == sorted(KEPT.values())
    moments = [k for k in shapes if k.startswith("optimizer/") and shapes[k]]
    assert len(moments) == 2 * len(KEPT)
    # All else are counters.
    others = shapes.keys() - of_weights.keys() - {*moments}
    assert {shapes[name] for name in others} <= {(), (2,)}


def test_a_base_without_a_pooler_gets_one_in_the_run(files, tmp_path):
    bert_config = test_finetune.BERT_CONFIG
    init = test_finetune.make_init(tmp_path / "a", bert_config, next_sentence=False)
    assert "encoder/pooler/kernel" not in conversion.read(init).arrays
    run = tune(init, files, tmp_path / "run")
    file = safetensors_files.SafetensorsFile(run / "model.safetensors")
    pooler = {"encoder/pooler/kernel": (32, 32), "encoder/pooler/bias": (32,)}
    assert file.shapes == KEPT | pooler
    written = json.loads((run / "results.json").read_text())["eval"]
    scores = finetuned.evaluate(run, files / "dev.tsv")
    assert scores["loss"] == pytest.approx(written["loss"], abs=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{"gradient_accumulation_steps": 4}, {"recompute": "layers"}, {"keep": "best"}],
)
def test_the_same_is_learnt_in_parts_again_or_kept(changes, tuned, files, tmp_path):
    run = tune(tuned.with_name("base"), files, tmp_path / "run", **changes)
    expected, found = (conversion.read(path).arrays for path in (tuned, run))
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6, err_msg=name)


def test_a_run_may_begin_with_a_run_that_has_changes(tuned, files, tmp_path):
    run = tune(tuned, files, tmp_path / "run", lora_targets=("key",))
    first, second = conversion.read(tuned).arrays, conversion.read(run).arrays
    np.testing.assert_array_equal(second[f"{QUERY}/kernel"], first[f"{QUERY}/kernel"])


def test_a_base_that_moved_or_changed(tuned, files, tmp_path, capsys):
    run = shutil.copytree(tuned, tmp_path / "run")
    base = shutil.copytree(tuned.with_name("base"), tmp_path / "base")
    path, gone = run / run_directory.ADAPTER_NAME, tmp_path / "gone"
    adapter = json.loads(path.read_text()) | {"base": str(gone)}
    path.write_text(json.dumps(adapter))
    dev, output = files / "dev.tsv", tmp_path / "out"
    convert = f"convert --input {run} --to native --output {output} --base"
    missing = (
        f"{run}: its base cannot be read: {gone}: does not exist; put it back, or "
        f"merge with a copy of it: bert-keras convert --input {run} --base COPY "
        "--to native --output NEW"
    )
    other = (
        f"{run}: was trained on another base than {tuned}: weights, sizes or "
        "vocabulary differ; give the base of the training"
    )
    whole = f"{base}: a whole model, but only an adapter has a base"
    for command, message in (
        (f"predict --model {run} --input {dev} --output {output}", missing),
        (f"evaluate --model {run} --input {dev}", missing),
        (f"export --model {run} --output {output}", missing),
        (f"convert --input {run} --to hugging_face --output {output}", missing),
        (f"{convert} {tuned}", other),
        (f"{convert} {gone}", f"{gone}: does not exist"),
        (f"convert --input {base} --base {base} --to google --output {output}", whole),
    ):
        assert cli.main(command.split()) == 2
        assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {message}")
        assert not output.exists()
    # Merged with the copy, it is a run like any other.
    assert cli.main(f"{convert} {base}".split()) == 0
    assert not (output / run_directory.ADAPTER_NAME).exists()
    merged, expected = (conversion.read(p).arrays for p in (output, tuned))
    for name in expected:
        np.testing.assert_array_equal(merged[name], expected[name], err_msg=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["lora_rank=2", "lora_targets=[query,vaule]"],
            "`lora_targets` is one of query, key, value, attention.output.dense, "
            "intermediate.dense, output.dense, got 'vaule'; did you mean 'value'?",
        ),
        (["lora_rank=0"], "`lora_rank`: input should be greater than 0, got 0"),
        (
            ["lora_targets=[query]"],
            "`lora_targets` and `lora_alpha` need `lora_rank`, got null",
        ),
        (
            ["lora_rank=null", "lora_alpha=8"],
            "`lora_targets` and `lora_alpha` need `lora_rank`, got null",
        ),
        (
            ["lora_rank=2", "task=tagging", "feature_layers=last"],
            "`feature_layers` freezes all that `lora_rank` changes: give only one",
        ),
    ],
)
def test_settings_that_mean_nothing(changes, message):
    with pytest.raises(InputError, match=f"{re.escape(message)}$"):
        loading.load(finetuning.FinetuningConfig, None, changes)


def test_targets_of_a_run_without_changes_may_be_another_default():
    changes = ["lora_rank=null", "lora_targets=[query,value]"]
    settings = loading.load(finetuning.FinetuningConfig, None, changes)
    assert settings.lora_targets == ("query", "value")


def test_what_begins_from_nothing_has_no_base(init, files, tmp_path):
    with pytest.raises(InputError, match="`lora_rank` needs a base: leave"):
        tune(init, files, tmp_path / "run", from_scratch=True)
    assert not (tmp_path / "run").exists()

import dataclasses
import json
import re
import shutil
import typing

import numpy as np
import pytest
import safetensors.numpy

from bert_keras.checkpoints import conversion, native, training_state
from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.core.settings import choices, tasks
from tests.bert_keras.checkpoints.formats import making

OTHERS = [*conversion.FORMATS][1:]
HUGGING_FACE = conversion.FORMATS["hugging_face"]


def make_checkpoint(kind="pretraining", *, bilstm_units=0, layers=None, **changes):
    has_labels = kind in ("classification", "tagging")
    labels = ("no", "maybe", "yes") if has_labels else None
    return making.make_checkpoint(
        task=tasks.Task(
            kind=kind, labels=labels, bilstm_units=bilstm_units, feature_layers=layers
        ),
        bert_config=making.CONFIG.model_copy(update=changes),
        vocabulary=making.WORDS,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run_dir(runs, tmp_path):
    """A function that returns a run directory with random weights, to be changed."""

    def copy(kind="pretraining", **options):
        made = runs / str((kind, options))
        if not made.exists():
            made.mkdir()
            native.write(make_checkpoint(kind, **options), made)
        return shutil.copytree(made, tmp_path / "run")

    return copy


def test_a_head_with_a_bilstm_is_read_as_it_was_written(run_dir):
    options = {"kind": "tagging", "bilstm_units": 5}
    checkpoint, result = make_checkpoint(**options), conversion.read(run_dir(**options))
    assert result.task == checkpoint.task
    making.assert_same_arrays(result.arrays, checkpoint.arrays)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "left_to_right"}, "attends left_to_right, which {} has no"),
        (
            *({"kind": "tagging", "bilstm_units": 5},),
            "head has a BiLSTM of 5 units, which {} has no place for: convert a",
        ),
        (
            *({"kind": "tagging", "layers": "last"},),
            "head reads `feature_layers` last, which {} has no place for",
        ),
    ],
)
def test_what_other_formats_cannot_say(options, message, run_dir, tmp_path):
    directory = run_dir(**options)
    for to in OTHERS:
        with pytest.raises(InputError, match=message.format(to)):
            conversion.convert(directory, tmp_path / "out", to=to)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_settings_of_a_converted_model():
    """As others train them: a sentence is tagged by itself."""
    texts = dict.fromkeys(("classification", "regression"), "text")
    others = {kind: kind for kind in ("tagging", "choice", "span", "embedding")}
    for kind, task in (texts | others).items():
        found = native.tuning_settings(make_checkpoint(kind))
        assert (found.task, found.max_seq_length) == (task, 32)
        assert found.document_context is False
    assert native.tuning_settings(make_checkpoint("pretraining")) is None


def test_pairs_of_texts_are_not_taken_for_granted(caplog):
    for kind, is_pair in (
        ("classification", True),
        ("span", False),
        ("encoder", False),
    ):
        native.warn_of_pairs(tasks.Task(kind=kind, has_text_pair=is_pair))
    assert caplog.text == ""
    native.warn_of_pairs(tasks.Task(kind="classification", has_text_pair=False))
    assert "nothing says whether the model was tuned on pairs" in caplog.text


@pytest.mark.parametrize(
    ("settings", "evaluation", "state", "is_trained"),
    [
        ("next_sentence: false", {}, None, False),
        # Settings do not say whether the examples had pairs.
        ("seed: 1", {"loss": 2.0, "masked_lm_loss": 2.0}, None, False),
        ("seed: 1", {"loss": 3.0, "next_sentence_loss": 1.0}, None, True),
        # It was trained without evaluation.
        ("seed: 1", {}, "non_trainable", False),
        ("seed: 1", {}, "weights", True),
        # And its checkpoints were deleted.
        ("seed: 1", {}, None, True),
    ],
)
def test_a_next_sentence_head_is_taken_if_it_was_trained(
    run_dir, settings, evaluation, state, is_trained
):
    directory = run_dir()
    (directory / "config.yaml").write_text(settings)
    results = json.dumps({"steps": 2, "eval": evaluation})
    (directory / "results.json").write_text(results)
    if state is not None:
        (directory / "checkpoints").mkdir()
        name = f"{state}/bert_pretrainer/next_sentence_head/classifier/bias"
        training_state.save_state(
            directory / "checkpoints/step-0000000002.safetensors",
            {name: np.zeros(2, "f4")},
            facts=training_state.Facts(step=2),
        )
    names = set(conversion.read(directory).arrays)
    assert "masked_lm_head/output_bias" in names
    for name in ("encoder/pooler/kernel", "next_sentence_head/classifier/bias"):
        assert (name in names) == is_trained


@pytest.mark.parametrize(
    ("to", "kind"),
    [
        ("hugging_face", "classification"),
        *(
            pytest.param(to, kind, marks=pytest.mark.slow)
            for to, kind in (
                ("hugging_face", "pretraining"),
                ("keras_hub", "encoder"),
                ("sentence_transformers", "embedding"),
                ("model_garden", "pretraining"),
                ("google", "pretraining"),
            )
        ),
    ],
)
def test_there_and_back(to, kind, run_dir, tmp_path, caplog):
    hidden_act = "gelu" if to == "hugging_face" else "gelu_tanh"
    run = run_dir(kind, hidden_act=hidden_act)
    if kind == "classification":
        (run / "config.yaml").write_text("max_seq_length: 9\nlong_texts: head_tail\n")
    source = conversion.read(run)
    first = conversion.convert(run, tmp_path / to, to=to)
    assert (first.source, first.kind, first.difference) == ("native", kind, 0.0)
    assert (first.left_out, first.made_new) == ({}, ())
    assert conversion.recognize(tmp_path / to) == to
    message = (
        "the run reads long texts with long_texts=head_tail, which hugging_face cannot "
        "say: there, a text of more than 9 tokens is cut and may get another answer"
    )
    assert (message in caplog.text) == (kind == "classification")
    assert "pairs of texts" not in caplog.text
    back = conversion.convert(tmp_path / to, tmp_path / "back", to="native")
    assert ("pairs of texts" in caplog.text) == (kind == "classification")
    assert (back.source, back.made_new) == (to, ())
    reasons = {"the head has a pooler of its own", "step counter"}
    assert set(back.unused.values()) == (reasons if to == "model_garden" else set())
    result = conversion.read(tmp_path / "back")
    assert (result.task, result.vocabulary) == (source.task, source.vocabulary)
    ignored = {"hidden_dropout_prob", "attention_probs_dropout_prob"}
    assert result.bert_config.model_dump(exclude=ignored) == (
        source.bert_config.model_dump(exclude=ignored)
    )
    making.assert_same_arrays(result.arrays, source.arrays)


def test_what_is_made_new(tmp_path):
    """A masked LM without next sentence and pooler."""
    without = ("encoder/pooler", "next_sentence_head")
    (tmp_path / "hf").mkdir()
    HUGGING_FACE.write(making.make_checkpoint(without=without), tmp_path / "hf")
    done = conversion.convert(tmp_path / "hf", tmp_path / "native", to="native")
    assert set(done.made_new) == {
        *("encoder/pooler/kernel", "encoder/pooler/bias"),
        "next_sentence_head/classifier/kernel",
        "next_sentence_head/classifier/bias",
    }
    lines = list(conversion.describe(done, to="native"))
    assert lines[0] == "read a hugging_face checkpoint, pretraining"
    assert "  initialized: encoder/pooler/kernel" in lines
    results = json.loads((tmp_path / "native/results.json").read_text())
    assert set(results["made_new"]) == set(done.made_new)


def test_the_command_and_heads_that_a_format_has_no_place_for(
    run_dir, tmp_path, capsys
):
    """The exact GELU needs consent, too."""
    arguments = ["convert", "--input", str(run_dir("tagging", hidden_act="gelu"))]
    arguments += ["--output", str(tmp_path / "hub"), "--to", "keras_hub"]
    assert cli.main(arguments) == 2
    assert "give --approximate_gelu" in capsys.readouterr().err
    assert cli.main([*arguments, "--approximate_gelu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "read a native checkpoint, tagging"
    assert [line.split(" (")[0] for line in lines[2:4]] == [
        "  left out: head/classifier/kernel",
        "  left out: head/classifier/bias",
    ]
    difference = re.fullmatch(
        "read back: same weights; outputs on a fixed batch differ by (.*) at most",
        lines[-1],
    )
    assert 1e-6 < float(difference[1]) < 0.1
    assert conversion.read(tmp_path / "hub").bert_config.hidden_act == "gelu_tanh"


def test_the_command_line_offers_what_there_is():
    assert set(typing.get_args(choices.CheckpointFormat)) == set(conversion.FORMATS)


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("native", "is in the format 'native' already"),
        ("keras_hub", "the activation is 'relu', keras_hub has only gelu_tanh"),
        ("google", "out: exists already; choose another"),
    ],
)
def test_conversions_that_are_refused(to, message, run_dir, tmp_path):
    if is_taken := to == "google":
        (tmp_path / "out").mkdir()
        (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(InputError, match=message):
        conversion.convert(run_dir(hidden_act="relu"), tmp_path / "out", to=to)
    assert (tmp_path / "out/notes.txt").exists() == is_taken


def test_a_run_needs_a_vocabulary(tmp_path):
    (tmp_path / "hf").mkdir()
    checkpoint = dataclasses.replace(make_checkpoint(), vocabulary=None)
    HUGGING_FACE.write(checkpoint, tmp_path / "hf")
    with pytest.raises(InputError, match="a run needs a vocabulary: put vocab.txt nex"):
        conversion.convert(tmp_path / "hf", tmp_path / "out", to="native")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_what_is_no_checkpoint(run_dir, tmp_path):
    with pytest.raises(InputError, match="no known checkpoint format; expected"):
        conversion.read(tmp_path)
    for name in ("nowhere", "no/where"):
        with pytest.raises(InputError, match=f"{name}: does not exist$"):
            conversion.read(tmp_path / name)
    directory = run_dir()
    HUGGING_FACE.write(make_checkpoint(), directory)
    message = "contains checkpoints in 2 formats, native and hugging_face: move"
    with pytest.raises(InputError, match=message):
        conversion.read(directory)


OTHER_WEIGHTS = "not the weights of this model: "


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            *({"intermediate_size": 32},),
            rf"{OTHER_WEIGHTS}tensor 'encoder/.*' has the shape \(16, 24\), but by the "
            r"configuration next to it, it has \(16, 32\)",
        ),
        ({"kind": "span"}, f"{OTHER_WEIGHTS}no head/classifier/kernel, head/class"),
        ("encoder/pooler/bias", f"{OTHER_WEIGHTS}no encoder/pooler/bias"),
    ],
)
def test_files_of_a_run_that_do_not_fit(run_dir, changes, message):
    directory = run_dir()
    path = directory / "model.safetensors"
    if isinstance(changes, str):
        arrays = safetensors.numpy.load_file(path)
        del arrays[changes]
        safetensors.numpy.save_file(arrays, path)
    else:
        path = directory / ("task.json" if "kind" in changes else "bert_config.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=f"model.safetensors: {message}"):
        conversion.read(directory)


def test_a_checkpoint_of_a_run_is_a_model_too(pretrained_run, tmp_path):
    final = conversion.read(pretrained_run)
    checkpoint = pretrained_run / "checkpoints/step-0000000012.safetensors"
    last = conversion.read(checkpoint)
    assert last.task == final.task
    making.assert_same_arrays(last.arrays, final.arrays)
    with pytest.raises(
        InputError, match="12.safetensors: needs .* leave it in RUN/checkpoints"
    ):
        conversion.read(shutil.copy(checkpoint, tmp_path))
    unfinished = shutil.copytree(pretrained_run, tmp_path / "unfinished")
    (unfinished / "results.json").unlink()
    with pytest.raises(InputError, match="or take its best checkpoint, .*step-0+"):
        conversion.read(unfinished)

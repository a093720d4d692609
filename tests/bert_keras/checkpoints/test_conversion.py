import dataclasses
import json
import shutil
import typing

import h5py
import numpy as np
import pytest

from bert_keras.checkpoints import conversion, native
from bert_keras.checkpoints.containers import npz_files
from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config
from bert_keras.data import features, tokenization
from bert_keras.inference import finetuned
from tests.bert_keras.checkpoints.formats import making

VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *(f"w{i}" for i in range(35)))
)


def make_checkpoint(kind="pretraining", *, bilstm_units=0, **changes):
    has_labels = kind in ("classification", "tagging")
    labels = ("no", "maybe", "yes") if has_labels else None
    return making.make_checkpoint(
        task=config.Task(kind=kind, labels=labels, bilstm_units=bilstm_units),
        bert_config=making.CONFIG.model_copy(update=changes),
        vocabulary=VOCABULARY,
    )


@pytest.fixture
def run_dir(tmp_path):
    """A function that writes a run directory with random weights."""

    def write(*args, **kwargs):
        directory = tmp_path / "run"
        directory.mkdir()
        native.write(make_checkpoint(*args, **kwargs), directory)
        return directory

    return write


@pytest.mark.parametrize(
    ("kind", "units"),
    [
        *((kind, 0) for kind in config.TASK_KINDS),
        *((kind, 5) for kind in config.TASK_KINDS[2:]),
    ],
)
def test_a_run_is_read_as_it_was_written(kind, units, run_dir):
    checkpoint = make_checkpoint(kind, bilstm_units=units)
    found = conversion.read(run_dir(kind, bilstm_units=units))
    assert (found.task, found.bert_config) == (checkpoint.task, checkpoint.bert_config)
    assert (found.vocabulary, found.do_lower_case) == (VOCABULARY, True)
    assert found.arrays.keys() == checkpoint.arrays.keys()
    for name, array in checkpoint.arrays.items():
        assert array.tobytes() == found.arrays[name].tobytes()


@pytest.mark.parametrize("long_texts", ["cut", "head_tail"])
def test_long_texts_that_others_can_only_cut(long_texts, run_dir, tmp_path, caplog):
    run = run_dir("classification")
    (run / "config.yaml").write_text(f"max_seq_length: 9\nlong_texts: {long_texts}\n")
    conversion.convert(run, tmp_path / "theirs", to="keras_hub")
    message = (
        "the run reads long texts with long_texts=head_tail, which keras_hub cannot "
        "say: there, a text of more than 9 tokens is cut and may get another answer"
    )
    assert (message in caplog.text) == (long_texts != "cut")


@pytest.mark.parametrize("to", [*conversion.FORMATS][1:])
def test_no_other_format_says_left_to_right(to, run_dir, tmp_path):
    run = run_dir(attention="left_to_right")
    message = f"the model attends left_to_right, which {to} cannot say"
    with pytest.raises(InputError, match=message):
        conversion.convert(run, tmp_path / "theirs", to=to)


DATA = {
    "classification": ("a.tsv", "text\nw1 w2\nw3\n"),
    "regression": ("a.tsv", "text\nw1 w2\nw3\n"),
    "tagging": ("a.txt", "w1\nw2\n\nw3\n"),
    "choice": (
        "a.csv",
        "startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3\n"
        "w1 w2,w1,w2,gold,w3,w4,w5,w6\n",
    ),
    "span": (
        "a.json",
        json.dumps(
            {
                "version": "1.1",
                "data": [
                    {
                        "title": "t",
                        "paragraphs": [
                            {
                                "context": "w1 w2 w3 w4",
                                "qas": [{"id": "q", "question": "w5", "answers": []}],
                            }
                        ],
                    }
                ],
            }
        ),
    ),
}


@pytest.mark.parametrize("kind", DATA)
def test_a_converted_model_predicts(kind, run_dir, tmp_path):
    """As others train them: a sentence is tagged by itself."""
    directory = run_dir(kind, max_position_embeddings=96)
    settings = finetuned.FinetunedModel.load(directory).settings
    assert (settings.max_seq_length, settings.document_context) == (96, False)
    name, text = DATA[kind]
    (tmp_path / name).write_text(text)
    finetuned.predict(directory, tmp_path / name, tmp_path / "answers")
    assert (tmp_path / "answers").exists()


@pytest.mark.parametrize(
    ("kind", "is_said"), [("classification", True), ("span", False)]
)
def test_pairs_of_texts_are_not_taken_for_granted(
    kind, run_dir, tmp_path, caplog, is_said
):
    message = "nothing says whether the model was tuned on pairs of texts, so it is"
    run, other, back = (tmp_path / name for name in ("run", "other", "back"))
    conversion.convert(run_dir(kind), other, to="hugging_face")
    conversion.convert(run, tmp_path / "small", to="native", keep_tokens=["w1"])
    assert message not in caplog.text
    conversion.convert(other, back, to="native")
    assert (message in caplog.text) == is_said


@pytest.mark.parametrize("to", [f for f in conversion.FORMATS if f != "native"])
def test_a_bilstm_has_no_place_elsewhere(to, run_dir, tmp_path):
    directory = run_dir("tagging", bilstm_units=3)
    assert conversion.read(directory).task.bilstm_units == 3
    message = f"the head has a BiLSTM of 3 units, which {to} has no place for: convert"
    with pytest.raises(InputError, match=message):
        conversion.convert(directory, tmp_path / "out", to=to)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_untrained_heads_of_a_run_are_not_taken(run_dir):
    directory = run_dir()
    (directory / "config.yaml").write_text("next_sentence: false\n")
    names = set(conversion.read(directory).arrays)
    assert "masked_lm_head/output_bias" in names
    assert not any(n.startswith(("encoder/pooler", "next_sentence")) for n in names)


@pytest.mark.parametrize(
    ("evaluation", "state", "is_trained"),
    [
        ({"loss": 2.0, "masked_lm_loss": 2.0}, None, False),
        ({"loss": 3.0, "next_sentence_loss": 1.0}, None, True),
        # It was trained without evaluation.
        ({}, "non_trainable", False),
        ({}, "weights", True),
        # And its checkpoints were deleted.
        ({}, None, True),
    ],
)
def test_full_sentences_train_no_next_sentence_head(
    run_dir, evaluation, state, is_trained
):
    directory = run_dir()
    (directory / "config.yaml").write_text("seed: 1\n")
    results = json.dumps({"steps": 2, "eval": evaluation})
    (directory / "results.json").write_text(results)
    if state is not None:
        (directory / "checkpoints").mkdir()
        name = f"{state}/bert_pretrainer/next_sentence_head/classifier/bias"
        npz_files.write_arrays(
            directory / "checkpoints/step-0000000002.npz", [(name, np.zeros(2, "f4"))]
        )
    names = set(conversion.read(directory).arrays)
    assert "masked_lm_head/output_bias" in names
    for name in ("encoder/pooler/kernel", "next_sentence_head/classifier/bias"):
        assert (name in names) == is_trained


@pytest.mark.parametrize("to", [f for f in conversion.FORMATS if f != "native"])
def test_there_and_back(to, run_dir, tmp_path):
    kinds = {"keras_hub": "encoder", "sentence_transformers": "embedding"}
    kind = kinds.get(to, "pretraining")
    source = conversion.read(run_dir(kind))
    first = conversion.convert(tmp_path / "run", tmp_path / to, to=to)
    assert (first.source, first.kind, first.difference) == ("native", kind, 0.0)
    assert (first.left_out, first.made_new) == ({}, ())
    assert conversion.recognize(tmp_path / to) == to
    back = conversion.convert(tmp_path / to, tmp_path / "back", to="native")
    assert (back.source, back.made_new) == (to, ())
    reasons = {"the head has a pooler of its own", "step counter"}
    assert set(back.unused.values()) == (reasons if to == "model_garden" else set())
    result = conversion.read(tmp_path / "back")
    assert (result.task, result.vocabulary) == (source.task, source.vocabulary)
    ignored = {"hidden_dropout_prob", "attention_probs_dropout_prob"}
    assert result.bert_config.model_dump(exclude=ignored) == (
        source.bert_config.model_dump(exclude=ignored)
    )
    for name, array in source.arrays.items():
        assert array.tobytes() == result.arrays[name].tobytes()


def test_what_is_made_new_and_left_out(tmp_path):
    """A masked LM without next sentence and pooler, then an encoder of a tagger."""
    whole = make_checkpoint()
    arrays = {k: v for k, v in whole.arrays.items() if "masked_lm" in k or "layer" in k}
    arrays |= {k: v for k, v in whole.arrays.items() if "embeddings" in k}
    (tmp_path / "hf").mkdir()
    masked_lm = dataclasses.replace(whole, arrays=arrays)
    conversion.FORMATS["hugging_face"].write(masked_lm, tmp_path / "hf")
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


def test_heads_that_a_format_has_no_place_for(run_dir, tmp_path, capsys):
    directory = run_dir("tagging")
    arguments = ["--input", str(directory), "--output", str(tmp_path / "hub")]
    assert cli.main(["convert", *arguments, "--to", "keras_hub"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "read a native checkpoint, tagging"
    assert [line.split(" (")[0] for line in lines[2:4]] == [
        "  left out: head/classifier/kernel",
        "  left out: head/classifier/bias",
    ]
    assert lines[-1] == (
        "read back: same weights; outputs on a fixed batch differ by 0 at most"
    )


def test_the_command_line_offers_what_there_is():
    assert set(typing.get_args(config.CheckpointFormat)) == set(conversion.FORMATS)


class TestActivations:
    def test_the_exact_gelu_needs_consent(self, run_dir, tmp_path):
        directory = run_dir(hidden_act="gelu")
        with pytest.raises(InputError, match="give --approximate_gelu"):
            conversion.convert(directory, tmp_path / "out", to="google")
        done = conversion.convert(
            directory, tmp_path / "out", to="google", approximate_gelu=True
        )
        assert 1e-6 < done.difference < 0.1
        assert conversion.read(tmp_path / "out").bert_config.hidden_act == "gelu_tanh"

    def test_hugging_face_knows_both(self, run_dir, tmp_path):
        directory = run_dir(hidden_act="gelu")
        done = conversion.convert(directory, tmp_path / "hf", to="hugging_face")
        assert done.difference == 0.0
        written = json.loads((tmp_path / "hf/config.json").read_text())
        assert written["hidden_act"] == "gelu"

    def test_keras_hub_has_only_gelu(self, run_dir, tmp_path):
        with pytest.raises(InputError, match="'relu', keras_hub has only gelu_tanh"):
            conversion.convert(
                run_dir("encoder", hidden_act="relu"), tmp_path / "o", to="keras_hub"
            )


class TestBadInput:
    @pytest.mark.parametrize(
        ("model_type", "name"),
        [
            ("roberta", "a RoBERTa"),
            ("distilbert", "a DistilBERT"),
            ("albert", "an ALBERT"),
        ],
    )
    def test_another_model_is_named(self, tmp_path, capsys, model_type, name):
        (tmp_path / "hf").mkdir()
        conversion.FORMATS["hugging_face"].write(make_checkpoint(), tmp_path / "hf")
        path = tmp_path / "hf/config.json"
        path.write_text(path.read_text().replace('"bert"', f'"{model_type}"'))
        arguments = ["--input", str(tmp_path / "hf"), "--output", str(tmp_path / "out")]
        assert cli.main(["convert", *arguments, "--to", "native"]) == 2
        assert f"{path}: the model is {name}, not a BERT" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    def test_nothing_there(self, tmp_path):
        with pytest.raises(InputError, match="no known checkpoint format; expected"):
            conversion.read(tmp_path)
        with pytest.raises(InputError, match="no such directory"):
            conversion.read(tmp_path / "no" / "where")

    def test_two_formats_in_one_directory(self, run_dir, tmp_path):
        directory = run_dir()
        conversion.convert(directory, tmp_path / "hf", to="hugging_face")
        for path in (tmp_path / "hf").iterdir():
            path.rename(directory / path.name)
        message = "holds checkpoints of native and hugging_face: put"
        with pytest.raises(InputError, match=message):
            conversion.read(directory)

    @pytest.mark.parametrize(
        ("to", "message"),
        [
            ("native", "is in the format 'native' already"),
            ("gogle", "did you mean 'google'"),
        ],
    )
    def test_a_format_that_cannot_be_meant(self, to, message, run_dir, tmp_path):
        with pytest.raises(InputError, match=message):
            conversion.convert(run_dir(), tmp_path / "out", to=to)

    def test_an_output_that_holds_something(self, run_dir, tmp_path):
        directory = run_dir()
        (tmp_path / "out").mkdir()
        (tmp_path / "out/notes.txt").write_text("mine")
        with pytest.raises(InputError, match="out: exists already; choose another"):
            conversion.convert(directory, tmp_path / "out", to="google")
        assert (tmp_path / "out/notes.txt").read_text() == "mine"

    def test_a_run_needs_a_vocabulary(self, tmp_path):
        hugging_face = conversion.FORMATS["hugging_face"]
        (tmp_path / "hf").mkdir()
        nameless = dataclasses.replace(make_checkpoint(), vocabulary=None)
        hugging_face.write(nameless, tmp_path / "hf")
        with pytest.raises(InputError, match="put vocab.txt next to"):
            conversion.convert(tmp_path / "hf", tmp_path / "out", to="native")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]

    def test_values_that_are_not_finite_are_refused(self, run_dir, tmp_path):
        checkpoint = conversion.read(run_dir())
        arrays = dict(checkpoint.arrays)
        arrays["encoder/pooler/bias"][0] = np.nan
        checkpoint = dataclasses.replace(checkpoint, arrays=arrays)
        (tmp_path / "hf").mkdir()
        conversion.FORMATS["hugging_face"].write(checkpoint, tmp_path / "hf")
        message = "hf: 1 values are not finite: 1 of encoder/pooler/bias: the training"
        with pytest.raises(InputError, match=message):
            conversion.convert(tmp_path / "hf", tmp_path / "out", to="native")
        assert not (tmp_path / "out").exists()


class TestWeightsOfARun:
    """Damaged, or not those of the configuration beside them."""

    @pytest.mark.parametrize("part", [0, 0.3, 0.9])
    def test_a_cut_file(self, run_dir, part):
        directory = run_dir()
        path = directory / "model.weights.h5"
        path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
        with pytest.raises(InputError, match=r"weights\.h5: cannot be read as HDF5"):
            conversion.read(directory)

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("num_hidden_layers", 3, "has 2 layers, but by the configuration next"),
            ("num_hidden_layers", 1, "has 2 layers, but by the configuration next"),
            (
                "intermediate_size",
                32,
                r"not the weights of this model: tensor 'encoder/.*' has the shape "
                r"\(16, 24\), but by the configuration next to it, it has \(16, 32\)",
            ),
            ("hidden_size", 32, r".*has the shape \(40, 16\), but by .* \(40, 32\)"),
        ],
    )
    def test_another_configuration(self, run_dir, key, value, message):
        directory = run_dir()
        path = directory / "bert_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
        with pytest.raises(InputError, match=f"model.weights.h5: {message}"):
            conversion.read(directory)

    def test_another_task(self, run_dir):
        directory = run_dir()
        (directory / "task.json").write_text('{"kind": "span"}')
        message = "not the weights of this model: no head/classifier/kernel, head/class"
        with pytest.raises(InputError, match=message):
            conversion.read(directory)

    def test_an_array_that_is_missing(self, run_dir):
        directory = run_dir()
        with h5py.File(directory / "model.weights.h5", "r+") as file:
            del file["encoder/layers/dense/vars/1"]
        message = "not the weights of this model: no encoder/pooler/bias"
        with pytest.raises(InputError, match=message):
            conversion.read(directory)


class TestCheckpointsOfARun:
    """One checkpoint of a pre-training that is under way."""

    def test_one_is_a_model_too(self, pretrained_run):
        final = conversion.read(pretrained_run)
        last = conversion.read(pretrained_run / "checkpoints/step-0000000012.npz")
        assert last.task == final.task
        assert last.arrays.keys() == final.arrays.keys()
        for name, array in final.arrays.items():
            assert array.tobytes() == last.arrays[name].tobytes()

    def test_the_best_one_is_named(self, pretrained_run, tmp_path):
        unfinished = shutil.copytree(pretrained_run, tmp_path / "unfinished")
        (unfinished / "results.json").unlink()
        with pytest.raises(InputError, match="or take its best checkpoint, .*step-0+"):
            conversion.read(unfinished)

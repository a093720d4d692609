"""Directories of sentence-transformers: what is read of them, and what is refused."""

import dataclasses
import json
from pathlib import Path

import pytest

from bert_keras.checkpoints import conversion
from bert_keras.checkpoints.formats import sentence_transformers
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from tests.bert_keras.checkpoints.formats import making

CHECKPOINT = making.make_checkpoint("embedding", max_seq_length=9)


@pytest.fixture
def directory(tmp_path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    sentence_transformers.write(CHECKPOINT, path)
    return path


def steps(*names: str, path: str = "") -> str:
    folders = {"Transformer": path, "Pooling": "1_Pooling"}
    return json.dumps(
        [{"type": f"any.where.{n}", "path": folders.get(n, n)} for n in names]
    )


def test_poolings_of_old_and_new_versions(directory):
    (directory / "modules.json").write_text(steps("Transformer", "Pooling"))
    for values in (
        {"pooling_mode": "mean"},
        {"pooling_mode": ["mean"]},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
    ):
        (directory / "1_Pooling/config.json").write_text(json.dumps(values))
        task = conversion.read(directory).task
        assert (task.pooling, task.normalize) == ("mean", False)


def test_the_longest_input_is_in_one_of_two_files(directory):
    assert conversion.read(directory).max_seq_length == 9
    (directory / "sentence_bert_config.json").write_text("{}")
    making.change_json(directory / "tokenizer_config.json", model_max_length=7)
    assert conversion.read(directory).max_seq_length == 7
    # Theirs for "no limit".
    making.change_json(directory / "tokenizer_config.json", model_max_length=10**30)
    longest = making.CONFIG.max_position_embeddings
    assert conversion.read(directory).max_seq_length == longest


BOTH = ("Transformer", "Pooling")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules", steps(*BOTH, "Dense"), "got Transformer, Pooling, Dense: to read"),
        ("modules", steps("Pooling", "Transformer"), "expected the steps Transfo"),
        ("modules", steps("Transformer"), "got Transformer: to read the encoder"),
        ("modules", steps(*BOTH, path="0"), "is in '0', expect"),
        (
            *("modules", steps(*BOTH).replace("1_Pooling", "../1_Pooling")),
            "modules.json: the path '../1_Pooling' leaves the directory",
        ),
        ("modules", steps(*BOTH, path="/"), "'/' leaves the"),
        ("modules", "[]", "expected the steps Transformer, Pooling and maybe Nor"),
        ("modules", "[1]", "expected the steps .* got 1"),
        ("modules", "[", "modules.json: expected JSON"),
        ("1_Pooling/config", '{"pooling_mode": "max"}', r"or cls, got \['max'\]"),
        ("1_Pooling/config", "{}", r"expected the pooling mean or cls, got \[\]"),
        ("1_Pooling/config", '{"pooling_mode": 3}', "expected the pooling mean"),
        ("1_Pooling/config", None, r"1_Pooling/config\.json"),
        ("sentence_bert_config", '{"max_seq_length": "x"}', "has 'x' tokens, exp"),
        ("sentence_bert_config", '{"max_seq_length": 2}', "has 2 tokens, expecte"),
    ],
)
def test_what_is_refused(name, content, message, directory):
    path = directory / f"{name}.json"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        conversion.read(directory)


def test_case_that_their_two_files_do_not_agree_on(directory):
    making.change_json(directory / "sentence_bert_config.json", do_lower_case=True)
    conversion.read(directory)
    making.change_json(directory / "tokenizer_config.json", do_lower_case=False)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(InputError, match='"do_lower_case" is true, but the tokenizer'):
        conversion.read(directory)


def test_without_its_steps_it_is_an_encoder(directory):
    (directory / "modules.json").unlink()
    assert conversion.recognize(directory) == "hugging_face"
    assert conversion.read(directory).task.kind == "encoder"


def test_models_that_cannot_be_written(tmp_path):
    encoder = dataclasses.replace(CHECKPOINT, task=tasks.Task(kind="encoder"))
    with pytest.raises(InputError, match="a model for encoder does not say what"):
        sentence_transformers.write(encoder, tmp_path)
    bare = dataclasses.replace(CHECKPOINT, vocabulary=None)
    with pytest.raises(InputError, match="needs a tokenizer: put vocab.txt next to"):
        sentence_transformers.write(bare, tmp_path)

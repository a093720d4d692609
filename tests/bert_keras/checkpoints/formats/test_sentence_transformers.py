"""Directories of sentence-transformers: what is read of them, and what is refused."""

import dataclasses
import json
import re
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


def change(path: Path, **values) -> None:
    given = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**given, **values}))


def steps(*names: str, path: str = "") -> str:
    folders = {"Transformer": path, "Pooling": "1_Pooling"}
    return json.dumps(
        [{"type": f"any.where.{n}", "path": folders.get(n, n)} for n in names]
    )


def test_the_longest_input_is_kept(directory):
    assert conversion.read(directory).max_seq_length == 9


@pytest.mark.parametrize("mode", ["mean", ["mean"], ("pooling_mode_mean_tokens",)])
def test_poolings_of_old_and_new_versions(mode, directory):
    path = directory / "1_Pooling/config.json"
    if isinstance(mode, tuple):
        path.write_text(json.dumps({mode[0]: True, "pooling_mode_cls_token": False}))
    else:
        path.write_text(json.dumps({"pooling_mode": mode}))
    (directory / "modules.json").write_text(steps("Transformer", "Pooling"))
    task = conversion.read(directory).task
    assert (task.pooling, task.normalize) == ("mean", False)


def test_the_longest_input_is_in_one_of_two_files(directory):
    (directory / "sentence_bert_config.json").write_text("{}")
    change(directory / "tokenizer_config.json", model_max_length=7)
    assert conversion.read(directory).max_seq_length == 7
    # Theirs for "no limit".
    change(directory / "tokenizer_config.json", model_max_length=10**30)
    longest = making.CONFIG.max_position_embeddings
    assert conversion.read(directory).max_seq_length == longest


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "modules.json",
            steps("Transformer", "Pooling", "Dense"),
            "got Transformer, P",
        ),
        ("modules.json", steps("Pooling", "Transformer"), "expected the steps Transfo"),
        ("modules.json", steps("Transformer"), "got Transformer: to read the encoder"),
        (
            "modules.json",
            steps("Transformer", "Pooling", path="0"),
            "is in '0', expect",
        ),
        (
            "modules.json",
            json.dumps(
                [
                    {"type": "a.Transformer", "path": ""},
                    {"type": "a.Pooling", "path": "../1_Pooling"},
                ]
            ),
            "modules.json: the path '../1_Pooling' leaves the directory",
        ),
        ("modules.json", steps("Transformer", "Pooling", path="/"), "'/' leaves the"),
        ("modules.json", "[]", "expected the steps Transformer, Pooling and maybe Nor"),
        ("modules.json", "[1]", "expected the steps .* got 1"),
        ("modules.json", "[", "modules.json: expected JSON"),
        ("1_Pooling/config.json", '{"pooling_mode": "max"}', r"or cls, got \['max'\]"),
        ("1_Pooling/config.json", "{}", r"expected the pooling mean or cls, got \[\]"),
        ("1_Pooling/config.json", '{"pooling_mode": 3}', "expected the pooling mean"),
        ("sentence_bert_config.json", '{"max_seq_length": "x"}', "has 'x' tokens, exp"),
        ("sentence_bert_config.json", '{"max_seq_length": 2}', "has 2 tokens, expecte"),
    ],
)
def test_what_is_refused(name, content, message, directory):
    (directory / name).write_text(content)
    with pytest.raises(InputError, match=re.compile(message)):
        conversion.read(directory)


def test_a_pooling_that_is_missing(directory):
    (directory / "1_Pooling/config.json").unlink()
    with pytest.raises(InputError, match=r"1_Pooling/config\.json"):
        conversion.read(directory)


def test_case_that_their_two_files_do_not_agree_on(directory):
    change(directory / "sentence_bert_config.json", do_lower_case=True)
    conversion.read(directory)
    change(directory / "tokenizer_config.json", do_lower_case=False)
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

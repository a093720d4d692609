"""`bert-keras config` and docs/configuration.md."""

import shlex
from pathlib import Path

import pytest
import yaml

from bert_keras.commands import config_page
from bert_keras.commands import main as cli
from bert_keras.core.settings import finetuning, loading, pretraining, strict
from bert_keras.training import pretrain
from bert_keras.training.finetuning import job as tuning

PAGE = Path(__file__).resolve().parents[3] / "docs/configuration.md"
RECIPES = {name: verb for name, verb, _ in config_page.recipes()}


def printed(command, capsys):
    assert cli.main(shlex.split(command)) == 0
    return capsys.readouterr().out


def test_the_page_is_what_the_command_prints(capsys):
    assert PAGE.read_text() == printed("config page", capsys), (
        "write it anew: bert-keras config page > docs/configuration.md"
    )


def test_settings_of_a_verb(capsys):
    command = "config corpus --set drop_lists=false --set min_document_words=7"
    assert (
        printed(command, capsys)
        == """\
# Settings of `bert-keras corpus`. Text that `corpus` leaves out.

# integer >= 0. Words that a document needs; shorter ones are dropped. Two characters of
# Chinese or Japanese are a word, and four of Thai, Lao, Khmer or Burmese.
min_document_words: 7

# true or false. Drop disambiguation and list pages of Wikipedia.
drop_lists: false

# true or false. Keep a paragraph that several documents share in one of them only.
deduplicate_paragraphs: true

# integer >= 1. Minimum length, in words, of a paragraph that can count as a duplicate.
# Shorter ones, such as dialogue and headings, repeat by chance.
min_duplicate_words: 10
"""
    )


OPTIMIZER = """
optimizer:

  # adamw, lamb or muon. Optimizer. `lamb`: You et al. (2020), for batches of many
  # thousands; `muon`: Jordan et al. (2024) for matrices between layers, with AdamW for
  # the rest.
  name: lamb
"""
PHASES = """
#   gradient_accumulation_steps: integer > 0 or null. Parts of a batch, one after the
#     other; null: the run's. May change on resume.
phases: [{fraction: 0.9, global_batch_size: null, """


def test_nested_settings_are_indented(capsys):
    text = printed("config pretrain --config bert_base_lamb", capsys)
    assert OPTIMIZER in text and PHASES in text


@pytest.mark.parametrize(
    ("verb", "recipe"),
    [(verb, None) for verb in config_page.CONFIGURATIONS]
    + [(verb, name) for name, verb in RECIPES.items()],
)
def test_what_is_printed_is_a_configuration(verb, recipe, capsys, tmp_path):
    option = f"--config {recipe}" if recipe else ""
    (tmp_path / "c.yaml").write_text(printed(f"config {verb} {option}", capsys))
    model = config_page.CONFIGURATIONS[verb]
    given = loading.load(model, recipe)
    assert loading.load(model, tmp_path / "c.yaml") == given


@pytest.mark.parametrize("verb", config_page.CONFIGURATIONS)
def test_every_setting_has_a_meaning(verb):
    for key, field in strict.walk(config_page.CONFIGURATIONS[verb]):
        assert field.description and field.description[-1] in ".)", key


def test_every_recipe_has_a_line_and_its_verb(capsys):
    lines = printed("config list", capsys).splitlines()
    assert [line.split()[0] for line in lines] == loading.recipe_names()
    assert lines[3] == (
        "bert_base               pretrain  BERT-BASE: 12 layers, hidden size 768, 12 "
        "attention heads. Devlin et al. (2018), A.2: 40 epochs of 3.3 billion words."
    )
    for line in lines:
        name, verb, summary = line.split(maxsplit=2)
        text = loading.recipe_text(name)
        assert summary.endswith("."), line
        assert f"--config {name}" not in text or f"bert-keras {verb} --config" in text
        assert not text.startswith("# bert-keras") and yaml.safe_load(text)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("config", "arguments are required: VERB"),
        ("config fintune", "got 'fintune'; did you mean 'finetune'?"),
        ("config list --set a=1", "`config list` takes no --config and no --set"),
        ("config page --config demo", "`config page` takes no --config and no --set"),
        ("config corpus --set a=1", "no key 'a' (keys here: min_document_words, dr"),
        ("config corpus --config bert_base", "a recipe of `pretrain`, not of `corpus`"),
    ],
)
def test_a_mistake(command, message, capsys):
    assert cli.main(command.split()) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "changeable"),
    [
        (pretraining.PretrainingConfig, pretrain.CHANGEABLE),
        (finetuning.FinetuningConfig, tuning.CHANGEABLE),
    ],
)
def test_settings_that_may_change_on_resume_say_so(model, changeable):
    marked = {
        key
        for key, field in strict.walk(model)
        if (field.description or "").endswith("May change on resume.")
    }
    assert marked == {key.replace(".*", "") for key in changeable}

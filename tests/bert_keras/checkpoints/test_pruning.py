"""`convert --keep_tokens`: a model with the pieces of some texts answers them alike."""

import dataclasses
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest

from bert_keras.checkpoints import conversion, native, run_directory, weights
from bert_keras.commands import main as cli
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning
from bert_keras.data import features, tokenization
from bert_keras.inference import finetuned
from bert_keras.kinds import registry
from tests.bert_keras.checkpoints.formats import making

WORDS = [f"w{i}" for i in range(30)]
VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *WORDS, "##1", "##2", "é", "w", "x")
)
TEXTS = "w3 w7\tw21\nw3 w29 unknown\n"
KEPT = (*features.SPECIAL_TOKENS, "w3", "w7", "w21", "w29", "##1", "##2", "w", "x")
FEATURES = {
    "input_ids": np.int32([[2, 5, 6, 7, 1, 8, 3, 0], [2, 4, 11, 12, 9, 3, 0, 0]]),
    "input_mask": np.int32([[1] * 7 + [0], [1] * 6 + [0] * 2]),
    "segment_ids": np.int32([[0] * 8, [0, 0, 0, 1, 1, 1, 0, 0]]),
    "masked_lm_positions": np.int32([[1, 4], [2, 5]]),
}


@pytest.fixture
def make_run(tmp_path):
    """A function that makes a run with random weights, and texts beside it."""

    def make(kind="pretraining", **changes) -> Path:
        labels = ("no", "yes") if kind in ("classification", "multi_label") else None
        changes = {"vocab_size": len(VOCABULARY), **changes}
        checkpoint = making.make_checkpoint(
            task=config.Task(kind=kind, labels=labels, has_text_pair=False),
            bert_config=making.CONFIG.model_copy(update=changes),
            vocabulary=VOCABULARY,
        )
        (tmp_path / "texts.tsv").write_text(TEXTS)
        (tmp_path / "run").mkdir()
        native.write(checkpoint, tmp_path / "run")
        return tmp_path / "run"

    return make


def prune(run: Path, to: str = "native") -> conversion.Conversion:
    texts = TEXTS.splitlines()
    return conversion.convert(run, run.parent / "small", to=to, keep_tokens=texts)


def outputs(directory: Path, ids=None) -> dict[str, np.ndarray]:
    checkpoint = conversion.read(directory)
    network = registry.build_network(checkpoint.bert_config, checkpoint.task, seed=1)
    weights.assign(network, checkpoint.arrays)
    changed = {} if ids is None else {"input_ids": ids[FEATURES["input_ids"]]}
    found = network({**FEATURES, **changed}, training=False)
    return {name: keras.ops.convert_to_numpy(value) for name, value in found.items()}


def test_outputs_are_those_of_the_same_pieces(make_run):
    run = make_run()
    done = prune(run)
    small = conversion.read(run.parent / "small")
    assert small.vocabulary.tokens == KEPT
    assert small.bert_config.vocab_size == len(KEPT) == done.pruned.num_kept
    ids = np.array([VOCABULARY.tokens.index(token) for token in KEPT], np.int32)
    before, after = outputs(run, ids), outputs(run.parent / "small")
    logits = before.pop("masked_lm_logits")[..., ids]
    # As many columns as pieces: the products of matrices are cut elsewhere.
    np.testing.assert_allclose(after.pop("masked_lm_logits"), logits, rtol=0, atol=1e-6)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.tobytes() == after[name].tobytes(), name


@pytest.mark.parametrize("to", conversion.FORMATS)
def test_every_format_has_the_kept_rows(to, make_run):
    kinds = {"keras_hub": "encoder", "sentence_transformers": "embedding"}
    run = make_run(kinds.get(to, "pretraining"))
    done = prune(run, to)
    assert (done.pruned.num_kept, done.pruned.num_pieces) == (len(KEPT), 40)
    found, source = conversion.read(run.parent / "small"), conversion.read(run)
    assert found.vocabulary.tokens == KEPT
    ids = [VOCABULARY.tokens.index(token) for token in KEPT]
    tables = {"encoder/embeddings/word_embeddings", "masked_lm_head/output_bias"}
    assert tables & source.arrays.keys()
    num_bytes = 0
    for name, array in source.arrays.items():
        expected = array[ids] if name in tables else array
        num_bytes += expected.nbytes
        assert found.arrays[name].tobytes() == expected.tobytes(), name
    assert done.pruned.num_bytes == num_bytes


def test_a_tuned_run_answers_alike(make_run):
    """With its settings and the thresholds that were chosen for it."""
    run = make_run("multi_label")
    settings = finetuning.FinetuningConfig(
        multi_label=True, max_seq_length=6, long_texts="head_tail"
    )
    run_directory.describe_run(
        run_directory.read_run(run, kinds=["multi_label"], verb="finetune"), settings
    )
    results = run_directory.read_results(run)
    thresholds = {"no": 0.25, "yes": 0.75}
    run_directory.write_results(run, {**results, "thresholds": thresholds})
    prune(run)
    lines = ["w3 w7 w21 w29 w3 w7 w21 unknown w29", "w7", "w29 w21"]
    (run.parent / "new.tsv").write_text("\n".join(["text", *lines]) + "\n")
    for name in ("run", "small"):
        model = finetuned.FinetunedModel.load(run.parent / name)
        assert model.settings.long_texts == "head_tail"
        assert model.settings.max_seq_length == 6
        answers = run.parent / f"{name}.tsv"
        finetuned.predict(run.parent / name, run.parent / "new.tsv", answers)
    found = (run.parent / "small.tsv").read_bytes()
    assert found == (run.parent / "run.tsv").read_bytes()
    assert run_directory.read_results(run.parent / "small")["thresholds"] == thresholds


def test_the_command_says_what_is_left(make_run, capsys):
    run = make_run("encoder")
    (run.parent / "more.jsonl").write_text('{"w5": ["w9", {"a": "w11"}], "b": 3}\n')
    (run.parent / "more.json").write_text('{"w6": ["w13"]}')
    patterns = [str(run.parent / name) for name in ("t*.tsv", "*.jsonl", "more.json")]
    small = run.parent / "small"
    arguments = ["--input", str(run), "--output", str(small), "--to", "hugging_face"]
    assert cli.main(["convert", *arguments, "--keep_tokens", *patterns]) == 0
    kept = files.path(small / "vocab.txt").read_text().split()
    assert set(kept) == {*KEPT, "w9", "w11", "w13"}
    lines = capsys.readouterr().out.splitlines()
    whole, size = (
        sum(array.nbytes for array in conversion.read(path).arrays.values())
        for path in (run, small)
    )
    assert lines[-3:] == [
        f"kept 16 of 40 pieces; weights in float32: {size:,} bytes of {whole:,}",
        "  words of other texts are split into these pieces, or become [UNK] if a "
        "character is neither ASCII nor in the files",
        "read back: same weights; outputs on a fixed batch differ by 0 at most",
    ]


def test_a_card_says_that_pieces_are_left_out(make_run):
    run = make_run("classification")
    texts, out = TEXTS.splitlines(), run.parent / "small"
    done = conversion.convert(
        run, out, to="hugging_face", card="# A model\n", keep_tokens=texts
    )
    assert (out / "README.md").read_text() == (
        "# A model\n\n## Vocabulary\n\nOf the 40 pieces named above, 13 were kept "
        f"after the training, with {done.num_parameters:,} parameters. Answers to "
        "texts of these pieces are the same; words of other texts are split further.\n"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "none.txt: no such file: expected files of texts"),
        ("empty.txt", " \n", "--keep_tokens: the files hold no words: nothing to keep"),
        ("a.json", "{", "a.json: expected JSON"),
        ("a.txt", b"\xff", "a.txt: .*UTF-8"),
    ],
)
def test_texts_that_cannot_be_used(make_run, capsys, name, content, message):
    run = make_run("encoder")
    path, small = run.parent / name, run.parent / "small"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    arguments = ["--input", str(run), "--output", str(small), "--to", "native"]
    assert cli.main(["convert", *arguments, "--keep_tokens", str(path)]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert not small.exists()


def test_models_that_cannot_be_pruned(make_run):
    run = make_run("encoder")
    checkpoint = conversion.read(run)
    changes = {"vocabulary": None, "do_lower_case": None}
    for name, message in (
        ("vocabulary", "has no vocabulary, so nothing says which rows the texts need"),
        ("do_lower_case", "cased"),
    ):
        made = dataclasses.replace(checkpoint, **{name: changes[name]})
        with pytest.raises(InputError, match=message):
            conversion.pruning.prune(made, ["w3"], path=run)


def test_what_fails_while_texts_are_read_leaves_nothing(make_run):
    def broken():
        yield "w3"
        raise OSError("the disk is gone")

    run = make_run("encoder")
    before = sorted(path.name for path in run.parent.iterdir())
    with pytest.raises(OSError, match="the disk is gone"):
        conversion.convert(run, run.parent / "small", to="native", keep_tokens=broken())
    assert sorted(path.name for path in run.parent.iterdir()) == before
    assert json.loads((run / "task.json").read_text())["kind"] == "encoder"

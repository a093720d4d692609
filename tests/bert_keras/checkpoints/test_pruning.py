"""`convert --keep_tokens`: a model with the pieces of some texts answers them alike."""

import dataclasses
import re

import keras
import numpy as np
import pytest

from bert_keras.checkpoints import conversion, native, run_directory, weights
from bert_keras.commands import main as cli
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import features, tokenization
from bert_keras.kinds import registry
from tests.bert_keras.checkpoints.formats import making

WORDS = [f"w{i}" for i in range(30)]
VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *WORDS, "##1", "##2", "é", "w", "x")
)
TEXTS = ["w3 w7\tw21", "w3 w29 unknown"]
KEPT = (*features.SPECIAL_TOKENS, "w3", "w7", "w21", "w29", "##1", "##2", "w", "x")
IDS = np.array([VOCABULARY.tokens.index(token) for token in KEPT], np.int32)
FEATURES = {
    "input_ids": np.int32([[2, 5, 6, 7, 1, 8, 3, 0], [2, 4, 11, 12, 9, 3, 0, 0]]),
    "input_mask": np.int32([[1] * 7 + [0], [1] * 6 + [0] * 2]),
    "segment_ids": np.int32([[0] * 8, [0, 0, 0, 1, 1, 1, 0, 0]]),
    "masked_lm_positions": np.int32([[1, 4], [2, 5]]),
}


def make_checkpoint(kind="pretraining"):
    labels = ("no", "yes") if kind in ("classification", "multi_label") else None
    return making.make_checkpoint(
        task=tasks.Task(kind=kind, labels=labels, has_text_pair=False),
        bert_config=making.CONFIG.model_copy(update={"vocab_size": len(VOCABULARY)}),
        vocabulary=VOCABULARY,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    native.write(make_checkpoint("classification"), directory)
    return directory


def outputs(checkpoint, ids=None) -> dict[str, np.ndarray]:
    network = registry.build_network(checkpoint.bert_config, checkpoint.task, seed=1)
    weights.assign(network, checkpoint.arrays)
    changed = {} if ids is None else {"input_ids": ids[FEATURES["input_ids"]]}
    found = network({**FEATURES, **changed}, training=False)
    return {name: keras.ops.convert_to_numpy(value) for name, value in found.items()}


def test_outputs_are_those_of_the_same_pieces():
    source = make_checkpoint()
    small, ids, sizes = conversion.prune(source, TEXTS, path="x")
    assert small.vocabulary.tokens == KEPT
    assert small.bert_config.vocab_size == len(KEPT)
    np.testing.assert_array_equal(ids, IDS)
    tables = ("encoder/embeddings/word_embeddings", "masked_lm_head/output_bias")
    expected = {
        name: array[IDS] if name in tables else array
        for name, array in source.arrays.items()
    }
    making.assert_same_arrays(small.arrays, expected)
    num_bytes = [sum(a.nbytes for a in x.values()) for x in (expected, source.arrays)]
    assert sizes == (len(KEPT), 40, *num_bytes)
    before, after = outputs(source, IDS), outputs(small)
    logits = before.pop("masked_lm_logits")[..., IDS]
    # As many columns as pieces: the products of matrices are cut elsewhere.
    np.testing.assert_allclose(after.pop("masked_lm_logits"), logits, rtol=0, atol=1e-6)
    making.assert_same_arrays(after, before)


def test_a_tuned_run_keeps_its_settings_and_gets_a_card(tmp_path, caplog):
    run, small = tmp_path / "run", tmp_path / "small"
    run.mkdir()
    native.write(make_checkpoint("multi_label"), run)
    (run / "config.yaml").write_text(
        "multi_label: true\nmax_seq_length: 6\nlong_texts: head_tail\n"
    )
    results = {"thresholds": {"no": 0.25, "yes": 0.75}}
    run_directory.write_results(run, run_directory.read_results(run) | results)
    conversion.convert(run, small, to="native", card="# A model\n", keep_tokens=TEXTS)
    ours, theirs = (
        run_directory.read_settings(path, finetuning.FinetuningConfig)
        for path in (small, run)
    )
    assert ours == theirs
    thresholds = run_directory.read_results(small)["thresholds"]
    assert thresholds == {"no": 0.25, "yes": 0.75}
    assert caplog.text == ""
    arrays = conversion.read(small).arrays.values()
    assert (small / "README.md").read_text() == (
        "# A model\n\n## Vocabulary\n\nOf the 40 pieces named above, 13 were kept "
        f"after the training, with {sum(array.size for array in arrays):,} parameters. "
        "Answers to texts of these pieces are the same; words of other texts are split "
        "further.\n"
    )


def test_the_command_says_what_is_left(run, tmp_path, capsys):
    (tmp_path / "texts.tsv").write_text("\n".join(TEXTS))
    (tmp_path / "more.jsonl").write_text('{"w5": ["w9", {"a": "w11"}], "b": 3}\n')
    (tmp_path / "more.json").write_text('{"w6": ["w13"]}')
    patterns = [str(tmp_path / name) for name in ("t*.tsv", "*.jsonl", "more.json")]
    small = tmp_path / "small"
    arguments = ["--input", str(run), "--output", str(small)]
    arguments += ["--to", "hugging_face", "--keep_tokens", *patterns]
    assert cli.main(["convert", *arguments]) == 0
    kept = (small / "vocab.txt").read_text().split()
    assert set(kept) == {*KEPT, "w9", "w11", "w13"}
    whole, size = (
        sum(array.nbytes for array in conversion.read(path).arrays.values())
        for path in (run, small)
    )
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"kept 16 of 40 pieces; weights in float32: {size:,} bytes of {whole:,}",
        "  words of other texts are split into these pieces, or become [UNK] if a "
        "character is neither ASCII nor in the files",
        "read back: same weights; outputs on a fixed batch differ by 0 at most",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "none.txt: no such file: expected files of texts"),
        ("empty.txt", b" \n", "--keep_tokens: the files hold no words: nothing to kee"),
        ("a.json", b"{", "a.json: expected JSON"),
        ("a.txt", b"\xff", "a.txt: .*UTF-8"),
    ],
)
def test_texts_that_cannot_be_used(run, tmp_path, capsys, name, content, message):
    path, small = tmp_path / name, tmp_path / "small"
    if content is not None:
        path.write_bytes(content)
    arguments = ["--input", str(run), "--output", str(small), "--to", "native"]
    assert cli.main(["convert", *arguments, "--keep_tokens", str(path)]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert not small.exists()


def test_models_that_cannot_be_pruned():
    checkpoint = make_checkpoint("encoder")
    for key, message in (
        ("vocabulary", "has no vocabulary, so nothing says which rows the texts need"),
        ("do_lower_case", "x: nothing in it says whether text is lower-cased"),
    ):
        lacking = dataclasses.replace(checkpoint, **{key: None})
        with pytest.raises(InputError, match=message):
            conversion.prune(lacking, ["w3"], path="x")

"""The Python of docs/from_transformers.md that is ours runs on small files, and
teaches what our own commands teach."""

import contextlib
import io
import re

import numpy as np
import pytest
import tensorflow as tf

import bert_keras
from bert_keras.training.step import optimization
from tests import test_pages

PAGE = "docs/from_transformers.md"


@pytest.fixture(scope="module")
def printed_and_scopes(tmp_path_factory):
    """What each block of Python printed, with its names."""
    directory, written = tmp_path_factory.mktemp("page"), io.StringIO()
    test_pages.write_inputs(directory)
    scopes = []
    # A few batches of a tiny network: a trace would take longer.
    tf.config.run_functions_eagerly(True)
    with contextlib.chdir(directory), contextlib.redirect_stdout(written):
        for block in test_pages.blocks(PAGE):
            if block.language == "python" and block.mark == "run":
                scopes.append({})
                exec(compile(block.text, PAGE, "exec"), scopes[-1])
        yield written.getvalue(), scopes
    tf.config.run_functions_eagerly(False)


pytestmark = pytest.mark.filterwarnings("ignore:Gradients do not exist")


def test_an_old_model_answers(printed_and_scopes):
    printed, _ = printed_and_scopes
    assert len(re.findall(r"^(?:bad|fine|good) \{'bad': 0\.", printed, re.M)) == 2


def test_what_fit_trained_is_a_run(printed_and_scopes):
    _, (_, classifier, tagger, _) = printed_and_scopes
    for scope, run, examples in (
        (classifier, "runs/by_fit", ["the road was a"]),
        (tagger, "runs/names_by_fit", [["the", "road", "to", "winter"]]),
    ):
        saved, model = bert_keras.load(run), scope["model"]
        assert saved.task.labels == tuple(scope["labels"])
        assert saved.predict(examples) == model.predict(examples)


def test_weights_that_decay_are_those_of_our_optimizer(printed_and_scopes):
    _, (_, classifier, *_) = printed_and_scopes
    theirs, ours = classifier["optimizer"], optimization.BertAdamW()
    weights = classifier["model"].network.trainable_variables
    decays = {weight.path: ours.decays(weight.path) for weight in weights}
    assert {w.path: theirs._use_weight_decay(w) for w in weights} == decays
    assert {*decays.values()} == {True, False}


def test_labels_of_the_tagger_are_those_of_our_reader(printed_and_scopes):
    _, (_, _, tagger, _) = printed_and_scopes
    model = tagger["model"]
    data = model.tuned.read("names/train.jsonl", has_labels=True)
    inputs = data.encode(model.task, model.tokenizer, model.tuned.settings)
    batch = inputs.batch(np.arange(2))
    for name, values in tagger["features"].items():
        np.testing.assert_array_equal(values, batch[name])
    np.testing.assert_array_equal(
        np.maximum(tagger["targets"], -1), np.maximum(batch["label_ids"], -1)
    )


def test_the_loss_of_the_masked_words_is_that_of_our_network(printed_and_scopes):
    _, (*_, words) = printed_and_scopes
    network, labels = words["model"].network, (words["ids"], words["weights"])
    features = {**words["batch"], **words["masked"]}
    outputs = network(features)
    masked = dict(zip(("masked_lm_ids", "masked_lm_weights"), labels, strict=True))
    pairs = np.zeros((len(words["texts"]), 1), "int32")
    targets = {**features, **masked, "next_sentence_labels": pairs}
    total, weight = network.loss_terms(targets, outputs)["masked_lm_loss"]
    loss = words["loss"](labels[0], outputs["masked_lm_logits"], labels[1])
    np.testing.assert_allclose(loss, total / weight, rtol=1e-6)
    assert weight == labels[1].sum() > 10

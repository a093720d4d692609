import json
import logging
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras import (
    config,
    features,
    inputs,
    manifest,
    masking,
    optimization,
    pretraining,
    tokenization,
    training,
)
from bert_keras.checkpoints import run_directory, training_state
from bert_keras.errors import InputError

TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
CPU = tf.distribute.OneDeviceStrategy("/cpu:0")


def settings(**changes):
    values = {
        "model": TINY,
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 2},
        "global_batch_size": 8,
        "num_train_steps": 12,
        "save_checkpoint_steps": 5,
        "shuffle_buffer_size": 100,
        **changes,
    }
    return config.build_config(config.PretrainingConfig, values)


def weights(run):
    """The trained weights and optimizer state that a run left behind."""
    newest = sorted((run / "checkpoints").glob("*.npz"))[-1]
    with np.load(newest) as arrays:
        return {name: arrays[name] for name in arrays.files}


def assert_same_state(first, second):
    first, second = weights(first), weights(second)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.fixture(scope="module")
def finished(tiny_examples, tmp_path_factory):
    """A finished run of 12 steps, with checkpoints after 5, 10 and 12."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    training.pretrain(settings(), tiny_examples, directory, strategy=CPU)
    return directory


def test_what_a_run_leaves_behind(finished):
    files = {p.relative_to(finished).as_posix() for p in finished.rglob("*")}
    assert files >= {
        "config.yaml",
        "bert_config.json",
        "vocab.txt",
        "tokenizer_config.json",
        "task.json",
        "model.weights.h5",
        "results.json",
        "checkpoints/step-0000000005.npz",
        "checkpoints/step-0000000010.npz",
        "checkpoints/step-0000000012.npz",
    }
    results = json.loads((finished / "results.json").read_text())
    assert results["steps"] == 12
    assert set(results["eval"]) == {
        "loss",
        "masked_lm_loss",
        "masked_lm_accuracy",
        "next_sentence_loss",
        "next_sentence_accuracy",
    }
    assert results["eval_baseline"]["commonest_token"]
    parameters = sum(
        value.size for name, value in weights(finished).items() if name[:7] == "weights"
    )
    assert results["num_parameters"] == parameters


def test_its_configuration_repeats_the_run(finished, tiny_examples, tmp_path):
    again = config.load_config(config.PretrainingConfig, finished / "config.yaml")
    training.pretrain(again, tiny_examples, tmp_path / "again", strategy=CPU)
    assert_same_state(finished, tmp_path / "again")


def test_a_resumed_run_ends_like_an_uninterrupted_one(
    finished, tiny_examples, tmp_path
):
    """As after a kill between steps 10 and 12: bit for bit, dropout and all."""
    resumed = tmp_path / "resumed"
    shutil.copytree(finished, resumed)
    for name in ("results.json", "model.weights.h5"):
        (resumed / name).unlink()
    (resumed / "checkpoints" / "step-0000000012.npz").unlink()
    training.pretrain(settings(), tiny_examples, resumed, strategy=CPU)
    assert_same_state(finished, resumed)


@pytest.mark.slow
def test_a_killed_run_ends_like_an_uninterrupted_one(tiny_examples, tmp_path):
    def command(name):
        options = settings(num_train_steps=400, save_checkpoint_steps=20)
        config.save_config(options, tmp_path / "config.yaml")
        return [
            *(sys.executable, "-m", "bert_keras.cli", "pretrain", "--strategy", "cpu"),
            *("--config", str(tmp_path / "config.yaml")),
            *("--examples", str(tiny_examples), "--output_dir", str(tmp_path / name)),
        ]

    subprocess.run(command("whole"), check=True)
    with subprocess.Popen(command("killed")) as process:
        while len(list((tmp_path / "killed").glob("checkpoints/*.npz"))) < 3:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "killed" / "results.json").exists()
    subprocess.run(command("killed"), check=True)
    assert_same_state(tmp_path / "whole", tmp_path / "killed")


def test_a_finished_run_is_left_as_it_is(finished, tiny_examples, caplog):
    before = {p: p.stat().st_mtime_ns for p in finished.glob("*.h5")}
    caplog.set_level(logging.INFO, logger="bert_keras")
    results = training.pretrain(settings(), tiny_examples, finished, strategy=CPU)
    assert results["steps"] == 12
    assert "finished already, at step 12" in caplog.text
    assert {p: p.stat().st_mtime_ns for p in finished.glob("*.h5")} == before


def test_a_directory_of_another_run_is_refused(finished, tiny_examples):
    with pytest.raises(InputError, match="with seed=12345 where this one has 2"):
        training.pretrain(settings(seed=2), tiny_examples, finished, strategy=CPU)


def test_masked_words_are_learnt(tiny_examples, tmp_path):
    results = training.pretrain(
        settings(
            num_train_steps=300,
            save_checkpoint_steps=300,
            global_batch_size=32,
            optimizer={"learning_rate": 2e-3, "warmup_steps": 30},
            model={**TINY, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0},
        ),
        tiny_examples,
        tmp_path / "run",
        strategy=CPU,
    )
    baseline = results["eval_baseline"]["masked_lm_accuracy"]
    assert results["eval"]["masked_lm_accuracy"] > 5 * baseline


def learner_after(num_steps, batches, *, strategy, seed=3):
    """A learner without dropout after some steps, every gradient clipped."""
    bert_config = config.BertConfig(
        vocab_size=49,
        **TINY,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    keras.utils.set_random_seed(seed)
    learner = training.build_learner(
        lambda: pretraining.BertPretrainer(bert_config, seed=seed, name="p"),
        next(iter(batches)),
        optimizer=lambda: optimization.build_optimizer(
            config.OptimizerConfig(learning_rate=1e-3, warmup_steps=1),
            num_train_steps=100,
        ),
        max_grad_norm=0.5,
        strategy=strategy,
    )
    collected = []
    collect = keras.callbacks.Callback()
    collect.on_train_batch_end = lambda batch, logs=None: collected.append(dict(logs))
    training.fit(
        learner,
        batches,
        num_train_steps=num_steps,
        steps_per_epoch=num_steps,
        evaluation=None,
        run_callbacks=[collect],
    )
    return learner, collected


def uneven_batches(tiny_examples):
    """Batches whose halves hold very different numbers of predictions."""
    made = manifest.read_manifest(tiny_examples, kind="examples", verb="examples")
    vocabulary = tokenization.Vocabulary.load(tiny_examples / "vocab.txt")
    batches = inputs.training_batches(
        inputs.read_shards(tiny_examples, made),
        config=features.examples_config(made.config, origin="manifest.json"),
        vocabulary=masking.masking_vocabulary(vocabulary),
        batch_size=8,
        shuffle_buffer_size=10,
        seed=1,
    )

    def unbalance(batch):
        first_half = tf.cast(tf.range(8)[:, None] < 4, tf.float32)
        first_slot = tf.cast(tf.range(5)[None] < 1, tf.float32)
        keep = first_half + (1 - first_half) * first_slot
        return {**batch, "masked_lm_weights": batch["masked_lm_weights"] * keep}

    return batches.map(unbalance)


def test_one_batch_is_learnt_by_heart(tiny_examples):
    batches = uneven_batches(tiny_examples).take(1).cache().repeat()
    _, logs = learner_after(90, batches, strategy=CPU)
    assert logs[-1]["masked_lm_accuracy"] == 1
    assert logs[-1]["next_sentence_accuracy"] == 1


def test_two_replicas_equal_one_device(tiny_examples):
    """With clipping, repeated ids, and unequal numbers of predictions."""
    batches = uneven_batches(tiny_examples)
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    one, one_logs = learner_after(5, batches, strategy=CPU)
    two, two_logs = learner_after(5, batches, strategy=mirrored)
    for a, b in zip(one.trainable_variables, two.trainable_variables, strict=True):
        a, b = keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b)
        np.testing.assert_allclose(a, b, atol=1e-6, err_msg="weights")
    for a, b in zip(one_logs, two_logs, strict=True):
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=2e-4, err_msg=name)


def test_the_first_batch_is_trained_on(tiny_examples):
    """Stock fit under a strategy draws a batch to look at its shapes and drops it."""
    batches = uneven_batches(tiny_examples)
    learner, logs = learner_after(1, batches, strategy=CPU)
    fresh, _ = learner_after(0, batches, strategy=CPU)
    batch = next(iter(batches))
    terms = fresh.network.loss_terms(batch, fresh(batch))
    total, weight = terms["masked_lm_loss"]
    np.testing.assert_allclose(logs[0]["masked_lm_loss"], total / weight, rtol=1e-5)


def test_a_mean_over_uneven_batches_counts_every_prediction(tiny_examples):
    batches = uneven_batches(tiny_examples)
    learner, _ = learner_after(0, batches, strategy=CPU)
    found = learner.evaluate(batches.take(3).repeat(), steps=3, return_dict=True)
    sums = {name: np.zeros(2) for name in found if name != "loss"}
    for batch in batches.take(3):
        for name, pair in learner.network.loss_terms(batch, learner(batch)).items():
            sums[name] += [float(part) for part in pair]
    for name, (total, weight) in sums.items():
        np.testing.assert_allclose(found[name], total / weight, rtol=1e-5)
    expected = found["masked_lm_loss"] + found["next_sentence_loss"]
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-6)


class TestState:
    def test_a_checkpoint_of_another_model(self, finished):
        variables = {"weights/a": keras.Variable(np.zeros(3), name="a")}
        path = sorted((finished / "checkpoints").glob("*.npz"))[0]
        message = (
            r"of another model, \d+ variables differ: .* in the file, nothing here"
        )
        with pytest.raises(InputError, match=message):
            training_state.restore_state(path, variables)

    def test_another_shape_changes_nothing(self, tmp_path):
        path = tmp_path / "s.npz"
        old = {"a": keras.Variable([1.0, 2.0]), "b": keras.Variable([1.0])}
        training_state.save_state(path, old)
        new = {"a": keras.Variable([7.0, 8.0]), "b": keras.Variable([1.0, 2.0])}
        with pytest.raises(InputError, match=r"b: \(1,\) in the file, \(2,\) here"):
            training_state.restore_state(path, new)
        np.testing.assert_array_equal(new["a"], [7.0, 8.0])

    def test_a_file_that_was_cut(self, tmp_path):
        path = tmp_path / "s.npz"
        training_state.save_state(path, {"a": keras.Variable(np.zeros(100))})
        path.write_bytes(path.read_bytes()[:200])
        with pytest.raises(InputError, match="cannot be read as a checkpoint"):
            training_state.restore_state(path, {"a": keras.Variable(np.zeros(100))})

    def test_no_pickle_is_loaded(self, tmp_path):
        path = tmp_path / "s.npz"
        np.savez(path, a=np.array([{"a": 1}], dtype=object))
        with pytest.raises(InputError, match="cannot be read as a checkpoint"):
            training_state.restore_state(path, {"a": keras.Variable([0.0])})


class TestUnusableInput:
    def pretrain(self, examples, tmp_path, vocab_path=None, **changes):
        return training.pretrain(
            settings(**changes),
            examples,
            tmp_path / "run",
            strategy=CPU,
            vocab_path=vocab_path,
        )

    @pytest.fixture
    def copied(self, tiny_examples, tmp_path):
        return shutil.copytree(tiny_examples, tmp_path / "examples")

    def test_no_manifest(self, copied, tmp_path):
        (copied / "manifest.json").unlink()
        with pytest.raises(
            InputError, match="not a finished output of `bert-keras exam"
        ):
            self.pretrain(copied, tmp_path)

    def test_a_changed_shard(self, copied, tmp_path):
        path = sorted(copied.glob("*.tfrecord"))[1]
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        with pytest.raises(InputError, match=f"{path.name}: sha256 .* was changed"):
            self.pretrain(copied, tmp_path)

    def test_another_vocabulary(self, tiny_examples, tiny_vocab, tmp_path):
        other = tmp_path / "vocab.txt"
        other.write_text(tiny_vocab.read_text() + "more\n")
        message = "50 entries, not the vocabulary that .* was made with .49 entries"
        with pytest.raises(InputError, match=message):
            self.pretrain(tiny_examples, tmp_path, vocab_path=other)

    def test_a_model_with_too_few_tokens(self, tiny_examples, tmp_path):
        with pytest.raises(InputError, match="`model.vocab_size` is 20.*49 entries"):
            self.pretrain(tiny_examples, tmp_path, model={**TINY, "vocab_size": 20})

    def test_sequences_longer_than_the_position_table(self, tiny_examples, tmp_path):
        message = "sequences of 32 tokens, but `model.max_position_embeddings` is 16"
        with pytest.raises(InputError, match=message):
            model = {**TINY, "max_position_embeddings": 16}
            self.pretrain(tiny_examples, tmp_path, model=model)

    def test_nothing_that_looks_finished_is_left(self, copied, tmp_path):
        (copied / "manifest.json").unlink()
        with pytest.raises(InputError):
            self.pretrain(copied, tmp_path)
        with pytest.raises(InputError, match="expected a run directory made by"):
            run_directory.read_run(
                tmp_path / "run", kinds=("pretraining",), verb="pretrain"
            )

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import types

import pytest
import tensorflow as tf

from bert_keras.checkpoints import conversion, native, run_directory
from bert_keras.core import files, stores
from bert_keras.core.errors import InputError, Stopped, Unavailable
from bert_keras.core.settings import loading, pipelines, pretraining
from bert_keras.training.pretraining import phases, text_sample
from bert_keras.training.step import learner, optimization
from tests import conftest, make
from tests.bert_keras.report import test_diagnosis
from tests.bert_keras.training import test_resumed_runs as resuming
from tests.bert_keras.training.step import test_learner
from tests.bert_keras.training.tensorboard import test_panels

TINY = conftest.PRETRAINING["model"]


def test_what_a_run_leaves_behind(pretrained_run):
    files = {
        p.relative_to(pretrained_run).as_posix() for p in pretrained_run.rglob("*")
    }
    assert files >= {
        "config.yaml",
        "bert_config.json",
        "vocab.txt",
        "tokenizer_config.json",
        "task.json",
        "model.safetensors",
        "environment.json",
        "results.json",
        "checkpoints/step-0000000005.safetensors",
        "checkpoints/step-0000000010.safetensors",
        "checkpoints/step-0000000012.safetensors",
    }
    results = run_directory.read_results(pretrained_run)
    assert results["steps"] == 12
    assert set(results["eval"]) == {
        "loss",
        "masked_lm_loss",
        "masked_lm_accuracy",
        "next_sentence_loss",
        "next_sentence_accuracy",
    }
    assert results["eval_baseline"]["commonest_token"]
    environment = results["environment"]
    assert environment["devices"] == "1 CPU (OneDeviceStrategy)"
    assert environment["examples"][0].startswith("/")
    parameters = sum(
        value.size
        for name, value in resuming.newest_state(pretrained_run).items()
        if name.startswith("weights/")
    )
    assert results["num_parameters"] == parameters


def test_muon_is_told_the_precision(tiny_examples, tmp_path, monkeypatch):
    def build(optimizer, *, num_train_steps, precision):
        raise Stopped(f"{optimizer.name} in {precision}")

    monkeypatch.setattr(optimization, "build_optimizer", build)
    muon = {"name": "muon", "warmup_steps": 0}
    options = make.pretraining_config(precision="mixed_bfloat16", optimizer=muon)
    with pytest.raises(Stopped, match="^muon in mixed_bfloat16$"):
        make.pretrain([tiny_examples], tmp_path / "run", options)


def test_the_checkpoint_before_the_decay_stays(tiny_examples, tmp_path):
    """Also in a run that went on just before it, and `--init` can go on from it."""
    changes = make.pretraining_config(
        optimizer={**conftest.PRETRAINING["optimizer"], "decay_steps": 5},
        num_best_checkpoints=0,
        num_checkpoints=1,
        save_checkpoint_steps=6,
    )
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    make.pretrain([tiny_examples], whole, changes)
    resuming.broken_off(whole, resumed, 7)
    make.pretrain([tiny_examples], resumed, changes)
    resuming.assert_same_state(whole, resumed)
    for run in (whole, resumed):
        paths = sorted(run.glob("checkpoints/*.safetensors"))
        assert [int(path.stem.removeprefix("step-")) for path in paths] == [7, 12]
    init = conversion.init(paths[0])
    make.pretrain([tiny_examples], tmp_path / "other", init=init)
    assert json.loads((tmp_path / "other/inputs.json").read_text())["init_sha256"]


def test_a_finished_run_is_left_as_it_is(
    pretrained_run, tiny_examples, tmp_path, caplog
):
    """`pretrained_run` is seen to be unchanged at the end of all tests."""
    caplog.set_level(logging.INFO, logger="bert_keras")
    assert make.pretrain([tiny_examples], pretrained_run)["steps"] == 12
    assert "finished already, at step 12" in caplog.text
    with pytest.raises(InputError, match="with seed=12345 where this one has 2"):
        make.pretrain([tiny_examples], pretrained_run, make.pretraining_config(seed=2))
    facts = json.loads((pretrained_run / "inputs.json").read_text())
    begun = {**facts, "examples_sha256": "ab" * 32}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/inputs.json").write_text(json.dumps(begun))
    message = "other: begun by another run, with other contents of --examples: give the"
    with pytest.raises(InputError, match=message):
        make.pretrain([tiny_examples], tmp_path / "other")


def test_shards_are_hashed_once_for_a_run_and_machine(
    pretrained_run, tiny_examples, tmp_path, monkeypatch
):
    """And again if asked, or on another machine; a size is checked every time."""
    run, hashed, sha256 = tmp_path / "run", [], files.sha256

    def note(path):
        hashed.append(path)
        return sha256(path)

    def hashes(examples=tiny_examples, **options):
        hashed.clear()
        make.pretrain([examples], run, **options)
        return len(hashed)

    shutil.copytree(pretrained_run, run)
    shutil.rmtree(run / "verified")
    monkeypatch.setattr(files, "sha256", note)
    assert [hashes(), hashes(), hashes(verify=True)] == [3, 0, 3]
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert [hashes(), hashes()] == [3, 0]
    copied = shutil.copytree(tiny_examples, tmp_path / "examples")
    with open(sorted(copied.glob("*.tfrecord"))[1], "ab") as file:
        file.write(b"x")
    with pytest.raises(InputError, match="bytes, manifest.json says"):
        hashes(copied)


@pytest.fixture(scope="module")
def both(tiny_examples, examples_of):
    """The documents of `tiny_examples` in examples of 32 and of 64 tokens."""
    return [tiny_examples, examples_of(max_seq_length=64, dupe_factor=1)]


def two_phases(**changes):
    return make.pretraining_config(
        **{
            "model": {**TINY, "max_position_embeddings": 64},
            "num_train_steps": 18,
            "phases": [
                {"fraction": 0.75},
                {"fraction": 0.25, "gradient_accumulation_steps": 2},
            ],
            **changes,
        }
    )


@pytest.fixture(scope="module")
def whole(both, tmp_path_factory):
    """A finished run of two phases."""
    directory = tmp_path_factory.mktemp("phases") / "run"
    results = make.pretrain(both, directory, two_phases())
    assert results["steps"] == 18
    return directory


SHORT = {
    "num_train_steps": 4,
    "save_checkpoint_steps": 4,
    "num_eval_steps": 1,
    "phases": [{"fraction": 0.5}, {"fraction": 0.5}],
    "optimizer": {"warmup_steps": 1},
}


@pytest.mark.slow
def test_the_largest_phase_is_tried_before_the_first_step(both, tmp_path, monkeypatch):
    """A step of zeros, which leaves no trace."""
    options = two_phases(**SHORT)
    tried, placeholders = [], phases.Phase.placeholder_batches

    def note(*args):
        made = placeholders(*args)
        tried.append([tuple(b.element_spec["input_ids"].shape) for b in made])
        return made

    monkeypatch.setattr(phases.Phase, "placeholder_batches", note)
    make.pretrain(both, tmp_path / "tried", options)
    assert tried == [[(8, 64), (8, 64)]]
    monkeypatch.setattr(phases, "largest", lambda planned: planned[0])
    make.pretrain(both, tmp_path / "not", options)
    resuming.assert_same_state(tmp_path / "tried", tmp_path / "not")


def test_which_positions_are_continued():
    """Those that no earlier phase trained, where asked, of a table of our own."""
    for option, lengths, is_further, expected in (
        ("extrapolate", (32, 64), False, 32),
        ("none", (32, 64), False, 0),
        ("extrapolate", (32, 64), True, 0),
        ("extrapolate", (32,), False, 0),
        ("extrapolate", (64, 32, 64), False, 64),
    ):
        planned = [
            types.SimpleNamespace(
                settings=make.pretraining_config(grow_positions=option),
                examples=types.SimpleNamespace(max_seq_length=length),
                first_step=step,
                last_step=step + 1,
            )
            for step, length in enumerate(lengths)
        ]
        found = phases.num_positions_before(
            planned, planned[-1], is_further_training=is_further
        )
        assert found == expected


@pytest.mark.parametrize(
    ("is_further", "messages"),
    [(False, ["usual masked-LM losses at step 4000: 2.6 to 3.9"]), (True, [])],
)
def test_the_log_says_which_losses_are_usual(is_further, messages, tmp_path, caplog):
    """Of a model that was trained before nobody knows."""
    sample = json.dumps(test_diagnosis.SOUND)
    (tmp_path / "text_sample.json").write_text(sample)
    settings = types.SimpleNamespace(model_dump=lambda mode: test_diagnosis.flat())
    phase = types.SimpleNamespace(settings=settings, last_step=4000)
    with caplog.at_level(logging.INFO):
        text_sample.check_start(tmp_path, phase, is_further_training=is_further)
    assert caplog.messages == messages


@pytest.mark.slow
def test_continued_positions_resume_to_the_same_bits(whole, both, tmp_path):
    """Before, at and after the change (0.75 * 18), which no execution crosses; on two
    devices too. Before the change, the run is the paper's."""
    changes = {"num_checkpoints": 9, "steps_per_execution": 3}
    grows = two_phases(grow_positions="extrapolate", **changes)
    grown = tmp_path / "grown"
    make.pretrain(both, grown, grows)
    names = [path.name for path in sorted(grown.glob("checkpoints/*.safetensors"))]
    assert names == [f"step-{step:010}.safetensors" for step in (5, 10, 14, 15, 18)]
    resuming.assert_same_state(
        resuming.broken_off(whole, tmp_path / "without", 14),
        resuming.broken_off(grown, tmp_path / "with", 14),
    )
    with pytest.raises(AssertionError):
        resuming.assert_same_state(whole, grown, atol=1e-3)
    for last in (10, 14, 15):
        resumed = resuming.broken_off(grown, tmp_path / f"resumed_{last}", last)
        make.pretrain(both, resumed, grows)
        resuming.assert_same_state(grown, resumed)
    replicated = resuming.broken_off(grown, tmp_path / "replicated", 10)
    make.pretrain(both, replicated, grows, strategy=test_learner.mirrored(2))
    resuming.assert_same_state(grown, replicated, atol=1e-6)


def test_a_device_without_memory_for_the_largest_phase(
    tiny_examples, tmp_path, monkeypatch
):
    """It is tried before the first step; what the message says helps."""

    def make_steps(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM, allocating")

    monkeypatch.setattr(learner.Learner, "make_steps", make_steps)
    message = (
        "a device has no memory for 16 examples of 32 tokens at once: set "
        r"`gradient_accumulation_steps` \(here 1\) to 2 and run the same command"
    )
    larger = {"fraction": 0.5, "global_batch_size": 16}
    options = make.pretraining_config(phases=[{"fraction": 0.5}, larger])
    both, run = [tiny_examples] * 2, tmp_path / "run"
    with pytest.raises(InputError, match=message):
        make.pretrain(both, run, options)


def test_examples_of_a_store_that_stay_away(tiny_examples, monkeypatch, memory_store):
    examples = f"{memory_store}/examples"
    for path in tiny_examples.iterdir():
        files.write_atomically(files.join(examples, path.name), path.read_bytes())
        # For TensorFlow's own readers.
        with tf.io.gfile.GFile(files.join(examples, path.name), "wb") as file:
            file.write(path.read_bytes())

    def make_steps(*_, **__):
        text = "All 10 retry attempts failed when reading ram://one/examples/a"
        raise tf.errors.UnavailableError(None, None, text)

    monkeypatch.setattr(stores, "GIVES_UP_SECONDS", 0)
    monkeypatch.setattr(stores.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(learner.Learner, "make_steps", make_steps)
    message = r"ram://.*/examples: .*retry attempts failed.*; run the same command"
    with pytest.raises(Unavailable, match=message):
        make.pretrain([examples], f"{memory_store}/run")


@pytest.mark.slow
def test_sigterm_writes_a_checkpoint(pretrained_run, tiny_examples, tmp_path, at_step):
    """Before the evaluation and the pictures of this step, which the resumed run makes.
    The configuration that another run wrote repeats that run."""
    again = loading.load(pretraining.PretrainingConfig, pretrained_run / "config.yaml")
    run = tmp_path / "run"
    at_step(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match="stopped by SIGTERM at step 5"):
        make.pretrain([tiny_examples], run, again)
    assert [path.stem for path in run.glob("checkpoints/step-*")] == ["step-0000000005"]
    assert not (run / "results.json").exists()
    make.pretrain([tiny_examples], run, again)
    resuming.assert_same(run, pretrained_run)
    ours, theirs = (
        test_panels.values(each / "logs" / "panels", "attention/")
        for each in (run, pretrained_run)
    )
    assert ours.keys() == theirs.keys()


def test_numbers_that_are_not_finite_end_the_run(tiny_examples, tmp_path):
    """An infinite learning rate: the first update with it spoils the weights."""
    options = make.pretraining_config(
        optimizer={"learning_rate": 1e38, "warmup_steps": 6},
        max_skipped_steps=2,
        save_checkpoint_steps=1,
        evaluate_steps=1000,
    )
    message = (
        r"step \d+: the loss or a gradient was not finite in 3 steps in a row, whose "
        r"batches came from .*examples-0000\d-of-00003.tfrecord.*; the last checkpoint "
        r"is .*step-\d+.safetensors: lower `optimizer.learning_rate`, or look at"
    )
    with pytest.raises(InputError, match=message):
        make.pretrain([tiny_examples], tmp_path / "run", options)


@pytest.mark.slow
def test_left_to_right(tiny_examples, tmp_path):
    """Without next sentences, as in the paper's table 5. Sentences count up through the
    words: the next one can be known."""
    without_dropout = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    results = make.pretrain(
        [tiny_examples],
        tmp_path / "run",
        make.pretraining_config(
            model={**TINY, "attention": "left_to_right", **without_dropout},
            next_sentence=False,
            num_train_steps=150,
            save_checkpoint_steps=150,
            optimizer={"learning_rate": 3e-3, "warmup_steps": 10},
        ),
    )
    assert set(results["eval"]) == {"loss", "masked_lm_loss", "masked_lm_accuracy"}
    assert results["eval"]["masked_lm_accuracy"] > 0.5


def test_unusable_input(tiny_examples, tiny_vocab, tmp_path):
    """Nothing that looks finished is left."""
    copied = shutil.copytree(tiny_examples, tmp_path / "examples")
    other, run = tmp_path / "vocab.txt", tmp_path / "run"
    other.write_text(tiny_vocab.read_text() + "more\n")
    plan = [{"fraction": 0.75}, {"fraction": 0.25}]

    def check(message, *, directories=(copied,), vocab_path=None, **changes):
        with pytest.raises(InputError, match=message):
            options = make.pretraining_config(**changes)
            make.pretrain(directories, run, options, vocab_path=vocab_path)

    message = "50 entries, not the vocabulary that .* was made with .49 entries"
    check(message, vocab_path=other)
    message = "`model.vocab_size` is 20.*49 entries"
    check(message, model={**TINY, "vocab_size": 20})
    message = "sequences of 32 tokens, but `model.max_position_embeddings` is 16"
    check(message, model={**TINY, "max_position_embeddings": 16})
    message = "3 directories .*`phases` has 2: give one"
    check(message, directories=[copied] * 3, phases=plan)
    path = sorted(copied.glob("*.tfrecord"))[1]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    check(f"{path.name}: sha256 .* was changed")
    (copied / "manifest.json").unlink()
    check("not a finished output of `bert-keras exam")
    with pytest.raises(InputError, match="expected a run directory made by"):
        native.read_finished_run(run)


def test_several_hosts_of_a_tpu_cannot_mask(monkeypatch):
    tpu = object.__new__(tf.distribute.TPUStrategy)
    message = (
        "gs://b/examples: examples with masking=dynamic are masked by this process as "
        "it reads them, but a TPU of 4 hosts reads on all of them: make the examples "
        "with masking=static"
    )
    for num_hosts, masking in ((4, "dynamic"), (4, "static"), (1, "dynamic")):
        extended = types.SimpleNamespace(num_hosts=num_hosts)
        monkeypatch.setattr(tf.distribute.TPUStrategy, "extended", extended)
        made = pipelines.ExamplesConfig(masking=masking)
        phase = types.SimpleNamespace(examples=made, directory="gs://b/examples")
        refused = pytest.raises(InputError, match=f"^{message}$")
        is_refused = num_hosts > 1 and masking == "dynamic"
        with refused if is_refused else contextlib.nullcontext():
            phases.check_hosts(tpu, [phase])

"""Fine-tuning on tiny networks that really train, and what is done with the result."""

import dataclasses
import io
import json
import logging
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

from bert_keras.checkpoints import (
    conversion,
    native,
    run_directory,
    starting_point,
    weights,
)
from bert_keras.core.errors import InputError
from bert_keras.core.settings import (
    architecture,
    finetuning,
    loading,
    pretraining,
    tasks,
)
from bert_keras.data import features, tokenization
from bert_keras.inference import finetuned
from bert_keras.kinds.text import network as text_network
from bert_keras.report import scalar_log, task_summaries, writing
from bert_keras.training.step import precision
from tests import make
from tests.bert_keras.kinds.kind_data import BAD, FILLER, GOOD

VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *GOOD, *BAD, *FILLER, *"bcdefghij", "##x", ".", ",")
)
BERT_CONFIG = make.small_config(
    len(VOCABULARY), hidden_size=32, intermediate_size=64, max_position_embeddings=64
)
SETTINGS = finetuning.FinetuningConfig(
    max_seq_length=24, batch_size=16, num_train_epochs=6, learning_rate=2e-3
)


def make_init(
    directory: Path, bert_config: architecture.BertConfig, *, next_sentence: bool = True
) -> Path:
    settings = pretraining.PretrainingConfig(next_sentence=next_sentence)
    options = {"bert_config": bert_config, "kind": "pretraining", "seed": 7}
    return make.make_run(directory, VOCABULARY, settings=settings, **options)


def opinions(
    num_rows: int, *, seed: int, longest: int = 19, is_late: bool = False
) -> list[tuple[str, str]]:
    """Sentences of 3 words and more, one of which gives the label away."""
    rng = random.Random(seed)
    rows = []
    for index in range(num_rows):
        words = rng.choices(FILLER, k=rng.randint(2, longest))
        label, telling = (("good", GOOD), ("bad", BAD))[index % 2]
        place = len(words) - rng.randrange(2) if is_late else rng.randrange(len(words))
        words.insert(place, rng.choice(telling))
        rows.append((" ".join(words), label))
    return rows


def write_tsv(path: Path, rows, header=("text", "label")) -> Path:
    lines = ["\t".join(map(str, row)) for row in (header, *rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def scalars(run: Path) -> dict[str, float]:
    """Scalars of the last step in the curves, by their names without a section."""
    curves = scalar_log.read_log(run / "logs/train").scalars.items()
    curves = {tag: c for tag, c in curves if not tag.startswith("speed/")}
    return {tag.partition("/")[2]: float(c.values[-1]) for tag, c in curves.items()}


def run_finetune(
    init: Path,
    train: Path,
    dev: Path | str | list,
    output_dir: Path,
    *,
    settings=SETTINGS,
    from_scratch=False,
    strategy=None,
    **changes,
) -> dict:
    settings = settings.model_copy(update=changes)
    if settings.task != "span":
        # Other kinds refuse them.
        settings = settings.model_copy(update={"span": finetuning.SpanConfig()})
    return make.finetune(
        settings,
        train=train,
        dev=dev if isinstance(dev, list) else [dev],
        init=init,
        from_scratch=from_scratch,
        output_dir=output_dir,
        strategy=strategy,
    )


@pytest.fixture(scope="module")
def opinion_files(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("opinions")
    return (
        write_tsv(folder / "train.tsv", opinions(800, seed=1)),
        write_tsv(folder / "dev.tsv", opinions(51, seed=2)),
    )


@pytest.fixture(scope="module")
def tuned_run(init, opinion_files, tmp_path_factory) -> tuple[Path, dict]:
    directory = tmp_path_factory.mktemp("tuned") / "run"
    return directory, run_finetune(init, *opinion_files, directory)


def test_an_easy_task_is_learnt(tuned_run):
    directory, results = tuned_run
    assert results["eval"]["accuracy"] == 1.0
    assert results["eval"]["f1 of good"] == results["eval"]["matthews"] == 1.0
    assert results["eval"]["loss"] < 0.1
    assert results["steps"] == 6 * 50
    assert results["num_train_examples"] == 800
    assert results["num_eval_examples"] == 51
    assert run_directory.read_results(directory) == results
    # Of the last step in the curves, which the last one is here.
    assert results["train"] == scalars(directory)
    assert {"loss", "accuracy", "learning_rate", "gradient_norm"} < {*results["train"]}
    task = native.read_finished_run(directory).task
    assert task.labels == ("bad", "good")
    assert not task.has_text_pair


@pytest.mark.slow
def test_the_report_describes_the_data(tuned_run, tmp_path):
    page = (
        writing.write_report(tuned_run[0], tmp_path / "r") / "report.md"
    ).read_text()
    assert "## Data\n\n![Data](data.png)\n\nNo problem was found." in page
    assert (tmp_path / "r/data.png").read_bytes().startswith(b"\x89PNG")


def test_one_update(init, opinion_files, tmp_path, caplog):
    """From another format, on a part of a file, evaluated on another part.

    Adam's first step is the rate, and without its correction the rate times 3.16.
    """
    caplog.set_level(logging.INFO, logger="bert_keras")
    train, converted, run = opinion_files[0], tmp_path / "hf", tmp_path / "run"
    conversion.convert(init, converted, to="hugging_face")
    options = {
        **{"learning_rate": 1e-3, "warmup_proportion": 0, "weight_decay_rate": 0},
        **{"num_train_epochs": 1, "train_fraction": 0.02},
    }
    results = run_finetune(converted, train, "20%", run, **options)
    assert results["steps"] == 1
    assert largest_update(init, run) == pytest.approx(1e-3 * 0.1 / 0.001**0.5, rel=0.2)

    num_train, num_eval = results["num_train_examples"], results["num_eval_examples"]
    assert 12 <= num_train <= 14
    said = [record.getMessage() for record in caplog.records]
    counts = next(x for x in said if x.startswith(f"train.tsv: {num_train} texts"))
    assert said.index(counts) < said.index(
        f"fine-tuning on {num_train} examples, evaluating on {num_eval}"
    )
    assert results["environment"]["dev"] == [f"{train}, 20% held out"]
    assert json.loads((run / "inputs.json").read_text())["dev_sha256"] == ["20%"]
    rows = train.read_text().splitlines()
    lines = (run / "dev_answers.jsonl").read_text().splitlines()
    assert 100 < len(lines) == num_eval < 220
    for answer in map(json.loads, lines):
        assert rows[answer["line"] - 1].split("\t")[0] == answer["text"]

    # The same weights in our own format begin the same run.
    run_finetune(init, train, "20%", run, **options)
    assert "finished already" in caplog.text


def largest_update(before: Path, after: Path) -> float:
    """Of a weight of the layers; epsilon makes it a little less for small gradients."""
    before, after = (conversion.read(path).arrays for path in (before, after))
    layers = [name for name in after if name.startswith("encoder/layer_")]
    return max(np.abs(after[name] - before[name]).max() for name in layers)


def test_predict_answers_every_row_in_order(tuned_run, tmp_path):
    directory, _ = tuned_run
    rows = [*opinions(51, seed=2), ("", "whatever"), ("日本 \u2028 é", "")]
    write_tsv(tmp_path / "new.tsv", [(label, words) for words, label in rows], HEADER)
    finetuned.predict(directory, tmp_path / "new.tsv", tmp_path / "answers.tsv")
    lines = (tmp_path / "answers.tsv").read_text().removesuffix("\n").split("\n")
    assert lines[0] == "label\ttext\tprediction\tp(bad)\tp(good)"
    assert [line.split("\t")[1] for line in lines[1:]] == [words for words, _ in rows]
    answers = [line.split("\t")[2:] for line in lines[1:]]
    assert [a[0] for a in answers[:51]] == [label for _, label in rows[:51]]
    for prediction, bad, good in answers:
        assert float(bad) + float(good) == pytest.approx(1, abs=2e-6)
        assert prediction == ("bad" if float(bad) > float(good) else "good")
    assert len(answers) == 53


HEADER = ("label", "text")


def test_predict_takes_other_formats_and_standard_input(
    tuned_run, tmp_path, monkeypatch, capsys
):
    def predict(text, output):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        finetuned.predict(directory, "-", output)

    directory = tmp_path / "hugging_face"
    conversion.convert(tuned_run[0], directory, to="hugging_face")
    lines = b'{"id": 7, "text": "a fine plot"}\n{"text": "so weak", "by": "me"}\n'
    predict(lines, tmp_path / "out.jsonl")
    found = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    model = finetuned.FinetunedModel.load(tuned_run[0])
    given = {"id": 7, "text": "a fine plot"}, {"text": "so weak", "by": "me"}
    records = model.predict([row["text"] for row in given])
    for answer, row, record in zip(found, given, records, strict=True):
        expected = row | {"prediction": record.prediction}
        odds = {f"p({name})": p for name, p in record.probabilities.items()}
        assert {k: v for k, v in answer.items() if k not in odds} == expected
        assert {k: answer[k] for k in odds} == pytest.approx(odds, abs=2e-6)
    predict(b"text\nso weak\n", "-")
    header, line = capsys.readouterr().out.splitlines()
    assert header.split("\t")[:2] == ["text", "prediction"]
    assert line.split("\t")[:2] == ["so weak", records[1].prediction]
    with pytest.raises(InputError, match="^standard input: no column 'text' "):
        predict(b"texts\nso weak\n", "-")
    encoder = dataclasses.replace(
        conversion.read(directory), task=tasks.Task(kind="encoder")
    )
    monkeypatch.setattr(conversion, "read", lambda path: encoder)
    with pytest.raises(InputError, match="_face: expected a model that was tuned on a"):
        finetuned.FinetunedModel.load(directory)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights_in_a_run_begun_anew(
    init, opinion_files, tmp_path
):
    """A finished run is left; an unfinished one begins anew, and ends alike."""

    def run(name, **changes):
        options = {"num_train_epochs": 0.06, "learning_rate": 1e-4, **changes}
        results = run_finetune(init, *opinion_files, tmp_path / name, **options)
        return results, finetuned.FinetunedModel.load(
            tmp_path / name
        ).network.get_weights()

    (results, first), directory = run("run"), tmp_path / "run"
    before = (directory / "model.safetensors").stat().st_mtime_ns
    assert run("run")[0] == results
    assert (directory / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(InputError, match="already, with another `num_train_epochs`"):
        run("run", num_train_epochs=0.4)
    (directory / "results.json").unlink()
    again, second = run("run")
    assert again["eval"] == results["eval"]
    assert len(list((directory / "logs" / "train").glob("events*"))) == 1
    _, other = run("other", seed=1)
    _, scratch = run("scratch", from_scratch=True)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    table = first[0] - other[0]
    assert 0 < np.abs(table).max() < 0.02  # both began with the same encoder
    assert np.abs(first[0] - scratch[0]).max() > 0.05  # this one did not


@pytest.mark.slow
def test_in_parts_padded_or_compiled_a_training_is_the_same(opinion_files, tmp_path):
    """Three steps, the last one with two rows; the curves have the first."""
    # Larger weights would make more of the last bits, which padding changes: the norm
    # of the first gradient by 1.5e-4.
    init = make_init(tmp_path / "init", BERT_CONFIG)
    train = write_tsv(tmp_path / "train.tsv", opinions(40, seed=1))

    def trained(name, **changes):
        changes = {"batch_size": 19, "num_train_epochs": 1, **changes}
        found = run_finetune(
            *(init, train, opinion_files[1], tmp_path / name), **changes
        )
        numbers = [found["train"][key] for key in ("loss", "gradient_norm")]
        return [*numbers, found["eval"]["loss"]]

    whole = trained("whole")
    for name, changes in (
        ("parts", {"gradient_accumulation_steps": 7}),
        ("compiled", {"jit_compile": True}),
    ):
        found = trained(name, length_multiple=8, **changes)
        assert found == pytest.approx(whole, rel=3e-4)
    other = trained("other", max_grad_norm=1e-3, hidden_dropout_prob=0.5)
    assert other[1] != pytest.approx(whole[1], rel=1e-2)
    written = loading.read_bert_config(tmp_path / "other" / "bert_config.json")
    assert written.hidden_dropout_prob == 0.5
    assert written.attention_probs_dropout_prob == 0.1


def test_the_encoder_is_taken_and_the_rest_is_made_new(tuned_run, tmp_path, caplog):
    """Of another fine-tuning, and of a pre-training whose pooler nobody trained."""
    without = make_init(tmp_path / "init", BERT_CONFIG, next_sentence=False)
    for path, new in (
        (tuned_run[0], ("head/",)),
        (without, ("encoder/pooler/", "head/")),
    ):
        source = conversion.read(path)
        network = text_network.BertClassifier(BERT_CONFIG, 2, dropout_prob=0.0, seed=3)
        network.build()
        fresh = weights.from_network(network)
        starting_point.assign(network, starting_point.encoder_arrays(source), path=path)
        for name, array in weights.from_network(network).items():
            expected = (fresh if name.startswith(new) else source.arrays)[name]
            np.testing.assert_array_equal(array, expected, err_msg=name)
    said = [message for message in caplog.messages if "initialized from" in message]
    assert said == [f"{without}: has no encoder/pooler; initialized from the seed"]


@pytest.mark.slow
def test_regression_on_pairs(init, tmp_path):
    """Only the second text tells the number."""

    def pairs(num_rows, seed):
        for index, (words, label) in enumerate(opinions(num_rows, seed=seed)):
            first = FILLER[index % len(FILLER)]
            yield {"a": first, "text_pair": words, "y": 2 if label == "good" else 0.5}

    for name, rows in (("train", pairs(800, 1)), ("dev", pairs(80, 2))):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    results = run_finetune(
        init,
        tmp_path / "train.jsonl",
        tmp_path / "dev.jsonl",
        tmp_path / "run",
        regression=True,
        columns=finetuning.TextColumns(text="a", label="y"),
    )
    assert results["eval"]["pearson"] > 0.9
    assert results["eval"]["spearman"] > 0.8
    assert results["eval"]["loss"] < 0.1
    dev = tmp_path / "dev.jsonl"
    with pytest.raises(InputError, match="no column 'text_pair'"):
        dev.write_text('{"a": "fine", "y": 1}\n')
        finetuned.evaluate(tmp_path / "run", dev)


@pytest.mark.slow
def test_half_precisions_train_too(init, opinion_files, tmp_path):
    results = {
        kind: run_finetune(
            *(init, *opinion_files, tmp_path / kind),
            precision=f"mixed_{kind}",
            num_train_epochs=num_epochs,
        )
        for kind, num_epochs in (("float16", 0.2), ("bfloat16", 6))
    }
    logs = results["float16"]["train"]
    assert logs["loss_scale"] == precision.INITIAL_LOSS_SCALE
    assert logs["skipped_steps"] == 0
    assert results["bfloat16"]["eval"]["accuracy"] > 0.9


def test_curves_of_every_epoch_are_logged(tuned_run):
    curves = scalar_log.read_log(tuned_run[0] / "logs/eval").scalars
    names = ("accuracy/accuracy", "loss/loss", "metrics/f1 of good", "metrics/matthews")
    assert {
        tag: curve.steps.tolist() for tag, curve in curves.items()
    } == dict.fromkeys(names, [50, 100, 150, 200, 250, 300])
    assert curves["loss/loss"].values[-1] == tuned_run[1]["eval"]["loss"]


def test_mistakes_are_explained_and_leave_nothing(init, opinion_files, tmp_path):
    train, dev = opinion_files
    other = write_tsv(tmp_path / "other.tsv", [("a b", "god"), ("c", "bad")])
    for start, dev_path, changes, message in (
        (init, other, {}, "other.tsv: line 2: label 'god' was not in the training"),
        (init, tmp_path / "no.tsv", {}, "no.tsv: expected a file of texts"),
        (init, dev, {"max_seq_length": 65}, "takes 64 tokens at most"),
        (tmp_path, dev, {}, "no known checkpoint format; expected a run"),
    ):
        with pytest.raises(InputError, match=message):
            run_finetune(start, train, dev_path, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_predict_refuses_before_it_works(tuned_run, init, tmp_path):
    new = write_tsv(tmp_path / "new.tsv", [("the film",)], ("text",))
    with pytest.raises(InputError, match="new.tsv: exists already"):
        finetuned.predict(tuned_run[0], new, new)
    with pytest.raises(InputError, match="no such directory; make it first"):
        finetuned.predict(tuned_run[0], new, tmp_path / "none" / "out.tsv")
    with pytest.raises(InputError, match="tuned on a task, got one for pretraining"):
        finetuned.predict(init, new, tmp_path / "out.tsv")
    bad = write_tsv(tmp_path / "bad.tsv", [("a", "b"), ("c",)], ("text", "x"))
    with pytest.raises(InputError, match="bad.tsv: line 3: expected 2 columns"):
        finetuned.predict(tuned_run[0], bad, tmp_path / "out.tsv")
    assert not (tmp_path / "out.tsv").exists()


def test_which_batches_and_which_adam_a_task_has():
    for batches, kind, by_length in (
        ("auto", "tagging", False),
        ("auto", "classification", True),
        ("auto", "span", True),
        ("shuffled", "classification", False),
        ("by_length", "tagging", True),
    ):
        settings = finetuning.FinetuningConfig(batches=batches)
        assert settings.are_batches_by_length(tasks.Task(kind=kind)) == by_length
    for changes, mode in (
        ({}, "google"),
        ({"task": "embedding"}, "corrected"),
        ({"task": "embedding", "adamw_mode": "google"}, "google"),
    ):
        assert finetuning.FinetuningConfig(**changes).decided_adamw_mode == mode


@pytest.mark.slow
def test_a_disk_that_is_full_for_pictures_alone_costs_no_run(
    init, opinion_files, tmp_path, monkeypatch, caplog
):
    def fail(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(task_summaries, "write", fail)
    run_finetune(init, *opinion_files, tmp_path / "run", num_train_epochs=0.1)
    assert (
        "No space left on device: the run is finished, but TensorBoard" in caplog.text
    )
    assert run_directory.read_results(tmp_path / "run") is not None


def test_numbers_that_are_not_finite_end_the_run(init, opinion_files, tmp_path):
    """Finite weights whose products overflow: no step of the run makes an update."""
    large = tmp_path / "large"
    shutil.copytree(init, large)
    arrays = safetensors.numpy.load_file(large / "model.safetensors")
    arrays["encoder/embeddings/word_embeddings"][:] = 1e38
    safetensors.numpy.save_file(arrays, large / "model.safetensors")
    run = tmp_path / "run"
    message = (
        "step 2: the loss or a gradient was not finite in 2 steps in a row: lower "
        "`learning_rate`, or take another checkpoint"
    )
    with pytest.raises(InputError, match=message):
        run_finetune(large, *opinion_files, run, num_train_epochs=0.04)
    assert not (run / "results.json").exists()

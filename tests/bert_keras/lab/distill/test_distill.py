"""Small students of tiny teachers, which really train."""

import dataclasses
import functools
import json
import logging
import random
import tracemalloc
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import conversion, run_directory, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, loading, tasks
from bert_keras.data import tokenization
from bert_keras.inference import finetuned
from bert_keras.kinds import registry
from bert_keras.lab.distill import data as distill_data
from bert_keras.lab.distill import distill
from bert_keras.lab.distill import student as students
from bert_keras.labelled import dataset, tokenized
from bert_keras.report import facts, writing
from bert_keras.training.step import engine
from tests import conftest, make
from tests.bert_keras.kinds import kind_data
from tests.bert_keras.training import test_resumed_runs as resumed
from tests.bert_keras.training.finetuning import test_finetune
from tests.bert_keras.training.finetuning import test_finetune_tasks as task_files
from tests.bert_keras.training.finetuning.test_finetune import (
    BERT_CONFIG,
    VOCABULARY,
    make_init,
    opinions,
    write_tsv,
)
from tests.bert_keras.training.finetuning.test_fixed_shapes import mirrored

SETTINGS = finetuning.FinetuningConfig(
    batch_size=8, num_train_epochs=2, learning_rate=3e-3, save_checkpoint_minutes=None
)
TEACHER_CONFIG = BERT_CONFIG.model_copy(update={"num_hidden_layers": 3})
SIZES = "{model: {num_hidden_layers: 2, hidden_size: 16, num_attention_heads: 2, \
intermediate_size: 32, max_position_embeddings: 32}}"


def make_teacher(directory: Path, head: dict, **settings) -> Path:
    """A finished fine-tuning, of random weights and a head that makes a difference."""

    def change(network) -> None:
        for weight in network.weights:
            if "classifier/kernel" in weight.path:
                weight.assign(weight * 50)

    return make.make_run(
        directory,
        VOCABULARY,
        settings=finetuning.FinetuningConfig(max_seq_length=24, **settings),
        bert_config=TEACHER_CONFIG,
        change=change,
        **head,
    )


OPINIONS = {"kind": "classification", "labels": ("bad", "good")}


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("distill")
    (folder / "sizes.yaml").write_text(SIZES)
    texts = opinions(48, seed=1)
    (folder / "plain.txt").write_text("\n".join(text for text, _ in texts) + "\n\n")
    return {
        "teacher": make_teacher(folder / "teacher", OPINIONS, task="text"),
        "plain_teacher": make_init(folder / "plain_teacher", TEACHER_CONFIG),
        "sizes": folder / "sizes.yaml",
        "train": write_tsv(folder / "train.tsv", texts),
        "dev": write_tsv(folder / "dev.tsv", opinions(17, seed=2)),
        "plain": folder / "plain.txt",
    }


def learn(places, output_dir, *, labels=False, changes=None, **options):
    given = {name: places[name] for name in ("teacher", "train")}
    given |= {"student": places["sizes"], "dev": [places["dev"]]}
    given |= {"strategy": tf.distribute.get_strategy(), "output_dir": output_dir}
    settings = SETTINGS.model_copy(update=changes or {})
    return distill.distill(settings, **(given | options), has_labels=labels)


def learn_plain(places, output_dir, *, changes):
    options = {"teacher": places["plain_teacher"], "train": places["plain"]}
    return learn(places, output_dir, **options, dev=None, changes=changes)


def tune(places, output_dir, *, init, changes) -> dict:
    return make.finetune(
        SETTINGS.model_copy(update=changes),
        train=places["train"],
        dev=[places["dev"]],
        init=init,
        from_scratch=False,
        output_dir=output_dir,
        strategy=tf.distribute.get_strategy(),
    )


def losses(**values) -> dict:
    return {"distillation": finetuning.DistillationConfig(**values)}


EVERY = losses(temperature=2.0, relation_weight=1.0)


@pytest.fixture
def eagerly():
    """Training without traced functions, which take longer than a few steps."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.usefixtures("eagerly")
def test_a_student_is_a_run_like_any_other(places, tmp_path, caplog):
    directory = tmp_path / "run"
    changes = EVERY | {"num_train_epochs": 1}
    results = learn(places, directory, labels=True, changes=changes)
    assert results["steps"] == 6
    names = [f"{name}_loss" for name in ("soft", "hard", "relation")]
    logged = {tag for where, tag, _ in resumed.scalars(directory) if where == "train"}
    assert {f"loss/{name}" for name in names} < logged
    train = test_finetune.scalars(directory)
    assert train["loss"] == pytest.approx(sum(train[name] for name in names))
    student = finetuned.FinetunedModel.load(directory)
    assert student.network.config.hidden_size == 16
    # The teacher's, which the settings do not say.
    assert student.settings.max_seq_length == 24
    assert student.task.labels == ("bad", "good")
    caplog.set_level(logging.INFO, logger="bert_keras")
    scores = finetuned.evaluate(directory, places["dev"])
    assert scores["loss"] == pytest.approx(results["eval"]["loss"], abs=1e-6)
    assert "examples are scored; no file is written" in caplog.text
    text = writing.render(facts.read_facts(directory), [])
    assert "Fine-tuning for classification, finished at step 6" in text
    # Finished: another command leaves it as it is.
    assert learn(places, directory, labels=True, changes=changes) == results


@pytest.mark.slow
def test_a_student_becomes_like_its_teacher_without_labels(places, tmp_path):
    words = {"soft_weight": 1.0, "init_embeddings": True}
    changes = {"num_train_epochs": 40, **losses(**words)}
    learn(places, tmp_path / "run", changes=changes)
    texts = [text for text, _ in opinions(48, seed=1)]
    paths = (places["teacher"], tmp_path / "run")
    models = (finetuned.FinetunedModel.load(path) for path in paths)
    teacher, student = ([r.prediction for r in m.predict(texts)] for m in models)
    assert np.mean(np.array(teacher) == student) > 0.9
    train = test_finetune.scalars(tmp_path / "run")
    assert train["soft_loss"] < 0.05 and "accuracy" not in train


@pytest.mark.parametrize(
    "recompute", ["none", pytest.param("layers", marks=pytest.mark.slow)]
)
def test_a_run_on_plain_texts_ends_well(recompute, places, tmp_path, request):
    """It has no dev file, so no answers that could be drawn, and frozen weights."""
    if recompute == "none":
        request.getfixturevalue("eagerly")
    changes = {"max_seq_length": 16, "num_train_epochs": 0.1, "recompute": recompute}
    results = learn_plain(places, tmp_path / "run", changes=changes)
    assert run_directory.read_results(tmp_path / "run") == results
    assert test_finetune.scalars(tmp_path / "run").keys() >= {"loss", "relation_loss"}
    assert not (tmp_path / "run/dev_answers.jsonl").exists()


def read_plain(path, settings=SETTINGS) -> tokenized.WindowedInputs:
    teacher = types.SimpleNamespace(
        task=tasks.Task(kind="encoder"),
        tokenizer=tokenization.Tokenizer(VOCABULARY, do_lower_case=True),
    )
    return distill_data.plain_inputs(path, teacher, settings)


def test_plain_texts_of_a_corpus_are_those_of_a_file(tmp_path):
    """Read one by one: the paragraphs of its shards, or the lines; or a share."""
    texts = [f"{text} {n}" for n, (text, _) in enumerate(opinions(50, seed=3))]
    half = [[sentence] for sentence in texts[:25]]
    paragraphs = (half, [text.split() for text in texts[25:]])
    documents = [
        {"id": "a", "source": "s", "paragraphs": texts} for texts in paragraphs
    ]
    conftest.write_documents(tmp_path / "corpus", documents)
    content = b"\xef\xbb\xbf" + "\r\n\n".join(texts).encode()
    (tmp_path / "texts.txt").write_bytes(content)
    for name in ("corpus", "texts.txt"):
        assert [*distill_data.plain_texts(tmp_path / name, SETTINGS)] == texts
    for share, count in ((1.0, 50), (0.3, 15)):
        settings = SETTINGS.model_copy(update={"train_fraction": share})
        corpus, file = (
            read_plain(tmp_path / name, settings) for name in ("corpus", "texts.txt")
        )
        assert len(corpus.counts) == len(file.counts) == count
        rows = np.arange(count)
        for name, values in file.batch(rows).items():
            np.testing.assert_array_equal(corpus.batch(rows)[name], values)
    (shard,) = (tmp_path / "corpus").glob("documents*")
    shard.write_bytes(shard.read_bytes()[:-20] + bytes(20))
    for path, message in (
        (tmp_path / "corpus", "expected a document of .*; recreate the corpus"),
        (tmp_path, "not a finished output of"),
    ):
        with pytest.raises(InputError, match=message):
            list(distill_data.plain_texts(path, SETTINGS))


def test_plain_texts_are_not_held_in_memory(tmp_path):
    """Some bytes for each token are, not the text."""
    with open(tmp_path / "texts.txt", "w") as file:
        file.writelines(f"ba {number} be\n" * 100 for number in range(400))
    tracemalloc.start()
    inputs = read_plain(tmp_path / "texts.txt")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    num_tokens = int(inputs.lengths.sum())
    assert len(inputs.lengths) == 40_000
    assert peak < 11 * num_tokens + 24 * 40_000


@pytest.mark.slow
def test_relations_of_plain_texts_make_an_encoder_to_tune(places, tmp_path):
    changes = {"max_seq_length": 16, "num_train_epochs": 10}
    results = learn_plain(places, tmp_path / "run", changes=changes)
    assert results["num_train_examples"] == 48
    found = conversion.read(tmp_path / "run")
    assert found.task.kind == "encoder"
    assert found.bert_config.hidden_size == 16
    page = writing.write_report(tmp_path / "run", tmp_path / "report") / "report.md"
    assert "Distillation of an encoder, finished at step" in page.read_text()
    assert ("train", "loss/relation_loss", 1) in resumed.scalars(tmp_path / "run")
    changes = {"max_seq_length": 16, "num_train_epochs": 1}
    tuned = tune(places, tmp_path / "tuned", init=tmp_path / "run", changes=changes)
    assert tuned["steps"] == 6
    # The next distillation begins with it.
    again = learn(places, tmp_path / "again", student=tmp_path / "run", changes=changes)
    assert again["steps"] == 6


@pytest.mark.slow
def test_answers_that_are_kept_are_those_that_are_learnt(places, tmp_path, monkeypatch):
    kept = tmp_path / "answers.safetensors"
    first = learn(places, tmp_path / "first", answers=kept)
    learn(places, tmp_path / "without")
    resumed.assert_same(tmp_path / "first", tmp_path / "without")

    def fail(*args, **kwargs):
        raise AssertionError("the teacher was asked")

    # The evaluation computes, too.
    monkeypatch.setattr(distill.forward, "predictor_for", fail)
    assert np.isfinite(test_finetune.scalars(tmp_path / "first")["soft_loss"])
    with pytest.raises(AssertionError, match="the teacher was asked"):
        learn(places, tmp_path / "other")
    monkeypatch.undo()
    with pytest.raises(InputError, match="answers of another teacher, to other texts"):
        learn(places, tmp_path / "third", answers=kept, train=places["dev"])
    second = learn(places, tmp_path / "second", answers=kept)
    resumed.assert_same(tmp_path / "second", tmp_path / "first")
    assert second["steps"] == first["steps"]


@pytest.mark.slow
def test_killed_it_ends_like_one_that_never_was(places, tmp_path, at_step):
    options = {"labels": True, "changes": EVERY}
    assert learn(places, tmp_path / "whole", **options)["steps"] == 12
    at_step(8, resumed.die)
    saved = EVERY | {"save_checkpoint_steps": 5}
    with pytest.raises(resumed.Killed):
        learn(places, tmp_path / "run", labels=True, changes=saved)
    assert (tmp_path / "run/checkpoints/step-0000000005.safetensors").exists()
    at_step(-1, resumed.die)
    learn(places, tmp_path / "run", **options)
    resumed.assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_two_replicas_give_what_one_device_gives(places, tmp_path):
    changes = EVERY | {"hidden_dropout_prob": 0.1, "learning_rate": 1e-3}
    options = {"labels": True, "changes": changes}
    learn(places, tmp_path / "one", **options)
    learn(places, tmp_path / "two", **options, strategy=mirrored(2))
    ours, theirs = (conversion.read(tmp_path / n).arrays for n in ("one", "two"))
    for name, array in ours.items():
        np.testing.assert_allclose(theirs[name], array, atol=2e-5, err_msg=name)


SPAN = finetuning.SpanConfig(max_query_length=4, doc_stride=8)
HEADS = {
    "tagging": {"labels": ("O", "B-GOOD")},
    "span": {"has_text_pair": True},
    "choice": {},
    "multi_label": {"labels": ("bad", "good")},
    "regression": {"has_text_pair": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADS)
def test_every_kind_of_head_is_taught(kind, places, tmp_path):
    data, rng = kind_data.DATA[kind], random.Random(1)
    path = tmp_path / f"examples{data.suffix}"
    path.write_text(data.write([data.row(rng, n) for n in range(12)], True))
    head = {"kind": kind, **HEADS[kind]}
    teacher = make_teacher(tmp_path / "teacher", head, **data.settings)
    changes = losses(relation_weight=1.0) | {"num_train_epochs": 1}
    changes |= {"span": SPAN} if kind == "span" else {}
    options = {"teacher": teacher, "train": path, "dev": [path]}
    learn(places, tmp_path / "run", **options, changes=changes)
    train = test_finetune.scalars(tmp_path / "run")
    assert np.isfinite(train["loss"]) and train["soft_loss"] > 0
    assert finetuned.evaluate(tmp_path / "run", path)["num_examples"] == 12


def test_answers_stand_where_the_loss_looks_for_them():
    class Inputs:
        lengths, num_answers = np.array([3, 2]), 3

        def batch(self, rows):
            return {"input_mask": np.ones((len(rows), 3), np.int32)}

        def places(self, rows):
            index = np.array([0, 1]), np.array([1, 2])
            return dataset.Places(np.array([2, 0]), index)

    logits = np.float32([[1, 2], [3, 4], [5, 6]])
    inputs = distill.InputsWithTeacherLogits(inputs=Inputs(), logits=logits)
    batch, nothing = inputs.batch(np.arange(2)), [0, 0]
    assert batch["teacher_mask"].tolist() == [[0, 1, 0], [0, 0, 1]]
    expected = [[nothing, [5, 6], nothing], [nothing, nothing, [1, 2]]]
    assert batch["teacher_logits"].tolist() == expected


def read_student(places, student, **values):
    teacher = conversion.read(places["teacher"])
    settings = SETTINGS.model_copy(update={"max_seq_length": 24, **losses(**values)})
    options = {"teacher_path": "TEACHER"}
    return teacher, students.read_student(student, teacher, settings, **options)


def test_a_student_of_its_teachers_layers(places):
    teacher, student = read_student(places, None, init_layers=(1, 3))
    assert student.bert_config.num_hidden_layers == 2
    kernel = "encoder/layer_{}/feed_forward/output_dense/kernel"
    for ours, theirs in (
        (kernel.format(0), kernel.format(0)),
        (kernel.format(1), kernel.format(2)),
        *[("encoder/embeddings/word_embeddings",) * 2],
        *[("head/classifier/kernel",) * 2],
    ):
        np.testing.assert_array_equal(student.arrays[ours], teacher.arrays[theirs])
    network = registry.build_network(student.bert_config, student.task, seed=1)
    assert weights.assign(network, student.arrays) == []


def test_layers_of_a_teacher_with_another_head(places):
    task = tasks.Task(kind="tagging", labels=("O", "B"), bilstm_units=8)
    teacher = dataclasses.replace(conversion.read(places["teacher"]), task=task)
    settings = SETTINGS.model_copy(update=losses(init_layers=(1,)))
    message = "`bilstm_units` is 0, of the teacher 8: --set bilstm_units=8"
    with pytest.raises(InputError, match=message):
        students.read_student(None, teacher, settings, teacher_path="TEACHER")


def test_embeddings_of_a_smaller_size_keep_what_differs_most(places):
    teacher, student = read_student(places, places["sizes"], init_embeddings=True)
    theirs, ours = (
        np.float64(c.arrays["encoder/embeddings/word_embeddings"])
        for c in (teacher, student)
    )
    assert ours.shape == (len(VOCABULARY), 16)
    # The best of all ways to keep products of vectors: the largest singular values.
    values = np.linalg.svd(theirs, compute_uv=False)
    lost = np.linalg.norm(theirs @ theirs.T - ours @ ours.T)
    assert lost == pytest.approx(np.linalg.norm(values[16:] ** 2), rel=1e-4)


ALONE, INIT = {"student": None}, {"student": "init"}
NOT_TUNED = {"teacher": "init"}
MISTAKES = [
    (ALONE, {}, "--student is missing: a recipe such as"),
    (ALONE, losses(init_layers=()), "--student is missing: a recipe such as"),
    ({"student": "bert_minni"}, {}, "of the recipes .*; did you mean 'bert_mini'"),
    (
        *({"answers": "answers.safetensors"}, losses(soft_weight=0, relation_weight=1)),
        "--answers: none are learnt from: leave it out",
    ),
    (ALONE, losses(init_layers=(2, 4)), "the teacher has layers 1 to 3, got 4"),
    ({}, losses(init_layers=(1, 2)), "`hidden_size` is 16, of the teacher 32: leave -"),
    (
        *({}, losses(relation_weight=1, relation_heads=3)),
        "both hidden sizes, 32 and 16, got 3: expected one of 1, 2, 4, 8, 16",
    ),
    ({}, losses(relation_heads=4), "nothing without `distillation.relation_weight`"),
    (
        *({}, losses(soft_weight=0, relation_weight=1, temperature=2)),
        "temperature` is for probabilities that a tuned teacher gives: leave it out",
    ),
    ({}, losses(soft_weight=0), "nothing is learnt from the teacher"),
    ({}, losses(hard_weight=1), "is for labels of the training file: give --labels"),
    ({"labels": True}, losses(hard_weight=0), "--labels with `distillation.hard_wei"),
    ({}, {"lora_rank": 2}, "`lora_rank` is not for `distill`: leave it out"),
    ({}, {"label_smoothing": 0.1}, "`label_smoothing` is for labels: give --labels"),
    ({}, {"task": "tagging"}, "is for classification, but the task tagging is tagg"),
    ({"dev": ["10%"]}, {}, "is a part of a labelled training file: give --labels, or"),
    ({}, {"calibration_fraction": 0.1}, "--calibrate 10% is a part of a labelled trai"),
    ({}, {"max_seq_length": 40}, "is 40, but the student takes 32 tokens at most: --"),
    (INIT, losses(init_embeddings=True), "is for a student of sizes alone, this one"),
    (INIT, losses(init_layers=(1,)), "has weights of its own: leave out `distillatio"),
    (NOT_TUNED | {"labels": True}, {}, "learns from plain texts: leave --labels out"),
    (NOT_TUNED, losses(soft_weight=1), "leave `distillation.soft_weight` out"),
    (NOT_TUNED, {}, "plain texts: give them with --train, and neither --dev nor --dat"),
]


@pytest.fixture(scope="module")
def read_once():
    """Reads each checkpoint once."""
    read = functools.cache(conversion.read_with_tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "read_with_tokenizer", read)
        yield


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(("options", "changes", "message"), MISTAKES)
def test_mistakes_are_explained_and_leave_nothing(
    options, changes, message, places, tmp_path
):
    init = places["plain_teacher"]
    options = {k: init if v == "init" else v for k, v in options.items()}
    with pytest.raises(InputError, match=message):
        learn(places, tmp_path / "run", changes=changes, **options)
    assert not (tmp_path / "run/task.json").exists()


def test_finetune_learns_from_no_teacher(places, tmp_path):
    changes = {"max_seq_length": 24, **losses(temperature=2.0)}
    with pytest.raises(InputError, match="`distillation` is for `bert-keras distill`"):
        tune(places, tmp_path / "run", init=places["plain_teacher"], changes=changes)


def test_pieces_and_casing_are_the_teachers(places):
    teacher = conversion.read(places["teacher"])
    tokens = VOCABULARY.tokens
    size = len(tokens)
    for changes, message in (
        ((*tokens[:-2], "other", "words"), f"2 of {size} pieces .* which has {size}"),
        ((*tokens, "more"), f"STUDENT: 1 of {size + 1} pieces of the vocabulary are"),
        # Never more than there are.
        (tokens[:5], f"{size - 5} of {size} pieces .* its teacher, TEACHER, which has"),
        (None, "STUDENT: of cased text, but its teacher, TEACHER, o"),
    ):
        values = {"vocabulary": tokenization.Vocabulary(tuple(changes or tokens))}
        values["do_lower_case"] = changes is not None
        student = dataclasses.replace(teacher, **values)
        with pytest.raises(InputError, match=message):
            students.check_vocabulary(student, teacher, "STUDENT", "TEACHER")


def test_a_student_larger_than_its_teacher_is_warned_of(places, tmp_path, caplog):
    large = tmp_path / "sizes.yaml"
    large.write_text(SIZES.replace("16", "64"))
    with caplog.at_level(logging.WARNING):
        read_student(places, large)
    assert "the student is larger than its teacher: 0.1 million weights" in caplog.text


def test_labels_and_pairs_that_the_teacher_does_not_know(places, tmp_path):
    rows = [*opinions(4, seed=1), ("the film", "fair"), ("the plot", "poor")]
    train = write_tsv(tmp_path / "train.tsv", rows)
    pairs = write_tsv(tmp_path / "pairs.tsv", [("a", "b")], ("text", "text_pair"))
    unknown = r"2 labels that the teacher .*: fair, poor \(it has bad, good\)"
    for labels, path, message in (
        (True, train, unknown),
        (False, pairs, "pairs of texts, but the teacher .* was tuned on single texts"),
    ):
        with pytest.raises(InputError, match=message):
            learn(places, tmp_path / "run", labels=labels, train=path)


def test_a_teacher_whose_numbers_are_not_finite():
    devices = engine.KerasEngine(tf.distribute.get_strategy())
    options = {"devices": devices, "path": None, "facts": {}}
    with pytest.raises(InputError, match="1 of 2 numbers that the teacher answers are"):
        distill.compute_logits(
            lambda *_, **__: np.float32([np.nan, 1]), None, **options
        )


def test_answers_without_a_folder_and_answers_that_are_none(places, tmp_path):
    path = tmp_path / "new/answers.safetensors"
    devices = engine.KerasEngine(tf.distribute.get_strategy())
    options = {"devices": devices, "path": path, "facts": {}}
    # Before the teacher is asked, which may take hours.
    with pytest.raises(TypeError):
        distill.compute_logits(None, None, **options)
    path.write_bytes(b"PK")
    with pytest.raises(InputError, match="tensors: no whole file of answers: delete"):
        distill.compute_logits(None, None, **options)


def read_lesson(teacher, train, dev, settings, *, has_labels=False):
    found = conversion.read(teacher)
    settings = distill_data.complete(settings, found, teacher, has_labels=has_labels)
    return distill_data.read_data(settings, found, found, teacher, train, [dev])


def test_second_texts_are_read_of_all_files_or_of_none(places, tmp_path):
    rows = [("film", "plot", "good"), ("plot", "film", "bad")]
    pairs = write_tsv(tmp_path / "dev.tsv", rows, ("text", "text_pair", "label"))
    files = places["train"], pairs
    for has_labels in (False, True):
        options = {"has_labels": has_labels}
        run, _, _ = read_lesson(places["teacher"], *files, SETTINGS, **options)
        assert [row.text_pair for row in run.dev[0].data.rows] == [None, None]


def test_columns_that_are_not_given_are_the_teachers(tmp_path):
    columns = {"text": "review", "label": "stars"}
    teacher = make_teacher(tmp_path / "teacher", OPINIONS, task="text", columns=columns)
    train = write_tsv(tmp_path / "train.tsv", opinions(4, seed=1), ("body", "stars"))
    settings = loading.load(finetuning.FinetuningConfig, None, ["columns.text=body"])
    run, _, _ = read_lesson(teacher, train, train, settings)
    assert [row.label for row in run.dev[0].data.rows] == ["good", "bad"] * 2


def test_answers_to_questions_that_have_no_labels_are_others(tmp_path):
    """Kept answers to all questions are not those to the ones with a place."""
    teacher = make_teacher(tmp_path / "teacher", {"kind": "span"}, task="span")
    train = task_files.questions_file(tmp_path / "train.json", 5, seed=1)
    content = json.loads(train.read_text())
    answer = content["data"][0]["paragraphs"][2]["qas"][0]["answers"][0]
    answer["text"] = "nowhere"
    train.write_text(json.dumps(content))
    settings = finetuning.FinetuningConfig(task="span", span=SPAN)
    found = [
        read_lesson(teacher, train, train, settings, has_labels=has_labels)
        for has_labels in (False, True)
    ]
    assert [run.num_train_examples for run, _, _ in found] == [5, 4]
    assert found[0][2] != found[1][2]

"""A ranker that really trains, and what is done with the result."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import bert_keras
from bert_keras import export
from bert_keras.checkpoints import conversion
from bert_keras.commands import main
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import features, tokenization
from bert_keras.export import loading
from bert_keras.inference import finetuned
from bert_keras.kinds import ranking, registry
from bert_keras.kinds.ranking import RankedPassages, served_ranking
from bert_keras.labelled import answers, shapes
from bert_keras.report import model_card, task_summaries
from bert_keras.training.finetuning import batches as task_batches
from tests import make
from tests.bert_keras.training.finetuning.test_finetune import (
    BAD,
    BERT_CONFIG,
    FILLER,
    GOOD,
    SETTINGS,
    VOCABULARY,
    make_init,
    write_tsv,
)

HEADER = ("question", "passage", "relevance")
RANKING = SETTINGS.model_copy(
    update={
        "task": "ranking",
        "batch_size": 8,
        "num_train_epochs": 3.0,
        "ranking": finetuning.RankingConfig(num_candidates=4),
    }
)


def rows(num_questions: int, *, seed: int) -> list[tuple[str, str, int]]:
    """Questions about films with 2 to 9 passages; the right ones praise it."""
    rng = random.Random(seed)
    found = []
    for number in range(num_questions):
        asked = " ".join(rng.choices("bcdefghij", k=5))
        num_right = rng.randint(1, 2)
        for passage in range(rng.randint(num_right + 1, 9)):
            is_right = passage < num_right
            words = [f"{'x' * number}", *rng.choices(FILLER, k=rng.randint(2, 9))]
            telling = rng.choice(GOOD if is_right else BAD)
            words.insert(rng.randrange(len(words)), telling)
            found.append((asked, " ".join(words), int(is_right)))
    rng.shuffle(found)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranking")
    make_init(folder / "init", BERT_CONFIG)
    write_tsv(folder / "train.tsv", rows(120, seed=1), HEADER)
    write_tsv(folder / "dev.tsv", rows(30, seed=2), HEADER)
    return folder


def tune(folder: Path, output_dir: Path, **changes) -> dict:
    return make.finetune(
        RANKING.model_copy(update=changes),
        train=folder / "train.tsv",
        dev=[folder / "dev.tsv"],
        init=folder / "init",
        from_scratch=False,
        output_dir=output_dir,
        strategy=tf.distribute.get_strategy(),
    )


@pytest.fixture(scope="module")
def run(folder) -> tuple[Path, dict]:
    return folder / "run", tune(folder, folder / "run")


def test_an_easy_ranking_is_learnt(run):
    directory, results = run
    assert results["eval"]["mrr"] > 0.95
    assert results["eval"]["mrr_by_chance"] == pytest.approx(0.5, abs=0.1)
    assert results["eval"].keys() == {"mrr", "mrr_at_10", "ndcg_at_10", "mrr_by_chance"}
    assert (results["num_train_examples"], results["num_eval_examples"]) == (120, 30)
    assert results["steps"] == 3 * 15
    scores = finetuned.evaluate(directory, directory.parent / "dev.tsv")
    assert scores == pytest.approx({"num_examples": 30, **results["eval"]})
    records = answers.read_answers(directory / "dev_answers.jsonl", RankedPassages)
    kind = registry.labelled("ranking")
    assert kind.sign(results["eval"], [r.model_dump() for r in records]) is None
    [ranks, _] = task_summaries.read_sections(ranking.Ranking(), directory)
    assert ranks.picture is not None
    card = model_card.text(directory, name="ranker", form="saved_model")
    assert card is not None and "pipeline_tag: text-ranking" in card
    assert "passages=tf.constant" in card


@pytest.mark.slow
def test_the_pairwise_loss_learns_too(folder, tmp_path):
    ranking = finetuning.RankingConfig(num_candidates=4, loss="pairwise")
    results = tune(folder, tmp_path / "run", ranking=ranking)
    assert results["eval"]["ndcg_at_10"] > 0.95


@pytest.mark.parametrize(
    "is_exported", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_graph_scores_as_predict_and_python_do(run, folder, tmp_path, is_exported):
    directory, _ = run
    finetuned.predict(directory, folder / "dev.tsv", tmp_path / "ranked.jsonl")
    lines = (tmp_path / "ranked.jsonl").read_text().splitlines()
    predicted: dict[str, dict[str, float]] = {}
    for line in map(json.loads, lines):
        assert line.keys() == {*HEADER, "score"}
        predicted.setdefault(line["question"], {})[line["passage"]] = line["score"]
    loaded = bert_keras.load(directory)
    if is_exported:
        export.export_model(directory, tmp_path / "1")
        served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    else:
        checkpoint = conversion.read_with_tokenizer(directory)
        trained = loading.load(checkpoint, path=directory)
        graph = served_ranking.Rankings(trained).signatures()["serving_default"]

        def served(question, passages):
            return graph.answer(question, passages)

    for question, by_passage in list(predicted.items())[:2]:
        passages, scores = zip(*by_passage.items(), strict=True)
        assert list(scores) == sorted(scores, reverse=True)
        [record] = loaded.predict([(question, passages)])
        np.testing.assert_allclose(record.scores, scores, atol=1e-5)
        assert record.prediction == tuple(range(len(passages)))
        found = served(
            question=tf.constant([question]), passages=tf.constant([passages])
        )
        np.testing.assert_allclose(found["scores"], [scores], atol=1e-5)
        # By its own scores: rounding may order nearly equal ones otherwise.
        by_score = np.argsort(-found["scores"].numpy(), kind="stable")
        np.testing.assert_array_equal(found["ranking"], by_score)
    none = served(question=tf.constant(["b"]), passages=tf.zeros([1, 0], tf.string))
    assert none["scores"].shape == (1, 0)


def test_negatives_by_vectors_in_one_command(tmp_path, capsys):
    """The file that is written is one to learn from."""
    for kind in ("embedding", "ranking"):
        settings = SETTINGS.model_copy(update={"task": kind})
        make.make_run(tmp_path / kind, VOCABULARY, settings=settings, kind=kind)
    pairs = [(asked, passage) for asked, passage, right in rows(40, seed=5) if right]
    write_tsv(tmp_path / "right.tsv", pairs, ("question", "positive"))
    passages = [passage for _, passage, _ in rows(40, seed=6)]
    passages += [passage.upper() for _, passage in pairs]
    (tmp_path / "passages.txt").write_text("".join(f"{p}\n" for p in passages))
    command = ["negatives", "--margin", "0", "--num_negatives", "3"]
    for option, name in (
        ("input", "right.tsv"),
        ("passages", "passages.txt"),
        ("output", "mined.jsonl"),
    ):
        command += [f"--{option}", str(tmp_path / name)]
    assert main.main([*command, "--model", str(tmp_path / "ranking")]) == 2
    assert "a model for ranking, expected one for vectors" in capsys.readouterr().err
    command += ["--model", str(tmp_path / "embedding")]
    assert main.main(command) == 0
    data = registry.labelled("ranking").read(tmp_path / "mined.jsonl", RANKING)
    assert len(data.for_training()) > 15
    for question in data.rows:
        right = [c.passage for c in question.candidates if c.relevance]
        wrong = [c.passage for c in question.candidates if not c.relevance]
        assert len(wrong) <= 3 and not {*wrong} & {p.upper() for p in right}
    assert main.main(command) == 2  # it exists


def test_each_epoch_has_its_candidates_on_any_number_of_replicas(folder):
    data = registry.labelled("ranking").read(folder / "train.tsv", RANKING)
    task = tasks.Task(kind="ranking", has_text_pair=True)
    tokenizer = tokenization.Tokenizer(VOCABULARY, do_lower_case=True)
    inputs = data.for_training().encode(task, tokenizer, RANKING)

    def batches(share, padded_length, start_step=0):
        whole = task_batches.Batches(
            inputs=inputs,
            batch_size=40,
            by_length=False,
            seed=3,
            padded_length=padded_length,
        )
        return whole.stream(start_step=start_step, share=share).as_numpy_iterator()

    share = shapes.ReplicaShare(num_rows=20, num_replicas=2, begin=0, end=2)
    alone, halves = batches(None, None), batches(share, int)
    whole = [next(alone) for _ in range(6)]
    for batch in whole:
        parts = [next(halves) for _ in range(2)]
        for name, values in batch.items():
            joined = np.concatenate([part[name] for part in parts])
            np.testing.assert_array_equal(joined, values)
        lengths = np.concatenate([part[features.BATCH_LENGTHS] for part in parts])
        assert set(lengths) == {batch["input_ids"].shape[-1]}
    np.testing.assert_array_equal(
        next(batches(None, None, start_step=4))["input_ids"], whole[4]["input_ids"]
    )
    seen = [
        {row.tobytes() for batch in epoch for row in batch["label_ids"]}
        for epoch in (whole[:3], whole[3:])
    ]
    assert seen[0] != seen[1]

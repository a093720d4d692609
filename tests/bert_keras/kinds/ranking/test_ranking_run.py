"""A ranker that really trains, and what is done with the result."""

import random
from pathlib import Path

import pytest
import tensorflow as tf

from bert_keras.commands import main
from bert_keras.core.settings import finetuning
from bert_keras.kinds import registry
from bert_keras.kinds.ranking import RankedPassages
from bert_keras.labelled import answers
from bert_keras.report import model_card
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


@pytest.mark.parametrize(
    "loss", ["listwise", pytest.param("pairwise", marks=pytest.mark.slow)]
)
def test_an_easy_ranking_is_learnt(folder, loss):
    results = make.finetune(
        SETTINGS.model_copy(
            update={
                **{"task": "ranking", "batch_size": 8, "num_train_epochs": 3.0},
                "ranking": finetuning.RankingConfig(num_candidates=4, loss=loss),
            }
        ),
        train=folder / "train.tsv",
        dev=[folder / "dev.tsv"],
        init=folder / "init",
        from_scratch=False,
        output_dir=folder / loss,
        strategy=tf.distribute.get_strategy(),
    )
    assert results["eval"]["mrr"] > 0.95
    assert results["eval"]["ndcg_at_10"] > 0.95
    assert results["eval"]["mrr_by_chance"] == pytest.approx(0.5, abs=0.1)
    assert results["steps"] == 3 * 15
    records = answers.read_answers(folder / loss / "dev_answers.jsonl", RankedPassages)
    kind = registry.labelled("ranking")
    assert kind.sign(results["eval"], [r.model_dump() for r in records]) is None
    card = model_card.text(folder / loss, name="ranker", form="saved_model")
    assert card is not None and "passages=tf.constant" in card
    # Questions without passages have no scores.
    graph = make.served(folder / loss).signatures()["serving_default"]
    none = graph.answer(tf.constant(["b"]), tf.zeros([1, 0], tf.string))
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
    for option, name in zip(
        ("--input", "--passages", "--output"),
        ("right.tsv", "passages.txt", "mined.jsonl"),
        strict=True,
    ):
        command += [option, str(tmp_path / name)]
    assert main.main([*command, "--model", str(tmp_path / "ranking")]) == 2
    assert "a model for ranking, expected one from" in capsys.readouterr().err
    command += ["--model", str(tmp_path / "embedding")]
    assert main.main(command) == 0
    settings = finetuning.FinetuningConfig(task="ranking")
    data = registry.labelled("ranking").read(tmp_path / "mined.jsonl", settings)
    assert len(data.for_training()) > 15
    for question in data.rows:
        right = [c.passage for c in question.candidates if c.relevance]
        wrong = [c.passage for c in question.candidates if not c.relevance]
        assert len(wrong) <= 3 and not {*wrong} & {p.upper() for p in right}
    assert main.main(command) == 2  # it exists

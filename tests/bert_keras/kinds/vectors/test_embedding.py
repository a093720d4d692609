"""Files of texts whose vectors are learnt, and how well vectors find one another."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning
from bert_keras.data import features, tokenization
from bert_keras.kinds import catalogue, registry
from bert_keras.kinds.text import similarity
from bert_keras.kinds.vectors import embedding
from bert_keras.labelled import data_report
from bert_keras.training.finetuning import settings_check

WORDS = ("a", "b", "c", "d", "e")
TOKENIZER = tokenization.Tokenizer(
    tokenization.Vocabulary((*features.SPECIAL_TOKENS, *WORDS)), do_lower_case=True
)
PAIRS = "text\ttext_pair\na\tb c\nb\tc d e\n"


def settings(**embedding_settings) -> finetuning.FinetuningConfig:
    return finetuning.FinetuningConfig(
        task="embedding", batch_size=2, embedding=embedding_settings
    )


def read(path: Path, content: str, **options) -> embedding.EmbeddingDataset:
    path.write_text(content, encoding="utf-8")
    return catalogue.read(path, settings(**options))


def encode(data: embedding.EmbeddingDataset, **changes):
    given = settings(**data.settings.model_dump()).model_copy(update=changes)
    return data.encode(data.describe(), TOKENIZER, given)


def test_a_batch_has_the_texts_of_a_row_one_by_one(tmp_path):
    content = "text\ttext_pair\tnegative\na\tb c\td\nb c\ta b c d\ta\n"
    batch = encode(read(tmp_path / "x.tsv", content).for_training()).batch(
        np.array([1, 0])
    )
    first = len(features.SPECIAL_TOKENS)
    a, b, c, d = range(first, first + 4)
    cls, sep = TOKENIZER.vocabulary.cls_id, TOKENIZER.vocabulary.sep_id
    assert batch["input_ids"].tolist() == [
        [[cls, b, c, sep, 0, 0], [cls, a, b, c, d, sep], [cls, a, sep, 0, 0, 0]],
        [[cls, a, sep, 0, 0, 0], [cls, b, c, sep, 0, 0], [cls, d, sep, 0, 0, 0]],
    ]
    assert batch["input_mask"].sum(axis=-1).tolist() == [[4, 6, 3], [3, 4, 3]]
    assert not batch["segment_ids"].any()
    # Equal where the texts are.
    assert batch["text_ids"].tolist() == [[1, 3, 0], [0, 1, 2]]
    assert sorted(batch) == ["input_ids", "input_mask", "segment_ids", "text_ids"]


def test_batches_are_not_of_one_length():
    """It would tell the right text from the others."""
    task = config.Task(kind="embedding")
    assert not settings().are_batches_by_length(task)
    given = finetuning.FinetuningConfig(task="embedding", batches="by_length")
    assert given.are_batches_by_length(task)


def test_plain_texts_are_pairs_with_themselves_in_training_alone(tmp_path):
    data = read(tmp_path / "x.tsv", PAIRS, pairs="dropout").for_training()
    inputs = encode(data)
    assert inputs.ids.tolist() == [[0, 0], [1, 1]]
    assert len(inputs.texts) == 2
    assert data.contents().texts == [("a",), ("b",)]


def test_labels_become_cosines(tmp_path):
    content = "text\ttext_pair\tlabel\na\tb\t0\nb\tc\t2.5\nc\td\t5\n"
    data = read(tmp_path / "x.tsv", content, max_label=5.0, metric="spearman")
    batch = encode(data.for_training()).batch(np.arange(3))
    assert batch["label_ids"].tolist() == [0, 0.5, 1]
    data.check_metric()
    # A dev file is scored whatever its scale.
    assert "label_ids" not in encode(data).batch(np.arange(1))
    report = data_report.describe(
        [("x.tsv", data, encode(data))], kind="embedding", max_seq_length=128
    )
    assert report.files[0].numbers.greatest == 5 and not report.files[0].labels
    assert data_report.problems(report, registry.labelled("embedding")) == []


def test_json_lines_and_columns_of_other_names(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"q": "a", "p": "b", "score": 1, "label": "x"}) + "\n")
    columns = finetuning.TextColumns(text="q", text_pair="p", label="score")
    (row,) = embedding.read(path, columns)
    assert row == embedding.Texts("a", "b", None, 1.0, 1)
    (row,) = embedding.read(path, columns, has_labels=False)
    assert row.label is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text\ttext_pair\na\tb\nb\t \n", r"line 3: 'text_pair' is empty: expected a"),
        ("text\ttext_pair\n\tb\n", r"line 2: 'text' is empty: expected a text in each"),
        ("text\ttext_pair\tnegative\na\tb\t\n", r"line 2: 'negative' is empty"),
        (
            "text\ttext_pair\na\tb\tc\n",
            r"line 2: expected 2 columns \(text, text_pair\)",
        ),
        ("text\ttext_pair\n", r"holds no rows, expected at least one"),
        ("txt\ttext_pair\na\tb\n", r"no column 'text' .*; did you mean 'txt'"),
        (
            "text\ttext_pair\tlabel\na\tb\tnan\n",
            r"line 2: 'label': expected a number, ",
        ),
        ("text\ttext_pair\tlabel\na\tb\tyes\n", r"got 'yes'; classes are for --task t"),
        (
            "text\ttext_pair\tlabel\na\tb\tinf\n",
            r"line 2: 'label': expected a number, ",
        ),
    ],
)
def test_bad_files(content, message, tmp_path):
    with pytest.raises(InputError, match=rf"x\.tsv: .*{message}"):
        read(tmp_path / "x.tsv", content)


def test_files_that_cannot_be_learnt_or_scored(tmp_path):
    path = tmp_path / "x.tsv"
    with pytest.raises(
        InputError, match=r"x\.tsv: no column 'text_pair', and vectors a"
    ):
        read(path, "text\na\nb\n").for_training()
    data = read(path, "text\na\nb\n", pairs="dropout")
    with pytest.raises(
        InputError, match=r"x\.tsv: no column 'text_pair': vectors are s"
    ):
        encode(data)
    encode(data.for_training())
    message = r"x\.tsv: 2 texts to learn from, fewer than a batch of 3: .*batch_size=2"
    with pytest.raises(InputError, match=message):
        encode(data.for_training(), batch_size=3)
    pairs = read(path, PAIRS)
    with pytest.raises(
        InputError, match=r"x\.tsv: 2 pairs to learn from, fewer than a"
    ):
        encode(pairs.for_training(), batch_size=32)
    with pytest.raises(
        InputError, match=r"`batch_size` is 1, but what a pair is unlike"
    ):
        encode(pairs.for_training(), batch_size=1)
    pairs.check_metric()
    numbers = "text\ttext_pair\tlabel\na\tb\t-1\nb\tc\t1.5\n"
    with pytest.raises(
        InputError, match=r"x\.tsv: has labels, .*embedding.metric=spea"
    ):
        read(path, numbers).check_metric()
    with pytest.raises(
        InputError, match=r"x\.tsv: line 3: label 1.5 is not from -1 to"
    ):
        encode(read(path, numbers).for_training())
    with pytest.raises(
        InputError, match=r"has no labels: --set embedding.metric=recall"
    ):
        read(path, PAIRS, metric="spearman").check_metric()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"gradient_accumulation_steps": 2},
            r"`gradient_accumulation_steps` 2 is not for",
        ),
        ({"dropout_prob": 0.3}, r"`dropout_prob` 0.3 is not for .*hidden_dropout_prob"),
        (
            {"bilstm_units": 4},
            r"`bilstm_units` 4 is not for --task embedding: vectors h",
        ),
        ({"class_weights": "balanced"}, r"`class_weights` is for texts with labels"),
        ({"label_smoothing": 0.1}, r"`label_smoothing` is for texts with labels"),
        ({"regression": True}, r"`regression` is for your own texts"),
        ({"pack_examples": True}, r"`pack_examples` is for texts and tagging"),
        (
            {"long_texts": "windows_mean"},
            r"`long_texts` windows_mean is not for a task of kind embedding",
        ),
        (
            {"task": "text"},
            r"`embedding` is for --task embedding, got the task text",
        ),
    ],
)
def test_settings_that_mean_nothing(changes, message):
    given = settings(scale=10.0).model_copy(update=changes)
    kind = "embedding" if given.task == "embedding" else "classification"
    with pytest.raises(InputError, match=re.compile(message)):
        settings_check.check(
            given, config.Task(kind=kind), config.BertConfig(vocab_size=9)
        )


def test_a_negative_is_of_pairs_alone():
    given = finetuning.FinetuningConfig(columns={"negative": "wrong"})
    with pytest.raises(InputError, match=r"`columns.negative` is for --task embedding"):
        settings_check.check(
            given, config.Task(kind="classification"), config.BertConfig(vocab_size=9)
        )


def test_the_first_token_of_an_encoder_that_looks_to_the_left():
    left = config.BertConfig(vocab_size=9, attention="left_to_right")
    task = config.Task(kind="embedding")
    settings_check.check(settings(pooling="mean"), task, left)
    with pytest.raises(
        InputError, match=r"`embedding.pooling` cls: the first token of"
    ):
        settings_check.check(settings(pooling="cls"), task, left)


def test_an_encoder_without_dropout_sees_a_text_once():
    """Some recipes train with none."""
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    encoder, task = (
        config.BertConfig(vocab_size=9, **none),
        config.Task(kind="embedding"),
    )
    settings_check.check(settings(), task, encoder)
    given = settings(pairs="dropout")
    with pytest.raises(InputError, match=r"drops nothing, .*hidden_dropout_prob=0.1"):
        settings_check.check(given, task, encoder)
    with pytest.raises(InputError, match=r"drops nothing"):
        settings_check.check(
            given.model_copy(update=none), task, config.BertConfig(vocab_size=9)
        )
    given = given.model_copy(update={"hidden_dropout_prob": 0.1})
    settings_check.check(given, task, encoder)


def random_vectors(num_rows: int, *, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_rows, 6)).astype(np.float32)


def test_a_search_finds_what_a_slow_one_finds():
    """More rows than one chunk, texts that come again, and several right answers."""
    count = 1300
    first, second = random_vectors(count, seed=1), random_vectors(count, seed=2)
    first_ids, second_ids = np.arange(count), count + np.arange(count)
    first_ids[7] = 3
    second_ids[9] = second_ids[2]
    second[9] = second[2]
    second_ids[20], second[20] = first_ids[4], first[4]
    found = similarity.search(first, second, first_ids, second_ids)
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (first, second)]
    scores = unit[0] @ unit[1].T
    assert found.num_candidates == count - 1
    for row in (0, 3, 4, 7, 9, 1029, 1299):
        wrong = {}
        for other in range(count):
            is_right = first_ids[other] == first_ids[row]
            own = (first_ids[row], second_ids[row])
            if not is_right and second_ids[other] not in own:
                wrong[second_ids[other]] = (scores[row, other], other)
        better = [s for s, _ in wrong.values() if s >= scores[row, row]]
        assert found.ranks[row] == 1 + len(better)
        assert second_ids[found.nearest[row]] == second_ids[max(wrong.values())[1]]


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan])
def test_a_model_with_one_vector_for_all_texts_finds_nothing(value):
    vectors = np.full((50, 4), value, np.float32)
    ids = np.arange(50)
    found = similarity.search(vectors, vectors, ids, 50 + ids)
    assert found.ranks.tolist() == [50] * 50
    assert similarity.search_scores(found.ranks) == {
        "recall_at_1": 0.0,
        "recall_at_10": 0.0,
        "mrr": pytest.approx(1 / 50),
    }
    scores = similarity.label_scores(similarity.cosines(vectors, vectors), ids / 50)
    assert scores == {"spearman": 0.0, "pearson": 0.0}


def test_scores_of_ranks():
    scores = similarity.search_scores(np.array([1, 2, 10, 11]))
    assert scores["recall_at_1"] == 0.25 and scores["recall_at_10"] == 0.75
    assert scores["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 10 + 1 / 11) / 4)


def test_few_texts_to_search_are_said(tmp_path, caplog):
    data = read(tmp_path / "x.tsv", PAIRS)
    inputs = encode(data)
    vectors = random_vectors(4, seed=1).reshape(2, 2, 6)
    answers = data.answer(vectors, inputs, data.describe(), settings())
    assert answers.scores()["recall_at_10"] == 1
    assert "2 different second texts to search: `recall_at_10` is 1 what" in caplog.text

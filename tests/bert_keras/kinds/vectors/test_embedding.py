"""Files of texts whose vectors are learnt, and how well vectors find one another."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, finetuning, tasks
from bert_keras.data import features
from bert_keras.kinds import catalogue, registry
from bert_keras.kinds.vectors import embedding
from bert_keras.labelled import data_report, similarity
from tests import make
from tests.bert_keras.kinds import kind_data

WORDS = ("a", "b", "c", "d", "e")
TOKENIZER = kind_data.tokenizer(*WORDS)
PAIRS = "text\ttext_pair\na\tb c\nb\tc d e\n"


def settings(**embedding_settings) -> finetuning.FinetuningConfig:
    return finetuning.FinetuningConfig(
        task="embedding", batch_size=2, embedding=embedding_settings
    )


def read(path: Path, content: str, **options) -> embedding.EmbeddingDataset:
    return catalogue.read(kind_data.write(path, content), settings(**options))


def encode(data: embedding.EmbeddingDataset, **changes):
    given = settings(**data.settings.model_dump()).model_copy(update=changes)
    return data.encode(data.describe(), TOKENIZER, given)


def test_a_batch_has_the_texts_of_a_row_one_by_one(tmp_path):
    content = "text\ttext_pair\tnegative\na\tb c\td\nb c\ta b c d\ta\n"
    inputs = encode(read(tmp_path / "x.tsv", content).for_training())
    batch = inputs.batch(np.array([1, 0]))
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
    task = tasks.Task(kind="embedding")
    assert not settings().are_batches_by_length(task)
    given = finetuning.FinetuningConfig(task="embedding", batches="by_length")
    assert given.are_batches_by_length(task)


def test_plain_texts_are_pairs_with_themselves_in_training_alone(tmp_path):
    data = read(tmp_path / "x.tsv", PAIRS, pairs="dropout").for_training()
    texts = encode(data).texts
    assert texts.ids.tolist() == [[0, 0], [1, 1]]
    assert len(texts.texts) == 2
    assert data.contents().texts == [("a",), ("b",)]


def test_labels_become_cosines(tmp_path):
    content = "text\ttext_pair\tlabel\na\tb\t0\nb\tc\t2.5\nc\td\t5\n"
    data = read(tmp_path / "x.tsv", content, max_label=5.0, metric="spearman")
    batch = encode(data.for_training()).batch(np.arange(3))
    assert batch["label_ids"].tolist() == [0, 0.5, 1]
    data.check_metric()
    # A dev file is scored whatever its scale.
    assert "label_ids" not in encode(data).batch(np.arange(1))
    settings = finetuning.FinetuningConfig(task="embedding", max_seq_length=128)
    files = [("x.tsv", data, encode(data))]
    report = data_report.describe(files, settings, kind="embedding")
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
        ("text\ttext_pair\na\tb\nb\t \n", "line 3: 'text_pair' is empty: expected a"),
        ("text\ttext_pair\n\tb\n", "line 2: 'text' is empty: expected a text in each"),
        ("text\ttext_pair\tnegative\na\tb\t\n", "line 2: 'negative' is empty"),
        ("text\ttext_pair\n", "holds no rows, expected at least one"),
        ("txt\ttext_pair\na\tb\n", "no column 'text' .*; did you mean 'txt'"),
        ("text\ttext_pair\tlabel\na\tb\tyes\n", "got 'yes'; classes are for --task t"),
        *(
            (
                f"text\ttext_pair\tlabel\na\tb\t{number}\n",
                "'label': expected a number, ",
            )
            for number in ("nan", "inf")
        ),
    ],
)
def test_bad_files(content, message, tmp_path):
    with pytest.raises(InputError, match=rf"x\.tsv: .*{message}"):
        read(tmp_path / "x.tsv", content)


def test_texts_to_get_vectors_of_may_be_empty_or_plain_lines(tmp_path):
    table, plain = tmp_path / "x.tsv", tmp_path / "x.txt"
    table.write_text("text\tother\na\t1\n\t2\n")
    plain.write_text("a\n\nb\n")
    rows, lines = (
        embedding.read(path, finetuning.TextColumns(), has_labels=False)
        for path in (table, plain)
    )
    assert [(row.text, row.line) for row in rows] == [("a", 2), ("", 3)]
    assert [(row.text, row.line) for row in lines] == [("a", 1), ("", 2), ("b", 3)]
    with pytest.raises(InputError, match=r"x.txt: line 2: 'text' is empty: expected"):
        embedding.read(plain, finetuning.TextColumns())


LABELS = "text\ttext_pair\tlabel\na\tb\t-1\nb\tc\t1.5\n"


@pytest.mark.parametrize(
    ("content", "options", "use", "message"),
    [
        ("text\na\n", {}, "train", r"no column 'text_pair', and vectors a"),
        ("text\na\n", {"pairs": "dropout"}, 0, "no column 'text_pair': vectors are s"),
        (
            *("text\na\nb\n", {"pairs": "dropout"}, 3),
            r"2 texts to learn from, fewer than a batch of 3: .*batch_size=2",
        ),
        (PAIRS, {}, 32, "2 pairs to learn from, fewer than a"),
        (PAIRS, {}, 1, "`batch_size` is 1, but what a pair is unlike"),
        (LABELS, {}, "score", "has labels, .*embedding.metric=spea"),
        (LABELS, {}, 2, "line 3: label 1.5 is not from -1 to"),
        (
            PAIRS,
            {"metric": "spearman"},
            "score",
            "has no labels: --set embedding.metri",
        ),
    ],
)
def test_files_that_cannot_be_learnt_or_scored(
    tmp_path, content, options, use, message
):
    """`use`: a batch size for training; 0: the file is compared."""
    data = read(tmp_path / "x.tsv", content, **options)
    with pytest.raises(InputError, match=message):
        if use == "score":
            data.check_metric()
        elif use == 0:
            encode(data)
        else:
            encode(data.for_training(), batch_size=use)


def check(changes: dict, **encoder) -> None:
    """Checks settings of vectors, or of the task in `changes`."""
    given = settings(scale=10.0).model_copy(update=changes)
    encoder = architecture.BertConfig(vocab_size=9, **encoder)
    make.check_settings(given, tasks.Task(kind=given.task), encoder)


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SAME = {"embedding": finetuning.EmbeddingConfig(pairs="dropout")}
FIRST = {"embedding": finetuning.EmbeddingConfig(pooling="cls")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradient_accumulation_steps": 2}, "`gradient_accumulation_steps` 2 is not "),
        ({"dropout_prob": 0.3}, "`dropout_prob` 0.3 is not for .*hidden_dropout_prob"),
        (
            {"bilstm_units": 4},
            "`bilstm_units` 4 is not for --task embedding: vectors h",
        ),
        ({"regression": True}, "`regression` is for your own texts"),
        (
            {"long_texts": "windows_mean"},
            "windows_mean is not for a task of kind embed",
        ),
        (
            {
                **{"task": "ranking", "long_texts": "windows_max"},
                "embedding": finetuning.EmbeddingConfig(),
            },
            "not for a task of kind ranking",
        ),
    ],
)
def test_settings_that_mean_nothing(changes, message):
    with pytest.raises(InputError, match=message):
        check(changes)


def test_encoders_that_vectors_cannot_be_learnt_with():
    """The first token of one that looks to the left; a text that comes twice."""
    left = {"attention": "left_to_right"}
    check({}, **left)
    with pytest.raises(InputError, match="`embedding.pooling` cls: the first token of"):
        check(FIRST, **left)
    check({}, **NO_DROPOUT)
    for changes, encoder in ((SAME, NO_DROPOUT), (SAME | NO_DROPOUT, {})):
        with pytest.raises(InputError, match="drops nothing, .*hidden_dropout_prob=0."):
            check(changes, **encoder)
    check(SAME | {"hidden_dropout_prob": 0.1}, **NO_DROPOUT)


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
    mrr = (1 + 1 / 2 + 1 / 10 + 1 / 11) / 4
    assert similarity.search_scores(np.array([1, 2, 10, 11])) == pytest.approx(
        {"recall_at_1": 0.25, "recall_at_10": 0.75, "mrr": mrr}
    )


def test_few_texts_to_search_are_said(tmp_path, caplog):
    data = read(tmp_path / "x.tsv", PAIRS)
    inputs = encode(data)
    vectors = random_vectors(4, seed=1).reshape(2, 2, 6)
    answers = data.answer(vectors, inputs, data.describe(), settings())
    assert answers.scores()["recall_at_10"] == 1
    assert "2 different second texts to search: `recall_at_10` is 1 what" in caplog.text

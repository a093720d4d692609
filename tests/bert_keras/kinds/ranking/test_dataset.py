"""Files of questions with their candidates, what is drawn of them, and the answers."""

import json

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.kinds import registry
from bert_keras.kinds.ranking import dataset
from bert_keras.kinds.ranking.dataset import Candidate, Question
from tests.bert_keras.kinds import kind_data
from tests.bert_keras.kinds.kind_data import write

TOKENIZER = kind_data.tokenizer(*"abcdefgh", "?")
VOCABULARY = TOKENIZER.vocabulary
TASK = tasks.Task(kind="ranking", has_text_pair=True)
SETTINGS = finetuning.FinetuningConfig(
    task="ranking", max_seq_length=8, ranking=finetuning.RankingConfig(num_candidates=3)
)


def question(text: str, *relevances: float) -> Question:
    passages = ["abcdefgh"[n % 8] + " b" * (n % 3) for n in range(len(relevances))]
    rows = enumerate(zip(passages, relevances, strict=True))
    return Question(text, [Candidate(*both, n, n + 2) for n, both in rows])


def inputs_of(*questions: Question, **changes) -> dataset.CandidateLists:
    data = dataset.RankingDataset(path="x", rows=questions, has_labels=True)
    settings = SETTINGS.model_copy(update=changes)
    return data.for_training().encode(TASK, TOKENIZER, settings)


def test_a_whole_batch():
    inputs = inputs_of(question("a", 0, 2, 1), question("b ?", 1, 0))
    batch = inputs.batch(np.array([0, 1]))
    cls, sep = VOCABULARY.cls_id, VOCABULARY.sep_id
    a, b, c, mark = (VOCABULARY.tokens.index(token) for token in "abc?")
    expected = {
        "input_ids": [
            [[cls, a, sep, a, sep, 0, 0], [cls, a, sep, b, b, sep, 0]]
            + [[cls, a, sep, c, b, b, sep]],
            [[cls, b, mark, sep, a, sep, 0], [cls, b, mark, sep, b, b, sep]]
            + [[cls, b, mark, sep, a, sep, 0]],
        ],
        "label_ids": [[0, 2, 1], [1, 0, -1]],
        "label_targets": [[0, 2 / 3, 1 / 3], [1, 0, 0]],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(batch[name], np.array(values, batch[name].dtype))
    assert {name: str(values.dtype) for name, values in batch.items()} == {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), "int32"),
        **dict.fromkeys(("label_ids", "label_targets"), "float32"),
    }
    np.testing.assert_array_equal(batch["input_mask"], batch["input_ids"] > 0)
    pairwise = finetuning.RankingConfig(num_candidates=3, loss="pairwise")
    inputs = inputs_of(question("a", 0, 2, 1), ranking=pairwise)
    assert "label_targets" not in inputs.batch(np.array([0]))


@pytest.mark.parametrize(
    "relevances",
    [[0] * 9 + [1], [1] * 9 + [0], [3, 2, 1, 0] * 5, [0.5, 0.25] * 3, [1, 0, 0, 0]],
)
def test_a_draw_has_a_right_passage_and_a_less_relevant_one(relevances):
    inputs, drawn = inputs_of(question("a", *relevances)), set()
    for epoch in range(200):
        places = inputs.of_epoch(epoch).draw(0)
        assert len({*places.tolist()}) == 3
        assert places.tolist() == sorted(places)
        values = np.array(relevances)[places]
        assert values.max() > values.min() and values.max() > 0
        drawn |= {*places.tolist()}
    assert drawn == {*range(len(relevances))}


def test_a_draw_is_a_function_of_seed_question_and_epoch():
    many = [question(f"a {'b' * n}", *[0] * 30, 1) for n in range(3)]
    whole = inputs_of(*many)
    alone = inputs_of(many[2])
    for epoch in (0, 1, 2**40):
        first, second = whole.of_epoch(epoch), alone.of_epoch(epoch)
        np.testing.assert_array_equal(first.draw(2) - 62, second.draw(0))
        np.testing.assert_array_equal(first.lengths, whole.lengths)
    for other in (inputs_of(*many, seed=5), whole.of_epoch(1)):
        assert any(other.draw(n).tolist() != whole.draw(n).tolist() for n in range(3))
    assert inputs_of(*many, seed=-1).draw(0).shape == (3,)


def test_questions_that_teach_nothing_are_left_out(caplog):
    encoding = (TASK, TOKENIZER, SETTINGS)
    right = question("a", 1, 0)
    data = dataset.RankingDataset(
        path="x.tsv",
        rows=[question("b", 0, 0), right, question("c", 1), question("d", 2, 2)],
        has_labels=True,
    )
    assert data.for_training().rows == [right]
    assert caplog.messages == [
        "x.tsv: 3 of 4 questions have no right passage, or none that is less relevant: "
        "nothing is learnt from these"
    ]
    # As an evaluation, where every order would score 0 or 1.
    message = "found none for 2 questions: `bert-keras negatives` lo"
    for useless in (data.subset([0, 2]), data.subset([2, 3])):
        for use in (lambda d: d.for_training(), lambda d: d.encode(*encoding)):
            with pytest.raises(InputError, match=message):
                use(useless)
    assert data.encode(*encoding).num_answers == 7


def test_what_the_report_on_the_data_counts():
    rows = [question("a", 0, 2), question("b", 0.5)]
    data = dataset.RankingDataset(path="x", rows=rows, has_labels=True)
    texts, answers, *_ = contents = data.contents()
    assert texts == [("a", "a"), ("a", "b b"), ("b", "a")]
    assert (answers, contents.labels) == ([0, 2, 0.5], ["0", "2", "0.5"])
    assert len(data.encode(TASK, TOKENIZER, SETTINGS).whole_lengths) == 3


def answers_of(path, *, has_labels: bool, scores):
    data = registry.labelled("ranking").read(path, SETTINGS, has_labels=has_labels)
    inputs = data.encode(TASK, TOKENIZER, SETTINGS)
    assert inputs.num_answers == len(scores)
    outputs = np.array(scores, np.float32)[:, None]
    return data, data.answer(outputs, inputs, TASK, SETTINGS)


def test_answers_to_a_file(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text(
        "question\tpassage\trelevance\tid\n"
        "q\ta\t0\t1\nr\tb\t1\t2\nq\tc\t1\t3\nr\td\t0\t4\nq\te\t0\t5\n"
    )
    # Question after question: q has three passages, r two.
    data, found = answers_of(path, has_labels=True, scores=[0.5, 0.25, -1, 2, 3])
    assert found.scores() == pytest.approx(
        {"mrr": 0.5, "mrr_at_10": 0.5, "ndcg_at_10": 1 / np.log2(3)}
        | {"mrr_by_chance": ((1 + 1 / 2 + 1 / 3) / 3 + (1 + 1 / 2) / 2) / 2}
    )
    first, second = found.records()
    assert first.model_dump() == {
        "question": "q",
        "passages": ("a", "c", "e"),
        "line": 2,
        "relevances": (0.0, 1.0, 0.0),
        "prediction": (0, 1, 2),
        "scores": (0.5, 0.25, -1.0),
    }
    assert (second.line, second.prediction) == (3, (1, 0))
    record = registry.labelled("ranking").record
    assert record.model_validate(json.loads(first.model_dump_json())) == first
    with pytest.raises(ValueError, match="3 passages, but 2 scores"):
        record.model_validate(first.model_dump() | {"scores": (1.0, 2.0)})


def test_predictions_are_ranked_and_keep_the_columns(tmp_path):
    path = tmp_path / "new.tsv"
    path.write_text(
        "passage\tquestion\tid\tscore\n"
        "a\tq\t1\told\nb\tr\t2\told\na\tq\t3\told\nd\tr\t4\told\n"
    )
    data, found = answers_of(path, has_labels=False, scores=[0.5, 0.75, -1, 1 / 3])
    [content] = data.files(found, suffix=".tsv").values()
    assert content == (
        "passage\tquestion\tid\tscore\n"
        "a\tq\t3\t0.75\na\tq\t1\t0.5\nd\tr\t4\t0.333333343\nb\tr\t2\t-1\n"
    )
    [content] = data.files(found, suffix=".jsonl").values()
    first = {"passage": "a", "question": "q", "id": "3", "score": 0.75}
    assert json.loads(content.splitlines()[0]) == first
    assert next(found.records()).relevances is None


def test_runs_that_learnt_nothing():
    kind = registry.labelled("ranking")
    same = {"scores": [0.5, 0.5002], "relevances": [1, 0]}
    other = {"scores": [0.5, 0.7], "relevances": [1, 0]}
    assert kind.sign({}, [same] * 99 + [other]) is not None
    assert kind.sign({}, [same] * 90 + [other] * 10) is None
    # A question with one passage has one score.
    assert kind.sign({}, [same | {"scores": [0.5]}] * 99 + [other]) is None
    assert kind.sign({}, [other | {"scores": [0.5]}] * 99 + [same]) is not None
    for unknown in (None, [same | {"scores": [0.5]}]):
        assert kind.sign({}, unknown) is None


USUAL = finetuning.TextColumns()
ROWS = "question\tpassage\trelevance\n"


def read(path, text: str, columns=USUAL, **options):
    return dataset.read_questions(write(path, text), columns, **options)


def test_rows_of_a_question_may_be_anywhere(tmp_path):
    questions = [
        Question("q1", (Candidate("a", 0.0, 0, 2), Candidate("b", 2.5, 2, 4))),
        Question("q2", (Candidate("a", 1.0, 1, 3),)),
    ]
    table = f"{ROWS}q1\ta\t0\nq2\ta\t1\nq1\tb\t2.5\n"
    assert read(tmp_path / "a.tsv", table) == questions
    assert read(tmp_path / "crlf.tsv", table.replace("\n", "\r\n")) == questions
    assert read(tmp_path / "a.csv", table.replace("\t", ",")) == questions
    other = finetuning.TextColumns(text="query", text_pair="doc", label="grade")
    renamed = table.replace(ROWS, "query\tdoc\tgrade\n")
    assert read(tmp_path / "other.tsv", renamed, other) == questions
    lines = [
        {"question": "q1", "passage": "a", "relevance": False, "more": [1]},
        {"question": "q2", "passage": "a", "relevance": 1},
        {"question": "q1", "passage": "b", "relevance": "2.5"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    found = read(tmp_path / "a.jsonl", text)
    assert [[c[:3] for c in question.candidates] for question in found] == [
        [c[:3] for c in question.candidates] for question in questions
    ]


def test_ids_divide_equal_questions(tmp_path):
    text = "question_id\tquestion\tpassage\n7\tq\ta\n8\tq\tb\n7\tq\ta\n"
    assert read(tmp_path / "a.tsv", text, has_labels=False) == [
        Question("q", (Candidate("a", None, 0, 2), Candidate("a", None, 2, 4))),
        Question("q", (Candidate("b", None, 1, 3),)),
    ]


def test_triples_and_right_passages_alone(tmp_path):
    text = "question\tpositive\tnegative\nq\ta\tb\nq\ta\tc\nq\td\tb\n"
    first = Candidate("a", 1.0, 0, 2), Candidate("b", 0.0, 0, 2)
    others = Candidate("c", 0.0, 1, 3), Candidate("d", 1.0, 2, 4)
    assert read(tmp_path / "a.tsv", text) == [Question("q", (*first, *others))]
    found = read(tmp_path / "b.tsv", "question\tpositive\nq\ta\n")
    assert found == [Question("q", (Candidate("a", 1.0, 0, 2),))]
    assert not found[0].can_be_learnt
    # The loss compares float32 numbers.
    table = f"{ROWS}q\ta\t1\nq\tb\t1.00000001\nr\ta\t0\nr\tb\t1e-60\n"
    assert not any(q.can_be_learnt for q in read(tmp_path / "equal.tsv", table))
    columns = finetuning.TextColumns(text="q", text_pair="good")
    found = read(tmp_path / "c.tsv", "q\tgood\tnegative\nx\ty\tz\n", columns)
    assert found == [
        Question("x", (Candidate("y", 1.0, 0, 2), Candidate("z", 0.0, 0, 2)))
    ]


def test_a_repeated_passage_counts_once(tmp_path, caplog):
    text = f"{ROWS}q\ta\t0\nq\tb\t1\nq\ta\t2\nq\tb\t1\n"
    assert read(tmp_path / "a.tsv", text) == [
        Question("q", (Candidate("a", 2.0, 0, 2), Candidate("b", 1.0, 1, 3)))
    ]
    assert caplog.messages == [
        f"{tmp_path / 'a.tsv'}: 1 passages come again for their question with another "
        "relevance, such as line 4: the highest one counts"
    ]


LINE = '{"question": "q", "passage": "a", "relevance": 1}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROWS, "holds no rows"),
        ("question\tpassage\nq\ta\n", "no column 'relevance'"),
        ("question\trelevance\nq\t1\n", "no column 'passage'"),
        ("query\tpassage\trelevance\nq\ta\t1\n", "no column 'question'"),
        (f"{ROWS} \ta\t1\n", "line 2: 'question' is empty: expected a question"),
        (f"{ROWS}q\t \t1\n", "line 2: 'passage' is empty: expected a passage"),
        *(
            (f"{ROWS}q\ta\t1\nq\tb\t{value}\n", f"line 3: .* got '{value}'")
            for value in ("nan", "inf", "-1", "yes", "", "1e7")
        ),
        (
            f"question_id\t{ROWS}1\tq\ta\t1\n1\tr\tb\t1\n",
            "line 3: question_id '1' is that of another question in line 2",
        ),
        *(
            (LINE + '{"question": "q"' + wrong + "}", f"line 2: .*{message}")
            for wrong, message in (
                (', "passage": 3, "relevance": 1', "'passage': expected a s"),
                (', "passage": "a"', "no column 'relevance'"),
                (', "passage": "a", "relevance": null', "got None"),
                (', "passage": "a", "relevance": NaN', "got nan"),
            )
        ),
    ],
)
def test_files_that_cannot_be_read(tmp_path, text, message):
    name = "a.jsonl" if text.startswith(LINE) else "a.tsv"
    with pytest.raises(InputError, match=f"{name}: .*{message}"):
        read(tmp_path / name, text)

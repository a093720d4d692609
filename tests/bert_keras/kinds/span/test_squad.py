"""Files in SQuAD's layout."""

import functools
import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from bert_keras.core.errors import InputError
from bert_keras.kinds.span import squad
from tests.bert_keras.kinds import kind_data

slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def qas(id="q", answers=(("cat", 4),), **more) -> dict:
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id, "question": "what?", "answers": answers, **more}


def content(*questions, context="the cat sat on the mat", **more) -> str:
    paragraph = {"context": context, "qas": list(questions)}
    return json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}], **more})


def read(tmp_path, text: str | bytes, **options) -> squad.QuestionSet:
    return squad.read_squad(kind_data.write(tmp_path / "q.json", text), **options)


def test_reads_both_layouts(tmp_path):
    context = "the cat sat on the mat"
    one = read(tmp_path, "\ufeff" + content(qas(), version="1.1"))
    answers = (squad.Answer("cat", 4),)
    question = squad.Question("q", "what?", context, answers)
    assert one == squad.QuestionSet((question,), False, 0, ())
    assert squad.gold_answers(one.questions) == {"q": ("cat",)}
    impossible = qas("i", (), is_impossible=True, plausible_answers=[{"text": "mat"}])
    two = read(tmp_path, content(qas(is_impossible=False), impossible))
    assert two == squad.QuestionSet(
        (question, squad.Question("i", "what?", context, ())), True, 0, ()
    )
    assert squad.gold_answers(two.questions) == {"q": ("cat",), "i": ()}
    # Without `has_answers` they need not be there.
    bare = {"id": "q", "question": "what?"}
    found = read(tmp_path, content(bare, qas("p", [("dog", 1)])), has_answers=False)
    assert [(q.id, q.answers) for q in found.questions] == [("q", ()), ("p", ())]
    # A file may have no impossible question, and yet be of 2.0.
    assert read(tmp_path, content(qas(), version="v2.0")).has_impossible


CONTEXT = "\U0001f600 the cat sat on the mat"
FLAT = [
    {
        **{"id": "q", "title": "t", "context": CONTEXT, "question": "what?"},
        "answers": {"text": ["cat", "mat"], "answer_start": [6, 21]},
    },
    {
        **{"id": "i", "context": CONTEXT, "question": "who?"},
        "answers": {"text": [], "answer_start": []},
    },
]


def test_a_flat_list_is_read_as_the_layout_is(tmp_path):
    whole = content(
        qas("q", [("cat", 6), ("mat", 21)], is_impossible=False),
        {"id": "i", "question": "who?", "answers": [], "is_impossible": True},
        **{"context": CONTEXT, "version": "2.0"},
    )
    lines = "".join(f"\n{json.dumps(row)}\n" for row in FLAT)
    parquet.write_table(pa.Table.from_pylist(FLAT), tmp_path / "q.parquet")
    array = kind_data.write(tmp_path / "array.json", "\ufeff\n" + json.dumps(FLAT))
    lines = kind_data.write(tmp_path / "q.jsonl", lines)
    for has_answers in (True, False):
        expected = read(tmp_path, whole, has_answers=has_answers)
        for path in (array, lines, tmp_path / "q.parquet"):
            found = squad.read_squad(path, has_answers=has_answers)
            assert found.questions == expected.questions
            assert found.has_impossible == has_answers
    assert not read(tmp_path, json.dumps(FLAT[:1])).has_impossible
    # Without ids the records are numbered, and numbers are strings.
    bare = [{k: row[k] for k in ("context", "question")} for row in FLAT]
    found = read(tmp_path, json.dumps([*bare, bare[0] | {"id": 7}]), has_answers=False)
    assert [question.id for question in found.questions] == ["1", "2", "7"]


def flat(**changes) -> str:
    return json.dumps([FLAT[1], FLAT[0] | changes])


def test_an_answer_at_the_wrong_place(tmp_path):
    """Is repaired if the text has it once; else the question needs another one, or is
    answered and scored but not trained on."""
    found = read(
        tmp_path,
        content(
            qas("once", [("cat", 3)]),
            qas("twice", [("the", 3)]),
            qas("never", [("dog", 4)]),
            qas("before", [("mat", -3)]),
            qas("beyond", [("mat", 10**30)]),
            qas("blank", [(" ", 3)]),
            qas("one of two", [("the", 4), ("sat", 8)]),
        ),
    )
    assert squad.gold_answers(found.questions)["never"] == ("dog",)
    assert [(q.id, q.answers) for q in found.questions if q.can_be_learnt] == [
        ("once", (("cat", 4),)),
        ("before", (("mat", 19),)),
        ("beyond", (("mat", 19),)),
        ("one of two", (("the", None), ("sat", 8))),
    ]
    assert found.num_repaired_answers == 3
    why = "where it should be, nor exactly once"
    assert found.skipped == (
        f"twice: the text does not have the answer 'the' {why}",
        f"never: the text does not have the answer 'dog' {why}",
        f"blank: the text does not have the answer ' ' {why}",
    )
    overlapping = read(tmp_path, content(qas("q", [("aa", 5)]), context="aaa b"))
    assert len(overlapping.skipped) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"q.json: expected JSON: "),
        ("{}", r"q.json: expected 'data', which is not there \(there: nothing\)"),
        ('{"data": {}}', r"q.json: 'data': expected a list, got {}"),
        ('{"data": []}', "q.json: holds no questions, expected at least one"),
        (
            '{"data": [{"title": "x", "qas": []}]}',
            r"q.json: data\[0\]: expected 'paragraphs', which is not there "
            r"\(there: title, qas\): is it SQuAD's layout\?",
        ),
        (
            '{"data": [{"paragraphs": [{"qas": []}]}]}',
            r"q.json: data\[0\].paragraphs\[0\]: expected 'context'",
        ),
        (content(), "holds no questions"),
        ("[]", "q.json: holds no questions"),
        ("3", r"line 1: expected \{\"context\": ..., \"question\": ..., ...\}, got 3"),
        ("[3]", r"q.json: record 1: expected \{\"context\": .*, got 3"),
        ("[[]]", r"q.json: record 1: expected an object with 'context', got \[\]"),
        (flat(context=None), "q.json: record 2: 'context': expected a string, got n"),
        (flat(question=3), r"record 2: qas\[0\]: 'question': expected a string, got 3"),
        (flat(answers=[]), r"record 2: 'answers': expected an object, got \[\]"),
        (flat(answers={"text": []}), "record 2: expected 'answer_start', which is not"),
        (
            flat(answers={"text": ["a"], "answer_start": []}),
            r"answers\[0\]: 'answer_start': expected a whole number, got null",
        ),
        (flat(id="i"), r"the id 'i' is also at record 1: qas\[0\]: predictions go by"),
        (content(7), r"data\[0\].paragraphs\[0\].qas\[0\]: expected an object with"),
        (content({"id": "x"}), r"qas\[0\]: expected 'question', which is not there"),
        (content(qas(id=3)), r"qas\[0\]: 'id': expected a string, got 3"),
        (content(qas("q", is_impossible="no")), "'is_impossible': expected true or"),
        (content(qas(answers=[(1, 4)])), r"answers\[0\]: 'text': expected a string"),
        (
            content(qas(answers=[("cat", "4")])),
            r"answers\[0\]: 'answer_start': expected a whole number, got \"4\"",
        ),
        (content(qas(answers=[("cat", True)])), "expected a whole number, got true"),
        (content(qas(answers=[])), r"or `is_impossible: true`, got neither"),
        (content(qas(is_impossible=True)), "or `is_impossible: true`, got both"),
        (
            content(qas("a"), qas("b"), qas("a")),
            r"q.json: data\[0\].paragraphs\[0\].qas\[2\]: the id 'a' is also at "
            r"data\[0\].paragraphs\[0\].qas\[0\]: predictions go by id",
        ),
    ],
)
def test_bad_files(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_predictions_are_read(tmp_path):
    path = tmp_path / "predictions.json"
    path.write_text('{"a": "x", "b": ""}')
    assert squad.load_predictions(path) == {"a": "x", "b": ""}
    path.write_text('{"a": ["x"]}')
    with pytest.raises(InputError, match=r"'a': expected a string, got \[\"x\"\]"):
        squad.load_predictions(path)


@pytest.mark.parametrize(
    ("name", "num_questions", "num_impossible"),
    [
        *(
            slow("v1.1/dev-v1.1", 10_570, 0),
            slow("v1.1/train-v1.1-44-articles", 11_877, 0),
        ),
        slow("v2.0/train-v2.0-10-articles", 4_719, 348),
        slow("v2.0/dev-v2.0-16-articles", 6_078, 3_168),
        ("v2.0/dev-v2.0-2-articles", 626, 333),
        *(slow("xquad/xquad.en", 1_190, 0), slow("xquad/xquad.de", 1_190, 0)),
        *(
            ("xquad/xquad.zh", 1_190, 0),
            ("../triviaqa/triviaqa_squad_format_sample", 15, 0),
        ),
    ],
)
def test_published_files(shared_data, name, num_questions, num_impossible):
    found = squad.read_squad(shared_data / f"squad/{name}.json")
    assert len(found.questions) == num_questions
    assert sum(not q.answers for q in found.questions) == num_impossible
    assert found.has_impossible == (num_impossible > 0)
    assert (found.num_repaired_answers, found.skipped) == (0, ())

"""SQuAD's files and the windows that are made of them."""

import functools
import json

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.kinds.span import squad
from tests.bert_keras.kinds import kind_data

TOKENIZER = kind_data.tokenizer(*"abcdefghij", *(f"##{c}" for c in "abcdefghij"))
PAD, UNK, CLS, SEP, MASK, A, B, C, D, E, F, G, H, I, J = range(15)  # noqa: E741


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


def question(context: str, answer: str = "", *, words="a b", start=None, id="q"):
    start = context.find(answer) if start is None else start
    answers = (squad.Answer(answer, start),) if answer else ()
    return squad.Question(id, words, context, answers)


def featurize(*questions, tokenizer=TOKENIZER, max_seq_length=10, **span):
    settings = finetuning.SpanConfig(**{"doc_stride": 3, "max_query_length": 4} | span)
    return squad.featurize(
        questions, tokenizer, settings, max_seq_length=max_seq_length
    )


def test_windows_by_hand():
    """A context of 7 tokens in windows of 5, and one that fits."""
    found = featurize(
        question("c d  e f g\nh I", "g\nh"), question("J", words="a a a a a b")
    )
    assert found.questions.tolist() == [0, 0, 1]
    assert found.texts.lengths.tolist() == [10, 9, 8]
    starts = found.texts.starts
    assert starts.tolist() == [0, 10, 19]
    rows = np.arange(3)
    batch = found.batch(rows)
    assert batch["input_ids"].tolist() == [
        [CLS, A, B, SEP, C, D, E, F, G, SEP],
        [CLS, A, B, SEP, F, G, H, I, SEP, PAD],
        [CLS, A, A, A, A, SEP, J, SEP, PAD, PAD],
    ]
    assert batch["segment_ids"].tolist() == [
        [0] * 4 + [1] * 6,
        [0] * 4 + [1] * 5 + [0],
        [0] * 6 + [1] * 2 + [0] * 2,
    ]
    assert batch["input_mask"].sum(axis=1).tolist() == [10, 9, 8]
    # Half of the answer is in the first window: that is no answer.
    assert batch["start_positions"].tolist() == [0, 5, 0]
    assert batch["end_positions"].tolist() == [0, 6, 0]
    assert found.char_starts[4:9].tolist() == [0, 2, 5, 7, 9]
    assert found.char_ends[10:19].tolist() == [0] * 4 + [8, 10, 12, 14, 0]
    # F has 1 token on its smaller side in the first window, 0 in the second; G has 0
    # and 1.
    wanted = [[4, 5, 6, 7], [15, 16, 17], [25]]
    assert np.flatnonzero(found.has_max_context).tolist() == sum(wanted, [])


def test_the_answer_is_where_its_characters_are():
    context = "ab cde, f"
    for answer, start, expected in (
        ("cde", 3, "cde"),
        ("ab cde", 0, "ab cde"),
        ("d", 4, "d"),
        (" cde,", 2, "cde,"),
        ("f", 8, "f"),
    ):
        found = featurize(question(context, answer, start=start), max_seq_length=16)
        first, last = found.start_positions[0], found.end_positions[0]
        text = context[found.char_starts[first] : found.char_ends[last]]
        assert text == expected
    # As if it were control characters only.
    found = featurize(question(context, " ", start=2), max_seq_length=16)
    assert (found.start_positions[0], found.end_positions[0]) == (0, 0)


def test_an_answer_inside_a_piece_takes_the_whole_piece():
    tokenizer = kind_data.tokenizer("golden", "##s")
    asked = question("The goldens", "old", words="")
    found = featurize(asked, tokenizer=tokenizer)
    assert (found.start_positions[0], found.end_positions[0]) == (3, 3)
    assert (found.char_starts[3], found.char_ends[3]) == (4, 10)


def test_a_context_without_tokens_is_one_empty_window():
    found = featurize(question(" \n\u200b "), question("", id="p"))
    assert found.texts.lengths.tolist() == [5, 5]
    assert not found.has_max_context.any()


def test_windows_need_room_and_questions():
    message = "max_seq_length=7 tokens has no room for max_query_length=4 of the"
    with pytest.raises(InputError, match=message):
        featurize(question("c"), max_seq_length=7)
    with pytest.raises(InputError, match="expected at least one question, got none"):
        featurize()

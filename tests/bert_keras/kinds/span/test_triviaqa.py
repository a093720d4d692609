"""TriviaQA's own layout becomes questions as SQuAD has them."""

import json

import pytest

from bert_keras.core.errors import InputError
from bert_keras.kinds.span import squad, triviaqa
from tests.bert_keras.kinds import kind_data


def node(id="q", *, pages=(), results=(), value="York", aliases=(), **more) -> dict:
    return {
        "QuestionId": id,
        "Question": "where?",
        "Answer": {"Value": value, "Aliases": list(aliases)},
        "EntityPages": [{"Filename": name} for name in pages],
        "SearchResults": [{"Filename": name} for name in results],
        **more,
    }


@pytest.fixture
def read(tmp_path):
    def read(*nodes, documents=None, **options) -> squad.QuestionSet:
        for name, text in (documents or {}).items():
            path = tmp_path / "evidence" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            kind_data.write(path, text)
        (tmp_path / "qa.json").write_text(json.dumps({"Data": nodes}))
        return triviaqa.read_triviaqa(
            tmp_path / "qa.json", tmp_path / "evidence", **options
        )

    return read


def test_a_pair_of_question_and_document(read):
    document = "Yorkshire\n, nYork. In YORK,  England; York."
    found = read(
        node(
            pages=["P.txt"],
            results=["1/1_2.txt"],
            aliases=["The", "york,  england", "!!"],
            value=" York ",
        ),
        documents={"wikipedia/P.txt": document, "web/1/1_2.txt": "\ufeffno: york"},
    )
    names = ["york,  england", "York"]
    # Whole words, the longest name at the first place; all other names are right too.
    first = squad.Question(
        "q--P.txt",
        "where?",
        document,
        (("YORK,  England", 22), *((name, None) for name in names)),
    )
    second = ("q--1/1_2.txt", "where?", "no: york", (("york", 4), *first.answers[1:]))
    assert found == squad.QuestionSet((first, second), False, 0, ())
    assert first.context[22:].startswith("YORK,  England;")


def test_the_first_words_of_a_document(read):
    documents = {"wikipedia/P": "\n york is\t far "}
    for max_words, context in ((2, "\n york is"), (3, "\n york is\t far")):
        found = read(node(pages=["P"]), documents=documents, max_words=max_words)
        assert found.questions[0].context == context


def test_what_is_skipped(read):
    documents = {"wikipedia/A": "x York", "wikipedia/B": "x x York"}
    found = read(
        node("p", pages=["A", "B", "C", "A"]),
        node("q", pages=["A"], value="the"),
        node("r", pages=["B"], value="x"),
        {"QuestionId": "s", "Question": "?", "Answer": {"Value": "x"}},
        node("t", EntityPages=[{"Title": "not fetched"}]),
        documents=documents,
        max_words=2,
    )
    assert [q.id for q in found.questions] == ["p--A", "p--B", "q--A", "r--B"]
    kept = [q.id for q in found.questions if q.answers and q.can_be_learnt]
    assert kept == ["p--A", "r--B"]
    skipped = [line.partition(": ")[0] for line in found.skipped]
    assert skipped == ["p--B", "p--C", "q--A"]
    assert found.skipped[0] == "p--B: the text does not name an answer"
    assert found.skipped[1].startswith("p--C: there is no ")


def test_without_answers_every_document_is_kept(read):
    asked = node(pages=["A", "B"])
    del asked["Answer"]
    found = read(asked, documents={"wikipedia/A": "x"}, has_answers=False)
    assert [(q.id, q.answers) for q in found.questions] == [("q--A", ())]


def test_no_document_is_read_outside_of_the_folder(read, tmp_path):
    (tmp_path / "evidence" / "wikipedia").mkdir(parents=True)
    (tmp_path / "evidence" / "secret").write_text("York")
    (tmp_path / "evidence" / "wikipedia" / "l").symlink_to(tmp_path / "evidence/secret")
    inside = r"json: Data\[0\].EntityPages\[0\]: 'Filename': expected a path inside"
    outside = ("../secret", "a/../../secret", "/etc/passwd", "..", "..\\secret", "l")
    for name in (*outside, "", "x\0y", "\ud800"):
        with pytest.raises(InputError, match=inside):
            read(node(pages=[name]))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], r"qa.json: no question has a document .*none lists one.*give the folder"),
        ([node(pages=["no"])], r"can be used \(for example q--no: there is no .*no\)"),
        ([7], r"Data\[0\]: expected an object with 'Question', got 7"),
        ([node(pages=["A"], Answer="x")], "'Answer': expected an object, got"),
        ([node(pages=["A"], aliases=[1])], r"Answer: expected names that are"),
        ([node(pages=["A"], value=None)], "'Value': expected a string, got null"),
        ([node(pages=[3])], r"EntityPages\[0\]: 'Filename': expected a string, got 3"),
        ([node(pages=["bad"])], "bad: byte 1: not UTF-8"),
    ],
)
def test_bad_files(read, nodes, message):
    documents = {"wikipedia/A": "York", "wikipedia/bad": b"Y\xff"}
    with pytest.raises(InputError, match=message) as caught:
        read(*nodes, documents=documents)
    assert "\n" not in str(caught.value)


def test_the_published_sample(shared_data):
    """Places agree with those that others found for the same documents."""
    folder = shared_data / "triviaqa"
    converted = squad.read_squad(folder / "triviaqa_squad_format_sample.json")
    expected = {
        question.id: (question.context, question.answers[0].start)
        for question in converted.questions
    }
    original = folder / "original_format"
    found = {}
    for name in ("wikipedia-train", "web-dev", "web-train"):
        read = triviaqa.read_triviaqa(
            original / "qa" / f"{name}.json", original / "evidence", max_words=800
        )
        found |= {q.id: q for q in read.questions if q.can_be_learnt}
    assert len(found) == 12 and len(found.keys() & expected) == 12
    for id, question in found.items():
        context, start = expected[id]
        assert question.answers[0].start == start
        # They counted words in another way: one of the two is cut off earlier.
        length = min(len(context), len(question.context))
        assert length > start
        assert question.context[:length] == context[:length]

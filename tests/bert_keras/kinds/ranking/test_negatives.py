"""Hard negatives: the search against all cosines at once, and what is written."""

import json

import numpy as np
import pytest

from bert_keras.core import progress
from bert_keras.core.errors import InputError
from bert_keras.kinds.ranking import dataset, negatives
from tests.bert_keras.kinds import kind_data

USUAL = negatives.Choice(num_negatives=2, depth=4, skip=0, margin=0.0, seed=1)


def embed(texts) -> np.ndarray:
    """Vectors from the angles, in degrees, that texts end with; any length."""
    degrees = np.array([float(text.split()[-1]) for text in texts])
    angles = np.radians(degrees)
    lengths = 1 + degrees[:, None] % 3
    return (lengths * np.stack([np.cos(angles), np.sin(angles)], 1)).astype(np.float32)


UNCASED = kind_data.tokenizer(*"epq", "10", "20").encode_packed


def mine(tmp_path, questions, passages, *, encode=str.encode, embed=embed, **changes):
    """Rows of the file that is written, which `finetune` can read."""
    source, output = tmp_path / "in.tsv", tmp_path / "out.tsv"
    source.write_text(questions)
    (tmp_path / "passages.txt").write_text(passages)
    output.unlink(missing_ok=True)
    choice = USUAL._replace(**changes)
    negatives.check(choice, output)
    paths = source, tmp_path / "passages.txt", output
    negatives.mine(*paths, embed=embed, encode=encode, choice=choice)
    dataset.read_questions(output)
    header, *lines = output.read_text().splitlines()
    if header != "question\tpassage\trelevance":
        lines.insert(0, header)
    return [tuple(line.split("\t")) for line in lines]


PASSAGES = "".join(f"p {degrees}\n" for degrees in (5, 10, 20, 30, 40, 50, 60, 180))


def test_the_nearest_are_drawn_without_the_right_ones(tmp_path):
    right = "question\tpositive\nq 0\tp 10\n"
    rows = mine(tmp_path, right, PASSAGES, depth=3)
    # 5 degrees are nearer than the right one: it may be right too.
    assert rows == [("q 0", "p 10", "1"), ("q 0", "p 20", "0"), ("q 0", "p 30", "0")]
    rows = mine(tmp_path, right, PASSAGES, depth=3, margin=0.1, num_negatives=1)
    assert rows == [("q 0", "p 10", "1"), ("q 0", "p 30", "0")]


def test_first_ranks_are_skipped_and_wrong_passages_kept(tmp_path):
    known = "question\tpassage\trelevance\nq 0\tp 50\t0.5\nq 0\tp 5\t2\nq 0\tp 10\t0\n"
    rows = mine(tmp_path, known, PASSAGES, skip=1, depth=3)
    assert rows == [
        *(("q 0", "p 50", "0.5"), ("q 0", "p 5", "2"), ("q 0", "p 10", "0")),
        *(("q 0", "p 30", "0"), ("q 0", "p 40", "0")),
    ]


def test_a_passage_that_the_tokenizer_makes_equal_is_equal(tmp_path):
    passages = "P 10\np  10\np\xa0\u200b10\np e 20\nP \xe9 20\nP 20\n"
    right = "question\tpositive\nq 0\tp 10\n"
    rows = mine(tmp_path, right, passages, encode=UNCASED, num_negatives=4)
    assert rows == [("q 0", "p 10", "1"), ("q 0", "p e 20", "0"), ("q 0", "P 20", "0")]


def test_what_is_right_for_an_equal_question_is_not_wrong(tmp_path):
    """Questions with ids may have the same words; their wrong passages stay wrong."""
    rows = mine(
        tmp_path,
        "question_id\tquestion\tpassage\trelevance\tsource\n"
        "a\tq 0\tp 10\t1\tnews\nb\tQ 0\tp 20\t0.123456789\tbook\n"
        "b\tQ 0\tp 20 e 30\t0\t\n",
        "P 20\nP 10\np 20 E 30\np 40\n",
        encode=UNCASED,
    )
    assert rows == [
        ("question_id", "question", "passage", "source", "relevance"),
        ("a", "q 0", "p 10", "news", "1"),
        ("a", "q 0", "p 20 E 30", "", "0"),
        ("a", "q 0", "p 40", "", "0"),
        ("b", "Q 0", "p 20", "book", "0.123456791"),
        ("b", "Q 0", "p 20 e 30", "", "0"),
        ("b", "Q 0", "p 40", "", "0"),
    ]
    triple = "question\tpositive\tnegative\tn\nq 0\tp 10\tp 5\t7\n"
    rows = mine(tmp_path, triple, "p 20\n")
    assert rows == [
        ("question", "n", "passage", "relevance"),
        ("q 0", "7", "p 10", "1"),
        ("q 0", "7", "p 5", "0"),
        ("q 0", "", "p 20", "0"),
    ]


def test_progress_counts_texts_within_a_block(tmp_path, monkeypatch):
    """A block of 8,192 passages may take minutes."""
    lines, counts = [], []

    class Progress(progress.Progress):
        def __enter__(self):
            lines.append(self)
            return super().__enter__()

    def embed_and_count(texts):
        counts.append((lines[0].read(), lines[0].total))
        return embed(texts)

    monkeypatch.setattr(negatives, "_TEXTS_AT_ONCE", 2)
    monkeypatch.setattr(progress, "Progress", Progress)
    question = "question\tpositive\nq 0\tp 10\n"
    mine(tmp_path, question, PASSAGES, embed=embed_and_count)
    # A question, a right passage, and four times two passages.
    assert counts == [(done, 10) for done in (0, 1, 2, 4, 6, 8)]


def test_the_search_is_that_of_all_cosines_at_once(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    angles = rng.uniform(0, 90, 300).round(4)
    asked = rng.uniform(0, 90, 20).round(4)
    passages = "".join(f"p {angle}\n" for angle in angles)
    questions = "question\tpositive\n" + "".join(f"q {a}\tp {a + 5}\n" for a in asked)
    monkeypatch.setattr(negatives, "BLOCK", 16)
    monkeypatch.setattr(negatives, "_QUESTIONS_AT_ONCE", 7)
    rows = mine(tmp_path, questions, passages, num_negatives=5, depth=30)
    for angle in asked:
        drawn = [
            abs(float(passage.split()[-1]) - angle)
            for question, passage, relevance in rows
            if (question, relevance) == (f"q {angle}", "0")
        ]
        nearest = np.sort(np.abs(angles - angle))[:30]
        assert len(drawn) == min(5, (nearest >= 5).sum())
        assert drawn == sorted(drawn)
        assert all(5 - 1e-3 <= distance <= nearest[-1] + 1e-3 for distance in drawn)


def test_the_draw_is_a_function_of_the_seed(tmp_path):
    questions = "question\tpositive\n" + "".join(f"q {n}\tp {n}\n" for n in range(9))
    passages = "".join(f"p {n / 10}\n" for n in range(900))
    mined = [mine(tmp_path, questions, passages, depth=50, seed=s) for s in (1, 1, 2)]
    assert mined[0] == mined[1] != mined[2]


def test_passages_of_all_files(tmp_path):
    lines = ["a\tb", "", "a\tb", " c ", "d\u2028e"]
    (tmp_path / "p.txt").write_bytes("\r\n".join(lines).encode())
    expected = ["a\tb", "a\tb", "c", "d\u2028e"]
    assert [*negatives.read_passages(tmp_path / "p.txt")] == expected
    rows = "".join(json.dumps({"passage": line, "n": 1}) + "\n" for line in lines)
    (tmp_path / "p.jsonl").write_text(rows)
    assert [*negatives.read_passages(tmp_path / "p.jsonl")] == expected
    (tmp_path / "p.tsv").write_text("n\tpassage\n1\ta\n2\t\n3\tb\n")
    assert [*negatives.read_passages(tmp_path / "p.tsv")] == ["a", "b"]
    for name, text, message in (
        ("q.tsv", "n\tpasage\n1\ta\n", "line 2: expected a text named"),
        ("q.jsonl", '{"passage": "a"}\n{"passage": 1}\n', "line 2: expected a text"),
        ("q.pdf", "a", "q.pdf: expected a file named"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=message):
            list(negatives.read_passages(tmp_path / name))


def test_what_is_refused(tmp_path):
    for changes, name, message in (
        ({"num_negatives": 0}, "a.tsv", "--num_negatives of 1 or more"),
        ({"skip": -1}, "a.tsv", "--skip of 0 or more"),
        ({"skip": 3}, "a.tsv", "both together or more, got 2, 3 and 4"),
        ({"margin": 1.0}, "a.tsv", "--margin is from 0 to below 1, got 1.0"),
        ({"margin": float("nan")}, "a.tsv", "--margin is from 0 to below 1, got nan"),
        ({}, "a.txt", "expected a name with .tsv, .csv, .jsonl, got .txt"),
        ({}, "there.tsv", "exists already"),
    ):
        (tmp_path / "there.tsv").touch()
        with pytest.raises(InputError, match=message):
            negatives.check(USUAL._replace(**changes), tmp_path / name)
    with pytest.raises(InputError, match=r"no column 'question' .*; rename it$"):
        mine(tmp_path, "questions\tpositive\nq 0\tp 180\n", "p 180\np 5\n")
    with pytest.raises(InputError, match="no passage is far enough from the right"):
        mine(tmp_path, "question\tpositive\nq 0\tp 180\n", "p 180\np 5\n")
    assert not (tmp_path / "out.tsv").exists()

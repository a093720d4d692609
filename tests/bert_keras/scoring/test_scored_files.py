"""`bert-keras score`: whole outputs, and files that are whole or not there."""

import json

import pytest

from bert_keras.core.errors import InputError
from bert_keras.scoring import scored_files

PAIRS = "good\tbad\tgroup\nba be\tba bo\tvowels\nBa be bi\tba be xyz\tothers\n"


def sentences(model, path, **options):
    options = {"output": None, "pll": "original"} | options
    return list(scored_files.score_sentences(model, str(path), **options))


def pairs(model, path, **options):
    options = {"output": None, "picture": None, "group_by": None} | options
    return list(scored_files.score_pairs(model, str(path), pll="original", **options))


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("ba be\n\n  Bo xyz da\n")
    return path


def test_sentences_as_a_table(pretrained_run, lines):
    one, other = (
        f"{score.total:8.2f}  {score.per_piece:9.3f}  {score.per_word:8.3f}"
        for score in scored_files.score(pretrained_run, ["ba be", "Bo xyz da"])
    )
    assert sentences(pretrained_run, lines) == [
        "   total  per piece  per word  unknown  sentence",
        *(f"{one}        0  ba be", f"{other}        1  Bo xyz da"),
        "2 sentences, 1 with capitals; the tokenizer lower-cases, and strips accents; "
        "1 unknown words in 1 sentences",
    ]


def test_sentences_as_json_lines(pretrained_run, lines, tmp_path):
    output = tmp_path / "out.jsonl"
    (last,) = sentences(pretrained_run, lines, output=str(output))
    assert last.startswith("2 sentences")
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    scores = scored_files.score(pretrained_run, ["ba be", "Bo xyz da"])
    assert rows == [score.as_json() for score in scores]


def test_pairs(pretrained_run, tmp_path):
    (tmp_path / "x.tsv").write_text(PAIRS)
    output, picture = tmp_path / "out.jsonl", tmp_path / "groups.png"
    paths = {"output": str(output), "picture": str(picture)}
    found = pairs(pretrained_run, tmp_path / "x.tsv", **paths)
    names = [line.split()[0] for line in found[:4]]
    assert names == ["group", "others", "vowels", "mean"]
    assert found[-1] == (
        "0 ties, which count one half; a model that finds all pieces equally probable "
        "has 50.0%"
    )
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["group"] for row in rows] == ["vowels", "others"]
    for row in rows:
        assert row["right"] == float(row["good"]["total"] > row["bad"]["total"])
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lines.txt: expected sentences, one a line, found none"),
        ("\n \n", "lines.txt: expected sentences, one a line, found none"),
        ("ba\n\n" + "be " * 31, "lines.txt: line 3: a sentence of 33 tokens"),
    ],
)
def test_bad_sentences_leave_no_output(pretrained_run, tmp_path, lines, text, message):
    lines.write_text(text)
    with pytest.raises(InputError, match=message):
        sentences(pretrained_run, lines, output=str(tmp_path / "out.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["lines.txt"]


def test_a_pair_too_long_is_named_by_its_number(pretrained_run, tmp_path):
    (tmp_path / "x.tsv").write_text(f"{PAIRS}ba\t{'be ' * 31}\tlong\n")
    with pytest.raises(InputError, match="pair 3: a sentence of 33 tokens"):
        pairs(pretrained_run, tmp_path / "x.tsv")


def test_an_output_that_is_there_is_kept(pretrained_run, tmp_path, lines):
    (tmp_path / "x.tsv").write_text(PAIRS)
    kept = str(tmp_path / "x.tsv")
    for call in (
        lambda: sentences(pretrained_run, lines, output=kept),
        lambda: pairs(pretrained_run, kept, output=kept),
        lambda: pairs(pretrained_run, kept, picture=kept),
    ):
        with pytest.raises(InputError, match="x.tsv: exists already"):
            call()
    assert (tmp_path / "x.tsv").read_text() == PAIRS

"""A share of the training file, held out by what the examples are about."""

import random
from pathlib import Path

import pytest

from bert_keras.core.errors import InputError
from bert_keras.kinds import splits
from bert_keras.kinds.choice import dataset as choice_data
from bert_keras.kinds.choice import swag
from bert_keras.kinds.span import dataset as span_data
from bert_keras.kinds.span import squad
from bert_keras.kinds.tagging import dataset as tagging_data
from bert_keras.kinds.tagging import ner
from bert_keras.kinds.text import text, text_forms

FILE = Path("train.tsv")


def texts(*rows: str) -> text_forms.TextDataset:
    made = [text.LabelledText(row, None, "a", n) for n, row in enumerate(rows)]
    return text_forms.TextDataset(
        path=FILE, rows=made, has_labels=True, kind="classification"
    )


@pytest.mark.parametrize(
    ("dev", "part"),
    [
        (["10%"], ("10%", 0, 0.1)),
        (["0.5%", "b.tsv"], ("0.5%", 0, 0.005)),
        (["1/5"], ("1/5", 0, 0.2)),
        (["4/4", "b.tsv"], ("4/4", 0.75, 1)),
        (["dev.tsv"], None),
        (["data/5"], None),
        ([], None),
    ],
)
def test_a_part_is_in_percent_or_one_of_several(dev, part):
    assert splits.parse_split(dev) == part


def part(name: str) -> splits.Part:
    found = splits.parse_split([name])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        (["0%"], "above 0% and below 100%, such as 10%, got 0%"),
        (["100%"], "got 100%"),
        (["-5%"], "got -5%"),
        (["ten%"], "got ten%"),
        (["a.tsv", "10%"], "comes first, got 10% after a.tsv"),
        (["a.tsv", "1/5"], "comes first, got 1/5 after a.tsv"),
        (["0/5"], "a fold of two or more, such as 1/5 to 5/5, got 0/5"),
        (["6/5"], "such as 1/5 to 5/5, got 6/5"),
        (["1/1"], "such as 1/5 to 5/5, got 1/1"),
    ],
)
def test_parts_that_are_none(dev, message):
    with pytest.raises(InputError, match=message):
        splits.parse_split(dev)


def test_a_file_of_such_a_name_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "10%").write_text("text\tlabel\na\tb\n")
    assert splits.parse_split(["10%"]) is None


def test_the_choice_is_that_of_every_machine():
    """Literal values: another hash would move examples between training and dev."""
    chosen = [key for key in map(str, range(40)) if part("10%").holds(key)]
    assert chosen == ["9", "39"]
    assert sum(part(f"{fold}/2").holds("\udcff") for fold in (1, 2)) == 1


def test_folds_have_each_example_once():
    keys = [str(n) for n in range(1500)]
    for num_folds in (2, 3, 10):
        folds = [part(f"{n}/{num_folds}") for n in range(1, num_folds + 1)]
        holders = [[f for f in folds if f.holds(key)] for key in keys]
        assert {len(those) for those in holders} == {1}
        assert min(holders.count([fold]) for fold in folds) > 1100 / num_folds
    first, tenth = (splits.split(texts(*keys), part(p)) for p in ("1/10", "10%"))
    assert first == tenth


def test_a_share_of_many_in_any_order():
    rows = [str(n % 4000) for n in range(5000)]
    random.Random(1).shuffle(rows)
    trained, evaluated = splits.split(texts(*rows), part("10%"))
    assert len(trained) + len(evaluated) == 5000
    assert abs(len(evaluated) - 500) < 75  # Three deviations of a binomial.
    assert not set(trained.keys()) & set(evaluated.keys())
    larger = splits.split(texts(*sorted(rows)), part("20%"))[1]
    assert set(evaluated.keys()) < set(larger.keys())
    # The order of the file stays.
    assert [row.line for row in trained.rows] == sorted(r.line for r in trained.rows)


def test_no_side_may_be_empty():
    with pytest.raises(
        InputError,
        match="train.tsv: of 3 examples, which are about 1 different things, --dev 10% "
        "holds 0 out: give another part, or a file",
    ):
        splits.split(texts("a", "a", "a"), part("10%"))


def test_what_examples_of_every_form_are_about():
    def sentence(words: str, document: int) -> ner.Sentence:
        return ner.Sentence(tuple(words.split()), None, document, 1)

    def tagging(*all_of: ner.Sentence) -> tagging_data.TaggingDataset:
        options = {"path": FILE, "has_labels": False}
        return tagging_data.TaggingDataset(rows=all_of, **options)

    two = tagging(sentence("a b", 1), sentence("c", 1), sentence("d", 2))
    assert two.keys() == ["a b\nc", "a b\nc", "d"]
    one = tagging(sentence("a b", 1), sentence("c", 1))
    assert one.keys() == ["a b", "c"]
    assert one.subset([1]).rows == [sentence("c", 1)]
    asked = [squad.Question(n, f"{n}?", "a text", ()) for n in "xy"]
    span = span_data.SpanDataset(
        path=FILE, rows=asked, has_labels=True, has_impossible=False
    )
    assert span.keys() == ["a text", "a text"]
    assert span.subset([1]).rows == asked[1:]
    rows = [swag.Question("a", "b", tuple("wxyz"), 0, 1)]
    choice = choice_data.ChoiceDataset(path=FILE, rows=rows, has_labels=True)
    assert choice.keys() == ["a\0b"]
    assert choice.subset([]).rows == []
    pair = text.LabelledText("a", "b", None, 1)
    data = text_forms.TextDataset(
        path=FILE, rows=[pair], has_labels=False, kind="regression"
    )
    assert data.keys() == ["a\0b"]


def test_digests_know_a_share_from_a_file(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("a")
    assert splits.file_hashes(["10%", path]) == ["10%", splits.file_hash(path)]
    with pytest.raises(InputError, match=r"none.tsv: cannot be read: No such file"):
        splits.file_hashes([tmp_path / "none.tsv"])


def test_a_smaller_fraction_is_part_of_a_larger_one():
    data = texts(*(f"text {number}" for number in range(1000)))
    sizes, earlier = [], set()
    for share in (0.001, 0.01, 0.07, 0.3, 0.3001, 1):
        rows = splits.fraction(data, share, seed=3).rows
        assert earlier <= {*rows} and rows == sorted(rows, key=data.rows.index)
        sizes.append(len(rows))
        earlier = {*rows}
    assert sizes == [1, 10, 70, 300, 301, 1000]
    tenth, other = (splits.fraction(data, 0.1, seed=s).rows for s in (3, 4))
    assert 0 < len({*tenth} & {*other}) < 30
    # What every machine chooses.
    assert len(splits.fraction(data, 1e-10, seed=3)) == 1
    assert [row.text for row in splits.fraction(data, 0.003, seed=3).rows] == [
        "text 318",
        "text 644",
        "text 825",
    ]

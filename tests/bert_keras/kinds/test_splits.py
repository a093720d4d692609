"""A share of the training file, held out by what the examples are about."""

import dataclasses
import functools
from pathlib import Path
from typing import NamedTuple

import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.kinds import splits
from bert_keras.kinds.choice import dataset as choice_data
from bert_keras.kinds.span import dataset as span_data
from bert_keras.kinds.span import squad
from bert_keras.kinds.tagging import dataset as tagging_data
from bert_keras.kinds.tagging import ner
from bert_keras.kinds.text import text, text_forms
from tests.bert_keras.kinds import kind_data

FILE = Path("train.tsv")


def texts(*rows: str) -> text_forms.TextDataset:
    return kind_data.texts(*(("a", row) for row in rows))


def part(name: str) -> splits.Part:
    found = splits.parse_split([name])
    assert found is not None
    return found


def test_a_part_is_in_percent_or_one_of_several(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "20%").write_text("a file of such a name")
    for dev, expected in (
        (["10%"], ("10%", 0, 0.1)),
        (["0.5%", "b.tsv"], ("0.5%", 0, 0.005)),
        (["1/5"], ("1/5", 0, 0.2)),
        (["4/4", "b.tsv"], ("4/4", 0.75, 1)),
        *((dev, None) for dev in (["dev.tsv"], ["data/5"], [], ["20%"])),
    ):
        found = splits.parse_split(dev)
        assert found == (expected and (*expected, "--dev")), dev


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        (["0%"], "above 0% and below 100%, such as 10%, got 0%"),
        *(([share], f"got {share}") for share in ("100%", "-5%", "ten%")),
        (["a.tsv", "10%"], "comes first, got 10% after a.tsv"),
        (["a.tsv", "1/5"], "comes first, got 1/5 after a.tsv"),
        (["0/5"], "a fold of two or more, such as 1/5 to 5/5, got 0/5"),
        *(([fold], f"such as 1/5 to 5/5, got {fold}") for fold in ("6/5", "1/1")),
    ],
)
def test_parts_that_are_none(dev, message):
    with pytest.raises(InputError, match=message):
        splits.parse_split(dev)


def test_the_choice_is_that_of_every_machine():
    """Literal values: another hash would move examples between training and dev."""
    chosen = [key for key in map(str, range(40)) if part("10%").holds(key)]
    assert chosen == ["9", "39"]
    assert sum(part(f"{fold}/2").holds("\udcff") for fold in (1, 2)) == 1


def test_shares_of_many():
    keys = [str(n) for n in range(1500)]
    for num_folds in (2, 10):
        folds = [part(f"{n}/{num_folds}") for n in range(1, num_folds + 1)]
        sizes = [sum(fold.holds(key) for key in keys) for fold in folds]
        assert sum(sizes) == 1500 and min(sizes) > 1100 / num_folds
    # The order of the file stays.
    lines = [row.line for row in splits.split(texts(*keys), part("10%"))[0].rows]
    assert lines == sorted(lines)


def test_no_side_may_be_empty():
    with pytest.raises(
        InputError,
        match="train.tsv: of 3 examples, which are about 1 different things, --dev 10% "
        "holds 0 out: give another part, or a file",
    ):
        splits.split(texts("a", "a", "a"), part("10%"))


class Rows(NamedTuple):
    """A kind that reads these rows from any file."""

    rows: text_forms.TextDataset

    def read(self, *_, **__):
        return self.rows


def test_rows_set_aside_are_in_no_other_part(tmp_path):
    """Equal texts stay together, and half of each fold is left."""
    keys = [str(n) for n in range(600)] * 2
    rows = kind_data.texts(*(("ab"[int(key) % 2], key) for key in keys))
    kind = Rows(dataclasses.replace(rows, has_labels=True))
    settings = finetuning.FinetuningConfig(calibration_fraction=0.5)
    part = splits.calibration_part(settings)
    assert part == ("50%", 0, 0.5, "--calibrate")
    apart = {row.text for row in splits.split(kind.rows, part)[1].rows}
    assert 250 < len(apart) < 350
    train = tmp_path / "train.tsv"
    folds = [f"{n}/3" for n in (1, 2, 3)]
    for dev in ("30%", *folds):
        data = splits.read(kind, train, [dev], settings).data
        trained, held_out = ({row.text for row in d.rows} for d in data)
        assert trained | held_out == {*keys} - apart and not trained & held_out
        assert len(data[0]) + len(data[1]) == 2 * (600 - len(apart))
        assert 60 < len(held_out) < 140
    with pytest.raises(InputError, match="--calibrate 50% holds 0 out: give another"):
        splits.split(texts("1"), part)
    assert splits.calibration_part(finetuning.FinetuningConfig()) is None


def test_the_subjects_of_examples():
    def sentence(words: str, document: int) -> ner.Sentence:
        return ner.Sentence(tuple(words.split()), None, document, 1)

    one = [sentence("a b", 1), sentence("c", 1)]
    asked = [squad.Question(n, f"{n}?", "a text", ()) for n in "xy"]
    endings = [choice_data.Question("a", "b", tuple("wxyz"), 0, 1)]
    tagging, choice = tagging_data.TaggingDataset, choice_data.ChoiceDataset
    span = functools.partial(span_data.SpanDataset, has_impossible=False)
    pairs = functools.partial(text_forms.TextDataset, kind="regression")
    for form, rows, keys in (
        (tagging, one, ["a b", "c"]),
        (tagging, [*one, sentence("d", 2)], ["a b\nc", "a b\nc", "d"]),
        (span, asked, ["a text", "a text"]),
        (choice, endings, ["a\0b"]),
        (pairs, [text.LabelledText("a", "b", None, 1)], ["a\0b"]),
    ):
        data = form(path=FILE, rows=rows, has_labels=False)
        assert data.keys() == keys
        assert data.subset([len(rows) - 1]).rows == rows[-1:]


def test_digests_know_a_share_from_a_file(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("a")
    assert splits.file_hashes(["10%", path]) == ["10%", splits.file_hash(path)]
    with pytest.raises(InputError, match=r"none.tsv: cannot be read: No such file"):
        splits.file_hashes([tmp_path / "none.tsv"])


def test_the_share_that_every_machine_chooses():
    data = texts(*(f"text {number}" for number in range(1000)))
    shares = (1e-10, 0.001, 0.07, 0.3, 0.3001)
    sizes = [len(splits.fraction(data, share, seed=3)) for share in shares]
    assert sizes == [1, 1, 70, 300, 301]
    tenth, other = (splits.fraction(data, 0.1, seed=s).rows for s in (3, 4))
    assert 0 < len({*tenth} & {*other}) < 30
    assert [row.text for row in splits.fraction(data, 0.003, seed=3).rows] == [
        "text 318",
        "text 644",
        "text 825",
    ]

"""Packed rows from the pipeline: the same instances, and the same bytes everywhere."""

import json

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.data import tokenization
from bert_keras.pipelines import records
from bert_keras.pipelines.inspection import description, example_reading
from tests.pipelines import example_messages, test_examples

CONFIG = test_examples.CONFIG.model_copy(update={"max_seq_length": 64})
PACKED = CONFIG.model_copy(update={"pack_instances": True})


corpus_dir, vocab_path = test_examples.corpus_dir, test_examples.vocab_path


@pytest.fixture(scope="module")
def build(corpus_dir, vocab_path, tmp_path_factory):
    """A function that makes examples; what was made once is kept."""
    made = {}

    def build(config):
        if config not in made:
            made[config] = tmp_path_factory.mktemp("examples") / "made"
            test_examples.build(corpus_dir, vocab_path, made[config], config=config)
        return made[config]

    return build


def card(directory):
    path = directory / "card.json"
    list(description.describe_all(directory, vocab_path=None, json_path=path))
    sections = json.loads(path.read_text())
    del sections["config"]
    return {f"{s} {key}": v for s, part in sections.items() for key, v in part.items()}


@pytest.mark.parametrize(
    "change",
    [
        *({}, {"packing": "full_sentences"}, {"packing": "single_sentences"}),
        {"masking": "dynamic"},
    ],
    ids=["static", "full sentences", "single sentences", "dynamic"],
)
def test_a_card_tells_of_the_same_instances(build, change):
    """Less padding, and of dynamic masks other draws."""
    packed, alone = (card(build(c.model_copy(update=change))) for c in (PACKED, CONFIG))
    changed = {name for name in packed if packed[name] != alone.get(name)}
    shares = {f"masking {name}_share" for name in ("mask", "random", "kept")}
    expected = {"examples bytes", "examples padding_share", "examples rows"}
    assert "examples rows" in changed
    assert changed <= expected | (shares if "masking" in change else set())


def test_instances_are_shown_one_by_one(build):
    lines = list(description.describe_examples(build(PACKED), vocab_path=None, limit=3))
    assert " examples in " in lines[0]
    titles = [line.rpartition(":")[0] for line in lines if line.startswith("──")]
    shown = [title.rpartition(", ")[2] for title in titles]
    assert shown == [f"instance {n}" for n in range(3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row["instance_ids"].__setitem__(3, 0), "1, 2, ..., then 0"),
        (lambda row: row["instance_ids"].__setitem__(slice(64), 2), "from 1"),
        (lambda row: row["input_ids"].__setitem__(0, 5), r"\[CLS\] first"),
        (lambda row: row["instance_ids"].__setitem__(0, 99), "from 0 to 8"),
        (lambda row: row["masked_lm_positions"].__setitem__(0, 63), "in the order"),
    ],
)
def test_a_row_that_breaks_a_rule(build, vocab_path, tmp_path, change, message):
    directory = build(PACKED)
    path = sorted(directory.glob("*.tfrecord"))[0]
    row = example_messages.decode(next(iter(records.read_records(path))))
    row = {name: np.array(values) for name, values in row.items()}
    row["masked_lm_weights"] = row["masked_lm_weights"].astype(np.float32)
    row["instance_ids"][62:] = 0
    change(row)
    encoded = records.encode_examples({name: v[None] for name, v in row.items()})
    records.write_shard(tmp_path / "x", encoded)
    vocabulary = tokenization.Vocabulary.load(vocab_path)
    reader = example_reading.Reader(config=PACKED, vocabulary=vocabulary)
    with pytest.raises(InputError, match=f"x, record 0: .*{message}"):
        list(reader.read(str(tmp_path / "x")))

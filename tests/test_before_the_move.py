"""Runs, checkpoints, exports and data of the code before the modules moved: read, and
answered with, as that code did.

`tests/golden/before_the_move.py` made them, and tells how.
"""

import importlib.util
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

MAKER = Path(__file__).parent / "golden" / "before_the_move.py"
# Answers of the same code on another kind of processor differ by about 1e-6.
TOLERANCE = 2e-5
_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e-?\d+)?")


@pytest.fixture(scope="module")
def maker():
    specification = importlib.util.spec_from_file_location("before_the_move", MAKER)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def old(maker, tmp_path_factory) -> Path:
    """The folder in which the old commands were given."""
    directory = tmp_path_factory.mktemp("old")
    # Python before 3.11.4 has no filters.
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(maker.ARCHIVE) as archive:
        archive.extractall(directory, **options)
    return directory


@pytest.fixture
def in_old(old, monkeypatch) -> Path:
    monkeypatch.chdir(old)
    return old


def numbers_and_rest(text: str) -> tuple[np.ndarray, str]:
    """The broken numbers of a text, and all else."""
    return np.array(_NUMBER.findall(text), float), _NUMBER.sub("#", text)


def answers_alone(made: Path) -> str:
    """Predictions without the input's other columns, which now stand before them."""
    lines = made.read_text().splitlines()
    if made.name == "predicted_tagging.tsv":
        rows = [line.split() for line in lines]
        return "".join(" ".join(row[:1] + row[-1:]) + "\n" for row in rows)
    if made.name.startswith("predicted_") and "prediction" in lines[0]:
        rows = [line.split("\t") for line in lines]
        place = rows[0].index("prediction")
        return "".join("\t".join(row[place:]) + "\n" for row in rows)
    return made.read_text()


def assert_same_text(made: Path, kept: Path) -> None:
    # The label was not in the name then.
    made_text = answers_alone(made).replace("f1 of good", "f1")
    kept_text = kept.read_text()
    made_numbers, made_rest = numbers_and_rest(made_text)
    kept_numbers, kept_rest = numbers_and_rest(kept_text)
    assert made_rest == kept_rest, kept
    # Those that are printed may round up on one machine and down on another.
    unit = 0.1 if "%" in kept_rest else 1e-4
    np.testing.assert_allclose(
        made_numbers, kept_numbers, rtol=TOLERANCE, atol=1.01 * unit, err_msg=kept
    )


def test_numbers_are_told_from_the_rest():
    numbers, rest = numbers_and_rest("[MASK]: ta 2.5%  p(0)\t-0.25 3 1e-05x")
    assert numbers.tolist() == [2.5, -0.25]
    assert rest == "[MASK]: ta #%  p(0)\t# 3 1e-05x"


def test_everything_answers_as_it_did(maker, in_old):
    """A run, a checkpoint of it, tuned runs of all forms, and converted directories."""
    maker.answer(Path("again"))
    kept = sorted(p.relative_to("answers") for p in Path("answers").rglob("*.*"))
    kept.remove(Path("served.json"))
    made = sorted(p.relative_to("again") for p in Path("again").rglob("*.*"))
    assert made == kept
    assert len(kept) > 20
    for name in kept:
        if name.suffix == ".npy":
            vectors = [np.load(folder / name) for folder in ("answers", "again")]
            np.testing.assert_allclose(*vectors, atol=TOLERANCE, err_msg=name)
        elif not Path("answers", name).is_dir():
            assert_same_text(Path("again", name), Path("answers", name))


@pytest.mark.slow
def test_an_interrupted_run_ends_as_it_would_have(maker, in_old):
    maker.run_command(maker.PRETRAIN.format("resumable"))
    results = json.loads(Path("resumable/results.json").read_text())
    assert results["steps"] == 12
    name = "checkpoints/step-0000000012.npz"
    with np.load(f"resumable/{name}") as made, np.load(f"run/{name}") as kept:
        assert made.files == kept.files
        # An evaluation follows its checkpoint now.
        made, kept = dict(made), dict(kept)
        scores = json.loads(Path("resumable/checkpoints/scores.json").read_text())
        made["checkpoint/score"] = scores["12"]
        for key in kept:
            np.testing.assert_allclose(
                made[key], kept[key], rtol=1e-5, atol=1e-6, err_msg=key
            )


def test_examples_of_the_old_corpus_have_the_old_bytes(maker, in_old):
    maker.run_command(maker.EXAMPLES.format("examples_again"))
    manifests = [
        json.loads(Path(folder, "manifest.json").read_text())
        for folder in ("examples", "examples_again")
    ]
    assert manifests[0]["shards"] == manifests[1]["shards"]
    assert len(manifests[0]["shards"]) == 3


def test_a_corpus_of_the_old_text_has_the_old_bytes(maker, in_old):
    maker.run_command("corpus --jsonl text.jsonl --output corpus_again")
    for kept in Path("corpus").glob("*.gz"):
        assert Path("corpus_again", kept.name).read_bytes() == kept.read_bytes()


def test_an_exported_model_is_served_by_tensorflow_alone(maker, in_old):
    maker.ask_export(Path("served.json"))
    made, kept = (
        json.loads(Path(folder, "served.json").read_text())
        for folder in (".", "answers")
    )
    assert made["label"] == kept["label"]
    np.testing.assert_allclose(
        made["probabilities"], kept["probabilities"], atol=TOLERANCE
    )

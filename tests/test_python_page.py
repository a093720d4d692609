"""Every block of docs/python.md runs."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

import bert_keras
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from tests import conftest, make, test_pages

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = (REPOSITORY / "docs/python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
IN_NEW_PROCESSES = ("load_model", "__main__")
"""Marks of the blocks that are scripts of their own."""


def write_runs(directory: Path) -> None:
    """A classifier and a masked LM in place of those of the README's commands."""
    words = "the road lamp was a b".split()
    vocabulary = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *words))
    directory.mkdir()
    task = {"kind": "classification", "labels": ("a", "b")}
    settings = finetuning.FinetuningConfig(max_seq_length=16)
    make.make_run(directory / "mine", vocabulary, settings=settings, **task)
    make.make_run(directory / "mini", vocabulary, kind="pretraining")
    make.make_run(directory / "base", vocabulary, kind="encoder")
    make.make_adapter(directory / "changes", directory / "base", settings, **task)


def run_script(text: str, directory: Path) -> str:
    (directory / "script.py").write_text(text)
    return conftest.run_python("script.py", cwd=directory).stdout


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_every_block_runs(tmp_path, monkeypatch, capsys):
    test_pages.write_inputs(tmp_path)
    write_runs(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    done = {}
    for block in BLOCKS:
        scope = {"__name__": "page"}
        if not any(mark in block for mark in IN_NEW_PROCESSES):
            exec(compile(block, "docs/python.md", "exec"), scope)
        done[block] = scope
    reloading, guarded = (
        next(block for block in BLOCKS if mark in block) for mark in IN_NEW_PROCESSES
    )
    assert capsys.readouterr().out.count("{'a': 0.") == 2
    run_script(guarded, tmp_path)
    assert (tmp_path / "corpus/manifest.json").is_file()
    (tuned,) = (s for s in done.values() if "pooled" in s)
    batch = tuned["bert"].encode(tuned["texts"])
    np.savez("batch.npz", **batch)
    last = "import numpy as np\nnp.save('out', model(dict(np.load('batch.npz'))))\n"
    run_script(reloading + last, tmp_path)
    np.testing.assert_array_equal(np.load("out.npy"), tuned["model"](batch))
    for name in ("classifier.keras", "parts.keras"):
        assert isinstance(keras.saving.load_model(name), keras.Model)


def test_the_page_names_the_whole_door():
    first = BLOCKS[0]
    for name in set(bert_keras.__all__) - {"__version__"}:
        assert re.search(rf"\b{name}\b", first)

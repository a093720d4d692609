"""The wheel that goes to workers elsewhere."""

import importlib.metadata
import zipfile
from pathlib import Path

import pytest

from bert_keras.core.errors import InputError
from bert_keras.pipelines import dataflow
from tests import conftest

REPOSITORY = Path(__file__).resolve().parents[3]


def unpack(path: str, target: Path) -> None:
    zipfile.ZipFile(path).extractall(target)


def install(path: str, target: Path) -> None:
    pip = "-m pip install --quiet --no-deps --no-index --disable-pip-version-check"
    conftest.run_python(*pip.split(), "--target", target, path)


@pytest.mark.parametrize("put", [unpack, pytest.param(install, marks=pytest.mark.slow)])
def test_it_holds_the_files_that_are_here(tmp_path, put):
    path = dataflow.write_wheel(tmp_path / "dist")
    target = tmp_path / "installed"
    put(path, target)
    for package in ("bert_keras", "pipelines", "tpu"):
        place = target / "bert_keras" / package.removeprefix("bert_keras")
        for name, data in files_below(REPOSITORY / package).items():
            assert (place / name).read_bytes() == data, name
    assert {path.name for path in target.glob("[!b]*")} == set()
    assert files_below(target / "bert_keras").keys() >= {"recipes/bert_base.yaml"}
    (found,) = importlib.metadata.distributions(path=[str(target)])
    assert found.metadata["Name"] == "bert-keras"
    assert found.requires == importlib.metadata.requires("bert-keras")
    (script,) = found.entry_points
    assert script.name == "bert-keras"
    assert script.value == "bert_keras.commands.main:entry_point"


def test_a_checkout_in_which_setuptools_left_its_metadata(tmp_path, monkeypatch):
    expected = importlib.metadata.metadata("bert-keras")
    left = tmp_path / "bert_keras.egg-info"
    left.mkdir()
    (left / "PKG-INFO").write_text(str(expected))
    monkeypatch.syspath_prepend(tmp_path)
    unpack(dataflow.write_wheel(tmp_path / "dist"), tmp_path / "installed")
    (found,) = importlib.metadata.distributions(path=[str(tmp_path / "installed")])
    assert found.metadata["Name"] == "bert-keras"
    assert found.requires == expected.get_all("Requires-Dist")


def files_below(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_same_files_give_the_same_bytes(tmp_path):
    paths = [Path(dataflow.write_wheel(tmp_path / name)) for name in "ab"]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert "__pycache__" not in "".join(zipfile.ZipFile(paths[0]).namelist())


def test_a_package_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(dataflow, "DISTRIBUTION", "bert-keras-elsewhere")
    with pytest.raises(InputError, match="is not installed, .*pip install --editable"):
        dataflow.write_wheel(tmp_path)

"""Checkpoints and training states as inputs."""

import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.hostile_inputs.reading import Kind
from bert_keras.errors import InputError


def _make_state(folder: Path, golden: Path) -> None:
    shutil.copy(golden / "run/checkpoints/step-0000000012.npz", folder)


def _read_state(folder: Path) -> object:
    from bert_keras.checkpoints import npz_files

    path = folder / "step-0000000012.npz"
    try:
        npz_files.read_arrays(path, list(npz_files.read_headers(path)))
    except npz_files.UnreadableArchive as error:
        raise InputError(str(error)) from None


def _make_checkpoint(source: str, *left_out: str) -> Callable[[Path, Path], None]:
    def make(folder: Path, golden: Path) -> None:
        ignored = shutil.ignore_patterns(*left_out)
        shutil.copytree(golden / source, folder, dirs_exist_ok=True, ignore=ignored)

    return make


def _make_model_garden(folder: Path, golden: Path) -> None:
    from bert_keras.checkpoints import conversion

    conversion.convert(golden / "google", golden / "garden", to="model_garden")
    shutil.copytree(golden / "garden", folder, dirs_exist_ok=True)


def _read_checkpoint(folder: Path) -> object:
    from bert_keras.checkpoints import conversion

    return conversion.read(folder)


KINDS = {
    "training states": Kind(40_000, _make_state, _read_state),
    "native": Kind(3_000, _make_checkpoint("run", "checkpoints"), _read_checkpoint),
    "Hugging Face": Kind(6_000, _make_checkpoint("hugging_face"), _read_checkpoint),
    "Google": Kind(6_000, _make_checkpoint("google"), _read_checkpoint),
    "KerasHub": Kind(3_000, _make_checkpoint("keras_hub"), _read_checkpoint),
    "Model Garden": Kind(3_000, _make_model_garden, _read_checkpoint),
}

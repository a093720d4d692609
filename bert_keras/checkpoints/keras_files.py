"""The arrays of a weights file of Keras, `*.weights.h5`, read with h5py alone.

Nothing is taken from another file, and no memory before what is claimed has been held
against the size of the file.
"""

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np

from bert_keras.errors import InputError, one_line


class WeightsFile:
    """An opened file; a `weights.Source`, whose arrays are read when asked for.

    It stays open: the file may be renamed meanwhile.

    Args:
        path: of the file.

    Raises:
        InputError: not HDF5, damaged, or with parts outside of the file.
    """

    def __init__(self, path: Path):
        self._path = path
        with _errors_of(path):
            self._file = h5py.File(path, "r")
            datasets = _plain_datasets(self._file)
            self._shapes = {name: datasets[name].shape for name in datasets}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """All arrays by their names."""
        return self._shapes

    def read(self, name: str) -> np.ndarray:
        """One array."""
        with _errors_of(self._path):
            dataset = self._file[name]
            if _is_bfloat16(dataset):
                return dataset[()].view(ml_dtypes.bfloat16)
            return dataset[()]

    def check_dtypes(self, names: Iterable[str]) -> None:
        """Raises an `InputError` for anything but floating-point numbers."""
        for name in names:
            with _errors_of(self._path):
                dataset = self._file[name]
                is_float = dataset.dtype.kind == "f" or _is_bfloat16(dataset)
            if not is_float:
                raise InputError(
                    f"{self._path}: {name} holds {dataset.dtype}, expected "
                    "floating-point numbers; quantized models are not read"
                )

    def layer_names(self, name: str) -> tuple[str, ...]:
        """The names of the layers that lead to an array, the model's left out.

        Keras puts them beside the arrays. The name of the array itself is made of the
        attributes and classes of these layers: `layers/dense_1/vars/0`.
        """
        *parents, _, _ = name.split("/")
        with _errors_of(self._path):
            places = ("/".join(parents[:end]) for end in range(1, len(parents) + 1))
            # A list of layers has none.
            groups = [self._file.get(f"{place}/vars") for place in places]
            return tuple(
                str(group.attrs["name"]) for group in groups if group is not None
            )


def _is_bfloat16(dataset: h5py.Dataset) -> bool:
    # HDF5 has no such type: Keras writes two bytes of anything, and says what they are.
    return dataset.dtype == np.dtype("V2") and dataset.attrs.get("dtype") == "bfloat16"


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Turns all signs of a damaged file into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except _SIGNS_OF_DAMAGE as error:
        reason = one_line(error)
        raise InputError(f"{path}: cannot be read as HDF5: {reason}") from None


# What h5py makes of HDF5's errors, and of a name that is not UTF-8 (SystemError).
_SIGNS_OF_DAMAGE = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    SystemError,
)


def _plain_datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """All datasets of a file, none of which needs another file or more memory than
    this one takes on disk."""
    links = {}
    # An error in the callback would end in one of h5py.
    file.visititems_links(links.__setitem__)
    for name, link in links.items():
        if not isinstance(link, h5py.HardLink):
            raise InputError(
                f"{file.filename}: {name} is a link to elsewhere, expected the data "
                "itself: links are not followed"
            )
    found = {name: file[name] for name in links}
    datasets = {k: v for k, v in found.items() if isinstance(v, h5py.Dataset)}
    for name, dataset in datasets.items():
        if dataset.is_virtual or dataset.external or dataset.chunks:
            raise InputError(
                f"{file.filename}: {name} is compressed, or kept in another file: "
                "expected what Keras writes"
            )
    size = os.path.getsize(file.filename)
    if sum(math.prod(d.shape) * d.dtype.itemsize for d in datasets.values()) > size:
        raise InputError(f"{file.filename}: claims more than its {size} bytes")
    return datasets

"""Arrays of a weights file of Keras 3 or 2, `*.h5`, read with h5py alone. No link leads
out of the file, and claims are checked against its size before memory is allocated."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np

from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.core import files
from bert_keras.core.errors import InputError, one_line


class WeightsFile:
    """An opened file: a `weights.Source`. It stays open, so the file may be renamed."""

    def __init__(self, path: Path):
        self._path = path
        with _errors_of(path), files.local_copy(path) as copy:
            self._file = h5py.File(copy, "r")
            links = {}
            # h5py would replace an error that a callback raises.
            self._file.visititems_links(links.__setitem__)
            for name, link in links.items():
                if not isinstance(link, h5py.HardLink):
                    raise InputError(
                        f"{path}: {name!r} is a link to elsewhere, expected the data "
                        "itself: links are not followed"
                    )
            items = {name: self._file[name] for name in links}
            datasets = {k: v for k, v in items.items() if isinstance(v, h5py.Dataset)}
            for name, dataset in datasets.items():
                # Compressed data may need more memory than the file has bytes.
                if dataset.is_virtual or dataset.external or dataset.chunks:
                    raise InputError(
                        f"{path}: {name!r} is compressed, or kept in another file: "
                        "expected what Keras writes"
                    )
            # No memory is allocated for impossible sizes.
            size, values = os.path.getsize(copy), datasets.values()
            if sum(math.prod(d.shape) * d.dtype.itemsize for d in values) > size:
                raise InputError(f"{path}: claims more than its {size} bytes")
            self.layouts = safetensors_files.layouts_of(datasets)
            self.shapes = {name: layout.shape for name, layout in self.layouts.items()}

    def read(self, name: str) -> np.ndarray:
        with _errors_of(self._path):
            dataset = self._file[name]
            if dataset.dtype.kind == "f":
                return dataset[()]
            # HDF5 lacks the type: Keras writes two opaque bytes, and an attribute with
            # the name.
            is_opaque = dataset.dtype == np.dtype("V2")
            if is_opaque and dataset.attrs.get("dtype") == "bfloat16":
                return dataset[()].view(ml_dtypes.bfloat16)
            raise InputError(
                f"{self._path}: {name!r} holds {dataset.dtype}, expected "
                "floating-point numbers; quantized models are not read"
            )


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, SystemError) as e:
        # What h5py raises for errors of HDF5; SystemError: a name that is not UTF-8.
        reason = "a name is damaged" if isinstance(e, SystemError) else one_line(e)
        raise InputError(f"{path}: cannot be read as HDF5: {reason}") from None

"""Steps before a verb loads its model: packages, Keras's backend, TensorFlow's logs."""

import contextlib
import ctypes
import importlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from bert_keras.core.errors import InputError

TRAIN = (
    *("tensorflow", "keras", "tensorflow_text", "tensorboard", "sklearn", "scipy"),
    *("seqeval", "h5py", "ml_dtypes", "matplotlib", "PIL", "markdown_it"),
)
"""The packages of the extra `train` in setup.cfg, by the names that are imported."""

INSTALL_TRAIN = "run `pip install '.[train]' -c constraints.txt` in the checkout"


def check_packages(verb: str) -> None:
    missing = [name for name in TRAIN if not _is_installed(name)]
    if missing:
        raise InputError(
            f"`{verb}` needs {', '.join(missing)}, not installed here: {INSTALL_TRAIN}"
        )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def check_installed(name: str, extra: str, need: str) -> None:
    """Raises an `InputError` that begins with `need` if a module is not installed."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"{need} {name} ({error}): run `pip install '.[{extra}]' -c "
            "constraints.txt` in the checkout"
        ) from None


def check_backend(verb: str, backends: Sequence[str]) -> None:
    """Chooses the first of `backends` unless `KERAS_BACKEND` names another of them."""
    backend = os.environ.get("KERAS_BACKEND") or backends[0]
    if backend not in backends:
        raise InputError(
            f"`{verb}` runs on {' or '.join(backends)}, got KERAS_BACKEND={backend}: "
            f"set it to {backends[0]} or unset it"
        )
    if not _is_installed(backend):
        raise InputError(f"KERAS_BACKEND={backend}: {backend} is not installed")
    os.environ["KERAS_BACKEND"] = backend


def quiet_tensorflow() -> None:
    """Silences TensorFlow's start-up noise unless the user asked for it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Else it takes the size of a store's file from what it was five seconds ago.
    os.environ.setdefault("GCS_STAT_CACHE_MAX_AGE", "0")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="(tensorflow|keras|google|h5py).*")
    # Some messages, such as "Compiled cluster using XLA", heed no TF_CPP_MIN_LOG_LEVEL,
    # but a level that Python has no function for: it is called by its name in the
    # libraries of TensorFlow 2.20 and 2.21.
    spec = importlib.util.find_spec("tensorflow")
    is_used = os.environ.get("KERAS_BACKEND") == "tensorflow"
    if is_used and os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3" and spec and spec.origin:
        library = Path(spec.origin).with_name("libtensorflow_framework.so.2")
        for version in ("20250127", "20250814"):
            name = f"_ZN4absl12lts_{version}14SetMinLogLevelENS0_18LogSeverityAtLeastE"
            with contextlib.suppress(OSError, AttributeError):
                getattr(ctypes.CDLL(str(library)), name)(3)

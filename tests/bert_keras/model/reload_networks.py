"""Opens `.keras` files; run by `test_saving.py` in a process that is new.

    python reload_networks.py DIRECTORY

DIRECTORY holds `<name>.keras` files and `features.npz` with `<name>/<feature>`. Writes
`outputs.npz` with `<name>/<output>`.
"""

import sys
from pathlib import Path

import bert_keras  # noqa: F401  # the only thing of ours that this script imports

if {"keras", "tensorflow", "jax"} & sys.modules.keys():
    raise RuntimeError("`import bert_keras` loaded what it should not")

import keras  # noqa: E402
import numpy as np  # noqa: E402


def main(directory: Path) -> None:
    archive = dict(np.load(directory / "features.npz"))
    outputs = {}
    for path in sorted(directory.glob("*.keras")):
        model = keras.saving.load_model(path)
        prefix = f"{path.stem}/"
        features = {
            key.removeprefix(prefix): values
            for key, values in archive.items()
            if key.startswith(prefix)
        }
        for key, values in model(features).items():
            outputs[prefix + key] = keras.ops.convert_to_numpy(values).astype("float32")
    np.savez(directory / "outputs.npz", **outputs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

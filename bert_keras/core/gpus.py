"""NVIDIA's GPUs of this machine, found without TensorFlow."""

import os
import re
from collections.abc import Mapping
from pathlib import Path


def visible(
    environment: Mapping[str, str] = os.environ, *, devices: Path = Path("/dev")
) -> list[str]:
    """Returns the GPUs that a process may use, as `CUDA_VISIBLE_DEVICES` names them.
    The driver's device files, `nvidia0` and so on, are in `devices`."""
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is not None:
        names = [name.strip() for name in text.split(",")]
        # CUDA ignores what follows a name of no device.
        end = next((i for i, n in enumerate(names) if n in ("", "-1")), len(names))
        return names[:end]
    names = os.listdir(devices) if devices.is_dir() else []
    count = sum(1 for name in names if re.fullmatch("nvidia[0-9]+", name))
    # CUDA numbers those that are there from 0.
    return [str(number) for number in range(count)]

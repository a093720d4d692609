"""Prints what stock Keras does and what we do, for each script, as a line of JSON.

    python benchmarks/upstream/run.py NAME...

All scripts have one process: importing TensorFlow takes longer than most of them.
Scripts in which `fit` fails come last: they leave what others would trip over.
"""

import importlib
import json
import os
import sys

import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
found = {}
for half in ("ours", "stock"):
    for name in sys.argv[1:]:
        found[f"{name} {half}"] = getattr(importlib.import_module(name), half)()
print(json.dumps(found), flush=True)
# A `fit` that failed leaves a thread that never ends.
os._exit(0)

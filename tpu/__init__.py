"""Devices for training: strategies and clusters of workers."""

STRATEGIES = ("auto", "cpu", "gpu", "multi_worker", "tpu", "tpu:NAME")
"""Choices of `--strategy`; `NAME` is that of a TPU."""

PURPOSES = ("cpu", "gpu", "tpu", "dataflow")
"""Choices of `doctor --for`."""

"""Where the computation runs: strategies, TPU checks, cloud commands."""

STRATEGIES = ("auto", "cpu", "gpu", "multi_worker", "tpu", "tpu:NAME")
"""Choices of `--strategy`; `NAME` is that of a TPU."""

"""`bert-keras compare`: which model to start from, and whether any is worth it."""

from bert_keras.lab.compare.running import Comparison, run_comparison

__all__ = ["Comparison", "run_comparison"]

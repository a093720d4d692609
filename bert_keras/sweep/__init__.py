"""`bert-keras sweep`: fine-tuning as in the paper, many runs and a choice on dev."""

from bert_keras.sweep.planning import Command
from bert_keras.sweep.running import run_sweep

__all__ = ["Command", "run_sweep"]

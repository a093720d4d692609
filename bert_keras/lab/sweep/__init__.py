"""`bert-keras sweep`: fine-tuning as in the paper, many runs and a choice on dev."""

from bert_keras.lab.sweep.folds import find_folds
from bert_keras.lab.sweep.planning import Command
from bert_keras.lab.sweep.running import run_sweep
from bert_keras.lab.sweep.summary import lines

__all__ = ["Command", "find_folds", "lines", "run_sweep"]

"""`bert-keras export`: trained models in formats that load without this project."""

from bert_keras.export.quantized.accuracy_check import table
from bert_keras.export.writing import export_model

__all__ = ["export_model", "table"]

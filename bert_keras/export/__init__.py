"""`bert-keras export`: a trained model in the forms that others load.

Whoever loads one needs nothing of this project.
"""

from bert_keras.export.writing import FORMS, LABELS_NAME, export_model

__all__ = ["FORMS", "LABELS_NAME", "export_model"]

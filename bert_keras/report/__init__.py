"""`bert-keras report`: what a run did, as pictures and one page."""

from bert_keras.report.writing import write_report

__all__ = ["write_report"]

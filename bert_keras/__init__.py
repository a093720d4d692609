"""BERT on Keras 3: from raw text to a served model."""

__version__ = "0.1.0"

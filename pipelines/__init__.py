"""Apache Beam pipelines: raw text to masked TFRecords. No TensorFlow, no Keras."""

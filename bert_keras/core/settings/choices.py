"""Choices of options, which the command line lists without loading Keras."""

from typing import Literal

CheckpointFormat = Literal[
    "google",
    "model_garden",
    "hugging_face",
    "sentence_transformers",
    "keras_hub",
    "peft",
    "native",
]
"""Formats that `convert` reads and writes."""
ExportForm = Literal["saved_model", "litert", "onnx", "transformers_js"]
"""Forms that `export` writes."""
ModelServer = Literal["tf"]
"""Servers that `export` writes files for."""
Quantization = Literal["int8", "bfloat16", "float16"]
"""Numbers that `export` can quantise weights to."""
Embedding = Literal["cls", "pooled", "mean", "tokens"]
"""Vectors that `export` offers: the first token's; the same through the pooler,
`tanh(W x + b)`; the mean over all tokens, `[CLS]` and `[SEP]` but no padding, as in
sentence-transformers; or one for each token."""

PllForm = Literal["original", "word_l2r"]
"""Pieces that are masked together in a pseudo-log-likelihood. `original`: one at a time
(Salazar et al., 2020); `word_l2r`: a piece with the rest of its word, so that the end
of a rare word does not give its beginning away (Kauf and Ivanova, 2023)."""

PairKind = Literal["titles", "neighbours", "sentences"]
"""Pairs of texts of a document: see `bert_keras.pipelines.pairs`."""

SearchBy = Literal["words", "vectors", "both"]
"""Ways to find texts: by BM25, by cosines, or by the ranks of both."""

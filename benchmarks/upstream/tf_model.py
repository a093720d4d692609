"""Writes `tests/data/tf_model`: models of transformers' TensorFlow classes, of random
weights, and their outputs for a batch.

transformers 5 has no TensorFlow, so version 4 needs an environment of its own:

    python3.11 -m venv tf4
    tf4/bin/pip install transformers==4.57.6 tensorflow==2.20.0 tf-keras==2.20.1
    tf4/bin/python benchmarks/upstream/tf_model.py tests/data/tf_model

Then, for a file as the first versions with TensorFlow wrote it:

    tf4/bin/pip install --no-deps --target transformers2 transformers==2.11.0
    PYTHONPATH=transformers2 tf4/bin/python benchmarks/upstream/tf_model.py \\
        tests/data/tf_model
"""

import os
import sys
import types
from importlib import metadata
from pathlib import Path

import numpy as np

os.environ["TF_USE_LEGACY_KERAS"] = "1"
if is_old := metadata.version("transformers").startswith("2."):
    # Its tokenizers have no wheels for this Python, and models do not need them.
    parts = ("implementations", "pre_tokenizers", "processors", "decoders")
    parts += ("models", "normalizers", "trainers")
    names = ("tokenizers", *(f"tokenizers.{part}" for part in parts))
    for name in (*names, "sentencepiece", "sacremoses"):
        module = types.ModuleType(name)
        module.__path__ = []
        module.__getattr__ = lambda name: type(name, (), {})  # pyright: ignore
        sys.modules[name] = module

import transformers  # noqa: E402

TEXTS = (
    ("the film was good", None),
    ("a bad, unaffordable film!", "the cast was fine"),
    ("Was Anna in Paris?", "Anna was in Berlin."),
)
PIECES = """
[PAD] [UNK] [CLS] [SEP] [MASK] . , ! ? a b c d e f g h i j k l m n o p r s t u y ##a
##e ##i ##s ##n ##t ##r ##d the film was good bad fine cast anna in paris berlin un
##afford ##able not very it is and of to
"""
SIZES = {
    "vocab_size": len(PIECES.split()),
    "hidden_size": 16,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
}
THREE = {"id2label": {0: "bad", 1: "fine", 2: "good"}}
TAGS = {"id2label": dict(enumerate(("O", "B-PER", "I-PER", "B-LOC", "I-LOC")))}
CLASSES = {
    "Model": {},
    "ForPreTraining": {"num_hidden_layers": 2},
    "ForMaskedLM": {"hidden_act": "gelu_new"},
    "LMHeadModel": {},
    "ForNextSentencePrediction": {},
    "ForSequenceClassification": THREE,
    "ForMultipleChoice": {},
    "ForTokenClassification": TAGS,
    "ForQuestionAnswering": {},
}


def write_tokenizer(directory: Path) -> None:
    """Writes the files of a tokenizer, and `TEXTS` as it splits them."""
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("\n".join(PIECES.split()) + "\n")
    tokenizer = transformers.BertTokenizerFast(str(vocabulary), model_max_length=24)
    tokenizer.save_pretrained(directory)
    first, second = zip(*TEXTS, strict=True)
    # A missing second text is none, which a list cannot say.
    rows = [
        tokenizer(*(text for text in pair if text), padding="max_length", max_length=20)
        for pair in zip(first, second, strict=True)
    ]
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: np.array([row[name] for row in rows], "int32") for name in names}
    np.savez(directory / "inputs.npz", **inputs)


def write_model(name: str, settings: dict, folder: Path, **options: str) -> None:
    import tensorflow as tf

    inputs = dict(np.load(folder.parent / "inputs.npz"))
    if name == "ForMultipleChoice":
        inputs = {key: np.stack([v, v[::-1]], axis=1) for key, v in inputs.items()}
    inputs = {key: tf.constant(value) for key, value in inputs.items()}
    config = transformers.BertConfig(**SIZES, **{"num_hidden_layers": 1, **settings})
    model = getattr(transformers, f"TFBert{name}")(config)
    # A layer's variables exist after its first call.
    model(inputs, training=False)
    random = np.random.default_rng(5)
    for variable in model.weights:
        centre = 1.0 if variable.name.endswith("gamma:0") else 0.0
        variable.assign(random.normal(centre, 0.3, variable.shape))
    outputs = model(inputs, training=False)
    arrays = outputs if isinstance(outputs, tuple) else outputs.to_tuple()
    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder, **options)
    np.savez(folder / "outputs.npz", *(array.numpy() for array in arrays))


def main(directory: Path) -> None:
    if is_old:
        write_model("ForTokenClassification", TAGS, directory / "version_2")
        return
    directory.mkdir(exist_ok=True)
    write_tokenizer(directory)
    for name, settings in CLASSES.items():
        write_model(name, settings, directory / f"TFBert{name}")
    sharded = directory / "sharded"
    write_model("ForPreTraining", {}, sharded, max_shard_size="12KB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Checkpoints with random weights, for the tests of every format."""

import json

import numpy as np

from bert_keras.checkpoints import weights
from bert_keras.core.settings import architecture, tasks
from bert_keras.data import features, tokenization
from bert_keras.kinds import registry
from bert_keras.model import weight_shapes

VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *"abcdefgh"))
WORDS = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *(f"w{number}" for number in range(35)))
)
SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
CONFIG = architecture.BertConfig(**SIZES, hidden_act="gelu_tanh")

TASKS = {
    "pretraining": tasks.Task(kind="pretraining"),
    "encoder": tasks.Task(kind="encoder"),
    "classification": tasks.Task(kind="classification", labels=("no", "so", "yes")),
    "multi_label": tasks.Task(kind="multi_label", labels=("b", "a")),
    "regression": tasks.Task(kind="regression"),
    "tagging": tasks.Task(kind="tagging", labels=("O", "B", "I")),
    "span": tasks.Task(kind="span", has_text_pair=True),
    "choice": tasks.Task(kind="choice", has_text_pair=True),
    "embedding": tasks.Task(kind="embedding", pooling="cls", normalize=True),
}


def make_checkpoint(kind="pretraining", *, without=(), **replaced):
    """A checkpoint of a task, without the weights that begin with a prefix."""
    bert_config = replaced.get("bert_config", CONFIG)
    task = replaced.get("task", TASKS[kind])
    random = np.random.default_rng(3)
    shapes = weight_shapes.all_shapes(bert_config, task)
    values = {
        "bert_config": bert_config,
        "task": task,
        "arrays": {
            name: name.endswith("gamma")
            + 0.3 * random.standard_normal(shape, dtype=np.float32)
            for name, shape in shapes.items()
            if name.startswith(registry.find(task.kind).parts)
            and not name.startswith(tuple(without))
        },
        "vocabulary": VOCABULARY,
        "do_lower_case": True,
        **replaced,
    }
    return weights.Checkpoint(**values)


def change_json(path, *, within=None, without=(), **values):
    """Sets keys of a JSON file, or of its part `within`, and takes others away."""
    whole = json.loads(path.read_text()) if path.is_file() else {}
    part = whole[within] if within else whole
    part |= values
    for key in without:
        del part[key]
    path.write_text(json.dumps(whole))


def assert_same_arrays(arrays, expected):
    assert set(arrays) == set(expected)
    for name, array in expected.items():
        actual = arrays[name]
        assert (actual.dtype, actual.shape) == (array.dtype, array.shape), name
        assert actual.tobytes() == array.tobytes(), name

"""Vectors of texts: learnt from pairs, from plain text and from numbers, and used."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import bert_keras
from bert_keras import export, finetuning_config, run_directory
from bert_keras.checkpoints import conversion
from bert_keras.errors import InputError
from bert_keras.inference import tuned
from bert_keras.report import task_summaries
from bert_keras.tasks import similarity
from bert_keras.training import finetune
from tests.bert_keras.training.test_finetune import (
    BERT_CONFIG,
    FILLER,
    SETTINGS,
    make_init,
    write_tsv,
)

TOPICS = list("bcdefghij")
PAIRS = finetuning_config.EmbeddingConfig()


@pytest.fixture(scope="module")
def init(tmp_path_factory) -> Path:
    bert_config = BERT_CONFIG.model_copy(update={"initializer_range": 0.15})
    return make_init(tmp_path_factory.mktemp("init") / "run", bert_config)


def topical_pairs(num_rows: int, *, seed: int) -> list[tuple[str, str]]:
    """Two texts that share three of nine words, among other words that mean nothing."""
    rng = random.Random(seed)
    rows = []
    for _ in range(num_rows):
        topics = rng.sample(TOPICS, 3)
        pair = []
        for _ in range(2):
            words = [*topics, *rng.choices(FILLER, k=rng.randint(2, 8))]
            rng.shuffle(words)
            pair.append(" ".join(words))
        rows.append(tuple(pair))
    return rows


def tune(init: Path, train: Path, dev: list, output_dir: Path, **changes):
    embedding = PAIRS.model_copy(update=changes.pop("embedding", {}))
    changes = {
        "task": "embedding",
        "batch_size": 32,
        "num_train_epochs": 3.0,
        "embedding": embedding,
        **changes,
    }
    return finetune.finetune(
        SETTINGS.model_copy(update=changes),
        train=train,
        dev=dev,
        init=init,
        from_scratch=False,
        output_dir=output_dir,
        strategy=changes.pop("strategy", None) or tf.distribute.get_strategy(),
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> tuple[Path, Path]:
    folder, header = tmp_path_factory.mktemp("pairs"), ("text", "text_pair")
    return (
        write_tsv(folder / "train.tsv", topical_pairs(640, seed=1), header),
        write_tsv(folder / "dev.tsv", topical_pairs(80, seed=2), header),
    )


@pytest.fixture(scope="module")
def run(init, pairs, tmp_path_factory) -> tuple[Path, dict]:
    directory = tmp_path_factory.mktemp("vectors") / "run"
    return directory, tune(init, pairs[0], [pairs[1]], directory)


def test_pairs_are_learnt(run, init, pairs, tmp_path):
    directory, results = run
    print(results)
    untrained = tune(
        init, pairs[0], [pairs[1]], tmp_path / "r", learning_rate=1e-9, num_train_epochs=0.05
    )
    print(untrained)
    assert results["eval"]["recall_at_10"] > untrained["eval"]["recall_at_10"] + 0.15

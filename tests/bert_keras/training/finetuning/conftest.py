"""The encoder that fine-tunings of these tests begin with."""

from pathlib import Path

import pytest

from tests.bert_keras.training.finetuning.test_finetune import BERT_CONFIG, make_init


@pytest.fixture(scope="session")
def init(tmp_path_factory) -> Path:
    """A finished pre-training run with random weights."""
    # With 0.02, attention in so small a model takes long to become anything.
    bert_config = BERT_CONFIG.model_copy(update={"initializer_range": 0.15})
    return make_init(tmp_path_factory.mktemp("init") / "run", bert_config)

"""The recipes that the front page recommends train as they did when it was written.

Each is cut small and trained for ten steps, once without a break and once killed after
its sixth. Both have the losses in `tests/golden/recipe_losses.json`, and end with the
same bits.

    PYTHONPATH=. python tests/bert_keras/training/test_recipe_losses.py

records the losses of recipes whose entry was deleted from the file.
"""

import json
import random
import tempfile
import unittest.mock
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_keras.checkpoints import conversion
from bert_keras.core.settings import finetuning, loading, pipelines, pretraining
from bert_keras.data import tokenization
from bert_keras.pipelines import examples
from bert_keras.pipelines.engine import engines
from bert_keras.report import scalar_log
from tests import conftest, make
from tests.bert_keras.kinds import kind_data

RECORD = Path(__file__).parents[2] / "golden" / "recipe_losses.json"
TOLERANCE = 1e-3
"""Of a loss: sums differ from one kind of processor to another."""

FAST_EXAMPLES = {"masking": "dynamic", "dupe_factor": 1}
PRETRAINING = {
    "strict_small": [(64, "strict_small_examples")],
    "bert_mini_fast": [
        (32, FAST_EXAMPLES | {"masked_lm_prob": 0.3}),
        (64, FAST_EXAMPLES),
        (128, FAST_EXAMPLES | {"pack_instances": True}),
    ],
    "demo": [(64, {})],
}
"""By recipe, the lengths and settings of its examples."""
FINETUNING = {
    "demo_finetune": "classification",
    "tagger": "tagging",
    "vectors": "embedding",
}
"""By recipe, the kind of its task; those without a file have the usual settings."""
SMALLER = (
    *("model.num_hidden_layers=1", "model.hidden_size=48"),
    *("model.intermediate_size=64", "global_batch_size=4", "num_train_steps=10"),
    *("optimizer.warmup_steps=4", "optimizer.decay_steps=null", "num_eval_shards=0"),
    *("precision=float32", "save_checkpoint_steps=3", "steps_per_execution=1"),
)
NUM_EXAMPLES = 80

Train = Callable[[Path], None]
"""Trains in a new directory, or goes on in one."""


def pretrain(name: str, folder: Path) -> Train:
    import tensorflow as tf

    from bert_keras.training import pretrain as training

    vocab = folder / "vocab.txt"
    vocab.write_text("\n".join([*conftest.features.SPECIAL_TOKENS, *conftest.WORDS]))
    conftest.write_documents(folder / "corpus", conftest.counting_documents())
    inputs = []
    for length, changes in PRETRAINING[name]:
        inputs.append(folder / f"examples_{length}")
        recipe = changes if isinstance(changes, str) else None
        config = loading.load(
            pipelines.ExamplesConfig, recipe, [f"max_seq_length={length}"]
        )
        examples.build_examples(
            *(folder / "corpus", vocab, inputs[-1]),
            config=config.model_copy(update={} if recipe else changes),
            do_lower_case=True,
            num_shards=3,
            engine=engines.make_engine(),
        )
    smaller = SMALLER
    if len(inputs) > 1:  # The last phase has a batch of its own.
        parts = [{"fraction": 0.7}, {"fraction": 0.2}, {"fraction": 0.1}]
        parts[-1]["global_batch_size"] = 2
        smaller = (*smaller, f"phases={json.dumps(parts)}")
    settings = loading.load(pretraining.PretrainingConfig, name, smaller)

    def train(run: Path) -> None:
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        training.pretrain(settings, inputs, run, strategy=strategy)

    return train


def finetune(name: str, folder: Path) -> Train:

    data, rng = kind_data.DATA[FINETUNING[name]], random.Random(7)
    rows = [data.row(rng, number) for number in range(NUM_EXAMPLES + 8)]
    parts = {"train": rows[:NUM_EXAMPLES], "dev": rows[NUM_EXAMPLES:]}
    paths = {part: folder / f"{part}{data.suffix}" for part in parts}
    for part, of_part in parts.items():
        paths[part].write_text(data.write(of_part, True))
    known = (*conftest.features.SPECIAL_TOKENS, *kind_data.GOOD, *kind_data.BAD)
    vocab = tokenization.Vocabulary((*known, *kind_data.FILLER, *"bcd", "##x"))
    init = make.make_run(folder / "init", vocab, kind="encoder")
    settings = loading.load(
        finetuning.FinetuningConfig,
        "demo_finetune" if name == "demo_finetune" else None,
        [
            *(f"{key}={value}" for key, value in data.settings.items()),
            *("max_seq_length=24", "batch_size=8", "num_train_epochs=1"),
            *("save_checkpoint_steps=3", "steps_per_execution=1"),
        ],
    )

    def train(run: Path) -> None:
        make.finetune(
            settings,
            train=paths["train"],
            dev=[paths["dev"]],
            init=init,
            output_dir=run,
        )

    return train


def prepare(name: str, folder: Path) -> Train:
    folder.mkdir()
    train = (pretrain if name in PRETRAINING else finetune)(name, folder)

    def train_with_every_loss_in_the_log(run: Path) -> None:
        from bert_keras.training import watching

        with unittest.mock.patch.object(watching, "is_logged", return_value=True):
            train(run)

    return train_with_every_loss_in_the_log


def losses(run: Path) -> list[float]:
    curve = scalar_log.read_log(run / "logs" / "train").scalars["loss/loss"]
    assert [*curve.steps] == [*range(1, 11)]
    return [*curve.values]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PRETRAINING, *FINETUNING])
def test_losses_are_those_recorded_killed_or_not(name, tmp_path, at_step, monkeypatch):
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    train = prepare(name, tmp_path / "data")
    train(tmp_path / "whole")
    assert losses(tmp_path / "whole") == pytest.approx(recorded, rel=TOLERANCE)

    def die():
        raise KeyboardInterrupt

    at_step(6, die)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed")
    monkeypatch.undo()
    train(tmp_path / "killed")
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    bits = [conversion.read(tmp_path / n).arrays for n in ("killed", "whole")]
    assert {k: v.tobytes() for k, v in bits[0].items()} == {
        k: v.tobytes() for k, v in bits[1].items()
    }


def main() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    with tempfile.TemporaryDirectory() as directory:
        for name in {**PRETRAINING, **FINETUNING}.keys() - record.keys():
            folder = Path(directory, name)
            prepare(name, folder)(folder / "run")
            record[name] = [float(f"{loss:.6g}") for loss in losses(folder / "run")]
            RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

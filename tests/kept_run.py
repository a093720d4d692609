"""Makes `tests/data/version_0_1`: what version 0.1 writes, kept to be read for ever.

    PYTHONPATH=. python tests/kept_run.py

A corpus, a vocabulary, examples, a pre-training that was killed at its eighth step and
the answers of a run that was tuned from one that was not, with an export of it.
"""

import json
import os
import random
import shutil
import tempfile
from pathlib import Path

import keras

from bert_keras.checkpoints import conversion
from bert_keras.commands import main
from bert_keras.training.step import replicas
from tests import conftest

KEPT = Path(__file__).parent / "data" / "version_0_1"
SETTINGS = (
    *("model.num_hidden_layers=1", "model.hidden_size=16"),
    *("model.num_attention_heads=2", "model.intermediate_size=32"),
    *("model.max_position_embeddings=32", "global_batch_size=4", "num_train_steps=12"),
    *("optimizer.warmup_steps=4", "optimizer.learning_rate=1e-3", "num_eval_steps=2"),
    *("precision=float32", "save_checkpoint_steps=5", "num_eval_shards=1"),
    *("phases=[{fraction: 1}]", "num_checkpoints=1"),
)
TUNING = (
    *("max_seq_length=24", "batch_size=8", "learning_rate=1e-2", "num_train_epochs=10"),
    "dropout_prob=0",
)


def call(*arguments: str | Path) -> None:
    if main.main([str(argument) for argument in arguments]) != 0:
        raise SystemExit(f"failed: {arguments}")


def build_examples(corpus: Path, vocab: Path, output: Path) -> None:
    call(
        *("examples", "--corpus", corpus, "--vocab", vocab, "--output", output),
        *("--max_seq_length", "32", "--num_shards", "3", "--set", "dupe_factor=3"),
    )


def predict(run: Path, file: Path, output: Path) -> None:
    call("predict", "--model", run, "--input", file, "--output", output)


def pretrain(examples: Path, output: Path) -> None:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    call("pretrain", "--examples", examples, "--output_dir", output, *settings)


def described(run: Path) -> dict[str, list[float]]:
    """The first three values of each weight."""
    arrays = conversion.read(run).arrays
    return {name: arrays[name].ravel()[:3].tolist() for name in sorted(arrays)}


class Killed(BaseException):
    """Nothing catches it, as nothing catches a signal that kills."""


def killed_at(step: int):
    fit = keras.Model.fit

    class Kill(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if replicas.optimizer_step(self.model) >= step:
                raise Killed

    return lambda self, *args, callbacks, **options: fit(
        self, *args, callbacks=[Kill(), *callbacks], **options
    )


def write() -> None:
    texts = Path("texts")
    texts.mkdir()
    for number, document in enumerate(conftest.counting_documents()):
        sentences = "\n".join(document["paragraphs"][0])
        (texts / f"{number}.txt").write_text(f"{sentences}\n")
    call("corpus", "--sentences", "texts/*.txt", "--output", "corpus")
    call("vocab", "--corpus", "corpus", "--vocab_size", "240", "--output", "vocab.txt")
    build_examples(Path("corpus"), Path("vocab.txt"), Path("examples"))
    pretrain(Path("examples"), Path("whole"))
    fit, keras.Model.fit = keras.Model.fit, killed_at(8)
    try:
        pretrain(Path("examples"), Path("killed"))
    except Killed:
        keras.Model.fit = fit
    rng = random.Random(3)
    for name, count in (("train.tsv", 64), ("dev.tsv", 8)):
        rows = "text\tlabel\n"
        for number in range(count):
            words = " ".join(rng.choices(conftest.WORDS, k=6))
            rows += f"{('ba ba', 'ro ro')[number % 2]} {words}\t"
            rows += f"{('good', 'bad')[number % 2]}\n"
        Path(name).write_text(rows)
    settings = [word for setting in TUNING for word in ("--set", setting)]
    call(
        *("finetune", "--train", "train.tsv", "--dev", "dev.tsv", "--init", "whole"),
        *("--output_dir", "tuned", *settings),
    )
    predict(Path("tuned"), Path("dev.tsv"), Path("dev.jsonl"))
    call("export", "--model", "tuned", "--output", "exported/1")
    Path("weights.json").write_text(json.dumps(described(Path("whole")), indent=1))
    for name in ("texts", "whole"):
        shutil.rmtree(name)


def forget(folder: Path) -> None:
    """Takes away what the run says of this machine, and what only TensorBoard reads."""
    for path in folder.rglob("events.out.tfevents.*"):
        path.unlink()
    for path in folder.glob("*/verified/*.json"):
        path.rename(path.with_name("host.json"))
    path = folder / "tuned/results.json"
    results = json.loads(path.read_text())
    results["environment"] |= {"host": "host", "platform": "Linux", "commit": None}
    text = json.dumps(results, indent=2).replace(str(folder), "/home/user")
    path.write_text(f"{text}\n")


def make() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write()
        forget(Path(folder))
        shutil.copytree(folder, KEPT)


if __name__ == "__main__":
    make()

"""Tokens per second of a pre-training step, ours and third-party, in turns.

    python -m benchmarks.step [--sizes small] [--precisions float32] [--turns 4]
    python -m benchmarks.step --sizes strict_small --implementations muon muon@../before

A step is forward and backward pass of masked LM and next sentence (20 predictions in
128 tokens, gathered before the output layer), dropout 0.1, clipping to a norm of 1.0
and an AdamW update, on one batch that is in memory already. Each implementation has a
process of its own, and they take turns: a machine that slows down does so for all.
`NAME@DIRECTORY` is the implementation of another checkout of this project.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import measuring

VOCAB_SIZE = 30522
PRECISIONS = ("float32", "mixed_bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """An encoder and the batch that trains it."""

    num_layers: int
    hidden_size: int
    num_heads: int
    batch_size: int
    length: int = 128
    """Tokens of a sequence."""

    @property
    def num_predictions(self) -> int:
        return {128: 20, 512: 76}[self.length]

    def bert_config(self, vocab_size: int = VOCAB_SIZE) -> Any:
        from bert_keras.core.settings import architecture

        return architecture.BertConfig(
            **self.transformers_config(vocab_size=vocab_size)
        )

    def transformers_config(self, **more: Any) -> dict[str, Any]:
        """Returns the arguments of `transformers.BertConfig`, which are ours too."""
        return {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "intermediate_size": 4 * self.hidden_size,
            **more,
        }


SIZES = {
    "tiny": Size(num_layers=2, hidden_size=128, num_heads=2, batch_size=64),
    "mini": Size(num_layers=4, hidden_size=256, num_heads=4, batch_size=64),
    "strict_small": Size(num_layers=4, hidden_size=384, num_heads=6, batch_size=64),
    "small": Size(num_layers=4, hidden_size=512, num_heads=8, batch_size=64),
    "base": Size(num_layers=12, hidden_size=768, num_heads=12, batch_size=16),
}


def random_batch(size: Size) -> dict[str, np.ndarray]:
    """Returns full sequences of random tokens, with our names."""
    random = np.random.default_rng(0)
    tokens = (size.batch_size, size.length)
    predictions = (size.batch_size, size.num_predictions)
    columns = np.broadcast_to(np.arange(size.length), tokens)

    def integers(first: int, end: int, shape: tuple[int, int]) -> np.ndarray:
        return random.integers(first, end, shape, dtype=np.int32)

    return {
        "input_ids": integers(1, VOCAB_SIZE, tokens),
        "input_mask": np.ones(tokens, np.int32),
        "segment_ids": np.int32(columns >= size.length // 2),
        "masked_lm_positions": np.sort(integers(1, size.length, predictions)),
        "masked_lm_ids": integers(1, VOCAB_SIZE, predictions),
        "masked_lm_weights": np.ones(predictions, np.float32),
        "next_sentence_labels": integers(0, 2, (size.batch_size, 1)),
        "dropout_seeds": np.arange(size.batch_size, dtype=np.int32),
    }


# The implementations: each function returns a function that makes a step.


def our_learner(
    shape: Any, batch: Any, precision: str, *, optimizer: str = "adamw", **options: Any
) -> Any:
    """Returns a learner as `bert-keras pretrain` makes it, of a batch of tensors."""
    from bert_keras.core.settings import pretraining
    from bert_keras.model import pretrainer
    from bert_keras.training.step import learner, optimization

    return learner.build_learner(
        lambda: pretrainer.BertPretrainer(shape, seed=1, dtype=precision),
        {name: values[:1] for name, values in batch.items()},
        optimizer=lambda: optimization.build_optimizer(
            pretraining.OptimizerConfig(name=optimizer),
            num_train_steps=1_000_000,
            precision=precision,
        ),
        max_grad_norm=1.0,
        **options,
    )


def bert_keras_step(
    size: Size, precision: str, optimizer: str = "adamw"
) -> Callable[[], object]:
    """Returns this project's own step."""
    import tensorflow as tf

    batch = {name: tf.constant(value) for name, value in random_batch(size).items()}
    strategy = tf.distribute.get_strategy()
    trained = our_learner(
        size.bert_config(), batch, precision, optimizer=optimizer, strategy=strategy
    )
    step = tf.function(trained.train_step, autograph=False)
    return lambda: float(step(batch)["loss"])


def model_garden_step(size: Size, precision: str) -> Callable[[], object]:
    """Returns that of tf-models-official: encoder, heads, optimizer on tf_keras."""
    import tensorflow as tf
    import tf_keras
    from official.nlp import optimization
    from official.nlp.modeling import layers, models, networks

    tf_keras.mixed_precision.set_global_policy(precision)
    names = {
        "input_word_ids": "input_ids",
        "input_mask": "input_mask",
        "input_type_ids": "segment_ids",
        "masked_lm_positions": "masked_lm_positions",
    }
    batch = {name: tf.constant(value) for name, value in random_batch(size).items()}
    inputs = {theirs: batch[ours] for theirs, ours in names.items()}
    encoder = networks.BertEncoderV2(
        vocab_size=VOCAB_SIZE,
        hidden_size=size.hidden_size,
        num_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        inner_dim=4 * size.hidden_size,
    )
    head = layers.ClassificationHead(
        inner_dim=size.hidden_size, num_classes=2, name="next_sentence"
    )
    model = models.BertPretrainerV2(
        encoder_network=encoder, classification_heads=[head]
    )
    model(inputs)
    optimizer = optimization.AdamWeightDecay(
        learning_rate=1e-4,
        weight_decay_rate=0.01,
        epsilon=1e-6,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
        gradient_clip_norm=1.0,
    )

    def mean_loss(labels, logits):
        logits = tf.cast(logits, tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_mean(losses)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            loss = mean_loss(batch["masked_lm_ids"], outputs["mlm_logits"])
            labels = batch["next_sentence_labels"][:, 0]
            loss += mean_loss(labels, outputs["next_sentence"])
        gradients = tape.gradient(loss, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.apply_gradients(pairs)
        return loss

    return lambda: float(step())


def transformers_step(size: Size, precision: str) -> Callable[[], object]:
    """Returns that of transformers, with only the masked positions in the head."""
    import torch
    import transformers

    torch.set_num_threads(measuring.num_cores())
    shape = size.transformers_config(vocab_size=VOCAB_SIZE, attn_implementation="sdpa")
    model = transformers.BertForPreTraining(transformers.BertConfig(**shape)).train()
    batch = {
        name: torch.tensor(value).long()
        for name, value in random_batch(size).items()
        if value.dtype == np.int32
    }
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, {"params": others, "weight_decay": 0.0}],
        lr=1e-4,
        eps=1e-6,
        weight_decay=0.01,
    )
    rows = torch.arange(size.batch_size)[:, None]
    cross_entropy = torch.nn.functional.cross_entropy

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        low = precision == "mixed_bfloat16"
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            # Without a mask, as the sequences are full: its fastest attention.
            outputs = model.bert(
                input_ids=batch["input_ids"], token_type_ids=batch["segment_ids"]
            )
            masked = outputs.last_hidden_state[rows, batch["masked_lm_positions"]]
            logits, sentences = model.cls(masked, outputs.pooler_output)
        logits, ids = logits.float().reshape(-1, VOCAB_SIZE), batch["masked_lm_ids"]
        loss = cross_entropy(logits, ids.flatten())
        loss += cross_entropy(sentences.float(), batch["next_sentence_labels"][:, 0])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def keras_hub_step(size: Size, precision: str) -> Callable[[], object]:
    """Returns that of keras-hub, which has no next-sentence prediction."""
    import keras
    import keras_hub
    import tensorflow as tf

    batch = {name: tf.constant(value) for name, value in random_batch(size).items()}
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=VOCAB_SIZE,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        hidden_dim=size.hidden_size,
        intermediate_dim=4 * size.hidden_size,
        dtype=precision,
    )
    model = keras_hub.models.BertMaskedLM(backbone, preprocessor=None)
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.AdamW(1e-4, weight_decay=0.01, global_clipnorm=1.0),
        jit_compile=False,
    )
    inputs = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
        "mask_positions": batch["masked_lm_positions"],
    }
    return lambda: model.train_on_batch(inputs, batch["masked_lm_ids"])


IMPLEMENTATIONS = {
    "bert-keras": bert_keras_step,
    "muon": functools.partial(bert_keras_step, optimizer="muon"),
    "tf-models-official": model_garden_step,
    "keras-hub": keras_hub_step,
    "transformers": transformers_step,
}
"""Functions by package."""


def make_answer(name: str, size_name: str, precision: str) -> Callable[[int], Any]:
    size = SIZES[size_name]
    step = IMPLEMENTATIONS[name](size, precision)

    def counted() -> tuple[int, int]:
        step()
        return size.batch_size, size.batch_size * size.length

    return measuring.answer_steps(counted)


def rows(args: argparse.Namespace) -> Iterator[list[str]]:
    for size_name in args.sizes:
        for precision in args.precisions:
            with contextlib.ExitStack() as stack:
                workers = {}
                for name in args.implementations:
                    own_name, _, directory = name.partition("@")
                    words = ("benchmarks.step", own_name, size_name, precision)
                    worker = measuring.Worker(*words, directory=directory or None)
                    workers[name] = stack.enter_context(worker)
                speeds = measuring.speeds_in_turns(
                    workers, num_turns=args.turns, seconds=args.seconds
                )
            size = SIZES[size_name]
            cells = [
                "; ".join(f"{rate * size.length:,.0f}" for rate in speed[:2])
                for speed in speeds.values()
            ]
            yield [f"{size_name}, {size.batch_size} x {size.length}", precision, *cells]


def main() -> None:
    installed = {dist.name for dist in importlib.metadata.distributions()}
    names = [name for name in IMPLEMENTATIONS if name in installed]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS)
    parser.add_argument("--implementations", nargs="+", default=names)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one turn")
    args = parser.parse_args()
    packages = [name for name in args.implementations if name in installed]
    print(measuring.machine(*packages, "tensorflow", "keras", "torch"))
    print("Tokens per second; the same per second of processor time.")
    header = ["model", "precision", *args.implementations]
    measuring.print_table(header, rows(args))


if __name__ == "__main__":
    measuring.start(main, make_answer)

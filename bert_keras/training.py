"""The one place that compiles and fits: pre-training and fine-tuning both come here.

A network trained here states its loss as sums and weights: `loss_terms(features,
outputs)` gives `{name: (sum, weight)}` over the examples it saw, `loss_names` says
which of them add up to the loss. Sums over several replicas then give the mean that
one device would have computed.
"""

import contextlib
import dataclasses
import hashlib
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras import (
    callbacks,
    config,
    features,
    inputs,
    manifest,
    masking,
    optimization,
    pretraining,
    replicas,
    tokenization,
)
from bert_keras.checkpoints import run_directory, training_state
from bert_keras.errors import InputError

logger = logging.getLogger(__name__)


class Learner(replicas.ReplicatedModel):
    """Trains a network on batches of features, labels among them.

    Args:
        network: has `loss_terms` and `loss_names` (see the module).
        max_grad_norm: clip gradients to this global norm; `None`: never.
    """

    def __init__(self, network: keras.Model, *, max_grad_norm: float | None):
        super().__init__(name="learner")
        self.network = network
        self._max_grad_norm = max_grad_norm
        self._means: dict[str, keras.metrics.Mean] = {}

    def call(self, batch, training=None):
        return self.network(batch, training=training)

    def build_on(self, batch: Mapping[str, Any]) -> None:
        """Makes all variables; to be called inside the strategy's scope."""
        terms = self.network.loss_terms(batch, self.network(batch))
        self._means = {name: keras.metrics.Mean(name=name) for name in terms}
        self.optimizer.build(self.trainable_variables)
        self.built = True

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Running means of the evaluation that is under way."""
        return list(self._means.values())

    def train_step(self, batch):
        """One update; returns this step's own scalars."""
        learning_rate = self.optimizer.learning_rate
        with tf.GradientTape() as tape:
            terms = self.network.loss_terms(batch, self(batch, training=True))
            weights = replicas.sum_over_replicas(
                [weight for _, weight in terms.values()]
            )
            sums = dict(zip(terms, (total for total, _ in terms.values()), strict=True))
            weights = dict(zip(terms, weights, strict=True))
            # This replica's share of the loss over the global batch.
            loss = sum(
                sums[name] / tf.maximum(weights[name], 1e-5)
                for name in self.network.loss_names
            )
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients, gradient_norm = optimization.clip_by_global_norm(
            replicas.summed_gradients(gradients), self._max_grad_norm
        )
        self.optimizer.apply_summed(gradients, self.trainable_variables)
        sums["loss"] = loss
        weights["loss"] = tf.constant(1.0)
        totals = replicas.sum_over_replicas(list(sums.values()))
        logs = {
            name: total / tf.maximum(weights[name], 1e-5)
            for name, total in zip(sums, totals, strict=True)
        }
        return logs | {"learning_rate": learning_rate, "gradient_norm": gradient_norm}

    def test_step(self, batch):
        """Adds a batch to the running means."""
        terms = self.network.loss_terms(batch, self(batch, training=False))
        for name, (total, weight) in terms.items():
            mean = total / tf.maximum(weight, 1e-5)
            self._means[name].update_state(mean, sample_weight=weight)
        return self.get_metrics_result()

    def get_metrics_result(self) -> dict[str, Any]:
        """The means so far; the loss is the sum of its terms' means."""
        results = {name: mean.result() for name, mean in self._means.items()}
        results["loss"] = sum(results[name] for name in self.network.loss_names)
        return results


def build_learner(
    make_network: Callable[[], keras.Model],
    batch: Mapping[str, Any],
    *,
    optimizer: Callable[[], keras.optimizers.Optimizer],
    max_grad_norm: float | None,
    strategy: tf.distribute.Strategy,
) -> Learner:
    """Builds and compiles a learner inside a strategy's scope.

    Args:
        make_network: makes the network to train.
        batch: any batch; its shapes decide the variables'.
        optimizer: makes the optimizer.
        max_grad_norm: see `Learner`.
        strategy: to train under.
    """
    with strategy.scope():
        learner = Learner(make_network(), max_grad_norm=max_grad_norm)
        # XLA over the whole step loses the fast matrix kernels on a CPU.
        learner.compile(optimizer=optimizer(), jit_compile=False)
        learner.build_on(batch)
    return learner


def fit(
    learner: Learner,
    batches: tf.data.Dataset,
    *,
    num_train_steps: int,
    steps_per_epoch: int,
    evaluation: tuple[tf.data.Dataset, int] | None,
    run_callbacks: Sequence[keras.callbacks.Callback],
) -> None:
    """Trains until the optimizer has made `num_train_steps` updates.

    Args:
        learner: built; its optimizer may already have made updates.
        batches: endless, starting with the first that is to be trained on.
        num_train_steps: updates over the whole run.
        steps_per_epoch: updates between evaluations.
        evaluation: endless batches, and how many of them are one round.
        run_callbacks: see `bert_keras.callbacks`.
    """
    start_step = callbacks.optimizer_step(learner)
    if start_step >= num_train_steps:
        return
    first_epoch = start_step // steps_per_epoch
    # A run resumed within an epoch needs one more than it has whole ones.
    num_epochs = math.ceil(num_train_steps / steps_per_epoch) + 1
    evaluation_batches, validation_steps = evaluation or (None, None)
    learner.fit(
        batches,
        steps_per_epoch=steps_per_epoch,
        initial_epoch=first_epoch,
        epochs=num_epochs,
        validation_data=evaluation_batches,
        validation_steps=validation_steps,
        callbacks=[callbacks.StopAtStep(num_train_steps), *run_callbacks],
        shuffle=False,
        verbose=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Examples:
    """A directory of examples that was read and checked."""

    directory: Path
    manifest: manifest.Manifest
    vocabulary: tokenization.Vocabulary
    do_lower_case: bool
    config: config.ExamplesConfig
    """How they were made."""
    shards: list[inputs.Shard]


def pretrain(
    settings: config.PretrainingConfig,
    examples_dir: str | Path,
    output_dir: str | Path,
    *,
    strategy: tf.distribute.Strategy,
    vocab_path: str | Path | None = None,
) -> dict[str, Any]:
    """Pre-trains a model with masked LM and next sentence prediction.

    Given again with the same arguments, an unfinished run is taken up after its last
    checkpoint and a finished one is left as it is.

    Args:
        settings: the run's configuration.
        examples_dir: made by `pipelines.examples`.
        output_dir: the run directory.
        strategy: to train under.
        vocab_path: a vocabulary to check the examples against; they bring their own.

    Returns:
        What `results.json` holds: steps, seconds, and the last evaluation.

    Raises:
        InputError: the examples, the vocabulary or the directory cannot be used.
    """
    examples = _read_examples(examples_dir, vocab_path)
    train_shards, eval_shards = inputs.split_shards(
        examples.shards, settings.num_eval_shards
    )
    num_train_records = sum(shard.num_records for shard in train_shards)
    if num_train_records < 1:
        raise InputError(f"{examples_dir}: its training shards hold no example")
    run = run_directory.create_run(
        output_dir,
        settings,
        task=run_directory.Task(kind="pretraining"),
        bert_config=_bert_config(settings, examples),
        vocabulary=examples.vocabulary,
        do_lower_case=examples.do_lower_case,
        inputs={"examples_sha256": _manifest_sha256(examples.manifest)},
    )
    if (results := run_directory.read_results(output_dir)) is not None:
        logger.info("%s: finished already, at step %d", output_dir, results["steps"])
        return results
    logger.info(
        "pre-training on %d examples in %d shards, evaluating on %d others",
        num_train_records,
        len(train_shards),
        sum(shard.num_records for shard in eval_shards),
    )
    learner = _build_pretraining(settings, run, examples, strategy)
    results = _run_pretraining(
        settings, run, learner, examples, train_shards, eval_shards
    )
    run_directory.finish_run(run, learner.network, results)
    logger.info("model and results in %s", run.directory)
    return results


def _run_pretraining(
    settings: config.PretrainingConfig,
    run: run_directory.Run,
    learner: Learner,
    examples: _Examples,
    train_shards: list[inputs.Shard],
    eval_shards: list[inputs.Shard],
) -> dict[str, Any]:
    state = training_state.named_variables(learner.network, learner.optimizer)
    states = training_state.CheckpointDirectory(
        run.directory / "checkpoints", keep=settings.num_checkpoints
    )
    start_step = states.restore_latest(state)
    batches = _training_batches(settings, examples, train_shards, start_step)
    evaluation = _evaluation_batches(settings, examples, eval_shards)
    log = callbacks.TrainingLog(
        run.directory / "logs",
        num_train_steps=settings.num_train_steps,
        batch_size=settings.global_batch_size,
    )
    save = callbacks.SaveEachEpoch(lambda step: states.save(step, state))
    start = time.monotonic()
    with _data_errors(examples.directory):
        fit(
            learner,
            batches,
            num_train_steps=settings.num_train_steps,
            steps_per_epoch=min(
                settings.save_checkpoint_steps, settings.num_train_steps
            ),
            evaluation=evaluation,
            run_callbacks=[log, save],
        )
        if evaluation is not None and not log.last_evaluation:
            log.last_evaluation = learner.evaluate(
                evaluation[0], steps=evaluation[1], return_dict=True, verbose=0
            )
    seconds = time.monotonic() - start
    return {
        "steps": callbacks.optimizer_step(learner),
        "seconds": round(seconds, 1),
        "num_parameters": learner.network.count_params(),
        "train": log.last_step_logs,
        "eval": {name: float(value) for name, value in log.last_evaluation.items()},
        "eval_baseline": _baseline(evaluation, examples.vocabulary),
    }


def _training_batches(
    settings: config.PretrainingConfig,
    examples: _Examples,
    shards: list[inputs.Shard],
    start_step: int,
) -> tf.data.Dataset:
    return inputs.training_batches(
        shards,
        config=examples.config,
        vocabulary=masking.masking_vocabulary(examples.vocabulary),
        batch_size=settings.global_batch_size,
        shuffle_buffer_size=settings.shuffle_buffer_size,
        seed=settings.seed,
        start_step=start_step,
    )


def _evaluation_batches(
    settings: config.PretrainingConfig,
    examples: _Examples,
    shards: list[inputs.Shard],
) -> tuple[tf.data.Dataset, int] | None:
    if not any(shard.num_records for shard in shards):
        return None
    return inputs.evaluation_batches(
        shards,
        config=examples.config,
        vocabulary=masking.masking_vocabulary(examples.vocabulary),
        batch_size=settings.global_batch_size,
        num_batches=settings.num_eval_steps,
        seed=settings.seed,
    )


def _baseline(
    evaluation: tuple[tf.data.Dataset, int] | None,
    vocabulary: tokenization.Vocabulary,
) -> dict[str, Any] | None:
    """What always guessing the commonest masked token would score."""
    if evaluation is None:
        return None
    batches, num_batches = evaluation
    counts = np.zeros(len(vocabulary), np.int64)
    for batch in batches.take(num_batches).as_numpy_iterator():
        predicted = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
        counts += np.bincount(predicted, minlength=len(vocabulary))
    return {
        "commonest_token": vocabulary.tokens[int(counts.argmax())],
        "masked_lm_accuracy": float(counts.max() / max(counts.sum(), 1)),
    }


def _build_pretraining(
    settings: config.PretrainingConfig,
    run: run_directory.Run,
    examples: _Examples,
    strategy: tf.distribute.Strategy,
) -> Learner:
    keras.utils.set_random_seed(settings.seed)
    zeros = {
        feature.name: tf.zeros(
            [1, feature.length],
            tf.int32 if feature.dtype == "int64" else tf.float32,
        )
        for feature in features.batch_features(examples.config)
    }
    return build_learner(
        lambda: pretraining.BertPretrainer(
            run.bert_config,
            seed=settings.seed,
            next_sentence=examples.config.packing == "sentence_pairs",
            dtype=settings.precision,
            # In its variables' names, which Keras would number otherwise.
            name="bert_pretrainer",
        ),
        zeros,
        optimizer=lambda: optimization.build_optimizer(
            settings.optimizer, num_train_steps=settings.num_train_steps
        ),
        max_grad_norm=settings.optimizer.max_grad_norm,
        strategy=strategy,
    )


def _read_examples(directory: str | Path, vocab_path: str | Path | None) -> _Examples:
    verb = "bert-keras examples"
    found = manifest.read_manifest(directory, kind="examples", verb=verb)
    logger.info("checking %d shards of %s", len(found.shards), directory)
    manifest.verify_shards(directory, found)
    source = vocab_path or Path(directory) / "vocab.txt"
    vocabulary = tokenization.Vocabulary.load(source)
    if vocabulary.sha256 != found.vocab_sha256:
        raise InputError(
            f"{source}: {len(vocabulary)} entries, not the vocabulary that "
            f"{directory} was made with ({found.vocab_size} entries): give that one, "
            "or make the examples again with this one"
        )
    made_with = features.examples_config(
        found.config, origin=Path(directory) / manifest.MANIFEST_NAME
    )
    inputs.check_lengths(Path(directory) / found.shards[0].name, made_with)
    return _Examples(
        directory=Path(directory),
        manifest=found,
        vocabulary=vocabulary,
        do_lower_case=found.config["do_lower_case"],
        config=made_with,
        shards=inputs.read_shards(directory, found),
    )


def _bert_config(
    settings: config.PretrainingConfig, examples: _Examples
) -> config.BertConfig:
    bert_config = settings.model.with_vocab_size(len(examples.vocabulary))
    max_seq_length = examples.config.max_seq_length
    if max_seq_length > bert_config.max_position_embeddings:
        raise InputError(
            f"{examples.directory}: sequences of {max_seq_length} tokens, but "
            "`model.max_position_embeddings` is "
            f"{bert_config.max_position_embeddings}: raise it or make shorter examples"
        )
    return bert_config


def _manifest_sha256(found: manifest.Manifest) -> str:
    return hashlib.sha256(found.model_dump_json().encode()).hexdigest()


@contextlib.contextmanager
def _data_errors(directory: Path) -> Iterator[None]:
    """Turns what tf.data says of a user's records into an `InputError`."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
        reason = re.search(r"assertion failed: \[(.*?)\]", str(error))
        # Without an assertion of ours, what TensorFlow says last is the cause.
        text = reason[1] if reason else str(error).strip().splitlines()[-1]
        raise InputError(
            f"{directory}: {text[:300]}; make the examples again"
        ) from None

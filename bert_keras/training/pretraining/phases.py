"""Phases of pre-training, one after the other, each on examples of one length.

The paper (A.2) trains on sequences of 128 tokens for 90 % of the steps and of 512 for
the rest. From phase to phase the data changes; weights, optimizer state, schedule and
step go on.
"""

import dataclasses
import functools
import hashlib
import logging
import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import starting_point
from bert_keras.core import files, manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, pipelines, pretraining
from bert_keras.data import features, tokenization
from bert_keras.training.pretraining import record_batches
from bert_keras.training.step import replicas

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of steps on one directory of examples, read and checked."""

    settings: pretraining.PretrainingConfig
    directory: str
    vocabulary: tokenization.Vocabulary
    do_lower_case: bool
    examples: pipelines.ExamplesConfig
    manifest_sha256: str
    train_shards: list[record_batches.Shard]
    eval_shards: list[record_batches.Shard]
    first_step: int
    last_step: int
    first_batch: int
    """Batches of the same examples that earlier phases have read. The phase begins
    behind these batches: from batch 0 it would repeat their order and their masks."""
    batch_size: int
    num_parts: int
    """Parts in which a replica computes its share of a batch."""

    @property
    def shape(self) -> tuple[int, int]:
        """Returns the examples of a part, over all replicas, and their length."""
        return self.batch_size // self.num_parts, self.examples.max_seq_length

    @property
    def num_train_records(self) -> int:
        return sum(shard.num_records for shard in self.train_shards)

    @property
    def has_evaluation(self) -> bool:
        return any(shard.num_records for shard in self.eval_shards)

    @property
    def batches(self) -> record_batches.RecordBatches:
        settings = self.settings
        start, end = self.examples.masked_lm_prob, settings.masked_lm_prob_end

        def mask_share(batch: tf.Tensor) -> tf.Tensor:
            # It moves linearly over the whole run.
            step = tf.cast(self.first_step - self.first_batch + batch, tf.float64)
            return start + (end - start) * step / settings.num_train_steps

        return record_batches.RecordBatches(
            config=self.examples,
            vocabulary=self.vocabulary,
            batch_size=self.batch_size,
            seed=settings.seed,
            shuffle_buffer_size=settings.shuffle_buffer_size,
            attention=settings.model.attention,
            mask_share=None if end is None else mask_share,
        )

    def to_train(self, *place: int, start_step: int) -> tf.data.Dataset:
        """Returns endless batches from `start_step + 1` on, or a worker's rows of them.

        The place of the worker is that of `replicas.distribute`.
        """
        return self.batches.to_train(
            self.train_shards, *place, start_step=self._batch_after(start_step)
        )

    def _batch_after(self, step: int) -> int:
        """Returns the number of the batch that follows a step of the run."""
        return self.first_batch + step - self.first_step

    def to_evaluate(self, *place: int) -> tuple[tf.data.Dataset, int]:
        """Returns endless batches and their number in a round, alike for all places."""
        return self.batches.to_evaluate(
            self.eval_shards, *place, num_batches=self.settings.num_eval_steps
        )

    def evaluation_batches(
        self, strategy: tf.distribute.Strategy
    ) -> tuple[replicas.Batches, int] | None:
        if not self.has_evaluation:
            return None
        data = replicas.distribute(strategy, lambda *place: self.to_evaluate(*place)[0])
        num_batches = self.settings.num_eval_steps
        return data, self.batches.num_evaluation_batches(self.eval_shards, num_batches)

    def placeholder_batches(
        self, strategy: tf.distribute.Strategy
    ) -> list[replicas.Batches]:
        """Returns endless zeros, shaped as training and evaluation batches."""

        def zeros(*place: int, has_seeds: bool) -> tf.data.Dataset:
            spec = dict(self.to_train(*place, start_step=self.first_step).element_spec)
            if not has_seeds:
                del spec[features.DROPOUT_SEEDS]
            batch = {k: tf.zeros(part.shape, part.dtype) for k, part in spec.items()}
            return tf.data.Dataset.from_tensors(batch).repeat()

        makers = (functools.partial(zeros, has_seeds=each) for each in (True, False))
        return [replicas.distribute(strategy, maker) for maker in makers]

    def describe(self, first_step: int) -> str:
        num_eval_records = sum(shard.num_records for shard in self.eval_shards)
        num_read = (self.last_step - self.first_step) * self.batch_size
        return (
            f"steps {first_step} to {self.last_step}: {self.num_train_records} "
            f"{'rows' if self.examples.pack_instances else 'examples'} of "
            f"{self.examples.max_seq_length} word pieces, [CLS], [SEP] and padding "
            f"included, {self.batch_size} a step, so that the phase reads each "
            f"{num_read / self.num_train_records:.1f} times; "
            f"{num_eval_records} for evaluation, which masks "
            f"{100 * self.examples.masked_lm_prob:g} % of the tokens"
        )

    def describe_data(self, first_step: int, last_step: int) -> str:
        """Returns the names of the shards that the batches of some steps came from."""
        names = self.batches.shards_of_steps(
            self.train_shards,
            start_step=self._batch_after(first_step - 1),
            num_steps=last_step - first_step + 1,
        )
        more = f" and {len(names) - 5} others" if len(names) > 5 else ""
        return f"{self.directory}: {', '.join(names[:5])}{more}"

    def evaluation_baseline(self) -> dict[str, Any] | None:
        """Returns the score of always guessing the commonest masked token."""
        if not self.has_evaluation:
            return None
        batches, num_batches = self.to_evaluate()
        counts = np.zeros(len(self.vocabulary), np.int64)
        for batch in batches.take(num_batches).as_numpy_iterator():
            predicted = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
            counts += np.bincount(predicted, minlength=len(self.vocabulary))
        return {
            "commonest_token": self.vocabulary.tokens[int(counts.argmax())],
            "masked_lm_accuracy": float(counts.max() / max(counts.sum(), 1)),
        }


def bert_config(
    planned: Sequence[Phase], start: starting_point.Start | None
) -> architecture.BertConfig:
    """Returns the sizes of the network, which all phases must fit."""
    model = planned[0].settings.model
    config = model.with_vocab_size(len(planned[0].vocabulary))
    if start is not None:
        if model.vocab_size not in (None, start.vocab_size):
            raise InputError(
                f"`model.vocab_size` is {model.vocab_size}, but with the weights "
                f"of {start.path} it is {start.vocab_size}: leave it out"
            )
        config = model.with_vocab_size(start.vocab_size)
    for phase in planned:
        if phase.examples.max_seq_length > config.max_position_embeddings:
            raise InputError(
                f"{phase.directory}: sequences of {phase.examples.max_seq_length} "
                "tokens, but `model.max_position_embeddings` is "
                f"{config.max_position_embeddings}"
                + (": raise it or" if start is None else f" in {start.path}:")
                + " make shorter examples"
            )
    return config


def check_hosts(strategy: tf.distribute.Strategy, planned: Sequence[Phase]) -> None:
    """Checks that all hosts of a TPU can read the examples.

    Masking needs Python, which only this process has; several hosts cannot do it.
    """
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    num_hosts = strategy.extended.num_hosts if is_tpu else 1
    for phase in planned:
        if num_hosts > 1 and phase.examples.masking == "dynamic":
            raise InputError(
                f"{phase.directory}: examples with masking=dynamic are masked by this "
                f"process as it reads them, but a TPU of {num_hosts} hosts reads on "
                "all of them: make the examples with masking=static"
            )


def read_phases(
    settings: pretraining.PretrainingConfig,
    directories: Sequence[files.Path],
    *,
    vocab_path: files.Path | None,
    num_replicas: int,
    verified: Collection[str] | None = (),
) -> list[Phase]:
    """Reads and checks all directories, one for each phase.

    The shards of manifests whose SHA-256 is in `verified` were hashed before: only
    their sizes are checked, as are those of remote shards, which would be downloaded
    for it. `None`: all shards are hashed.
    """
    planned, phases = settings.planned_phases(len(directories)), []
    for (plan, *steps), directory in zip(planned, directories, strict=True):
        # 1. The shards are those of the manifest, and hold what it says.
        contents = manifest.read_manifest(directory, kind="examples")
        text = contents.model_dump_json()
        manifest_sha256 = hashlib.sha256(text.encode()).hexdigest()
        hashes = verified is None or not (
            files.is_remote(directory) or manifest_sha256 in verified
        )
        checked = "hashes" if hashes else "sizes"
        logger.info(
            "checking %s of %d shards of %s", checked, len(contents.shards), directory
        )
        manifest.verify_shards(directory, contents, hashes=hashes)
        examples = features.examples_config(
            contents.config, origin=files.join(directory, manifest.MANIFEST_NAME)
        )
        first_shard = files.join(directory, contents.shards[0].name)
        record_batches.check_lengths(first_shard, examples)
        train_shards, eval_shards = record_batches.split_shards(
            record_batches.read_shards(directory, contents), settings.num_eval_shards
        )
        # 2. The vocabulary is that of the examples.
        source = vocab_path or files.join(directory, "vocab.txt")
        vocabulary = tokenization.Vocabulary.load(source)
        if vocabulary.sha256 != contents.vocab_sha256:
            raise InputError(
                f"{source}: {len(vocabulary)} entries, not the vocabulary that "
                f"{directory} was made with ({contents.vocab_size} entries): give that "
                "one, or make the examples again with this one"
            )
        batch_size = plan.global_batch_size or settings.global_batch_size
        num_rows_read = sum(
            (earlier.last_step - earlier.first_step) * earlier.batch_size
            for earlier in phases
            if earlier.manifest_sha256 == manifest_sha256
        )
        phase = Phase(
            settings=settings,
            directory=str(directory),
            vocabulary=vocabulary,
            do_lower_case=contents.config["do_lower_case"],
            examples=examples,
            manifest_sha256=manifest_sha256,
            train_shards=train_shards,
            eval_shards=eval_shards,
            first_step=steps[0],
            last_step=steps[1],
            # Rounded up: where batch sizes differ, less than a batch is left out.
            first_batch=-(-num_rows_read // batch_size),
            batch_size=batch_size,
            num_parts=(
                plan.gradient_accumulation_steps or settings.gradient_accumulation_steps
            ),
        )
        # 3. The settings fit the examples, and all phases each other.
        _check_phase(phase, num_replicas)
        if phases:
            _check_alike(phases[0], phase, next_sentence=settings.next_sentence)
        phases.append(phase)
    return [phase for phase in phases if phase.last_step > phase.first_step]


def _check_phase(phase: Phase, num_replicas: int) -> None:
    directory, settings, num_parts = phase.directory, phase.settings, phase.num_parts
    if settings.num_eval_shards is None and not phase.eval_shards:
        logger.warning(
            "%s: a single shard, which is trained on, so there is no evaluation: make "
            "the examples again with a larger --num_shards (20), and the last one is "
            "kept for it",
            directory,
        )
    if phase.num_train_records < 1:
        raise InputError(f"{directory}: its training shards hold no example")
    # Each replica computes equally many examples in each of its parts.
    if phase.batch_size % (num_replicas * num_parts):
        sharers = "1 replica" if num_replicas == 1 else f"{num_replicas} replicas"
        raise InputError(
            f"`global_batch_size` is {phase.batch_size}, which {sharers} "
            f"with `gradient_accumulation_steps` {num_parts} cannot share "
            f"equally: make it a multiple of {num_replicas * num_parts}"
        )
    end, examples = settings.masked_lm_prob_end, phase.examples
    if end is None:
        return
    if settings.model.attention == "left_to_right":
        raise InputError(
            "`masked_lm_prob_end` changes nothing with `model.attention` "
            "left_to_right, which masks nothing: leave it out"
        )
    if examples.masking != "dynamic":
        raise InputError(
            f"{directory}: made with masking=static, so `masked_lm_prob_end` "
            "changes nothing: make the examples with masking=dynamic"
        )
    if end > examples.masked_lm_prob:
        raise InputError(
            f"`masked_lm_prob_end` is {end}, above the `masked_lm_prob` of "
            f"{directory}, {examples.masked_lm_prob}, for which it has slots: "
            "lower it, or make the examples with a larger one"
        )


def _check_alike(first: Phase, other: Phase, *, next_sentence: bool) -> None:
    # A shard is a bucket of documents, the same one for every length.
    if other.vocabulary.sha256 != first.vocabulary.sha256:
        raise InputError(
            f"{other.directory}: made with another vocabulary than {first.directory}; "
            "make both with the same"
        )
    # Files of `examples` are numbered; an empty shard has no file.
    numbers = [
        [re.findall(r"\d+-of-\d+", s.path)[-1:] for s in p.train_shards + p.eval_shards]
        for p in (first, other)
    ]
    if numbers[0] != numbers[1]:
        raise InputError(
            f"{first.directory} and {other.directory} have different shards, "
            f"{len(numbers[0])} and {len(numbers[1])}: one would train on documents "
            "that the other evaluates on; make both with the same --num_shards, so few "
            "that no shard is empty"
        )
    if other.do_lower_case != first.do_lower_case:
        casings = {True: "lower-cased", False: "cased"}
        raise InputError(
            f"{first.directory} is {casings[first.do_lower_case]}, {other.directory} "
            f"{casings[other.do_lower_case]}: make both with the same casing"
        )
    packings = first.examples.packing, other.examples.packing
    if next_sentence and packings[0] != packings[1]:
        raise InputError(
            f"{first.directory} has `packing` {packings[0]}, {other.directory} "
            f"{packings[1]}: only sentence pairs train next-sentence prediction: make "
            "both with the same, or set `next_sentence=false`"
        )


def num_positions_before(
    planned: Sequence[Phase], phase: Phase, *, is_further_training: bool
) -> int:
    """Returns the positions that a phase continues; 0: it continues none."""
    # A checkpoint's table is trained.
    if phase.settings.grow_positions == "none" or is_further_training:
        return 0
    earlier = (p for p in planned if p.last_step <= phase.first_step)
    return max((p.examples.max_seq_length for p in earlier), default=0)


def largest(planned: Sequence[Phase]) -> Phase:
    """Returns the phase whose steps need the most memory; the first of equals.

    A layer keeps as many numbers as in Korthikanti et al. (2022), "Reducing Activation
    Recomputation in Large Transformer Models", equation 2.
    """

    def num_activations(phase: Phase) -> int:
        (num_rows, length), model = phase.shape, phase.settings.model
        per_token = 34 * model.hidden_size + 5 * model.num_attention_heads * length
        return num_rows * length * per_token

    return max(planned, key=num_activations)

"""Inputs of a pre-training: read, and checked against one another."""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_keras.checkpoints import starting_point
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, pretraining
from bert_keras.training.pretraining import phases
from bert_keras.training.step import precision

CHANGEABLE = (
    "draw_minutes",
    "draw_steps",
    "evaluate_minutes",
    "evaluate_steps",
    "gradient_accumulation_steps",
    "jit_compile",
    "max_skipped_steps",
    "minimal_pairs",
    "num_best_checkpoints",
    "num_checkpoints",
    "num_eval_steps",
    "phases.*.gradient_accumulation_steps",
    "profile_steps",
    "recompute",
    "save_checkpoint_minutes",
    "save_checkpoint_steps",
    "steps_per_execution",
)
"""Settings that may change when a run is resumed: the result is the same, up to the
last bits of sums where batches are cut into other parts or compiled."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """The validated inputs of a run."""

    settings: pretraining.PretrainingConfig
    """With `auto` precision and the architecture of `--init` filled in."""
    planned: Sequence[phases.Phase]
    hashed: Sequence[str]
    """SHA-256 of the manifests whose shards this machine has hashed."""
    start: starting_point.Start | None
    """First weights, until they are assigned; `None`: new ones."""
    init_sha256: str | None
    """`None`: no further training."""

    @property
    def is_further_training(self) -> bool:
        return self.init_sha256 is not None

    @property
    def manifest_hashes(self) -> list[str]:
        return [phase.manifest_sha256 for phase in self.planned]

    @property
    def recorded(self) -> dict[str, Any]:
        """Returns the digests that a resumed run must match."""
        hashes = self.manifest_hashes
        recorded = {"examples_sha256": hashes[0] if len(hashes) == 1 else hashes}
        if self.init_sha256 is not None:
            recorded["init_sha256"] = self.init_sha256
        return recorded

    def num_positions_before(self, phase: phases.Phase) -> int:
        """Returns the positions that a phase continues; 0: it continues none."""
        # A checkpoint's table is trained.
        if self.settings.grow_positions == "none" or self.is_further_training:
            return 0
        earlier = (p for p in self.planned if p.last_step <= phase.first_step)
        return max((p.examples.max_seq_length for p in earlier), default=0)

    @property
    def bert_config(self) -> architecture.BertConfig:
        model, start = self.settings.model, self.start
        bert_config = model.with_vocab_size(len(self.planned[0].vocabulary))
        if start is not None:
            if model.vocab_size not in (None, start.vocab_size):
                raise InputError(
                    f"`model.vocab_size` is {model.vocab_size}, but with the weights "
                    f"of {start.path} it is {start.vocab_size}: leave it out"
                )
            bert_config = model.with_vocab_size(start.vocab_size)
        for phase in self.planned:
            if phase.examples.max_seq_length > bert_config.max_position_embeddings:
                raise InputError(
                    f"{phase.directory}: sequences of {phase.examples.max_seq_length} "
                    "tokens, but `model.max_position_embeddings` is "
                    f"{bert_config.max_position_embeddings}"
                    + (": raise it or" if start is None else f" in {start.path}:")
                    + " make shorter examples"
                )
        return bert_config


def read_inputs(
    settings: pretraining.PretrainingConfig,
    examples_dirs: Sequence[str | Path],
    *,
    vocab_path: str | Path | None,
    init: starting_point.Init | None,
    strategy: tf.distribute.Strategy,
    verified: Collection[str] | None,
) -> Inputs:
    """Reads all inputs of `pretrain.pretrain`, and completes the settings."""
    changes: dict[str, Any] = {
        "precision": precision.resolve(settings.precision, strategy)
    }
    checkpoint = None if init is None else init.open()
    if checkpoint is not None:
        changes["model"] = starting_point.model_config(
            settings.model, checkpoint, path=init.path
        )
    settings = settings.model_copy(update=changes)
    planned = phases.read_phases(
        settings,
        examples_dirs,
        vocab_path=vocab_path,
        num_replicas=strategy.num_replicas_in_sync,
        verified=verified,
    )
    start = None
    if checkpoint is not None:
        start = starting_point.pretraining_start(
            checkpoint,
            planned[0].vocabulary,
            do_lower_case=planned[0].do_lower_case,
            path=init.path,
        )
    check_hosts(strategy, planned)
    return Inputs(
        settings=settings,
        planned=planned,
        hashed=[
            phase.manifest_sha256
            for phase in planned
            if verified is None or not files.is_remote(phase.directory)
        ],
        start=start,
        init_sha256=None if start is None else start.sha256,
    )


def check_hosts(
    strategy: tf.distribute.Strategy, planned: Sequence[phases.Phase]
) -> None:
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

"""Settings of a pre-training run; unknown keys are refused."""

import itertools
from collections.abc import Iterator
from typing import Literal

import pydantic

from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture
from bert_keras.core.settings.strict import StrictModel

AdamwMode = Literal["google", "corrected"]

GROUPS = "groups/"
"""Begins the names of scores of a group of examples; `METRIC/GROUP` follows."""


class OptimizerConfig(StrictModel):
    """BERT's Adam (paper, A.2; `optimization.py` of the original), LAMB or Muon."""

    name: Literal["adamw", "lamb", "muon"] = "adamw"
    """Optimizer. `lamb`: You et al. (2020), for batches of many thousands; `muon`:
    Jordan et al. (2024) for matrices between layers, with AdamW for the rest."""
    adamw_mode: AdamwMode = "google"
    """`google`: without bias correction, as BERT was trained; `corrected`: with it, as
    AdamW is published. LAMB and Muon always correct."""
    learning_rate: float = pydantic.Field(default=1e-4, gt=0)
    """Peak learning rate, which the warm-up heads for."""
    warmup_steps: int = pydantic.Field(default=10_000, ge=0)
    """Steps over which the rate rises linearly from 0."""
    decay_steps: int | None = pydantic.Field(default=None, gt=0)
    """Steps at the end of the run in which the rate falls from its peak (warm-up,
    stable, decay; Hu et al., 2024); null: all after the warm-up, as in the original.
    The checkpoint before them stays, for `--init` to go on from with other text."""
    decay_power: float = pydantic.Field(default=1.0, gt=0)
    """The rate falls as `(1 - step / num_train_steps) ** decay_power`, with
    `decay_steps` as that power of the share of them that is left; 1: linearly."""
    end_learning_rate: float = pydantic.Field(default=0.0, ge=0)
    """Learning rate at the last step."""
    weight_decay_rate: float = pydantic.Field(default=0.01, ge=0)
    """Decoupled weight decay, per unit of learning rate; none of norms and biases."""
    beta_1: float = pydantic.Field(default=0.9, ge=0, lt=1)
    """Decay per step of the mean of gradients."""
    beta_2: float = pydantic.Field(default=0.999, ge=0, lt=1)
    """Decay per step of the mean of squared gradients."""
    epsilon: float = pydantic.Field(default=1e-6, gt=0)
    """Added to the root of the mean squared gradient, against division by 0."""
    max_grad_norm: float | None = pydantic.Field(default=1.0, gt=0)
    """Global norm that gradients are clipped to; null: no clipping."""


class PhaseConfig(StrictModel):
    """A stretch of pre-training on examples of one length."""

    fraction: float = pydantic.Field(gt=0, le=1)
    """Share of `num_train_steps`; the shares of all phases add up to 1."""
    global_batch_size: int | None = pydantic.Field(default=None, gt=0)
    """Examples per step, over all replicas; null: the run's."""
    gradient_accumulation_steps: int | None = pydantic.Field(default=None, gt=0)
    """Parts of a batch, one after the other; null: the run's. May change on resume."""


class PretrainingConfig(StrictModel):
    """One pre-training run."""

    model: architecture.ModelConfig = architecture.ModelConfig()
    """The encoder."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """The optimizer and its learning rate."""
    next_sentence: bool = True
    """Train next-sentence prediction too, if the examples are sentence pairs."""
    global_batch_size: int = pydantic.Field(default=256, gt=0)
    """Examples per step, over all replicas; of packed ones, rows."""
    gradient_accumulation_steps: int = pydantic.Field(default=1, gt=0)
    """Parts in which a replica computes its share of a batch, to need less memory, also
    to evaluate; the result is that of the whole batch. May change on resume."""
    recompute: architecture.Recompute = pydantic.Field(
        default="none", description=f"{architecture.RECOMPUTED} May change on resume."
    )
    num_train_steps: int = pydantic.Field(default=1_000_000, gt=0)
    """Optimizer updates of the whole run."""
    phases: tuple[PhaseConfig, ...] = (
        PhaseConfig(fraction=0.9),
        PhaseConfig(fraction=0.1),
    )
    """Stretches of the run, one for each directory of examples, in their order; with a
    single directory there is a single phase."""
    masked_lm_prob_end: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """Fraction of tokens to predict at the last step, to which it falls linearly from
    the examples' `masked_lm_prob` (Ankner et al., 2024), for examples with dynamic
    masking; evaluation keeps the examples'. null: constant."""
    word_embeddings: Literal["counts"] | None = None
    """First word embeddings: `counts`: vectors that are computed from how often pieces
    stand near one another in the examples of the phase with the most text; not with
    `--init`. null: random ones."""
    grow_positions: Literal["none", "extrapolate"] = "none"
    """Position embeddings that no phase has trained, when one with longer sequences
    begins: `none`: as initialised; `extrapolate`: continued from the trained ones by
    the rotation that turns each into the next. With `--init` all count as trained."""
    steps_per_execution: int | None = pydantic.Field(default=None, gt=0)
    """Steps that the device makes before it reports back; SIGTERM and Ctrl-C wait for
    them. null: 50 on TPUs, 10 on GPUs, 1 on processors. May change on resume."""
    jit_compile: bool | None = None
    """Compile the replicas' step with XLA; null: on GPUs. May change on resume."""
    max_skipped_steps: int = pydantic.Field(default=20, gt=0)
    """Updates in a row that may be skipped because the loss or a gradient is not
    finite; then the run stops. May change on resume."""
    num_eval_shards: int | None = pydantic.Field(default=None, ge=0)
    """Shards kept out of training for evaluation; their documents are in no other
    shard. null: one in fifty, at least one if there are two."""
    num_eval_steps: int = pydantic.Field(default=50, gt=0)
    """Most batches of an evaluation, each example once. May change on resume."""
    minimal_pairs: str | None = None
    """File of minimal pairs, as `score --pairs` reads, of which each evaluation scores
    about 1,000, as many of each group; null: none. May change on resume."""
    save_checkpoint_steps: int = pydantic.Field(default=1000, gt=0)
    """Steps between checkpoints. May change on resume."""
    save_checkpoint_minutes: float | None = pydantic.Field(default=None, gt=0)
    """Minutes without a checkpoint after which there is one more, which the next one
    replaces; null: none. May change on resume."""
    evaluate_steps: int | None = pydantic.Field(default=None, gt=0)
    """Steps between evaluations; null: `save_checkpoint_steps`. Best a multiple of it:
    only what is saved can be the best checkpoint. May change on resume."""
    evaluate_minutes: float | None = pydantic.Field(default=None, gt=0)
    """Minutes without evaluation before one more; null: none. May change on resume."""
    draw_steps: int | None = pydantic.Field(default=None, gt=0)
    """Steps between pictures and guesses for TensorBoard; null: with
    each evaluation that comes by steps. May change on resume."""
    draw_minutes: float | None = pydantic.Field(default=None, gt=0)
    """Minutes without these before some more; null: none. May change on resume."""
    num_checkpoints: int = pydantic.Field(default=3, gt=0)
    """Newest checkpoints to keep. May change on resume."""
    num_best_checkpoints: int = pydantic.Field(default=1, ge=0)
    """Checkpoints of the lowest evaluation loss to keep, too. May change on resume."""
    shuffle_buffer_size: int = pydantic.Field(default=20_000, gt=0)
    """Records held in memory for shuffling."""
    profile_steps: tuple[int, int] | None = None
    """First and last step of a TensorBoard profile; null: no. May change on resume."""
    precision: architecture.Precision = "auto"
    seed: int = 12345
    """Seed of initial weights, shuffling, masks and dropout."""

    @property
    def decay_begin(self) -> int | None:
        """Last step at the stable rate; `None`: there is none."""
        if self.optimizer.decay_steps is None:
            return None
        return self.num_train_steps - self.optimizer.decay_steps

    def planned_phases(
        self, num_directories: int
    ) -> list[tuple[PhaseConfig, int, int]]:
        """The phases of a run on one directory of examples, or on as many as `phases`;
        each comes with the steps of the run before it and at its end."""
        phases = self.phases
        if num_directories == 1 < len(phases):
            phases = (PhaseConfig(fraction=1.0),)
        elif num_directories != len(phases):
            raise InputError(
                f"{num_directories} directories of examples, but `phases` has "
                f"{len(phases)}: give one for each phase, or a single one"
            )
        # Sums are rounded, not shares, so that the phases leave out no step.
        shares = itertools.accumulate((p.fraction for p in phases), initial=0.0)
        limits = [round(share * self.num_train_steps) for share in shares]
        return list(zip(phases, limits, limits[1:], strict=False))

    def _problems(self) -> Iterator[str]:
        total = sum(phase.fraction for phase in self.phases)
        if abs(total - 1) > 1e-6:
            yield f"the fractions of `phases` must add up to 1, got {total}"
        warmup_steps = self.optimizer.warmup_steps
        if warmup_steps >= self.num_train_steps:
            yield (
                "`optimizer.warmup_steps` must be below `num_train_steps`, got "
                f"{warmup_steps} and {self.num_train_steps}: set both"
            )
        decay_steps = self.optimizer.decay_steps or 0
        if warmup_steps + decay_steps > self.num_train_steps:
            yield (
                "`optimizer.warmup_steps` and `optimizer.decay_steps` must fit into "
                f"`num_train_steps`, got {warmup_steps} and {decay_steps} of "
                f"{self.num_train_steps}: lower one of the first two"
            )

"""Pre-training: examples in, a run directory out, resumable after any step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_keras.checkpoints import starting_point
from bert_keras.core.settings import pretraining
from bert_keras.training import run
from bert_keras.training.pretraining.run import PretrainingJob


def pretrain(
    settings: pretraining.PretrainingConfig,
    examples_dirs: Sequence[str | Path],
    output_dir: str | Path,
    *,
    strategy: tf.distribute.Strategy,
    vocab_path: str | Path | None = None,
    init: starting_point.Init | None = None,
    is_chief: bool = True,
    verify: bool = False,
) -> dict[str, Any]:
    """Pre-trains a model with masked LM and next sentence prediction.

    A second call resumes an unfinished run and leaves a finished one as it is.

    Args:
        examples_dirs: made by `bert-keras examples`, one for each phase.
        output_dir: run directory, which several workers must share.
        vocab_path: vocabulary to check the examples against; they bring their own.
        init: checkpoint (`conversion.init`) whose weights and architecture are trained
            further by a new schedule; `None`: new weights. The examples have its
            vocabulary or one that extends it (see `data.vocabulary_extension`).
        verify: hash the examples even if this machine did so for this run before.

    Raises:
        Stopped: SIGTERM came; a checkpoint of the step reached was written.
    """

    job = PretrainingJob(
        settings,
        examples_dirs,
        output_dir,
        strategy=strategy,
        vocab_path=vocab_path,
        init=init,
        is_chief=is_chief,
        verify=verify,
    )
    return run.run(job)

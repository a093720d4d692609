"""Distillation: a trained model teaches a smaller one, which becomes a run.

A tuned teacher's answers are computed once, before the training: neither its inputs nor
its weights change. A teacher whose relations are learnt runs in every step.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import conversion, run_directory, weights
from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.data import features
from bert_keras.inference import forward
from bert_keras.kinds import catalogue, registry, splits
from bert_keras.lab.distill import data as distill_data
from bert_keras.lab.distill import student as students
from bert_keras.labelled import dataset
from bert_keras.model import distillation
from bert_keras.training import finetune, run
from bert_keras.training.finetuning import job as tuning
from bert_keras.training.finetuning import learning
from bert_keras.training.step import engine

_MOST_HEADS = 48
"""As many as MiniLMv2 has for BASE."""


def distill(
    settings: finetuning.FinetuningConfig,
    *,
    teacher: str | Path,
    student: str | Path | None,
    train: str | Path | None,
    dev: Sequence[str | Path] | None,
    data: str | Path | None = None,
    has_labels: bool,
    answers: str | Path | None = None,
    output_dir: str | Path,
    strategy: tf.distribute.Strategy,
) -> dict[str, Any]:
    """Trains a student like its teacher, and returns the content of `results.json`.

    From a tuned teacher the student learns the answers, and is a run for the same task.
    From any other it learns the relations between tokens of plain texts, and is an
    encoder to tune. A second call resumes an unfinished run and leaves a finished one
    as it is.

    Args:
        settings: settings of inputs that are not set are the teacher's.
        teacher: run directory or checkpoint of any format, with its vocabulary.
        student: see `students.read_student`; `None`: see `distillation.init_layers`.
        train: file of the task, or of plain texts (see `distill_data.plain_texts`).
        dev: labelled files to evaluate on, as for `finetune`; `None` for plain texts.
        data: in place of both, the folder of the task's data set.
        has_labels: learn from labels of `train`, too.
        answers: file that keeps the teacher's answers, for other students of the same
            texts; `None`: no file.
        output_dir: run directory, which several workers must share.

    Raises:
        Stopped: SIGTERM came; a checkpoint of the step reached was written.
    """
    # 1. The settings and the files, completed with those of the teacher.
    checkpoint = conversion.read_with_tokenizer(teacher)
    settings = distill_data.complete(
        settings, checkpoint, teacher, has_labels=has_labels
    )
    settings = tuning.resolved(settings, strategy)
    is_tuned = distill_data.is_tuned(checkpoint)
    if is_tuned:
        paths = {"train": train, "dev": dev, "data": data}
        train, dev = catalogue.find_training_files(settings.task, **paths)
    elif train is None or dev is not None or data is not None:
        raise InputError(
            "the teacher is not tuned, so its student learns from plain texts: give "
            "them with --train, and neither --dev nor --data"
        )
    dev, devices = dev or (), engine.KerasEngine(strategy)
    losses = settings.distillation

    def read() -> tuple[tuning.Inputs, tuning.Build]:
        learner = students.read_student(
            student, checkpoint, settings, teacher_path=teacher
        )
        run_inputs, texts, facts = distill_data.read_data(
            settings, checkpoint, learner, teacher, train, dev
        )
        seen = {"teacher": teacher, "student": student}
        finetune.check_rows_apart_are_new(settings, run_inputs.recorded, **seen)
        if answers is not None and not losses.soft_weight:
            raise InputError("--answers: none are learnt from: leave it out")
        # Relation heads divide both hidden sizes; by default they are the greatest
        # divisor that is not above `_MOST_HEADS`.
        sizes = (checkpoint.bert_config.hidden_size, learner.bert_config.hidden_size)
        common = math.gcd(*sizes)
        divisors = [n for n in range(1, common + 1) if common % n == 0]
        heads = losses.relation_heads or max(n for n in divisors if n <= _MOST_HEADS)
        if heads not in divisors:
            raise InputError(
                "`distillation.relation_heads` must divide both hidden sizes, "
                f"{sizes[0]} and {sizes[1]}, got {heads}: expected one of "
                + ", ".join(map(str, divisors))
            )

        def build(directory: run_directory.Run) -> tuple:
            # 2. The teacher, whose answers to all inputs are computed before.
            with strategy.scope():
                # The student does not learn from pre-training heads.
                network = registry.build_network(
                    checkpoint.bert_config,
                    checkpoint.task if is_tuned else directory.task,
                    dtype=settings.precision,
                )
                weights.assign(network, checkpoint.arrays)
            inputs = texts
            if losses.soft_weight:
                ladder = settings.lengths or ()
                ask = forward.predictor_for(network, strategy=strategy, ladder=ladder)
                keeping = {"path": answers, "facts": facts, "devices": devices}
                logits = compute_logits(ask, inputs, **keeping)
                inputs = InputsWithTeacherLogits(inputs=inputs, logits=logits)

            # 3. The student, which is trained beside a teacher of relations.
            def make_network() -> keras.Model:
                kind = registry.find(directory.task.kind)
                trained = distillation.Distillation(
                    tuning.build_network(kind, settings, directory),
                    weights=losses.model_copy(update={"relation_heads": heads}),
                    teacher=network if losses.relation_weight else None,
                    seed=settings.seed,
                    dtype=settings.precision,
                    name="distillation",
                )
                trained.build()
                return trained

            tuner = learning.build_learner(settings, make_network, inputs, strategy)
            weights.assign(tuner.network.student, learner.arrays)
            return tuner, tuner.network.student, inputs

        return run_inputs, build

    # 4. A run like a fine-tuning.
    job = tuning.TuningJob(
        settings,
        read,
        paths={
            "teacher": teacher,
            "student": student,
            "train": train,
            "dev": splits.display_names(train, dev),
        },
        output_dir=output_dir,
        engine=devices,
    )
    return run.run(job)


@dataclass(frozen=True, kw_only=True)
class InputsWithTeacherLogits:
    """Inputs of a task, each with the logits that a teacher gave it."""

    inputs: dataset.Inputs
    logits: np.ndarray
    """`(num_answers, width)` float32."""

    @property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths

    @property
    def num_answers(self) -> int:
        return self.inputs.num_answers

    def places(self, rows: np.ndarray) -> dataset.Places:
        return self.inputs.places(rows)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns inputs with `TEACHER_LOGITS` and, for tokens, `TEACHER_MASK`."""
        batch, places = self.inputs.batch(rows), self.inputs.places(rows)
        logits = self.logits[places.ids]
        if len(places.index) == 1:
            return batch | {features.TEACHER_LOGITS: logits[:, None]}
        shape = batch["input_mask"].shape
        padded = np.zeros((*shape, logits.shape[-1]), np.float32)
        mask = np.zeros(shape, np.int32)
        padded[places.index], mask[places.index] = logits, 1
        return batch | {features.TEACHER_LOGITS: padded, features.TEACHER_MASK: mask}


def compute_logits(
    ask: Callable[..., np.ndarray],
    inputs: dataset.Inputs,
    *,
    path: str | Path | None,
    facts: Mapping[str, Any],
    devices: engine.KerasEngine,
) -> np.ndarray:
    """Returns the logits of all inputs, `(inputs.num_answers, width)` float32, by a
    `BatchPredictor` of the teacher, which need not be asked.

    The file `path` keeps them (`None`: no file). It is read if it exists, and refused
    if its `facts`, everything that the logits depend on, differ.
    """
    text = json.dumps(facts, sort_keys=True, default=str)
    key, logits = hashlib.sha256(text.encode()).hexdigest(), None
    if path is not None and files.path(path).exists():
        try:
            file = safetensors_files.SafetensorsFile(path, needs_hashes=True)
            logits = file.read("logits")
        except (safetensors_files.DamagedFile, KeyError):
            raise InputError(
                f"{path}: no whole file of answers: delete it, or give --answers "
                "another name"
            ) from None
        if file.metadata.get("key") != key:
            raise InputError(
                f"{path}: answers of another teacher, to other texts or with other "
                "settings of inputs: give --answers another name"
            )
    # The devices of all processes compute together, or none does.
    is_everywhere = not devices.differing({"found": logits is not None})
    if logits is not None and is_everywhere:
        return logits
    if path is not None and devices.is_chief:
        files.make_directory(files.path(path).parent)
    logits = ask(inputs, title="the teacher answers")
    if (num_bad := np.count_nonzero(~np.isfinite(logits))) > 0:
        raise InputError(
            f"{num_bad} of {logits.size} numbers that the teacher answers are not "
            "finite: --set precision=float32, or take another teacher"
        )
    if path is not None and devices.is_chief:
        layouts = {"logits": safetensors_files.Layout(logits.dtype, logits.shape)}
        options = {"has_hashes": True, "metadata": {"key": key}}
        safetensors_files.write(path, layouts, [("logits", logits)], **options)
    return logits

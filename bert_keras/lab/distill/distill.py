"""Distillation: a trained model teaches a smaller one, which becomes a run.

A tuned teacher's answers are computed once, before the training: neither its inputs nor
its weights change. A teacher whose layers are compared runs in every step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import conversion, run_directory, starting_point, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning
from bert_keras.kinds import catalogue, held_out_parts, registry
from bert_keras.lab.distill import data as distill_data
from bert_keras.lab.distill import student as students
from bert_keras.lab.distill import teacher_logits
from bert_keras.model import distillation
from bert_keras.training import run
from bert_keras.training.finetuning import loop
from bert_keras.training.finetuning import run as tuning

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
    is_chief: bool = True,
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
    checkpoint = conversion.read_with_tokenizer(teacher)
    settings = distill_data.complete(
        settings, checkpoint, teacher, has_labels=has_labels
    )
    settings = tuning.resolved(settings, strategy)
    train, dev = distill_data.find_files(
        settings, checkpoint, train=train, dev=dev, data=data
    )

    def read() -> tuple[tuning.Inputs, tuning.Build]:
        learner = students.read_student(
            student, checkpoint, settings, teacher_path=teacher
        )
        texts = distill_data.read_data(
            settings, checkpoint, teacher, train, dev, has_labels=has_labels
        )
        if answers is not None and not settings.distillation.soft_weight:
            raise InputError("--answers: none are learnt from: leave it out")
        training = _Training(
            settings=settings,
            teacher=checkpoint,
            teacher_sha256=starting_point.digest(checkpoint, checkpoint.arrays),
            student=learner,
            data=texts,
            losses=_losses(settings.distillation, checkpoint, learner.bert_config),
            answers=answers,
            strategy=strategy,
            is_chief=is_chief,
        )
        return training.inputs(), training.build

    job = tuning.TuningJob(
        settings,
        read,
        paths={
            "teacher": teacher,
            "student": student,
            "train": train,
            "dev": held_out_parts.places(train, dev),
        },
        output_dir=output_dir,
        strategy=strategy,
        is_chief=is_chief,
    )
    return run.run(job)


@dataclass(frozen=True, kw_only=True)
class _Training:
    settings: finetuning.FinetuningConfig
    teacher: weights.Checkpoint
    teacher_sha256: str
    student: weights.Checkpoint
    data: distill_data.DistillationData
    losses: distillation.Losses
    answers: str | Path | None
    strategy: tf.distribute.Strategy
    is_chief: bool

    def inputs(self) -> tuning.Inputs:
        return tuning.Inputs(
            bert_config=tuning.with_dropout(self.student.bert_config, self.settings),
            vocabulary=self.teacher.vocabulary,
            do_lower_case=self.teacher.do_lower_case,
            kind=registry.find(self.data.task.kind),
            task=self.data.task,
            metric=catalogue.main_metric(self.settings, self.data.task.labels),
            num_train_examples=self.data.num_train_examples,
            dev=self.data.dev,
            recorded={
                **self.data.recorded,
                "teacher_sha256": self.teacher_sha256,
                "student_sha256": starting_point.digest(
                    self.student, self.student.arrays
                ),
            },
            data_report=self.data.data_report,
        )

    def build(self, directory: run_directory.Run) -> tuning.Trained:
        with self.strategy.scope():
            # The student does not learn from pre-training heads.
            is_tuned = distill_data.is_tuned(self.teacher)
            network = registry.build_network(
                self.teacher.bert_config,
                self.teacher.task if is_tuned else self.data.task,
                dtype=self.settings.precision,
            )
            weights.assign(network, self.teacher.arrays)
        inputs = self.data.inputs
        if self.losses.soft_weight:
            inputs = teacher_logits.InputsWithTeacherLogits(
                inputs=inputs, logits=self._logits(network)
            )
        read_layers = self.losses.read_layers
        kind = registry.find(self.data.task.kind)

        def make_network() -> keras.Model:
            trained = distillation.Distillation(
                tuning.build_network(kind, self.settings, directory),
                kind=directory.task.kind,
                losses=self.losses,
                teacher=distillation.Teacher(network) if read_layers else None,
                seed=self.settings.seed,
                dtype=self.settings.precision,
                name="distillation",
            )
            trained.build()
            return trained

        tuner = loop.build_learner(self.settings, make_network, inputs, self.strategy)
        student = tuner.network.student
        weights.assign(student, self.student.arrays)
        return tuning.Trained(tuner, student, inputs)

    def _logits(self, network: keras.Model) -> np.ndarray:
        return teacher_logits.compute(
            network,
            self.data.inputs,
            path=self.answers,
            facts={**self.data.facts, "teacher_sha256": self.teacher_sha256},
            ladder=self.settings.lengths or (),
            strategy=self.strategy,
            is_chief=self.is_chief,
        )


def _losses(
    settings: finetuning.DistillationConfig,
    teacher: weights.Checkpoint,
    student: config.BertConfig,
) -> distillation.Losses:
    theirs = teacher.bert_config
    num_layers = theirs.num_hidden_layers
    layers = settings.hidden_layers
    if settings.hidden_weight and layers is None:
        layers = evenly_spaced_layers(num_layers, student.num_hidden_layers)
    elif layers is not None:
        students.check_layers("hidden_layers", layers, num_layers)
        if len(layers) != student.num_hidden_layers:
            raise InputError(
                "`distillation.hidden_layers` has one layer of the teacher for each of "
                f"the student's {student.num_hidden_layers}, got {list(layers)}"
            )
    if (layer := settings.relation_layer) is not None:
        students.check_layers("relation_layer", (layer,), num_layers)
    common = math.gcd(theirs.hidden_size, student.hidden_size)
    heads = settings.relation_heads
    if heads is None:
        heads = max(n for n in range(1, _MOST_HEADS + 1) if common % n == 0)
    elif common % heads:
        divisors = [str(n) for n in range(1, common + 1) if common % n == 0]
        raise InputError(
            "`distillation.relation_heads` divides both hidden sizes, "
            f"{theirs.hidden_size} and {student.hidden_size}, got {heads}: take one of "
            + ", ".join(divisors)
        )
    return distillation.Losses(
        soft_weight=settings.soft_weight or 0.0,
        temperature=settings.temperature,
        hard_weight=settings.hard_weight or 0.0,
        hidden_weight=settings.hidden_weight,
        hidden_layers=layers or (),
        relation_weight=settings.relation_weight or 0.0,
        relation_heads=heads,
        relation_layer=layer or num_layers,
    )


def evenly_spaced_layers(
    num_teacher_layers: int, num_student_layers: int
) -> tuple[int, ...]:
    """Returns the teacher's layer for each of the student's; 1 is the first."""
    step = num_teacher_layers / num_student_layers
    numbers = range(1, num_student_layers + 1)
    return tuple(max(1, round(number * step)) for number in numbers)

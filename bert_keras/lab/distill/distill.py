"""Distillation: a trained model teaches a smaller one, which becomes a run.

A tuned teacher's answers are computed once, before the training: neither its inputs nor
its weights change. Its layers are read in every step, where they are compared.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import run_directory, starting_point, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning
from bert_keras.kinds import held_out_parts, registry
from bert_keras.lab.distill import lessons, students, taught, teacher_answers
from bert_keras.model import distillation
from bert_keras.training import run
from bert_keras.training.finetuning import run as tuning


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
    """Trains a student to be like its teacher.

    Of a tuned teacher the student learns the answers, and is a run for the same task.
    Of any other it learns the relations between tokens of plain texts, and is an
    encoder to tune. Called again with the same arguments, resumes an unfinished run
    after its last checkpoint and leaves a finished one as it is.

    Args:
        settings: the run's configuration; what it does not set about inputs is as the
            teacher has it.
        teacher: run directory or checkpoint of any format, with its vocabulary.
        student: what it is and begins with, see `students.read`; `None`: as
            `distillation.init_layers` says.
        train: file of the task, or of plain texts (see `lessons.plain_texts`).
        dev: labelled files to evaluate on, as for `finetune`; `None` for plain texts.
        data: in place of both, the folder of the task's data set.
        has_labels: learn from labels of `train`, too.
        answers: file that keeps the teacher's answers, for other students of the same
            texts; `None`: none does.
        output_dir: run directory to make; several workers must share it.
        strategy: to train and to evaluate under.
        is_chief: whether this process, of several that train together, writes files.

    Returns:
        Content of `results.json`.

    Raises:
        InputError: as `finetune`; teacher and student do not fit together, the teacher
            is for another task or has other labels, or a setting does nothing.
        Stopped: SIGTERM came; a checkpoint of the step reached was written.
    """
    found = starting_point.read_with_tokenizer(teacher)
    settings = lessons.complete(settings, found, teacher, has_labels=has_labels)
    settings = tuning.resolved(settings, strategy)
    train, dev = lessons.find_files(settings, found, train=train, dev=dev, data=data)

    def read() -> tuple[tuning.Inputs, tuning.Build]:
        made = students.read(student, found, settings, teacher_path=teacher)
        lesson = lessons.read(
            settings, found, teacher, train, dev, has_labels=has_labels
        )
        if answers is not None and not settings.distillation.soft_weight:
            raise InputError("--answers: none are learnt from: leave it out")
        return _inputs(
            *(settings, found, made, lesson, strategy),
            answers=answers,
            is_chief=is_chief,
        )

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
    return run.run(job, output_dir, is_chief=is_chief)


def _inputs(
    settings: finetuning.FinetuningConfig,
    teacher: weights.Checkpoint,
    student: weights.Checkpoint,
    lesson: lessons.Lesson,
    strategy: tf.distribute.Strategy,
    *,
    answers: str | Path | None,
    is_chief: bool,
) -> tuple[tuning.Inputs, tuning.Build]:
    losses = _losses(settings.distillation, teacher, student.bert_config)

    recorded = {
        **lesson.recorded,
        "teacher_sha256": starting_point.digest(teacher, teacher.arrays),
    }

    def answer(network: keras.Model) -> np.ndarray:
        return teacher_answers.answers(
            network,
            lesson.inputs,
            path=answers,
            facts={**lesson.facts, "teacher_sha256": recorded["teacher_sha256"]},
            ladder=settings.lengths or (),
            strategy=strategy,
            is_chief=is_chief,
        )

    def build(directory: run_directory.Run) -> tuning.Trained:
        return _build(
            *(settings, directory, teacher, student),
            *(losses, lesson, answer, strategy),
        )

    inputs = tuning.Inputs(
        bert_config=tuning.with_dropout(student.bert_config, settings),
        vocabulary=teacher.vocabulary,
        do_lower_case=teacher.do_lower_case,
        task=lesson.task,
        num_train_examples=lesson.num_train_examples,
        dev=lesson.dev,
        recorded={
            **recorded,
            "student_sha256": starting_point.digest(student, student.arrays),
        },
        data_report=lesson.data_report,
    )
    return inputs, build


def _losses(
    settings: finetuning.DistillationConfig,
    teacher: weights.Checkpoint,
    student: config.BertConfig,
) -> distillation.Losses:
    """The losses, with what the sizes of both decide.

    Raises:
        InputError: layers or heads that there cannot be.
    """
    theirs = teacher.bert_config
    num_layers = theirs.num_hidden_layers
    layers = settings.hidden_layers
    if settings.hidden_weight and layers is None:
        layers = spread(num_layers, student.num_hidden_layers)
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


_MOST_HEADS = 48


def spread(num_teacher_layers: int, num_student_layers: int) -> tuple[int, ...]:
    """Layer of the teacher for each of the student's, from 1, the last for the last."""
    step = num_teacher_layers / num_student_layers
    numbers = range(1, num_student_layers + 1)
    return tuple(max(1, round(number * step)) for number in numbers)


def _build(
    settings: finetuning.FinetuningConfig,
    directory: run_directory.Run,
    teacher: weights.Checkpoint,
    student: weights.Checkpoint,
    losses: distillation.Losses,
    lesson: lessons.Lesson,
    answer: Callable[[keras.Model], np.ndarray],
    strategy: tf.distribute.Strategy,
) -> tuning.Trained:
    with strategy.scope():
        # Of pre-training heads nothing is learnt.
        task = teacher.task if lessons.is_tuned(teacher) else lesson.task
        network = registry.build_network(
            teacher.bert_config, task, dtype=settings.precision
        )
        weights.assign(network, teacher.arrays)
    inputs = lesson.inputs
    if losses.soft_weight:
        inputs = taught.TaughtInputs(inputs=inputs, logits=answer(network))

    def make_network() -> keras.Model:
        made = distillation.Distillation(
            tuning.build_network(settings, directory),
            kind=directory.task.kind,
            losses=losses,
            teacher=distillation.Teacher(network) if losses.read_layers else None,
            seed=settings.seed,
            dtype=settings.precision,
            name="distillation",
        )
        made.build()
        return made

    tuner = tuning.build_tuner(settings, make_network, inputs, strategy)
    trained = tuner.network.student
    weights.assign(trained, student.arrays)
    return tuning.Trained(tuner, trained, inputs)

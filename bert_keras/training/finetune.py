"""Fine-tuning: a task's data and an encoder become a tuned run."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_keras.checkpoints import run_directory, starting_point
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, finetuning, tasks
from bert_keras.kinds import splits
from bert_keras.kinds.kind import Labelled, Option
from bert_keras.labelled import data_report, dataset
from bert_keras.training import run
from bert_keras.training.finetuning import job as tuning
from bert_keras.training.finetuning import learning
from bert_keras.training.step import engine

logger = logging.getLogger(__name__)

_NEEDS: tuple[tuple[Option, str], ...] = (
    ("class_weights", "texts with labels"),
    ("label_smoothing", "texts with labels"),
    ("long_texts", "texts"),
    ("calibration_fraction", "answers that `bert-keras calibrate` can promise"),
)
"""Settings that only some kinds of tasks accept, and their use."""


def finetune(
    settings: finetuning.FinetuningConfig,
    kind: Labelled,
    *,
    train: str | Path,
    dev: Sequence[str | Path],
    init: starting_point.Init,
    from_scratch: bool,
    output_dir: str | Path,
    strategy: tf.distribute.Strategy,
) -> dict[str, Any]:
    """Trains the encoder of a checkpoint, and a new head, on a task.

    The head of a checkpoint is kept if it means the same on any data: in a `span` run
    that starts from another (SQuAD after TriviaQA, as in the paper), and in `choice`. A
    second call resumes an unfinished run and leaves a finished one as it is.

    Args:
        kind: of the task of the settings (`catalogue.find`).
        dev: files to evaluate on, the main one first; see `kinds.splits` for
            parts of `train`. The scores of the others have the file's name before them.
        init: checkpoint (`conversion.init`): gives encoder, vocabulary and casing.
        from_scratch: take the sizes of that encoder, but random weights.
        output_dir: run directory, which several workers must share.

    Raises:
        Stopped: SIGTERM came; a checkpoint of the step reached was written.
    """
    settings = tuning.resolved(settings, strategy)

    def read() -> tuple[tuning.Inputs, tuning.Build]:
        # 1. The checkpoint, and its tokenizer.
        start = init.open_with_tokenizer()
        longest = start.bert_config.max_position_embeddings
        if settings.max_seq_length > longest:
            raise InputError(
                f"`max_seq_length` is {settings.max_seq_length}, but the encoder of "
                f"{init.path} takes {longest} tokens at most: --set "
                f"max_seq_length={longest}"
            )
        if settings.distillation != finetuning.DistillationConfig():
            raise InputError("`distillation` is for `bert-keras distill`: leave it out")
        # 2. The files, encoded; what the settings ask must fit them.
        task, names, data = splits.read(kind, train, dev, settings)
        head = ("bilstm_units", "num_bilstm_layers", "feature_layers")
        task = task.model_copy(update={key: getattr(settings, key) for key in head})
        examples = [
            tuning.Examples(name, part, part.encode(task, start.tokenizer, settings))
            for name, part in zip(names, data, strict=True)
        ]
        check_settings(kind, settings, task, start.bert_config, dev=examples[1].data)
        # 3. The first weights. They are assigned when the network is built.
        arrays = starting_point.tuning_arrays(
            start, task, transfers_head=kind.transfers_head
        )
        if any(name.startswith("head/") for name in start.arrays.keys() - arrays):
            logger.info("%s: its head is left out; a new one is trained", init.path)
        recorded = {
            "train_sha256": splits.file_hash(train),
            "dev_sha256": splits.file_hashes(dev),
            "init_sha256": starting_point.digest(start, arrays),
            "from_scratch": from_scratch,
        }
        if not from_scratch:
            check_rows_apart_are_new(settings, recorded, init=init.path)
        adapter, pooler = None, "encoder/pooler/kernel"
        if settings.lora_rank is not None:
            if from_scratch:
                raise InputError("`lora_rank` needs a base: leave --from_scratch out")
            reads_pooler = kind.needs(pooler) and not task.bilstm_units
            adapter = tasks.Adapter(
                base=str(files.path(init.path).absolute()),
                base_sha256=recorded["init_sha256"],
                rank=settings.lora_rank,
                alpha=settings.lora_alpha or settings.lora_rank,
                targets=settings.lora_targets,
                has_pooler=reads_pooler and pooler not in arrays,
            )
        train_inputs = examples[0].inputs

        def build(directory: run_directory.Run) -> tuple:
            tuner = learning.build_learner(
                settings,
                lambda: tuning.build_network(kind, settings, directory),
                train_inputs,
                strategy,
            )
            if not from_scratch:
                starting_point.assign(tuner.network, arrays, path=init.path)
            return tuner, tuner.network, train_inputs

        inputs = tuning.Inputs(
            bert_config=start.bert_config,
            vocabulary=start.vocabulary,
            do_lower_case=start.do_lower_case,
            kind=kind,
            task=task,
            metric=kind.main_metric(settings, task.labels),
            num_train_examples=len(examples[0].data),
            dev=examples[1:],
            recorded=recorded,
            data_report=data_report.describe(examples, settings, kind=task.kind),
            adapter=adapter,
        )
        return inputs, build

    job = tuning.TuningJob(
        settings,
        read,
        paths={
            "train": train,
            "dev": splits.display_names(train, dev),
            "init": init.path,
        },
        output_dir=output_dir,
        engine=engine.KerasEngine(strategy),
    )
    return run.run(job)


def check_rows_apart_are_new(
    settings: finetuning.FinetuningConfig,
    recorded: Mapping[str, Any],
    **checkpoints: str | Path | None,
) -> None:
    """Rows that are set aside must be new to first weights and teachers, too, which are
    given by option."""
    for option, path in checkpoints.items():
        if path is None or not settings.calibration_fraction:
            continue
        inputs = files.path(path) / run_directory.INPUTS_NAME
        known = files.read_json(inputs) if inputs.is_file() else {}
        if known.get("train_sha256") != recorded["train_sha256"]:
            continue
        theirs = run_directory.read_settings(inputs.parent, finetuning.FinetuningConfig)
        if not theirs or theirs.calibration_fraction < settings.calibration_fraction:
            raise InputError(
                f"--{option} {path}: was trained on rows of the same file that "
                "--calibrate sets aside: leave --calibrate out, or take a checkpoint "
                "from before"
            )


def check_settings(
    learnt: Labelled,
    settings: finetuning.FinetuningConfig,
    task: tasks.Task,
    bert_config: architecture.BertConfig,
    *,
    dev: dataset.Dataset,
) -> None:
    """Refuses settings that mean nothing for their task."""
    usual = finetuning.FinetuningConfig()
    long_texts = f"`long_texts` {settings.long_texts}"
    own = "is for your own texts (--task text)"
    has_windows = tasks.reads_windows(settings.long_texts)
    # What one kind alone knows, then what a table knows, then the rest.
    learnt.check(settings, task, bert_config, dev)
    for key, use in _NEEDS:
        is_set = getattr(settings, key) != getattr(usual, key)
        if is_set and key not in learnt.accepts:
            raise InputError(
                f"`{key}` is for {use}, got a task of kind {task.kind}: leave it out"
            )
    if settings.positive_label is not None and task.positive_label is None:
        raise InputError(
            f"`positive_label` {own} with two labels, got the task {settings.task}, "
            f"{task.kind}: leave it out"
        )
    for key in ("multi_label", "regression"):
        if getattr(settings, key) and settings.task != "text":
            raise InputError(f"`{key}` {own}, got task {settings.task}: leave it out")
    if has_windows and "windows" not in learnt.accepts:
        raise InputError(
            f"{long_texts} is not for a task of kind {task.kind}: take cut or head_tail"
        )
    if has_windows and task.has_text_pair:
        raise InputError(
            f"{long_texts} is for single texts, got pairs: take cut or head_tail"
        )

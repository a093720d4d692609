"""Run directories of this project, as one checkpoint format among the others."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_keras.checkpoints import run_directory, training_state, weights
from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.checkpoints.formats import companions
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, pretraining, tasks
from bert_keras.kinds import registry
from bert_keras.kinds.kind import Labelled
from bert_keras.model import weight_shapes

logger = logging.getLogger(__name__)

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "relu": "relu"}

SEED = 12345
"""Seed of the weights that a task needs and a checkpoint lacks."""


def recognizes(path: Path) -> bool:
    # KerasHub's task presets have a task.json too.
    names = (run_directory.TASK_NAME, run_directory.BERT_CONFIG_NAME)
    is_run = all((path / name).is_file() for name in names)
    return is_run or training_state.is_state(path)


def read(path: Path) -> weights.Checkpoint:
    """Opens a finished run, or reads a `checkpoints/step-....safetensors` of a
    pre-training. Weights that a conversion initialized are left out, and weights for
    next sentences if none were predicted."""
    if is_state := training_state.is_state(path):
        directory = path.absolute().parent.parent
        if not (directory / run_directory.TASK_NAME).is_file():
            name = run_directory.CHECKPOINTS_NAME
            raise InputError(f"{path}: needs its run's files: leave it in RUN/{name}")
        run = run_directory.read_run(directory, kinds=("pretraining",), verb="pretrain")
    else:
        run = read_finished_run(path)
    results = run_directory.read_results(run.directory) or {}
    untrained = tuple(results.get("made_new", ()))
    if not _next_sentence_was_trained(run, path, results):
        untrained += ("encoder/pooler/", "next_sentence_head/")
    if is_state:
        file, _ = training_state.open_state(path)
        # Frozen weights are under `non_trainable/`, the others under `weights/`: see
        # `training_state.named_variables`.
        pattern = re.compile(r"(?:non_)?(?:trainable|weights)/bert_pretrainer/(.+)")
        matches = [match for match in map(pattern.fullmatch, file.layouts) if match]
        arrays = weights.with_parts_apart(
            (match[1], file.read(match[0]))
            for match in matches
            if not match[1].startswith(untrained)
        )
    else:
        arrays = _open_weights(run, without=untrained)
    settings = None
    if isinstance(registry.find(run.task.kind), Labelled):
        form = finetuning.FinetuningConfig
        settings = run_directory.read_settings(run.directory, form)
    return weights.Checkpoint(
        bert_config=run.bert_config,
        task=run.task,
        arrays=arrays,
        vocabulary=run.vocabulary,
        do_lower_case=run.do_lower_case,
        max_seq_length=settings and settings.max_seq_length,
        settings=settings,
        decision=run_directory.read_calibration(run.directory)
        or run_directory.decision_of(results),
        adapter=run.adapter,
    )


def read_finished_run(directory: str | Path) -> run_directory.Run:
    run = run_directory.read_run(directory)
    if run_directory.read_results(directory) is None:
        # A checkpoint of a fine-tuning is read by its own command only.
        is_readable = run.task.kind == "pretraining"
        best = _checkpoints_of(run).best() if is_readable else None
        raise InputError(
            f"{directory}: the run is not finished; run its command again to resume it"
            + (f", or take its best checkpoint, {best}" if best else "")
        )
    return run


def _checkpoints_of(run: run_directory.Run) -> training_state.CheckpointDirectory:
    # Not the chief: the directory is only read, and a run may be writing into it.
    return training_state.CheckpointDirectory(
        run.directory / run_directory.CHECKPOINTS_NAME, keep=1, is_chief=False
    )


def _open_weights(
    run: run_directory.Run, *, without: tuple[str, ...] = ()
) -> weights.Arrays:
    """Opens the weights of a finished run, of which all that its kind has must be
    there; those whose names begin with one of `without` are left out."""
    path = run.directory / run_directory.WEIGHTS_NAME
    problem = f"{path}: not the weights of this model"
    source = safetensors_files.SafetensorsFile(path)
    layer = r"encoder/layer_(\d+)/"
    weights.check_num_layers(source.shapes, layer, run.bert_config, path)
    shapes = weight_shapes.all_shapes(run.bert_config, run.task)
    if (adapter := run.adapter) is not None:
        own = ("head/", *["encoder/pooler/"] * adapter.has_pooler)
        shapes = {name: shapes[name] for name in shapes if name.startswith(own)}
        shapes |= weight_shapes.factor_shapes(run.bert_config, adapter)
    rows = [
        weights.Row(name, name, shape, shape)
        for name, shape in shapes.items()
        if name.startswith(registry.find(run.task.kind).parts)
    ]
    if missing := [row.ours for row in rows if row.ours not in source.shapes]:
        raise InputError(f"{problem}: no {', '.join(missing[:3])}")
    rows = [row for row in rows if not row.ours.startswith(without)]
    return weights.open_arrays(source, rows, path=problem)


def _next_sentence_was_trained(
    run: run_directory.Run, path: Path, results: Mapping[str, Any]
) -> bool:
    """Whether settings and examples of a pre-training both had next sentences. The
    run's own files tell, since the examples may be gone."""
    if run.task.kind != "pretraining":
        return True
    settings = run_directory.read_settings(run.directory, pretraining.PretrainingConfig)
    if settings is None or not settings.next_sentence:
        # A converted run has no settings; `made_new` has a head that its source lacked.
        return settings is None
    if evaluation := results.get("eval"):
        return "next_sentence_loss" in evaluation
    is_state = training_state.is_state(path)
    states = [path] if is_state else _checkpoints_of(run).paths()
    # Examples without next sentences freeze the head, see `BertPretrainer.build`.
    frozen = "non_trainable/bert_pretrainer/next_sentence_head/"
    names = training_state.open_state(states[-1])[0].layouts if states else ()
    return not any(name.startswith(frozen) for name in names)


def write(checkpoint: weights.Checkpoint, directory: Path) -> dict[str, str]:
    """Writes a finished run that `finetune`, `fill-mask`, `predict`, ... accept.

    Weights that the task needs and the checkpoint lacks are initialized. Where another
    format leaves the training unknown, `config.yaml` of a tuned model only describes
    its inputs, which for tagging are single sentences.
    """
    if checkpoint.vocabulary is None:
        raise InputError("a run needs a vocabulary: put vocab.txt next to the input")
    companions.check_casing_is_known(checkpoint)
    network = registry.build_network(checkpoint.bert_config, checkpoint.task, seed=SEED)
    missing = weights.assign(network, checkpoint.arrays)
    run = run_directory.Run(
        directory=directory,
        task=checkpoint.task,
        bert_config=checkpoint.bert_config,
        vocabulary=checkpoint.vocabulary,
        do_lower_case=checkpoint.do_lower_case,
    )
    run_directory.describe_run(run, tuning_settings(checkpoint))
    results: dict[str, Any] = {"converted": True, "made_new": missing}
    decision = checkpoint.decision
    if decision.label_thresholds and not decision.is_promise:
        results[run_directory.THRESHOLDS] = decision.label_thresholds
    elif decision.no_answer_odds:
        results["eval"] = {"best_f1_thresh": decision.no_answer_odds}
    weights.finish_run(run, network, results)
    if isinstance(decision, tasks.Calibration):
        run_directory.write_calibration(directory, decision)
    return {
        name: f"a {checkpoint.task.kind} run has no such weight"
        for name in checkpoint.arrays
        if not name.startswith(registry.find(checkpoint.task.kind).parts)
    }


def warn_of_pairs(task: tasks.Task) -> None:
    """Warns that another format than ours does not say what a model's inputs are."""
    kind = registry.find(task.kind)
    may_read_pairs = isinstance(kind, Labelled) and kind.form == "text"
    if may_read_pairs and not task.has_text_pair:
        logger.warning(
            "nothing says whether the model was tuned on pairs of texts, so it is "
            "taken for one of single texts: for pairs, set has_text_pair to true in "
            f"{run_directory.TASK_NAME}"
        )


def tuning_settings(
    checkpoint: weights.Checkpoint,
) -> finetuning.FinetuningConfig | None:
    """Returns the run's settings, or those that describe the inputs of a model of
    another format; `None`: it was not tuned on a task."""
    kind, task = registry.find(checkpoint.task.kind), checkpoint.task
    if checkpoint.settings is not None or not isinstance(kind, Labelled):
        return checkpoint.settings
    num_positions = checkpoint.bert_config.max_position_embeddings
    usual = kind.usual_settings(task)
    longest = checkpoint.max_seq_length or usual["max_seq_length"]
    return finetuning.FinetuningConfig(
        **usual | {"max_seq_length": min(longest, num_positions)},
        document_context=False,
        bilstm_units=task.bilstm_units,
        num_bilstm_layers=task.num_bilstm_layers,
        feature_layers=task.feature_layers,
    )

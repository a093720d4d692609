"""Makers of what tests of several folders need."""

import unittest.mock

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import conversion, run_directory, starting_point, weights
from bert_keras.core.settings import architecture, pretraining, strict, tasks
from bert_keras.export import writing
from bert_keras.kinds import catalogue, registry
from bert_keras.model import lora
from bert_keras.training import finetune as training
from bert_keras.training import pretrain as pretraining_verb
from tests import conftest


def small_config(vocab_size, **changes):
    """A configuration of one layer of 16 units, for inputs of 24 tokens."""
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 24,
    }
    return architecture.BertConfig(vocab_size=vocab_size, **sizes | changes)


def make_run(
    directory,
    vocabulary,
    *,
    settings=None,
    change=None,
    bert_config=None,
    do_lower_case=True,
    results=None,
    seed=0,
    **task,
):
    """A finished run in a new directory, with the weights that a network begins with.

    Args:
        directory: to make.
        vocabulary: of the run.
        settings: of its training; `None`: unknown, as of a converted run.
        change: called with the network before its weights are written.
        bert_config: `None`: `small_config`.
        results: of the run.
        seed: of the weights.
        task: its `kind`, `labels` and so on.
    """
    bert_config = bert_config or small_config(len(vocabulary))
    run = run_directory.Run(
        directory=directory,
        task=tasks.Task(**task),
        bert_config=bert_config,
        vocabulary=vocabulary,
        do_lower_case=do_lower_case,
    )
    directory.mkdir()
    run_directory.describe_run(run, settings)
    network = registry.build_network(bert_config, run.task, seed=seed)
    if change is not None:
        change(network)
    weights.finish_run(run, network, results or {"steps": 0})
    return directory


def make_adapter(
    directory, base, settings=None, *, targets=None, has_pooler=False, seed=3, **task
):
    """A finished run of rank 2 on a base, with random changes and a random head."""
    start, task = conversion.read(base), tasks.Task(**task)
    transfers_head = registry.find(task.kind).transfers_head
    arrays = starting_point.tuning_arrays(start, task, transfers_head=transfers_head)
    adapter = tasks.Adapter(
        base=str(base),
        base_sha256=starting_point.digest(start, arrays),
        rank=2,
        alpha=3.0,
        targets=targets or ("query", "value"),
        has_pooler=has_pooler,
    )
    run = run_directory.Run(
        directory=directory,
        task=task,
        bert_config=start.bert_config,
        vocabulary=start.vocabulary,
        do_lower_case=start.do_lower_case,
        adapter=adapter,
    )
    directory.mkdir()
    run_directory.describe_run(run, settings)
    network = registry.build_network(run.bert_config, task, seed=seed)
    lora.enable(network, adapter, seed=seed)
    random = np.random.default_rng(seed)
    for weight in network.trainable_weights:
        weight.assign(random.normal(0, 0.3, weight.shape))
    weights.finish_run(run, network, {"steps": 0})
    return directory


def pretraining_config(**changes):
    """The settings of `pretrained_run`, with changes."""
    values = {**conftest.PRETRAINING, **changes}
    return strict.build_config(pretraining.PretrainingConfig, values)


def pretrain(directories, run, settings=None, *, strategy=None, **options):
    """Pre-trains as `pretrained_run` unless other settings are given."""
    return pretraining_verb.pretrain(
        settings or pretraining_config(),
        *(directories, run),
        strategy=strategy or tf.distribute.OneDeviceStrategy("/cpu:0"),
        **options,
    )


def finetune(settings, *, init, from_scratch=False, strategy=None, **options):
    """Fine-tunes as the verb does; `init` is a path."""
    catalogue.check_settings(settings)
    kind = catalogue.find(settings)
    return training.finetune(
        *(settings, kind),
        init=conversion.init(init),
        from_scratch=from_scratch,
        strategy=strategy or tf.distribute.get_strategy(),
        **options,
    )


def served(directory):
    """The graph of a run's answers, as an export makes it."""
    return writing.load(directory)


def check_settings(settings, task, bert_config):
    catalogue.check_settings(settings)
    kind = registry.labelled(task.kind)
    dev = unittest.mock.Mock()
    training.check_settings(kind, settings, task, bert_config, dev=dev)

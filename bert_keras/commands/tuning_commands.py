"""Verbs that tune on files, which `cli` calls: finetune, distill, sweep, compare."""

import argparse

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, loading
from bert_keras.core.settings import sweeps as sweep_config


def finetune(args: argparse.Namespace) -> None:
    settings = finetuning_settings(args)
    from bert_keras.kinds import catalogue
    from bert_keras.tpu import strategy
    from bert_keras.training import finetune as training

    train, dev = catalogue.find_training_files(
        settings.task, train=args.train, dev=args.dev, data=args.data
    )
    devices = strategy.get_strategy(
        args.strategy, workers=args.workers, worker_index=args.worker_index
    )
    training.finetune(
        settings,
        train=train,
        dev=dev,
        init=args.init,
        from_scratch=args.from_scratch,
        output_dir=args.output_dir,
        strategy=devices,
        is_chief=strategy.is_chief(devices),
    )


def finetuning_settings(args: argparse.Namespace) -> finetuning.FinetuningConfig:
    """Configuration of `finetune`, with the task of `--task`."""
    overrides = [f"task={args.task}"] if args.task else []
    settings = loading.load(
        finetuning.FinetuningConfig, args.config, [*overrides, *args.set]
    )
    from bert_keras.kinds import catalogue

    catalogue.check_name(settings.task)
    return settings


def distill(args: argparse.Namespace) -> None:
    settings = finetuning_settings(args)
    from bert_keras.lab.distill import distill as training
    from bert_keras.tpu import strategy

    devices = strategy.get_strategy(
        args.strategy, workers=args.workers, worker_index=args.worker_index
    )
    training.distill(
        settings,
        teacher=args.teacher,
        student=args.student,
        train=args.train,
        dev=args.dev,
        data=args.data,
        has_labels=args.labels,
        answers=args.answers,
        output_dir=args.output_dir,
        strategy=devices,
        is_chief=strategy.is_chief(devices),
    )


def sweep(args: argparse.Namespace) -> None:
    given = [] if args.folds is None else [f"folds={args.folds}"]
    settings = loading.load(
        sweep_config.SweepConfig, args.sweep, [*args.sweep_set, *given]
    )
    task = finetuning_settings(args).task
    from bert_keras.kinds import catalogue
    from bert_keras.lab import sweep as sweeps

    places = {"train": args.train, "dev": args.dev, "data": args.data}
    folds = sweeps.find_folds(task, **places, num_folds=settings.folds)
    if folds:
        train, dev = folds[0].train, folds[0].dev
    elif args.sweep is None:
        raise InputError("give a grid with --sweep, or folds with --folds")
    else:
        train, dev = catalogue.find_training_files(task, **places)
    command = sweeps.Command(
        task=args.task,
        train=str(train),
        dev=tuple(map(str, dev)),
        folds=folds,
        init=args.init,
        from_scratch=args.from_scratch,
        recipe=args.config,
        overrides=tuple(args.set),
        strategy=args.strategy,
    )
    state = sweeps.run_sweep(
        settings, command, output_dir=args.output_dir, num_jobs=args.jobs
    )
    for line in sweeps.lines(state):
        print(line)


def compare(args: argparse.Namespace) -> None:
    task = finetuning_settings(args).task
    from bert_keras.kinds import catalogue
    from bert_keras.lab import sweep as sweeps

    train, dev = catalogue.find_training_files(
        task, train=args.train, dev=args.dev, data=args.data
    )
    comparison = sweeps.Comparison(
        command=sweeps.Command(
            task=args.task,
            train=str(train),
            dev=tuple(map(str, dev)),
            recipe=args.config,
            overrides=tuple(args.set),
            strategy=args.strategy,
        ),
        models=args.models,
        from_scratch=args.from_scratch,
        fractions=args.fractions,
        num_seeds=args.seeds,
    )
    for line in sweeps.run_comparison(
        comparison, output_dir=args.output_dir, num_jobs=args.jobs
    ):
        print(line)

"""Verbs that are built on the others: distill, sweep, compare, features, demo."""

import argparse

from bert_keras.commands import parser as options
from bert_keras.core.errors import InputError
from bert_keras.core.settings import features as feature_settings
from bert_keras.core.settings import loading, sweeps


@options.Verb(
    "a smaller model that is like a trained one",
    {
        "--teacher MODEL!": "trained model to learn from, tuned on a task or not: "
        f"{options.ANY_CHECKPOINT}",
        "--student MODEL": "smaller model to train: a recipe such as bert_mini, a file "
        "of sizes (.yaml, bert_config.json), or a checkpoint; not needed with "
        "distillation.init_layers",
        "--labels": "learn from the labels of --train, too (default: from the teacher "
        "alone)",
        "--answers FILE": "file (.npz) to keep the teacher's answers in, for other "
        "students of the same texts (default: each run asks the teacher)",
        **options.LABELLED_FILES,
        **options.WORKERS,
        **options.RUN,
    },
    needs=options.TENSORFLOW,
    settings_of="finetune",
)
def distill(args: argparse.Namespace) -> None:
    settings = options.finetuning_settings(args)
    from bert_keras.lab.distill import distill

    distill.distill(
        settings,
        teacher=args.teacher,
        student=args.student,
        train=args.train,
        dev=args.dev,
        data=args.data,
        has_labels=args.labels,
        answers=args.answers,
        output_dir=args.output_dir,
        **options.devices(args),
    )


@options.Verb(
    "many runs of `finetune`, the best one on dev",
    {
        "--sweep FILE": "YAML file with a grid, or sweep_paper, sweep_glue, "
        "sweep_learning_curve; not needed with folds",
        **options.overrides(
            "--sweep_set",
            "override one key of --sweep, repeatable (`bert-keras config sweep` prints "
            "them)",
        ),
        "--folds N=int": "hold each of N parts of the training file out in turn, "
        "without --dev; for files of folds put {fold} into the names of --train and "
        "--dev, or of --data",
        "--jobs N=1": "runs at the same time",
        **options.LABELLED_FILES,
        **options.ENCODER,
        **options.RUN,
    },
    needs=options.TENSORFLOW,
    settings_of="finetune",
)
def sweep(args: argparse.Namespace) -> None:
    overrides = [*args.sweep_set]
    overrides += [] if args.folds is None else [f"folds={args.folds}"]
    settings = loading.load(sweeps.SweepConfig, args.sweep, overrides)
    task = options.finetuning_settings(args).task
    from bert_keras.kinds import catalogue
    from bert_keras.lab.sweep import folds, planning, running, summary

    paths = {"train": args.train, "dev": args.dev, "data": args.data}
    parts = folds.find_folds(task, **paths, num_folds=settings.folds)
    if parts:
        train, dev = parts[0].train, parts[0].dev
    elif args.sweep is None:
        raise InputError("give a grid with --sweep, or folds with --folds")
    else:
        train, dev = catalogue.find_training_files(task, **paths)
    command = planning.Command(
        task=args.task,
        train=str(train),
        dev=tuple(map(str, dev)),
        folds=parts,
        init=args.init,
        from_scratch=args.from_scratch,
        recipe=args.config,
        overrides=tuple(args.set),
        strategy=args.strategy,
    )
    state = running.run_sweep(
        settings, command, output_dir=args.output_dir, num_jobs=args.jobs
    )
    options.print_lines(summary.lines(state))


@options.Verb(
    "which model to start from, and is it worth it",
    {
        "--models MODEL...!": "encoders to start from, each a "
        f"{options.ANY_CHECKPOINT}",
        "--from_scratch": "compare the first model's size with random weights, too",
        "--fractions": {
            "nargs": "+",
            "type": float,
            "default": [0.01, 0.1, 1.0],
            "metavar": "SHARE",
            "help": "shares of the training file to learn from (default: 0.01 0.1 1)",
        },
        "--seeds N=3": "runs of each model on each share",
        "--jobs N=1": "runs at the same time",
        **options.LABELLED_FILES,
        **options.RUN,
    },
    needs=options.TENSORFLOW,
    settings_of="finetune",
)
def compare(args: argparse.Namespace) -> None:
    task = options.finetuning_settings(args).task
    from bert_keras.kinds import catalogue
    from bert_keras.lab.sweep import comparison, planning, running, summary

    train, dev = catalogue.find_training_files(
        task, train=args.train, dev=args.dev, data=args.data
    )
    command = planning.Command(
        task=args.task,
        train=str(train),
        dev=tuple(map(str, dev)),
        recipe=args.config,
        overrides=tuple(args.set),
        strategy=args.strategy,
    )
    settings, command = comparison.plan(
        *(command, args.models),
        from_scratch=args.from_scratch,
        fractions=args.fractions,
        num_seeds=args.seeds,
    )
    state = running.run_sweep(
        settings, command, output_dir=args.output_dir, num_jobs=args.jobs
    )
    options.print_lines(summary.lines(state))


@options.Verb(
    "vectors of words, from layers of an encoder",
    {
        "--model MODEL!": options.ANY_CHECKPOINT,
        "--input INPUT!": "file of texts or of words",
        "--output OUTPUT!": "directory to create",
        "--layers": options.layers([-1]),
        "--pooling": (
            feature_settings.Pooling,
            "vector of a word: of its first piece, or the mean of all",
        ),
        "--form?": (
            feature_settings.InputForm,
            "lines: one text a line; text: a table or JSON lines; tagging: columns of "
            "CoNLL or JSON lines of words (default: by the file's name)",
        ),
    },
    needs=options.TENSORFLOW,
    settings_of="features",
)
def features(args: argparse.Namespace) -> None:
    settings = options.load_settings(feature_settings.FeaturesConfig, args)
    from bert_keras.inference.features import writing

    writing.write(
        args.model,
        args.input,
        args.output,
        settings=settings,
        layers=args.layers,
        pooling=args.pooling,
        form=args.form,
    )


@options.Verb(
    "all stages on text that is on this machine",
    {"--output_dir OUTPUT_DIR!": "directory to create"},
    needs=options.TENSORFLOW,
)
def demo(args: argparse.Namespace) -> None:
    from bert_keras.lab import demo

    demo.run(args.output_dir)

"""Verbs that are built on the others: distill, sweep, compare, features, demo."""

import argparse
from typing import Any

from bert_keras.commands import parser as options
from bert_keras.core.errors import InputError
from bert_keras.core.settings import features as feature_settings
from bert_keras.core.settings import loading, sweeps


def add_distill(verbs: Any) -> None:
    parser = options.add_verb(
        verbs, "distill", "a smaller model that is like a trained one"
    )
    parser.set_defaults(run=distill, needs=options.TENSORFLOW)
    parser.add_argument(
        "--teacher",
        required=True,
        metavar="MODEL",
        help="trained model to learn from, tuned on a task or not: "
        f"{options.ANY_CHECKPOINT}",
    )
    parser.add_argument(
        "--student",
        metavar="MODEL",
        help="smaller model to train: a recipe such as bert_mini, a file of sizes "
        "(.yaml, bert_config.json), or a checkpoint; not needed with "
        "distillation.init_layers",
    )
    options.add_flag(
        parser,
        "--labels",
        "learn from the labels of --train, too (default: from the teacher alone)",
    )
    parser.add_argument(
        "--answers",
        metavar="FILE",
        help="file (.npz) to keep the teacher's answers in, for other students of the "
        "same texts (default: each run asks the teacher)",
    )
    options.add_labelled_files(parser)
    options.add_workers(parser)
    options.add_config(parser, "finetune")
    options.add_run(parser)


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


def add_sweep(verbs: Any) -> None:
    parser = options.add_verb(
        verbs, "sweep", "many runs of `finetune`, the best one on dev"
    )
    parser.set_defaults(run=sweep, needs=options.TENSORFLOW)
    parser.add_argument(
        "--sweep",
        metavar="FILE",
        help="YAML file with a grid, or sweep_paper, sweep_glue, sweep_learning_curve; "
        "not needed with folds",
    )
    parser.add_argument(
        "--sweep_set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key of --sweep, repeatable (`bert-keras config sweep` "
        "prints them)",
    )
    options.add_number(
        parser,
        "--folds",
        None,
        "hold each of N parts of the training file out in turn, without --dev; "
        "for files of folds put {fold} into the names of --train and --dev, or of "
        "--data",
    )
    options.add_number(parser, "--jobs", 1, "runs at the same time")
    options.add_labelled_files(parser)
    options.add_encoder(parser)
    options.add_config(parser, "finetune")
    options.add_run(parser)


def sweep(args: argparse.Namespace) -> None:
    folds = [] if args.folds is None else [f"folds={args.folds}"]
    settings = loading.load(sweeps.SweepConfig, args.sweep, [*args.sweep_set, *folds])
    task = options.finetuning_settings(args).task
    from bert_keras.kinds import catalogue
    from bert_keras.lab import sweep

    paths = {"train": args.train, "dev": args.dev, "data": args.data}
    parts = sweep.find_folds(task, **paths, num_folds=settings.folds)
    if parts:
        train, dev = parts[0].train, parts[0].dev
    elif args.sweep is None:
        raise InputError("give a grid with --sweep, or folds with --folds")
    else:
        train, dev = catalogue.find_training_files(task, **paths)
    command = sweep.Command(
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
    state = sweep.run_sweep(
        settings, command, output_dir=args.output_dir, num_jobs=args.jobs
    )
    for line in sweep.lines(state):
        print(line)


def add_compare(verbs: Any) -> None:
    parser = options.add_verb(
        verbs, "compare", "which model to start from, and is it worth it"
    )
    parser.set_defaults(run=compare, needs=options.TENSORFLOW)
    parser.add_argument(
        "--models",
        nargs="+",
        required=True,
        metavar="MODEL",
        help=f"encoders to start from, each a {options.ANY_CHECKPOINT}",
    )
    options.add_flag(
        parser,
        "--from_scratch",
        "compare the first model's size with random weights, too",
    )
    parser.add_argument(
        "--fractions",
        nargs="+",
        type=float,
        default=[0.01, 0.1, 1.0],
        metavar="SHARE",
        help="shares of the training file to learn from (default: 0.01 0.1 1)",
    )
    options.add_number(parser, "--seeds", 3, "runs of each model on each share")
    options.add_number(parser, "--jobs", 1, "runs at the same time")
    options.add_labelled_files(parser)
    options.add_config(parser, "finetune")
    options.add_run(parser)


def compare(args: argparse.Namespace) -> None:
    task = options.finetuning_settings(args).task
    from bert_keras.kinds import catalogue
    from bert_keras.lab import sweep

    train, dev = catalogue.find_training_files(
        task, train=args.train, dev=args.dev, data=args.data
    )
    comparison = sweep.Comparison(
        command=sweep.Command(
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
    for line in sweep.run_comparison(
        comparison, output_dir=args.output_dir, num_jobs=args.jobs
    ):
        print(line)


def add_features(verbs: Any) -> None:
    parser = options.add_verb(
        verbs, "features", "vectors of words, from layers of an encoder"
    )
    parser.set_defaults(run=features, needs=options.TENSORFLOW)
    options.add_required(
        parser,
        model=options.ANY_CHECKPOINT,
        input="file of texts or of words",
        output="directory to create",
    )
    options.add_layers(parser, [-1])
    options.add_choice(
        parser,
        "--pooling",
        feature_settings.Pooling,
        "vector of a word: of its first piece, or the mean; none: one for each piece",
    )
    options.add_choice(
        parser, "--to", feature_settings.VectorFormat, "format of the files to write"
    )
    options.add_choice(
        parser,
        "--form",
        feature_settings.InputForm,
        "lines: one text a line; text: a table or JSON lines; tagging: columns of "
        "CoNLL or JSON lines of words (default: by the file's name)",
        has_default=False,
    )
    options.add_config(parser, "features")


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
        to=args.to,
        form=args.form,
    )


def add_demo(verbs: Any) -> None:
    parser = options.add_verb(
        verbs, "demo", "all stages on text that is on this machine"
    )
    parser.set_defaults(run=demo, needs=options.TENSORFLOW)
    options.add_required(parser, output_dir="directory to create")


def demo(args: argparse.Namespace) -> None:
    from bert_keras.lab import demo

    demo.run(args.output_dir)

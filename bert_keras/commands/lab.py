"""Verbs that are built on the others: distill, sweep, compare, features, demo."""

import argparse
from typing import Any

from bert_keras.commands import parser as options
from bert_keras.core.errors import InputError
from bert_keras.core.settings import features as feature_settings
from bert_keras.core.settings import loading, sweeps


def add_distill(verbs: Any) -> None:
    summary = "a smaller model that is like a trained one"
    parser = options.add_verb(
        verbs, "distill", summary, distill, needs=options.TENSORFLOW
    )
    options.add(
        parser,
        {
            "--teacher MODEL!": "trained model to learn from, tuned on a task or not: "
            f"{options.ANY_CHECKPOINT}",
            "--student MODEL": "smaller model to train: a recipe such as bert_mini, a "
            "file of sizes (.yaml, bert_config.json), or a checkpoint; not needed with "
            "distillation.init_layers",
            "--labels": "learn from the labels of --train, too (default: from the "
            "teacher alone)",
            "--answers FILE": "file (.npz) to keep the teacher's answers in, for other "
            "students of the same texts (default: each run asks the teacher)",
        },
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
    summary = "many runs of `finetune`, the best one on dev"
    parser = options.add_verb(verbs, "sweep", summary, sweep, needs=options.TENSORFLOW)
    grid = "YAML file with a grid, or sweep_paper, sweep_glue, sweep_learning_curve; "
    options.add(parser, {"--sweep FILE": grid + "not needed with folds"})
    parser.add_argument(
        "--sweep_set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key of --sweep, repeatable (`bert-keras config sweep` "
        "prints them)",
    )
    options.add(
        parser,
        {
            "--folds N=int": "hold each of N parts of the training file out in turn, "
            "without --dev; for files of folds put {fold} into the names of --train "
            "and --dev, or of --data",
            "--jobs N=1": "runs at the same time",
        },
    )
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
    options.print_lines(sweep.lines(state))


def add_compare(verbs: Any) -> None:
    summary = "which model to start from, and is it worth it"
    parser = options.add_verb(
        verbs, "compare", summary, compare, needs=options.TENSORFLOW
    )
    options.add(
        parser,
        {
            "--models MODEL...!": "encoders to start from, each a "
            f"{options.ANY_CHECKPOINT}",
            "--from_scratch": "compare the first model's size with random weights, too",
        },
    )
    parser.add_argument(
        "--fractions",
        nargs="+",
        type=float,
        default=[0.01, 0.1, 1.0],
        metavar="SHARE",
        help="shares of the training file to learn from (default: 0.01 0.1 1)",
    )
    options.add(
        parser,
        {
            "--seeds N=3": "runs of each model on each share",
            "--jobs N=1": "runs at the same time",
        },
    )
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
    sentences = sweep.run_comparison(
        comparison, output_dir=args.output_dir, num_jobs=args.jobs
    )
    options.print_lines(sentences)


def add_features(verbs: Any) -> None:
    summary = "vectors of words, from layers of an encoder"
    parser = options.add_verb(
        verbs, "features", summary, features, needs=options.TENSORFLOW
    )
    options.add(
        parser,
        {
            "--model MODEL!": options.ANY_CHECKPOINT,
            "--input INPUT!": "file of texts or of words",
            "--output OUTPUT!": "directory to create",
        },
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
    summary = "all stages on text that is on this machine"
    parser = options.add_verb(verbs, "demo", summary, demo, needs=options.TENSORFLOW)
    options.add(parser, {"--output_dir OUTPUT_DIR!": "directory to create"})


def demo(args: argparse.Namespace) -> None:
    from bert_keras.lab import demo

    demo.run(args.output_dir)

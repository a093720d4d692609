"""Verbs that train models, one or many, and read what they learnt."""

import argparse
from typing import Any

from bert_keras.commands import parser as options
from bert_keras.commands.parser import choice, flag, required, value
from bert_keras.core import manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings import features as feature_settings
from bert_keras.core.settings import loading, pretraining, sweeps


@options.Verb(
    "train an encoder: masked LM + next sentence",
    {
        "--examples": required(
            "made by `examples`, on disk or on gs://; two, of "
            "128 and of 512 tokens, for the two phases",
            nargs="+",
        ),
        "--vocab": "vocab.txt (default: the examples')",
        "--init": f"model to train further: {options.ANY_CHECKPOINT}",
        **options.WORKERS,
        "--verify": flag(
            "hash the examples again (default: once for each run and machine, "
            "never on gs://, where that reads them all; their sizes are always checked)"
        ),
        **options.RUN,
    },
    needs=options.TENSORFLOW,
    settings_of="pretrain",
)
def pretrain(args: argparse.Namespace) -> None:
    settings = options.load_settings(pretraining.PretrainingConfig, args)
    settings.planned_phases(len(args.examples))
    for directory in args.examples:
        manifest.read_manifest(directory, kind="examples")
    pairs = {"set minimal_pairs": settings.minimal_pairs}
    models = [args.init] if args.init else []
    options.check_paths(args.output_dir, models=models, vocab=args.vocab, **pairs)
    from bert_keras.checkpoints import conversion
    from bert_keras.training import pretrain

    pretrain.pretrain(
        *(settings, args.examples, args.output_dir),
        vocab_path=args.vocab,
        init=conversion.init(args.init) if args.init else None,
        verify=args.verify,
        strategy=options.devices(args),
    )


@options.Verb(
    "pictures and a page of what a run did",
    {
        "run_dir": "run directory",
        "--output": "directory to create (default: RUN/report)",
    },
    needs=(),
)
def report(args: argparse.Namespace) -> None:
    from bert_keras.report import writing

    print(writing.write_report(args.run_dir, args.output))


@options.Verb(
    "train on labelled data",
    {**options.LABELLED_FILES, **options.ENCODER, **options.WORKERS, **options.RUN},
    needs=options.TENSORFLOW,
    settings_of="finetune",
)
def finetune(args: argparse.Namespace) -> None:
    settings = options.finetuning_settings(args)
    from bert_keras.kinds import catalogue

    paths = options.named(args, "train", "dev", "data")
    train, dev = catalogue.find_training_files(settings.task, **paths)
    options.check_paths(args.output_dir, models=[args.init], train=args.train)
    from bert_keras.checkpoints import conversion
    from bert_keras.training import finetune

    finetune.finetune(
        *(settings, catalogue.find(settings)),
        train=train,
        dev=dev,
        init=conversion.init(args.init),
        **options.named(args, "from_scratch", "output_dir"),
        strategy=options.devices(args),
    )


@options.Verb(
    "labels of a training file that are probably wrong",
    {
        "--task": options.LABELLED_FILES["--task"],
        "--train": required("labelled file to check"),
        "--init": options.ENCODER["--init"],
        "--folds": value("parts, each judged by a model of the others", default=5),
        **options.RUN,
        "--output_dir": required("directory to create"),
    },
    needs=options.TENSORFLOW,
    settings_of="finetune",
)
def check_labels(args: argparse.Namespace) -> None:
    settings = options.finetuning_settings(args)
    options.check_paths(args.output_dir, models=[args.init], train=args.train)
    from bert_keras.checkpoints import conversion
    from bert_keras.tpu import strategy
    from bert_keras.trust import labels

    lines = labels.check_labels(
        settings,
        **options.named(args, "train", "folds", "output_dir"),
        init=conversion.init(args.init),
        strategy=strategy.get_strategy(args.strategy),
    )
    options.print_lines(lines)


@options.Verb(
    "a smaller model that is like a trained one",
    {
        "--teacher": required(
            f"model to learn from, tuned or not: {options.ANY_CHECKPOINT}"
        ),
        "--student": "smaller model to train: a recipe such as bert_mini, a file "
        "of sizes (.yaml, bert_config.json), or a checkpoint; not needed with "
        "distillation.init_layers",
        "--labels": flag(
            "learn from the labels of --train, too (default: teacher alone)"
        ),
        "--answers": "file to keep the teacher's answers in, as safetensors, for "
        "other students of the same texts (default: each run asks the teacher)",
        **options.LABELLED_FILES,
        **options.WORKERS,
        **options.RUN,
    },
    needs=options.TENSORFLOW,
    settings_of="finetune",
)
def distill(args: argparse.Namespace) -> None:
    settings = options.finetuning_settings(args, are_complete=False)
    options.check_paths(args.output_dir, models=[args.teacher])
    from bert_keras.lab.distill import distill

    paths = ("teacher", "student", "train", "dev", "data", "answers", "output_dir")
    distill.distill(
        settings,
        has_labels=args.labels,
        **options.named(args, *paths),
        strategy=options.devices(args),
    )


@options.Verb(
    "many runs of `finetune`, the best one on dev",
    {
        "--sweep": "YAML file with a grid, or sweep_paper, sweep_glue, "
        "sweep_learning_curve; not needed with folds",
        "--sweep_set": options.overrides(
            "override one key of --sweep, repeatable (`bert-keras config sweep` prints "
            "them)"
        ),
        "--folds": value(
            "hold each of so many parts of the training file out in turn, without "
            "--dev; for files of folds put {fold} into the names of --train and --dev, "
            "or of --data",
            type=int,
        ),
        "--jobs": value("runs at the same time", default=1),
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
    tuning = options.finetuning_settings(args)
    from bert_keras.lab.sweep import planning

    paths = options.named(args, "train", "dev", "data")
    folds = planning.find_folds(tuning.task, **paths, num_folds=settings.folds)
    if folds[0].name is None and args.sweep is None:
        raise InputError("give a grid with --sweep, or folds with --folds")
    start = options.named(args, "init", "from_scratch")
    _run_sweep(settings, args, folds=folds, **start)


def _run_sweep(
    settings: sweeps.SweepConfig, args: argparse.Namespace, **start: Any
) -> None:
    """Makes the runs, each a `finetune` that begins with this command's options."""
    from bert_keras.lab.sweep import planning, running, summary

    command = planning.Command(
        recipe=args.config,
        overrides=tuple(args.set),
        **options.named(args, "task", "strategy"),
        **start,
    )
    state = running.run_sweep(
        settings, command, output_dir=args.output_dir, num_jobs=args.jobs
    )
    options.print_lines(summary.lines(state))


@options.Verb(
    "which model to start from, and is it worth it",
    {
        "--models": required(f"encoders, each a {options.ANY_CHECKPOINT}", nargs="+"),
        "--from_scratch": flag("compare with random weights of the first model's size"),
        "--fractions": value(
            "shares of the training file to learn from (default: 0.01 0.1 1)",
            nargs="+",
            type=float,
            default=[0.01, 0.1, 1.0],
            metavar="SHARE",
        ),
        "--seeds": value("runs of each model on each share", default=3),
        "--jobs": value("runs at the same time", default=1),
        **options.LABELLED_FILES,
        **options.RUN,
    },
    needs=options.TENSORFLOW,
    settings_of="finetune",
)
def compare(args: argparse.Namespace) -> None:
    tuning = options.finetuning_settings(args)
    from bert_keras.lab.sweep import planning

    paths = options.named(args, "train", "dev", "data")
    data = planning.find_fold(None, tuning.task, **paths)
    settings = planning.plan_comparison(
        tuning, fractions=args.fractions, num_seeds=args.seeds
    )
    models = planning.name_models(args.models, from_scratch=args.from_scratch)
    _run_sweep(settings, args, folds=(data,), models=models)


@options.Verb(
    "vectors of words, from layers of an encoder",
    {
        "--model": required(options.ANY_CHECKPOINT),
        "--input": required("file of texts or of words"),
        "--output": required("directory to create"),
        "--layers": options.layers([-1]),
        "--pooling": choice(
            feature_settings.Pooling,
            "vector of a word: of its first piece, or the mean of all",
            default="first",
        ),
        "--form": choice(
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
    options.check_paths(models=[args.model], input=args.input)
    from bert_keras.inference.features import writing

    writing.write(
        *(args.model, args.input, args.output),
        settings=settings,
        **options.named(args, "layers", "pooling", "form"),
    )


@options.Verb(
    "all stages on text that is on this machine",
    {"--output_dir": required("directory to create")},
    needs=options.TENSORFLOW,
)
def demo(args: argparse.Namespace) -> None:
    from bert_keras.lab import demo

    demo.run(args.output_dir)

"""Verbs that train one model, and the page of a run."""

import argparse

from bert_keras.commands import parser as options
from bert_keras.commands.parser import flag, required
from bert_keras.core import manifest
from bert_keras.core.settings import pretraining


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
    resumes=True,
)
def pretrain(args: argparse.Namespace) -> None:
    settings = options.load_settings(pretraining.PretrainingConfig, args)
    settings.planned_phases(len(args.examples))
    for directory in args.examples:
        manifest.read_manifest(directory, kind="examples")
    pairs = {"set minimal_pairs": settings.minimal_pairs}
    options.check_paths(args.output_dir, vocab=args.vocab, **pairs)
    from bert_keras.checkpoints import conversion
    from bert_keras.training import pretrain

    pretrain.pretrain(
        settings,
        args.examples,
        args.output_dir,
        vocab_path=args.vocab,
        init=conversion.init(args.init) if args.init else None,
        verify=args.verify,
        **options.devices(args),
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
    {
        **options.LABELLED_FILES,
        **options.ENCODER,
        **options.WORKERS,
        **options.RUN,
    },
    needs=options.TENSORFLOW,
    settings_of="finetune",
    resumes=True,
)
def finetune(args: argparse.Namespace) -> None:
    settings = options.finetuning_settings(args)
    from bert_keras.kinds import catalogue

    paths = options.named(args, "train", "dev", "data")
    train, dev = catalogue.find_training_files(settings.task, **paths)
    options.check_paths(args.output_dir, train=args.train)
    from bert_keras.checkpoints import conversion
    from bert_keras.training import finetune

    finetune.finetune(
        settings,
        catalogue.find(settings),
        train=train,
        dev=dev,
        init=conversion.init(args.init),
        from_scratch=args.from_scratch,
        output_dir=args.output_dir,
        **options.devices(args),
    )

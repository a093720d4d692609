"""Verbs that train one model, and the page of a run."""

import argparse
from typing import Any

from bert_keras.commands import parser as options
from bert_keras.core.settings import config


def add_pretrain(verbs: Any) -> None:
    summary = "train an encoder: masked LM + next sentence"
    parser = options.add_verb(
        verbs, "pretrain", summary, pretrain, needs=options.TENSORFLOW
    )
    options.add(
        parser,
        {
            "--examples DIRECTORY...!": "made by `examples`, on disk or on gs://; two, "
            "of 128 and of 512 tokens, for the two phases",
            "--vocab VOCAB": "vocab.txt (default: the examples')",
            "--init INIT": f"model to train further: {options.ANY_CHECKPOINT}",
        },
    )
    options.add_workers(parser)
    verify = (
        "hash the examples again (default: once for each run and machine, never "
        "on gs://, where that reads them all; their sizes are always checked)"
    )
    options.add(parser, {"--verify": verify})
    options.add_config(parser, "pretrain")
    options.add_run(parser)


def pretrain(args: argparse.Namespace) -> None:
    settings = options.load_settings(config.PretrainingConfig, args)
    from bert_keras.training import pretrain

    pretrain.pretrain(
        settings,
        args.examples,
        args.output_dir,
        vocab_path=args.vocab,
        init=args.init,
        verify=args.verify,
        **options.devices(args),
    )


def add_report(verbs: Any) -> None:
    summary = "pictures and a page of what a run did"
    parser = options.add_verb(verbs, "report", summary, report, needs=())
    parser.add_argument("run_dir", metavar="RUN", help="run directory")
    options.add(
        parser, {"--output OUTPUT": "directory to create (default: RUN/report)"}
    )


def report(args: argparse.Namespace) -> None:
    from bert_keras.report import writing

    print(writing.write_report(args.run_dir, args.output))


def add_finetune(verbs: Any) -> None:
    parser = options.add_verb(
        verbs, "finetune", "train on labelled data", finetune, needs=options.TENSORFLOW
    )
    options.add_labelled_files(parser)
    options.add_encoder(parser)
    options.add_workers(parser)
    options.add_config(parser, "finetune")
    options.add_run(parser)


def finetune(args: argparse.Namespace) -> None:
    settings = options.finetuning_settings(args)
    from bert_keras.kinds import catalogue
    from bert_keras.training import finetune

    train, dev = catalogue.find_training_files(
        settings.task, train=args.train, dev=args.dev, data=args.data
    )
    finetune.finetune(
        settings,
        train=train,
        dev=dev,
        init=args.init,
        from_scratch=args.from_scratch,
        output_dir=args.output_dir,
        **options.devices(args),
    )

"""Options of the verbs that tune many models, and of the files they are tuned on."""

import argparse
import typing
from collections.abc import Callable
from typing import Any

from bert_keras.core.settings import config


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Options of `sweep`, beside those of `finetune`."""
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
    parser.add_argument(
        "--folds",
        type=int,
        metavar="N",
        help="hold each of N parts of the training file out in turn, without --dev; "
        "for files of folds put {fold} into the names of --train and --dev, or of "
        "--data",
    )
    _add_jobs(parser)


def add_distill(parser: argparse.ArgumentParser, model: str) -> None:
    """Options of `distill`, beside those of every run.

    Args:
        parser: of the verb.
        model: what may be given as a model.
    """
    parser.add_argument(
        "--teacher",
        required=True,
        metavar="MODEL",
        help=f"trained model to learn from, tuned on a task or not: {model}",
    )
    parser.add_argument(
        "--student",
        metavar="MODEL",
        help="smaller model to train: a recipe such as bert_mini, a file of sizes "
        "(.yaml, bert_config.json), or a checkpoint; not needed with "
        "distillation.init_layers",
    )
    parser.add_argument(
        "--labels",
        action="store_true",
        help="learn from the labels of --train, too (default: from the teacher alone)",
    )
    parser.add_argument(
        "--answers",
        metavar="FILE",
        help="file (.npz) to keep the teacher's answers in, for other students of the "
        "same texts (default: each run asks the teacher)",
    )
    add_files(parser)


def add_compare(parser: argparse.ArgumentParser, model: str) -> None:
    """Options of `compare`, beside `--config` and `--set`.

    Args:
        parser: of the verb.
        model: what may be given as a model.
    """
    parser.add_argument(
        "--models",
        nargs="+",
        required=True,
        metavar="MODEL",
        help=f"encoders to start from, each a {model}",
    )
    parser.add_argument(
        "--from_scratch",
        action="store_true",
        help="compare the first model's size with random weights, too",
    )
    parser.add_argument(
        "--fractions",
        nargs="+",
        type=float,
        default=[0.01, 0.1, 1.0],
        metavar="SHARE",
        help="shares of the training file to learn from (default: 0.01 0.1 1)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=3,
        metavar="N",
        help="runs of each model on each share (default: %(default)s)",
    )
    _add_jobs(parser)
    add_files(parser)


def add_pairs(
    verbs: Any, add_verb: Callable[[Any, str, str], argparse.ArgumentParser]
) -> None:
    """Adds `pairs`, by a function that adds a verb with a summary."""
    parser = add_verb(
        verbs, "pairs", "documents -> pairs of texts that belong together"
    )
    parser.add_argument("--corpus", required=True, help="directory made by `corpus`")
    parser.add_argument(
        "--output",
        required=True,
        help="directory to create, with train.tsv and dev.tsv for `finetune --task "
        "embedding`",
    )
    kinds = typing.get_args(config.PairKind)
    parser.add_argument(
        "--of",
        choices=kinds,
        default=kinds[0],
        help="a document's title and its paragraphs; a paragraph and the next one; or "
        "a sentence and the rest of its paragraph (default: %(default)s)",
    )
    parser.add_argument(
        "--per_document",
        type=int,
        default=4,
        metavar="N",
        help="pairs of a document at most (default: %(default)s)",
    )
    parser.add_argument(
        "--dev_percent",
        type=float,
        default=5.0,
        metavar="P",
        help="documents whose pairs are held out, in percent (default: %(default)s)",
    )


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="runs at the same time (default: %(default)s)",
    )


def add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task",
        help="form of your own data: text, tagging, span, choice or embedding; or a "
        "data set such as MRPC, SQuAD2.0, SWAG, CoNLL-2003 (default: the "
        "configuration's, else text)",
    )
    parser.add_argument("--train", metavar="FILE", help="labelled file to train on")
    parser.add_argument(
        "--dev",
        nargs="+",
        metavar="FILE",
        help="labelled files to evaluate on, the main one first; or a share of the "
        "training file that is held out, such as 10%%, or 2/5 for the second of five",
    )
    parser.add_argument(
        "--data",
        metavar="DIRECTORY",
        help="instead of --train and --dev: the data set's folder, as unpacked",
    )

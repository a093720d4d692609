"""Options of the verbs about machines: is one ready, what does a run take."""

import argparse
import typing
from collections.abc import Callable
from typing import Any

from bert_keras import tpu
from bert_keras.core.settings import config

_DEFAULT = "(default: %(default)s)"


def add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=tpu.PURPOSES,
        default="cpu",
        help="what the machine is to do (default: %(default)s)",
    )
    parser.add_argument(
        "--path",
        nargs="+",
        default=[],
        metavar="DIRECTORY",
        help="directories that a run will read or write, on disk or on gs://: room, "
        "rights",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the findings as JSON"
    )


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Options of `plan`, beside `--config` and `--set`."""
    parser.add_argument(
        "--words", type=float, metavar="N", help="words of text to prepare, such as 3e9"
    )
    parser.add_argument(
        "--masking",
        choices=typing.get_args(
            config.ExamplesConfig.model_fields["masking"].annotation
        ),
        default="static",
        help="of the examples, see `config examples`: dynamic takes 27 times less disk "
        f"{_DEFAULT}",
    )
    parser.add_argument(
        "--max_seq_length",
        nargs="+",
        type=int,
        default=[],
        metavar="N",
        help="tokens of the examples of each phase (default: 128 512)",
    )
    files = parser.add_mutually_exclusive_group()
    files.add_argument(
        "--train",
        metavar="FILE",
        help="labelled file: plan a fine-tuning on it, --config is one of `finetune`",
    )
    files.add_argument(
        "--data", metavar="DIRECTORY", help="folder of a data set, instead of --train"
    )
    parser.add_argument("--vocab", help="vocab.txt of the encoder, with --train")
    parser.add_argument(
        "--cased", action="store_true", help="the vocabulary has capital letters"
    )
    parser.add_argument(
        "--model",
        default="bert_base",
        metavar="RECIPE",
        help=f"recipe of `pretrain` with the encoder to fine-tune {_DEFAULT}",
    )
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument(
        "--sequences_per_second",
        nargs="+",
        type=float,
        metavar="N",
        help="measured speed, as training prints it (seq/s): for each phase, or for "
        "the first one, which gives the others by their FLOPs",
    )
    speed.add_argument(
        "--teraflops",
        type=float,
        metavar="N",
        help="instead: 10^12 operations a second that the devices reach together",
    )
    parser.add_argument(
        "--price_per_hour",
        type=float,
        metavar="DOLLARS",
        help="of all machines of the run",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def add_preflight(parser: argparse.ArgumentParser) -> None:
    """Options of `preflight`, beside `--config` and `--set`."""
    parser.add_argument(
        "--device",
        required=True,
        help="TPU slice by Google's name, such as v5e-8, v4-8, v5p-16 or v6e-1",
    )
    parser.add_argument(
        "--examples",
        metavar="DIRECTORY",
        help="made by `examples`: gives the shapes and the vocabulary's size",
    )
    parser.add_argument(
        "--max_seq_length",
        type=int,
        metavar="N",
        help="instead of --examples: tokens of one",
    )
    parser.add_argument(
        "--task",
        help="fine-tuning on it, of the model that --config trains: text, tagging, "
        "span, choice, or a data set such as MRPC (default: pre-training)",
    )
    parser.add_argument(
        "--global_batch_size",
        type=int,
        metavar="N",
        help="examples of a step on all chips (default: the configuration's; 32 of a "
        "task)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of a table"
    )


def add_launch(
    verbs: Any, add_verb: Callable[[Any, str, str], argparse.ArgumentParser]
) -> None:
    """`launch` and its targets, each with the options that all verbs have."""
    launch = verbs.add_parser("launch", help="run a data job on Google's Dataflow")
    targets = launch.add_subparsers(dest="target", required=True, metavar="TARGET")
    dataflow = add_verb(targets, "dataflow", "submit a data job and wait for its end")
    dataflow.add_argument(
        "--dry_run", action="store_true", help="only print the command"
    )
    _add_dataflow(dataflow)


def _add_dataflow(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(takes_beam_options=True)
    parser.epilog = "The command to run follows `--`: -- corpus --output ..."
    required = {
        "project": "id of the Google Cloud project",
        "region": "region of the bucket, such as europe-west4",
        "temp_location": "folder for staged files: gs://BUCKET/FOLDER",
    }
    for name, what in required.items():
        parser.add_argument(f"--{name}", required=True, help=what)
    parser.add_argument(
        "--machine_type",
        help="(default: n2-highmem-4 for `examples`, else n2-standard-4)",
    )
    counts = {
        "max_num_workers": (16, "machines, at most"),
        "number_of_worker_harness_threads": (
            2,
            "threads of each process, one process for each core",
        ),
    }
    for name, (default, what) in counts.items():
        parser.add_argument(
            f"--{name}",
            type=int,
            default=default,
            metavar="N",
            help=f"{what} {_DEFAULT}",
        )
    parser.add_argument(
        "--sdk_container_image",
        help="container image with this package (default: Beam's, with our wheel)",
    )

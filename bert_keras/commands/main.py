"""The command line: one verb for each stage of a model's life.

Every verb imports its work when it is called, so `--help` answers at once and the
data verbs never load TensorFlow.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from bert_keras import __version__
from bert_keras.commands import data, lab, machines, models, parser, signals, training
from bert_keras.core import messages, requirements
from bert_keras.core.errors import InputError, NotRun, Stopped, Unavailable

OVERVIEW = """\
usage: bert-keras VERB ...

bert-keras demo --output_dir demo    all stages on text that is on this machine
bert-keras help                      all verbs
bert-keras help VERB                 the options of a verb
bert-keras config VERB               the settings of a verb, for --set

A model of your own: corpus, vocab, examples, pretrain. A task on a model: finetune,
evaluate, predict, report, export. Other programs' checkpoints: convert."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the process's exit code.

    0 when done, 2 when the user can fix the problem, 75 when a store did not answer for
    minutes, 130 when interrupted, 143 after SIGTERM.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments:
        print(OVERVIEW, file=sys.stderr)
        return 2
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    messages.configure()
    name = "bert-keras"
    try:
        args = build_parser().parse_command(arguments)
        messages.configure(quiet=args.quiet, as_json=args.log == "json")
        name = f"bert-keras {args.verb}"
        _prepare(args)
        args.run(args)
    except InputError as error:
        messages.print_final_error(f"{name}: error: {error}")
        return 2
    except Unavailable as error:
        messages.print_final_error(f"{name}: error: {error}")
        return error.exit_code
    except OSError as error:
        # An error without a file name is a bug of ours or a closed pipe.
        if error.filename is None:
            raise
        reason = error.strerror or error
        messages.print_final_error(f"{name}: error: {error.filename}: {reason}")
        return 2
    except NotRun as reason:
        messages.print_final_error(f"{name}: {reason}", level=logging.INFO)
    except Stopped as reason:
        messages.print_final_error(f"{name}: {reason}", level=logging.WARNING)
        return reason.exit_code
    except KeyboardInterrupt:
        messages.print_final_error(f"{name}: interrupted")
        return 130
    return 0


def build_parser() -> parser.Parser:
    """Builds the parser; `--help` lists the verbs in this order."""
    command_line = parser.Parser(
        prog="bert-keras",
        description="Your own BERT, from raw text to a served model.",
    )
    command_line.add_argument("--version", action="version", version=__version__)
    verbs = command_line.add_verbs(data.VERBS)
    launch = verbs.add_parser("launch", help="run a data job on Google's Dataflow")
    targets = launch.add_subparsers(dest="target", required=True, metavar="TARGET")
    machines.launch_dataflow.add_to(targets)
    model_verbs = (
        *(training.pretrain, machines.preflight, training.report),
        *(models.fill_mask, models.score),
        *(training.finetune, lab.distill, lab.sweep, lab.compare, models.evaluate),
        *(models.predict, models.negatives, models.export, lab.features),
        *(models.convert, machines.show_config, machines.doctor, machines.plan),
        lab.demo,
    )
    for verb in model_verbs:
        verb.add_to(verbs)
    return command_line


def _prepare(args: argparse.Namespace) -> None:
    if args.needs is None:
        return
    requirements.check_packages(args.verb)
    if args.needs:
        requirements.check_backend(args.verb, args.needs)
    requirements.quiet_tensorflow()
    if getattr(args, "workers", None) or "TF_CONFIG" in os.environ:
        # A batch that cannot be read ends the sums of all workers for good, so
        # TensorFlow asks `gs://` again for five minutes, not for one: its pauses double
        # from a tenth of a second to 32. One worker alone tries again itself.
        os.environ.setdefault("GCS_RETRY_CONFIG_MAX_RETRIES", "17")


def entry_point() -> NoReturn:
    signals.end_this_process()
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os._exit(1)
    sys.stderr.flush()
    if code:
        # A pipeline that failed may have left threads that wait for dead workers.
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    entry_point()

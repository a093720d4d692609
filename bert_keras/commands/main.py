"""The command line: one verb for each stage of a model's life.

Every verb imports its work when it is called, so `--help` answers at once and the
data verbs never load TensorFlow.
"""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from bert_keras import __version__
from bert_keras.commands import data, machines, models, parser, training
from bert_keras.core import messages, requirements, stores
from bert_keras.core.errors import InputError, NotRun, Stopped, Unavailable


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the process's exit code.

    0 when done, 2 when the user can fix the problem, 75 when a store did not answer for
    minutes, 130 when interrupted, 143 after SIGTERM.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments:
        print(build_parser().format_help(), end="", file=sys.stderr)
        return 2
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    messages.configure()
    name, resumes = "bert-keras", False
    try:
        args = build_parser().parse_command(arguments)
        messages.configure(quiet=args.quiet, as_json=args.log == "json")
        name, resumes = f"bert-keras {args.verb}", args.command.resumes
        _prepare(args)
        args.command.run(args)
    except (InputError, Unavailable) as error:
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
        # Training says at which step.
        way_out = "; run the same command again to resume" if resumes else ""
        text = str(reason) or f"stopped by SIGTERM{way_out}"
        messages.print_final_error(f"{name}: {text}", level=logging.WARNING)
        return reason.exit_code
    except KeyboardInterrupt:
        messages.print_final_error(f"{name}: interrupted")
        return 130
    return 0


VERBS: Mapping[str, tuple[parser.Verb, ...]] = {
    "Text": data.VERBS,
    "Pre-training": (training.pretrain, models.fill_mask, models.score),
    "Your own labels": (
        *(training.finetune, models.evaluate, models.calibrate, models.negatives),
        training.check_labels,
    ),
    "Answers and serving": (
        *(models.predict, models.explain, models.serve, models.index, models.search),
        *(training.features, models.export, models.convert),
    ),
    "Comparing": (training.report, training.sweep, training.compare, training.distill),
    "Machines and settings": (
        *(machines.config, machines.doctor, machines.plan, machines.preflight),
        training.demo,
    ),
}
"""Verbs by what people do with them, as `--help` lists them."""
_USUAL = {"pretrain", "finetune", "evaluate", "predict", "export"}
_LAUNCH = "run a data job on Google's Dataflow"


def build_parser() -> parser.Parser:
    lines = ["Your own BERT, from raw text to a served model."]
    for group, verbs in VERBS.items():
        lines += ["", f"{group}:"]
        for verb in verbs:
            mark = "*" if verb.name in _USUAL else " "
            lines.append(f" {mark} {verb.name:14}{verb.summary}")
    lines += [f"   {'launch':14}{_LAUNCH}", "", "* the verbs that most people need"]
    command_line = parser.Parser(
        prog="bert-keras",
        description="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command_line.add_argument("--version", action="version", version=__version__)
    below = command_line.add_subparsers(
        dest="verb",
        required=True,
        metavar="VERB",
        help="`help VERB` prints its options, `config VERB` its settings",
    )
    for verbs in VERBS.values():
        for verb in verbs:
            verb.add_to(below)
    launch = below.add_parser("launch", description=_LAUNCH)
    targets = launch.add_subparsers(dest="target", required=True, metavar="TARGET")
    machines.dataflow.add_to(targets)
    return command_line


def _prepare(args: argparse.Namespace) -> None:
    backends = args.command.needs
    if backends is None:
        # Beam reports on import that its cloud parts are missing.
        logging.getLogger().setLevel(logging.ERROR)
        logging.getLogger("apache_beam").setLevel(logging.ERROR)
        return
    requirements.check_packages(args.verb)
    if backends:
        requirements.check_backend(args.verb, backends)
    requirements.quiet_tensorflow()
    if getattr(args, "workers", None) or "TF_CONFIG" in os.environ:
        # A batch that cannot be read ends the sums of all workers for good, so
        # TensorFlow asks `gs://` again for five minutes, not for one: its pauses double
        # from a tenth of a second to 32. One worker alone tries again itself.
        os.environ.setdefault("GCS_RETRY_CONFIG_MAX_RETRIES", "17")


_GRACE_SECONDS = 20.0
"""Time between a signal and the end of a process that a silent store holds up, without
`_ANSWER_SECONDS`: clouds give 30 in all."""
_ANSWER_SECONDS = 5.0
"""Time in which a store that is there answers."""


def _end_at_signals() -> None:
    """Makes SIGTERM and Ctrl-C end this process even if a store does not answer.

    Python's handlers wait for the call that the main thread is in, such as TensorFlow's
    read of a batch, which may take minutes. So a thread receives the signal, asks the
    stores, and ends the process, whose state may be in the middle of a step.
    """

    def stop(*_: object) -> NoReturn:
        # Unless a verb answers SIGTERM itself; `main` words the message.
        raise Stopped("")

    signal.signal(signal.SIGTERM, stop)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # A forked process shares the pipe, and must not write its own signals to it.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()


def _watch(pipe: int) -> None:
    number = 0
    while number not in (signal.SIGTERM, signal.SIGINT):
        number = os.read(pipe, 1)[0]
    time.sleep(_GRACE_SECONDS)
    while stores.all_answer(seconds=_ANSWER_SECONDS):
        time.sleep(1)
    messages.print_final_error(
        f"bert-keras: stopped by {signal.Signals(number).name} while a store does not "
        "answer, and not saved; run the same command again",
        level=logging.WARNING,
    )
    os._exit(128 + number)


def entry_point() -> NoReturn:
    _end_at_signals()
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

"""The parser of the command line, and the options that several verbs share."""

import argparse
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from bert_keras import tpu
from bert_keras.commands import config_page
from bert_keras.core.errors import InputError, check_choice, nearest
from bert_keras.core.settings import finetuning, loading

ANY_CHECKPOINT = "run directory, or any checkpoint that `convert` reads"
CASED = "keep case and accents (default: lower case without accents)"
DEFAULT = "(default: %(default)s)"

TENSORFLOW = ("tensorflow",)
"""Backends of the verbs that train by `tf.distribute`, or export a `tf.function`."""
KERAS = ("tensorflow", "jax")
"""Backends of the verbs that only run a network."""


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors that name the nearest option."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def parse_command(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses a command; Beam's options, after `--`, become `beam_arguments`."""
        arguments, beam_arguments = split_at_dashes(arguments)
        args = self.parse_args(arguments)
        if beam_arguments and not args.takes_beam_options:
            raise InputError(f"`{args.verb}` takes nothing after `--`")
        args.beam_arguments = beam_arguments
        return args

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name, _, value = unknown[0].partition("=")
            verb, value = self.get_default("settings_of"), value or unknown[1:2]
            hint = config_page.option_of(verb, name, "".join(value))
            hint = hint or nearest(name, self._option_string_actions)
            self.error(f"no option {name!r}{hint}")
        return namespace, unknown

    def _check_value(self, action, value):  # type: ignore[override]
        if action.choices is not None:
            name = action.option_strings[0] if action.option_strings else action.dest
            try:
                check_choice(name, value, action.choices)
            except InputError as error:
                self.error(str(error))

    def error(self, message: str) -> NoReturn:
        prog = self.prog.removeprefix("bert-keras").strip()
        raise InputError(f"{prog}: {message}" if prog else message)


def split_at_dashes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return list(arguments), []
    position = list(arguments).index("--")
    return list(arguments[:position]), list(arguments[position + 1 :])


def add_verb(
    verbs: Any,
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], None],
    *,
    needs: tuple[str, ...] | None = None,
) -> argparse.ArgumentParser:
    """Adds a verb, with the options that all verbs have.

    `needs` are the Keras backends that the verb runs on, besides the packages of
    `train`; `()` for the packages alone, `None` for neither.
    """
    parser = verbs.add_parser(name, help=summary, description=summary)
    parser.set_defaults(run=run, needs=needs, takes_beam_options=False)
    add(parser, {"--quiet": "print only results, warnings and errors"})
    add_choice(
        parser, "--log", Literal["text", "json"], "form of the messages on stderr"
    )
    return parser


def add(container: Any, helps: Mapping[str, str]) -> None:
    """Adds options to a parser or a group.

    `helps` has the meaning of each option: `--name`, a flag; `--name METAVAR`, with a
    value; `--name METAVAR...`, with several; `--name N=7` or `--name N=0.5`, a number
    and its default; `--name N=int` or `--name N=float`, a number without a default. A
    `!` at the end: the option must be given.
    """
    for spec, what in helps.items():
        name, _, rest = spec.partition(" ")
        metavar, _, default = rest.removesuffix("!").partition("=")
        details: dict[str, Any] = {"required": True} if spec.endswith("!") else {}
        if not rest:
            details["action"] = "store_true"
        else:
            details["metavar"] = metavar.removesuffix("...")
        if metavar.endswith("..."):
            details["nargs"] = "+"
        if default in ("int", "float"):
            details["type"] = int if default == "int" else float
        elif default:
            details["type"] = float if "." in default else int
            details["default"] = details["type"](default)
            what = f"{what} {DEFAULT}"
        container.add_argument(name, help=what, **details)


def add_choice(
    parser: argparse.ArgumentParser,
    option: str,
    choices: Any,
    what: str,
    *,
    has_default: bool = True,
    required: bool = False,
) -> None:
    """Adds an option for one of a Literal's values; the first one is the default."""
    known = typing.get_args(choices)
    parser.add_argument(
        option,
        required=required,
        choices=known,
        default=known[0] if has_default else None,
        help=f"{what} {DEFAULT}" if has_default else what,
    )


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


# Options of several verbs, and what they mean.


def add_config(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.set_defaults(settings_of=verb)
    parser.add_argument(
        "--config",
        help="YAML file with settings, or a recipe's name (`bert-keras config list`)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one setting, nested keys with dots; repeatable "
        f"(`bert-keras config {verb}` prints all settings)",
    )


def load_settings(
    model: type[loading.Config], args: argparse.Namespace, *overrides: str
) -> loading.Config:
    """Loads the settings of `--config`, `overrides` and `--set`, the last one wins."""
    return loading.load(model, args.config, [*overrides, *args.set])


def add_run(parser: argparse.ArgumentParser) -> None:
    *first, last = tpu.STRATEGIES
    add(parser, {"--output_dir OUTPUT_DIR!": "run directory to create"})
    parser.add_argument(
        "--strategy",
        default="auto",
        help=f"devices to train on: {', '.join(first)} or {last} {DEFAULT}",
    )


def add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=lambda text: text.split(","),
        default=(),
        metavar="HOST:PORT,...",
        help="addresses of all processes that train together, the chief's first "
        "(default: this process trains alone)",
    )
    add(parser, {"--worker_index N=int": "place of this process in --workers, from 0"})


def devices(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments `strategy` and `is_chief` of a training."""
    from bert_keras.tpu import strategy

    chosen = strategy.get_strategy(
        args.strategy, workers=args.workers, worker_index=args.worker_index
    )
    return {"strategy": chosen, "is_chief": strategy.is_chief(chosen)}


def add_labelled_files(parser: argparse.ArgumentParser) -> None:
    add(
        parser,
        {
            "--task TASK": "form of your own data: text, tagging, span, choice or "
            "embedding; or a data set such as MRPC, SQuAD2.0, SWAG, CoNLL-2003 "
            "(default: the configuration's, else text)",
            "--train FILE": "labelled file to train on",
            "--dev FILE...": "labelled files to evaluate on, the main one first; or a "
            "share of the training file that is held out, such as 10%%, or 2/5 for the "
            "second of five",
            "--data DIRECTORY": "instead of --train and --dev: the data set's folder, "
            "as unpacked",
        },
    )


def add_encoder(parser: argparse.ArgumentParser) -> None:
    add(
        parser,
        {
            "--init INIT!": f"encoder to start from: {ANY_CHECKPOINT}",
            "--from_scratch": "take size and vocabulary from --init but random "
            "weights: a baseline",
        },
    )


def finetuning_settings(args: argparse.Namespace) -> finetuning.FinetuningConfig:
    overrides = [f"task={args.task}"] if args.task else []
    settings = load_settings(finetuning.FinetuningConfig, args, *overrides)
    from bert_keras.kinds import catalogue

    catalogue.check_name(settings.task)
    return settings


def add_layers(parser: argparse.ArgumentParser, default: list[int] | None) -> None:
    parser.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=default,
        metavar="N",
        help="layers whose vectors to write: 0 is the embeddings, 1 the first layer, "
        "-1 the last one (default: -1)",
    )


def add_beam(parser: argparse.ArgumentParser) -> None:
    add(
        parser,
        {
            "--workers N=1": "local processes",
            "--memory_limit GB=4.0": "memory of all local processes together, in GB",
        },
    )
    parser.epilog = "Options after `--` go to Beam, such as -- --runner ..."
    parser.set_defaults(takes_beam_options=True)

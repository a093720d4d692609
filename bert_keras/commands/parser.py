"""The parser of the command line, and the options that several verbs share."""

import argparse
import dataclasses
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

    def add_verbs(self, verbs: "Iterable[Verb]") -> Any:
        """Adds verbs; returns argparse's object that takes more of them."""
        subparsers = self.add_subparsers(dest="verb", required=True, metavar="VERB")
        for verb in verbs:
            verb.add_to(subparsers)
        return subparsers

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


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb of the command line; it decorates the function that it runs."""

    summary: str
    options: Mapping[str, Any]
    """The meaning of each option: `--name`, a flag; `--name METAVAR`, with a value;
    `--name METAVAR...`, with several; `--name N=7`, `--name N=0.5` or
    `--name TEXT=auto`, a value and its default; `--name N=int` or `--name N=float`, a
    number without a default; `name`, an argument. A `!` at the end: the option must be
    given. A pair of a Literal and the meaning: one of the Literal's values, by default
    the first, or with a `?` at the end of the name none. A dictionary: the arguments of
    argparse."""
    name: str | None = None
    """`None`: the function's, with dashes."""
    needs: tuple[str, ...] | None = None
    """Keras backends that the verb runs on, besides the packages of `train`; `()` for
    the packages alone, `None` for neither."""
    settings_of: str | None = None
    """Verb whose settings `--config` and `--set` give; `None`: there are none."""
    dashes: str | None = None
    """Sentence about the arguments after `--`; `None`: there may be none."""
    exclusive: tuple[tuple[str, ...], ...] = ()
    """Names of options that do not go together."""
    run: Callable[[argparse.Namespace], None] | None = None

    def __call__(self, run: Callable[[argparse.Namespace], None]) -> "Verb":
        name = self.name or run.__name__.replace("_", "-")
        return dataclasses.replace(self, name=name, run=run)

    def add_to(self, verbs: Any) -> None:
        """Adds the verb's parser, with the options that all verbs have."""
        parser = verbs.add_parser(
            self.name, help=self.summary, description=self.summary, epilog=self.dashes
        )
        parser.set_defaults(
            run=self.run,
            needs=self.needs,
            settings_of=self.settings_of,
            takes_beam_options=self.dashes is not None,
        )
        settings = _config_options(self.settings_of) if self.settings_of else {}
        containers = {}
        for names in self.exclusive:
            containers |= dict.fromkeys(names, parser.add_mutually_exclusive_group())
        for spec, what in {**self.options, **settings, **_ALL_VERBS}.items():
            name, details = _details(spec, what)
            containers.get(name, parser).add_argument(name, **details)


def _details(spec: str, what: Any) -> tuple[str, dict[str, Any]]:
    """Returns the name of one of a `Verb`'s options, and its arguments for argparse."""
    if isinstance(what, dict):
        return spec, what
    name, _, rest = spec.rstrip("!?").partition(" ")
    metavar, _, default = rest.partition("=")
    details: dict[str, Any] = {"required": True} if spec.endswith("!") else {}
    if isinstance(what, tuple):
        choices, what = what
        details["choices"] = typing.get_args(choices)
        if spec == name:
            details["default"] = details["choices"][0]
    elif rest:
        details["metavar"] = metavar.removesuffix("...")
    elif name.startswith("-"):
        details["action"] = "store_true"
    if metavar.endswith("..."):
        details["nargs"] = "+"
    if default in ("int", "float"):
        details["type"] = int if default == "int" else float
    elif default:
        is_number = default.replace(".", "").isdigit()
        kind = str if not is_number else float if "." in default else int
        details |= {"type": kind, "default": kind(default)}
    return name, {
        **details,
        "help": f"{what} {DEFAULT}" if "default" in details else what,
    }


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


# Options of several verbs, and what they mean.

_ALL_VERBS = {
    "--quiet": "print only results, warnings and errors",
    "--log": (Literal["text", "json"], "form of the messages on stderr"),
}

BEAM = {
    "--workers N=1": "local processes",
    "--memory_limit GB=4.0": "memory of all local processes together, in GB",
}
TO_BEAM = "Options after `--` go to Beam, such as -- --runner ..."

RUN = {
    "--output_dir OUTPUT_DIR!": "run directory to create",
    "--strategy STRATEGY=auto": "devices to train on: "
    f"{', '.join(tpu.STRATEGIES[:-1])} or {tpu.STRATEGIES[-1]}",
}

WORKERS = {
    "--workers": {
        "type": lambda text: text.split(","),
        "default": (),
        "metavar": "HOST:PORT,...",
        "help": "addresses of all processes that train together, the chief's first "
        "(default: this process trains alone)",
    },
    "--worker_index N=int": "place of this process in --workers, from 0",
}

LABELLED_FILES = {
    "--task TASK": "form of your own data: text, tagging, span, choice, embedding or "
    "ranking; or a data set such as MRPC, SQuAD2.0, SWAG, CoNLL-2003 (default: the "
    "configuration's, else text)",
    "--train FILE": "labelled file to train on",
    "--dev FILE...": "labelled files to evaluate on, the main one first; or a share of "
    "the training file that is held out, such as 10%%, or 2/5 for the second of five",
    "--data DIRECTORY": "instead of --train and --dev: the data set's folder, as "
    "unpacked",
}

ENCODER = {
    "--init INIT!": f"encoder to start from: {ANY_CHECKPOINT}",
    "--from_scratch": "take size and vocabulary from --init but random weights: a "
    "baseline",
}


def layers(default: list[int] | None) -> dict[str, Any]:
    return {
        "type": int,
        "nargs": "+",
        "default": default,
        "metavar": "N",
        "help": "layers whose vectors to write: 0 is the embeddings, 1 the first "
        "layer, -1 the last one (default: -1)",
    }


def overrides(option: str, what: str) -> dict[str, Any]:
    """Returns an option for settings, given once for each of them."""
    details = {"action": "append", "default": [], "metavar": "KEY=VALUE", "help": what}
    return {option: details}


def _config_options(verb: str) -> dict[str, Any]:
    return {
        "--config CONFIG": "YAML file with settings, or a recipe's name (`bert-keras "
        "config list`)",
        **overrides(
            "--set",
            "override one setting, nested keys with dots; repeatable (`bert-keras "
            f"config {verb}` prints all settings)",
        ),
    }


def load_settings(
    model: type[loading.Config], args: argparse.Namespace, *overrides: str
) -> loading.Config:
    """Loads the settings of `--config`, `overrides` and `--set`, the last one wins."""
    return loading.load(model, args.config, [*overrides, *args.set])


def finetuning_settings(args: argparse.Namespace) -> finetuning.FinetuningConfig:
    overrides = [f"task={args.task}"] if args.task else []
    settings = load_settings(finetuning.FinetuningConfig, args, *overrides)
    from bert_keras.kinds import catalogue

    catalogue.check_name(settings.task)
    return settings


def devices(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments `strategy` and `is_chief` of a training."""
    from bert_keras.tpu import strategy

    chosen = strategy.get_strategy(
        args.strategy, workers=args.workers, worker_index=args.worker_index
    )
    return {"strategy": chosen, "is_chief": strategy.is_chief(chosen)}

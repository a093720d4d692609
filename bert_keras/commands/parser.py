"""The parser of the command line, and the options that several verbs share."""

import argparse
import dataclasses
import shlex
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from bert_keras import tpu
from bert_keras.commands import config_page
from bert_keras.core import files, ownership
from bert_keras.core.errors import InputError, check_choice, nearest
from bert_keras.core.settings import finetuning, loading, strict, tasks

ANY_CHECKPOINT = "run directory, or any checkpoint that `convert` reads"

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
        end = arguments.index("--") if "--" in arguments else len(arguments)
        args = self.parse_args(arguments[:end])
        args.beam_arguments = list(arguments[end + 1 :])
        if args.beam_arguments and args.command.dashes is None:
            raise InputError(f"`{args.verb}` takes nothing after `--`")
        return args

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        namespace, unknown = super().parse_known_args(args, namespace)
        if not unknown:
            return namespace, unknown
        name, _, value = unknown[0].partition("=")
        halves = [key for key in getattr(namespace, "set", ()) if "=" not in key]
        if halves and not name.startswith("--"):
            self.error(f"--set takes KEY=VALUE in one word: --set {halves[-1]}={name}")
        if not name.startswith("-"):
            self.error(f"did not expect {name!r}, which belongs to no option")
        # A setting is given by --set; the value is in this word or in the next.
        command = self.get_default("command")
        model = command and config_page.CONFIGURATIONS.get(command.settings_of)
        key = name.lstrip("-").replace("-", "_")
        keys = strict.keys_named(model, key) if model else []
        value = value or "".join(unknown[1:2])
        value = "VALUE" if not value or value.startswith("--") else value
        ways = [f"--set {shlex.quote(f'{key}={value}')}" for key in keys]
        hint = f"; it is a setting: {' or '.join(ways)}" if ways else ""
        hint = hint or nearest(name, self._option_string_actions)
        self.error(f"no option {name!r}{hint}")

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


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb of the command line; it decorates the function that does the work."""

    summary: str
    options: Mapping[str, str | dict[str, Any]]
    """Arguments of argparse's `add_argument` by name, as `value` and others make them,
    or the help of an option with a text as its value. A default that is a number gives
    the type. A name without dashes is that of a positional argument."""
    needs: tuple[str, ...] | None = None
    """Keras backends that the verb runs on, besides the packages of `train`; `()` for
    the packages alone, `None` for neither."""
    settings_of: str | None = None
    """Verb whose settings `--config` and `--set` give; `None`: there are none."""
    dashes: str | None = None
    """Sentence about the arguments after `--`; `None`: there may be none."""
    exclusive: tuple[tuple[str, ...], ...] = ()
    """Names of options that exclude each other."""
    name: str = ""
    """The function's, with dashes."""
    run: Callable[[argparse.Namespace], None] | None = None

    @property
    def resumes(self) -> bool:
        """Whether the same command continues where it was stopped: in the directory of
        a run, as a job of Beam, or as an index."""
        is_resumable = {"--output_dir", "--add"} & self.options.keys()
        return bool(is_resumable) or self.dashes is not None

    def __call__(self, run: Callable[[argparse.Namespace], None]) -> "Verb":
        return dataclasses.replace(self, name=run.__name__.replace("_", "-"), run=run)

    def add_to(self, verbs: Any) -> None:
        """Adds the verb's parser, with the options that all verbs have."""
        parser = verbs.add_parser(
            self.name, description=self.summary, epilog=self.dashes
        )
        parser.set_defaults(command=self)
        settings: dict[str, Any] = {}
        if self.settings_of:
            settings["--config"] = (
                "YAML file with settings, or a recipe (`bert-keras config list`)"
            )
            settings["--set"] = overrides(
                "override one setting, nested keys with dots; repeatable (`bert-keras "
                f"config {self.settings_of}` prints all settings)"
            )
        groups = {}
        for names in self.exclusive:
            groups |= dict.fromkeys(names, parser.add_mutually_exclusive_group())
        for name, details in {**self.options, **settings, **_ALL_VERBS}.items():
            arguments = value(details) if isinstance(details, str) else details
            help, default = arguments["help"], arguments.get("default")
            if isinstance(default, int | float):
                arguments = {"type": type(default), **arguments}
            if isinstance(default, int | float | str) and "default: " not in help:
                arguments = {**arguments, "help": f"{help} (default: %(default)s)"}
            groups.get(name, parser).add_argument(name, **arguments)


# An option as arguments of argparse's `add_argument`.


def value(help: str, **details: Any) -> dict[str, Any]:
    return {"help": help, **details}


def required(help: str, **details: Any) -> dict[str, Any]:
    return value(help, required=True, **details)


def flag(help: str) -> dict[str, Any]:
    return value(help, action="store_true")


def choice(literal: Any, help: str, **details: Any) -> dict[str, Any]:
    """One of the values of a `Literal`."""
    return value(help, choices=typing.get_args(literal), **details)


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def print_result(args: argparse.Namespace, facts: Any, lines: Iterable[str]) -> None:
    """Prints facts as `--json` or in lines."""
    print_lines([files.to_json(facts, indent=2)] if args.json else lines)


# Options of several verbs.

CASED = value(
    "keep case and accents (default: lower case without accents)",
    action="store_false",
    dest="do_lower_case",
)

_ALL_VERBS = {
    "--quiet": flag("print only results, warnings and errors"),
    "--log": value(
        "form of the messages on stderr", choices=("text", "json"), default="text"
    ),
}

BEAM = {
    "--workers": value("local processes", default=1),
    "--memory_limit": value("GB of all local processes together", default=4.0),
}
TO_BEAM = "Options after `--` go to Beam, such as -- --runner ..."

RUN = {
    "--output_dir": required("run directory to create"),
    "--strategy": value(
        "devices to train on: "
        f"{', '.join(tpu.STRATEGIES[:-1])} or {tpu.STRATEGIES[-1]}",
        default="auto",
    ),
}

WORKERS = {
    "--workers": value(
        "addresses of all processes that train together, the chief's first "
        "(default: this process trains alone)",
        type=lambda text: text.split(","),
        default=(),
        metavar="HOST:PORT,...",
    ),
    "--worker_index": value("place of this process in --workers, from 0", type=int),
}

LABELLED_FILES = {
    "--task": f"form of your own data ({', '.join(tasks.FORMS)}), or a data set such "
    "as MRPC, SQuAD2.0, SWAG, CoNLL-2003 (default: the configuration's, else text)",
    "--train": "labelled file to train on",
    "--dev": value(
        "labelled files to evaluate on, the main one first; or a share of the training "
        "file that is held out, such as 10%%, or 2/5 for the second of five",
        nargs="+",
    ),
    "--calibrate": "share of the training file to set aside for `calibrate`, such as "
    "10%%: neither trained nor evaluated on",
    "--data": "instead of --train and --dev: the data set's folder, as unpacked",
}

ENCODER = {
    "--init": required(f"encoder to start from: {ANY_CHECKPOINT}"),
    "--from_scratch": flag(
        "random weights of the size of --init, with its vocabulary: a baseline"
    ),
}


def layers(default: list[int] | None) -> dict[str, Any]:
    return value(
        "layers whose vectors to write: 0 is the embeddings, 1 the first layer, -1 the "
        "last one (default: -1)",
        type=int,
        nargs="+",
        default=default,
        metavar="N",
    )


def overrides(help: str) -> dict[str, Any]:
    """Returns an option for settings, given once for each of them."""
    return value(help, action="append", default=[], metavar="KEY=VALUE")


def named(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Returns some of a command's arguments by name, as keywords of a function."""
    return {name: getattr(args, name) for name in names}


def load_settings(
    model: type[loading.Config], args: argparse.Namespace, *overrides: str
) -> loading.Config:
    """Loads the settings of `--config`, `overrides` and `--set`, the last one wins."""
    if args.config in loading.recipe_names():
        owner = config_page.verb_of_recipe(args.config)
        models = config_page.CONFIGURATIONS
        if models[owner] is not model:
            verb = next(name for name in models if models[name] is model)
            raise InputError(
                f"--config {args.config}: a recipe of `{owner}`, not of `{verb}`; "
                "`bert-keras config list` prints them all"
            )
    return loading.load(model, args.config, [*overrides, *args.set])


def check_paths(
    output_dir: str | None = None, *, models: Iterable[str] = (), **inputs: str | None
) -> None:
    """Refuses missing inputs, by option, missing models and an output directory in use,
    before TensorFlow is loaded."""
    for name, path in inputs.items():
        if path in (None, "-"):  # `-` is standard input
            continue
        # A store has no directories, only names that begin alike.
        if not (files.exists(path) or files.list_directory(path)):
            raise InputError(f"--{name} {path}: no such file or directory")
    if output_dir is not None:
        ownership.check_free(output_dir)
    # A run that goes on needs no model to begin with.
    if output_dir is None or files.is_new(output_dir):
        for model in models:
            files.check_model_exists(model)


def finetuning_settings(
    args: argparse.Namespace, *, are_complete: bool = True
) -> finetuning.FinetuningConfig:
    """Loads the settings of `finetune`. Those of `distill`, which are completed with
    its teacher's, need not fit together yet."""
    from bert_keras.kinds import catalogue, splits

    overrides = [f"task={args.task}"] if args.task else []
    # Not all verbs that train have the option.
    if (calibrate := getattr(args, "calibrate", None)) is not None:
        share = splits.parse_share(calibrate, "--calibrate")
        # Among the overrides that the runs of a sweep get.
        args.set = [*args.set, f"calibration_fraction={share:.12g}"]
    settings = load_settings(finetuning.FinetuningConfig, args, *overrides)
    catalogue.check_name(settings.task)
    if are_complete:
        catalogue.check_settings(settings)
    return settings


def devices(args: argparse.Namespace) -> Any:
    """Returns the `tf.distribute.Strategy` of a training."""
    from bert_keras.tpu import strategy

    workers = named(args, "workers", "worker_index")
    return strategy.get_strategy(args.strategy, **workers)

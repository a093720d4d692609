"""The names that users type: verbs with their options, and names of the library.

`python -m tests.test_public_names` rewrites the list; a name that goes is a decision.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import bert_keras
from bert_keras.commands import main as cli

LIST = Path(__file__).parent / "golden" / "public_names.txt"


def verbs_and_options(
    of: argparse.ArgumentParser, prefix: tuple[str, ...] = ()
) -> Iterator[str]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, verb in action.choices.items():
                yield from verbs_and_options(verb, (*prefix, name))
        else:
            yield " ".join((*prefix, *(action.option_strings or [action.dest.upper()])))


def public_names() -> str:
    library = [f"from bert_keras import {name}" for name in bert_keras.__all__]
    lines = sorted({*library, *verbs_and_options(cli.build_parser())})
    return "".join(f"{line}\n" for line in lines)


def test_public_names_are_those_of_the_list():
    assert public_names() == LIST.read_text(encoding="utf-8")


if __name__ == "__main__":
    LIST.write_text(public_names(), encoding="utf-8")

"""Entry point inside a Dataflow template's image: parameters -> command.

Dataflow's launcher calls it with `--name=value` for each parameter of the template and
for each of Beam's options.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence


def command(parameters: Sequence[str]) -> list[str]:
    """The words of the `bert-keras` command for a job's parameters."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--verb", required=True)
    parser.add_argument("--arguments", required=True)
    ours, beam = parser.parse_known_args(parameters)
    return [ours.verb, *shlex.split(ours.arguments), "--", *beam]


if __name__ == "__main__":
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bert_keras.cli", *command(sys.argv[1:])]
    )
    sys.exit(done.returncode)

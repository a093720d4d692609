"""Runs commands, each in a process that is forked from this one after its imports.

Takes a command as a line of JSON, and answers with its exit code and what it said.
"""

import importlib
import json
import os
import sys
import tempfile

from bert_keras.commands import main as commands


def run(words: list[str]) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            code = 1
            try:
                code = commands.main(words)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                # Without the end of the process that it was forked from.
                os._exit(code)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read()


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)

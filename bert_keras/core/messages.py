"""Messages of a command on stderr: for people, for programs, or errors alone."""

import json
import logging
import sys

PACKAGE = "bert_keras"


class JsonLines(logging.Formatter):
    """A message as a line of JSON: `time` in seconds since 1970, `level`, `message`."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": round(record.created, 3),
                "level": record.levelname.lower(),
                "message": record.getMessage(),
            }
        )


def configure(*, quiet: bool = False, as_json: bool = False) -> None:
    """Sets what this process writes to stderr. `quiet`: only warnings and errors, and
    no progress. `as_json`: each message, also on progress, is a line of JSON."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logger = logging.getLogger(PACKAGE)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.handlers = []
    # The root's handler would write each message a second time, as text.
    logger.propagate = not as_json
    if as_json:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonLines())
        logger.addHandler(handler)
    # `progress.Progress` writes its lines by itself unless it is told otherwise here.
    logging.getLogger("bert_keras.core.progress").disabled = quiet


def is_json() -> bool:
    return bool(logging.getLogger(PACKAGE).handlers)


def print_final_error(text: str, *, level: int = logging.ERROR) -> None:
    if is_json():
        record = logging.LogRecord(PACKAGE, level, "", 0, text, None, None)
        text = JsonLines().format(record)
    print(text, file=sys.stderr)

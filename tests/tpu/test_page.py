"""docs/tpu.md: what its commands print is what the page says that they print."""

import re
import shlex
from pathlib import Path

import pytest

from bert_keras.commands import main as cli

PAGE = Path(__file__).resolve().parents[2] / "docs/tpu.md"


def shown() -> list[tuple[str, str]]:
    """Commands that are followed by what they print, and that."""
    return re.findall(
        r"^```\n(bert-keras [^\n]+)\n```\n\nIt prints:\n\n"
        r"(?:<!-- [^\n]* -->\n)?```(?:text)?\n(.*?)^```$",
        PAGE.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )


@pytest.mark.parametrize(("command", "output"), shown(), ids=["plan"])
def test_the_page_shows_what_is_printed(command, output, capsys):
    words = shlex.split(command)[1:]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == output

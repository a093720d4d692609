"""A comparison of models on shares of a data set's labels, as a page of results.

    python benchmarks/compare_models.py --task SST-2 --data GLUE --models MODEL... \\
        --fractions 0.003 0.01 --work DIR --results results/compare_sst2.md

DIR keeps the runs: given again, it makes only what is missing. The page is that of
`bert-keras compare`, with date, machine and command.
"""

import argparse
import datetime
import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path

from bert_keras import cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    arguments, given = parser.parse_known_args()
    if code := cli.main(["compare", *given, "--output_dir", str(arguments.work)]):
        sys.exit(code)
    picture = arguments.results.with_suffix(".png")
    shutil.copyfile(arguments.work / "scores.png", picture)
    page = (arguments.work / "report.md").read_text()
    packages = ", ".join(f"{n} {metadata.version(n)}" for n in ("tensorflow", "keras"))
    when = datetime.date.today().isoformat()
    note = (
        f"{when}: {platform.processor() or platform.machine()}, {os.cpu_count()} cores "
        f"shared with other work, {packages}. Made by `benchmarks/compare_models.py`."
    )
    title, rest = page.split("\n", 1)
    rest = rest.replace("](scores.png)", f"]({picture.name})")
    arguments.results.write_text(f"{title}\n\n{note}\n{rest}")


if __name__ == "__main__":
    main()

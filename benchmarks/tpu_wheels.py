"""Fast tests of model, training and fine-tuning with the wheels for TPUs.

    make install-tpu PYTHON=python3.12 && .venv-tpu/bin/python -m pip install pytest
    python -m benchmarks.tpu_wheels .venv-tpu

On the processor: no TPU was there. tensorflow-tpu has no XLA for processors, so tests
that ask for it fail with one message; they are counted apart. Any other failure ends
with code 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks import measuring

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDERS = ("tests/bert_keras/model", "tests/bert_keras/training")
NO_XLA = "could not find registered transfer manager for platform Host"
FACTS = """
import importlib.metadata as m, json, platform, time
start = time.process_time()
import tensorflow, tensorflow_text
names = "tensorflow-tpu libtpu tensorflow-text keras numpy".split()
versions = {name: m.version(name) for name in names}
print(json.dumps({"python": platform.python_version(), **versions,
    "CPU seconds to import": round(time.process_time() - start, 1)}))
"""


def run_tests(python: Path, folder: str) -> dict[str, list[str]]:
    """Names of the tests by outcome."""
    found: dict[str, list[str]] = {"passed": [], "skipped": [], "XLA": [], "failed": []}
    with tempfile.TemporaryDirectory() as place:
        report = Path(place, "report.xml")
        options = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "--tb=native"]
        options += [f"--junitxml={report}", f"--basetemp={place}/tests"]
        subprocess.run([python, "-m", "pytest", *options, folder], cwd=REPOSITORY)
        for case in ElementTree.parse(report).iter("testcase"):
            texts = [e.text or "" for e in case if e.tag in ("failure", "error")]
            outcome = "passed"
            if case.find("skipped") is not None:
                outcome = "skipped"
            elif texts:
                outcome = "XLA" if all(NO_XLA in text for text in texts) else "failed"
            found[outcome].append(f"{case.get('classname')}::{case.get('name')}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("environment", type=Path)
    python = (parser.parse_args().environment / "bin/python").absolute()
    # Off Google's machines, libtpu asks a server that is not there, for minutes.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    subprocess.run([python, "-W", "ignore", "-c", FACTS], check=True)
    words = ("-m", "bert_keras.commands.main", "doctor", "--json", "--for", "tpu")
    found = subprocess.run([python, *words], capture_output=True, text=True).stdout
    rows = {row["name"]: row for row in json.loads(found)}
    print(f"`doctor --for tpu`: {rows['packages']['found']}.")
    tests = {folder: run_tests(python, folder) for folder in FOLDERS}
    rows = [[folder, *map(len, names.values())] for folder, names in tests.items()]
    header = ["tests", "passed", "skipped", "ask for XLA on the processor", "failed"]
    measuring.print_table(header, rows)
    apart = {n.partition("[")[0] for names in tests.values() for n in names["XLA"]}
    failed = [name for names in tests.values() for name in names["failed"]]
    print(*(f"- asks for XLA: `{name}`" for name in sorted(apart)), sep="\n")
    print(*(f"- failed: `{name}`" for name in failed), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Fast tests of model, training and fine-tuning with the wheels for TPUs.

    make install-tpu PYTHON=python3.12 && .venv-tpu/bin/python -m pip install pytest
    python benchmarks/tpu_wheels.py .venv-tpu --results benchmarks/results/tpu_wheels.md

On the processor: no TPU was there. tensorflow-tpu has no XLA for processors, so tests
that ask for it fail with one message; they are counted apart. Any other failure ends
with code 1.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

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
    parser.add_argument("environments", nargs="+", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    arguments = parser.parse_args()
    # Off Google's machines, libtpu asks a server that is not there, for minutes.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    _, commands, about = __doc__.strip().split("\n\n")
    lines = ["# The wheels for TPUs, on a processor", "", f"{datetime.date.today()}."]
    lines += [about, "", "```", textwrap.dedent(commands), "```", ""]
    all_failed: list[str] = []
    apart: set[str] = set()
    for environment in arguments.environments:
        python = (environment / "bin/python").absolute()
        done = subprocess.run(
            [python, "-W", "ignore", "-c", FACTS], capture_output=True, text=True
        )
        facts = json.loads(done.stdout.splitlines()[-1])
        found = subprocess.run(
            [python, "-W", "ignore", "-m", "bert_keras.cli", "doctor", "--json"]
            + ["--for", "tpu"],
            capture_output=True,
            text=True,
        )
        rows = {row["name"]: row for row in json.loads(found.stdout)}
        lines += [f"## Python {facts['python']}", ""]
        lines += [", ".join(f"{name} {value}" for name, value in facts.items()) + "."]
        lines += [f"`doctor --for tpu`: {rows['packages']['found']}.", ""]
        lines += [
            "| tests | passed | skipped | ask for XLA on the processor | failed |"
        ]
        lines += ["|---|---|---|---|---|"]
        for folder in FOLDERS:
            tests = run_tests(python, folder)
            counts = " | ".join(str(len(names)) for names in tests.values())
            lines.append(f"| `{folder}` | {counts} |")
            all_failed += tests["failed"]
            apart |= {name.partition("[")[0] for name in tests["XLA"]}
        lines += [""]
    lines += ["Tests that ask for XLA on the processor:", ""]
    lines += [f"- `{name}`" for name in sorted(apart)]
    lines += [f"- failed: `{name}`" for name in all_failed]
    arguments.results.write_text("\n".join(lines).rstrip() + "\n")
    return 1 if all_failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Damaged and hostile inputs for every reader: does one hang, crash or eat memory?

    python -m benchmarks.hostile_inputs.run --inputs 1000000 --seed 1 \
        --outcomes benchmarks/results/hostile_inputs.jsonl \
        --results benchmarks/results/hostile_inputs.md

Takes small healthy files of every kind, damages one of them at a time (bytes, lines, or
values of JSON and YAML) and reads it as the commands do. A reader may accept the input
or refuse it with an `InputError` of one line; anything else is a fault, see `page.py`.

An input is a function of the seed, its kind and its number: `--kind KIND --first NUMBER
--inputs 1` reads it again, and with `--work FOLDER` leaves it in `FOLDER/input`. Kinds
that `--outcomes` already has, with the same seed and number of inputs, are not read
again without `--kind`; the page is written from all kinds in it. Linux only; needs the
repository.
"""

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.hostile_inputs import kinds, page, reading
from bert_keras import files

CLOCK_SECONDS = 60
"""Time by the clock after which a process is ended that still reads one input."""


def num_inputs(name: str, inputs: int) -> int:
    """How many of the inputs are of a kind."""
    total = sum(kind.count for kind in kinds.KINDS.values())
    return max(1, -(-inputs * kinds.KINDS[name].count // total))


def run_kind(
    name: str, work: Path, *, seed: int, first: int, count: int
) -> page.Outcome:
    """Reads inputs of a kind; a process that ends is followed by another."""
    stop, begin, commit = first + count, time.monotonic(), _commit()
    start = first
    counts, faults = Counter[str](), []
    facts: dict[str, Any] = {}
    while start < stop:
        (work / "progress").unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks.hostile_inputs.run", "--child"]
        command += ["--kind", name, "--seed", str(seed), "--work", str(work)]
        command += ["--first", str(start), "--inputs", str(stop - start)]
        why = _watch(command, work)
        output = (work / "stdout").read_text().splitlines()
        faults += [json.loads(line) for line in output]
        if not (work / "progress").exists():
            raise RuntimeError(f"{name}: {(work / 'stderr').read_text()[-3000:]}")
        last = json.loads((work / "progress").read_text())
        counts.update(last["outcomes"])
        facts = last if not facts else _joined(facts, last)
        start = last["number"]
        if start < stop:
            faults.append({"number": start, "file": "", "fault": why})
            counts["fault"] += 1
            start += 1
    return page.Outcome(
        name=name,
        first=first,
        counts=counts,
        faults=faults,
        seconds=time.monotonic() - begin,
        seed=seed,
        commit=commit,
        date=str(datetime.date.today()),
        **{key: facts[key] for key in page.Outcome._fields if key in facts},
    )


def _watch(command: list[str], work: Path) -> str:
    """Runs a process to its end; says why it ended."""
    last, since = "", time.monotonic()
    with (
        (work / "stdout").open("w") as stdout,
        (work / "stderr").open("w") as stderr,
        subprocess.Popen(
            command, stdout=stdout, stderr=stderr, cwd=reading.REPOSITORY
        ) as process,
    ):
        while True:
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                path = work / "progress"
                progress = path.read_text() if path.exists() else ""
                if progress != last or not progress:
                    last, since = progress, time.monotonic()
                elif time.monotonic() - since > CLOCK_SECONDS:
                    process.kill()
                    process.wait()
                    return f"not read within {CLOCK_SECONDS} s by the clock"
            else:
                end = (work / "stderr").read_text()[-300:]
                return f"the process ended with {process.returncode}: {end}"


def _joined(facts: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """The facts of two processes."""
    slower = max(facts, others, key=lambda one: one["worst"])
    names = ("worst_by_the_clock", "memory", "peak", "has_tensorflow")
    return slower | {name: max(facts[name], others[name]) for name in names}


def _commit() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=, changed", "--exclude=*"],
        cwd=reading.REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return described.stdout.strip()


def read_outcomes(path: Path) -> dict[str, page.Outcome]:
    """Outcomes of earlier calls, by kind."""
    if not path.exists():
        return {}
    lines = map(json.loads, path.read_text().splitlines())
    return {
        line["name"]: page.Outcome(**line | {"counts": Counter(line["counts"])})
        for line in lines
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--inputs",
        type=int,
        default=10_000,
        help="inputs of all kinds, or of --kind (default 10,000)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=kinds.KINDS)
    parser.add_argument(
        "--whole",
        action="store_true",
        help="read as many of --kind as there are among --inputs of all kinds",
    )
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder for the files")
    parser.add_argument("--outcomes", type=Path, help="file to keep outcomes in")
    parser.add_argument("--results", type=Path, help="file for the page")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(arguments: argparse.Namespace, work: Path) -> dict[str, page.Outcome]:
    found: dict[str, page.Outcome] = {}
    if arguments.outcomes:
        found = read_outcomes(arguments.outcomes)
    for name in [arguments.kind] if arguments.kind else kinds.KINDS:
        count = arguments.inputs
        if arguments.whole or not arguments.kind:
            count = num_inputs(name, arguments.inputs)
        wanted = (arguments.seed, arguments.first, count)
        earlier = found.get(name)
        is_there = earlier and wanted == (
            *(earlier.seed, earlier.first, earlier.num_inputs),
        )
        if is_there and not arguments.kind:
            continue
        outcome = run_kind(
            name, work, seed=arguments.seed, first=arguments.first, count=count
        )
        found[name] = outcome
        print(f"{name}: {dict(outcome.counts)} in {outcome.seconds:.0f} s", flush=True)
        for fault in outcome.faults[:20]:
            print("  ", fault["number"], fault["file"], fault["fault"], flush=True)
        found = {name: found[name] for name in kinds.KINDS if name in found}
        if arguments.outcomes:
            lines = [json.dumps(kept._asdict()) + "\n" for kept in found.values()]
            files.write_atomically(arguments.outcomes, "".join(lines).encode())
    if arguments.results:
        arguments.results.write_text(page.page(list(found.values())))
    return found


def main() -> None:
    arguments = _parse()
    if arguments.child:
        first = arguments.first
        reading.read_all(
            kinds.KINDS[arguments.kind],
            arguments.kind,
            arguments.work,
            seed=arguments.seed,
            first=first,
            stop=first + arguments.inputs,
        )
        return
    memory = Path("/dev/shm")
    folder = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        work = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        found = _run(arguments, work)
    print(page.table(list(found.values())))


if __name__ == "__main__":
    main()

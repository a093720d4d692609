"""A stand-in of `gcloud`: machines are processes, the store is a folder.

State lies in the folder that the variable CLOUD names. A machine runs its start-up
script by bash, in a session of its own, as a VM does at every start; deleting it kills
the session. What is asked for is written into `asked.txt`; a file `refuse` with words
of a command makes it fail.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

CLOUD = Path(os.environ["CLOUD"])


def option(words: list[str], name: str) -> str:
    (value,) = (w.partition("=")[2] for w in words if w.startswith(f"--{name}="))
    return value


def stored(path: str) -> Path:
    return CLOUD / "store" / path.removeprefix("gs://")


def main(words: list[str]) -> int:
    with open(CLOUD / "asked.txt", "a") as file:
        file.write(f"{' '.join(words)}\n")
    refused = CLOUD / "refuse"
    if refused.is_file() and refused.read_text().strip() in " ".join(words):
        print("ERROR: (gcloud) PERMISSION_DENIED", file=sys.stderr)
        return 1
    if words[0] == "storage":
        return copy(words[2:-1], words[-1]) if words[1] == "cp" else look(words)
    verb = next(w for w in words if w in ("create", "describe", "delete"))
    machine = CLOUD / "machines" / words[words.index(verb) + 1]
    if verb == "create":
        return create(machine, option(words, "metadata-from-file"))
    if not (machine / "pid").is_file():
        print(f"ERROR: The resource {machine.name} was not found", file=sys.stderr)
        return 1
    if verb == "describe":
        print("RUNNING")
    else:
        delete(machine)
    return 0


def copy(sources: list[str], folder: str) -> int:
    target = stored(folder) if folder.startswith("gs://") else Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for source in sources:
        place = stored(source) if source.startswith("gs://") else Path(source)
        # Objects appear whole.
        part = target / f".{place.name}.{os.getpid()}"
        shutil.copy(place, part)
        os.replace(part, target / place.name)
    return 0


def look(words: list[str]) -> int:
    path = stored(words[-1])
    if not path.is_file():
        print("ERROR: One or more URLs matched no objects.", file=sys.stderr)
        return 1
    if words[1] == "cat":
        print(path.read_text(), end="")
    if words[1] == "rm":
        path.unlink()
    return 0


def create(machine: Path, metadata: str) -> int:
    if machine.exists():
        print(f"ERROR: {machine.name} already exists", file=sys.stderr)
        return 1
    machine.mkdir(parents=True)
    shutil.copy(metadata.removeprefix("startup-script="), machine / "script")
    process = subprocess.Popen(
        ["bash", machine / "script"],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (machine / "pid").write_text(str(process.pid))
    return 0


def delete(machine: Path) -> None:
    session = int((machine / "pid").read_text())
    # At once: there is no moment without its number.
    machine.rename(CLOUD / f"gone.{session}")
    if os.getsid(0) != session:
        kill(session)
        return
    # A machine that deletes itself lives for another moment.
    subprocess.Popen(
        [sys.executable, __file__, "kill", str(session)], start_new_session=True
    )


def kill(session: int) -> None:
    """Ends all processes of a session, as pulling the plug does."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except (OSError, IndexError):
            continue


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        time.sleep(0.5)
        kill(int(sys.argv[2]))
        sys.exit()
    sys.exit(main(sys.argv[1:]))

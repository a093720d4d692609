"""Task files of SkyPilot: read by SkyPilot, and run by a shell on a machine without it.

SkyPilot is in an environment of its own, since it shares packages with ours.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
PINS = REPOSITORY / "requirements/sky.txt"

READ = """
import json, sys
from sky.utils import dag_utils
envs = [("OUTPUT_DIR", "gs://b/run"), ("EXAMPLES", "gs://b/examples")]
(task,) = dag_utils.load_chain_dag_from_yaml(sys.argv[1], env_overrides=envs).tasks
print(json.dumps({
    "accelerators": sorted(str(r.accelerators) for r in task.resources),
    "cloud": sorted({str(r.cloud) for r in task.resources}),
    "spot": {r.use_spot for r in task.resources} == {True},
    "cost": sorted({r.max_hourly_cost for r in task.resources}),
    "recovery": [r.job_recovery for r in task.resources][0],
    "workdir": task.workdir,
}))
"""


@pytest.fixture(scope="module")
def skypilot() -> Path:
    """The Python that has SkyPilot, made once for a user."""
    (version,) = [s for s in PINS.read_text().split() if s.startswith("skypilot==")]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "bert-keras" / version
    if not home.is_dir():
        new = home.with_name(f"{version}.{os.getpid()}")
        python = new / "bin/python"
        subprocess.run([sys.executable, "-m", "venv", new], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--requirement", PINS]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(new)
            reason = done.stderr.strip().rpartition("\n")[2]
            pytest.skip(f"SkyPilot cannot be installed: {reason}")
        new.rename(home)
    return home / "bin/python"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tpu", (["{'tpu-v6e-8': 1}"], ["GCP"], [10.0])),
        ("gpu", (["{'A100': 8}", "{'A100-80GB': 8}", "{'H100': 8}"], ["None"], [30.0])),
    ],
)
def test_skypilot_reads_the_task(skypilot, name, expected, tmp_path):
    done = subprocess.run(
        [skypilot, "-c", READ, REPOSITORY / f"tpu/sky/{name}.yaml"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        **dict(zip(("accelerators", "cloud", "cost"), expected, strict=True)),
        "spot": True,
        "workdir": ".",
        "recovery": {
            "max_restarts_on_errors": 0,
            "recover_on_exit_codes": [75],
            "strategy": None,
        },
    }


class Machine:
    """A clean folder with the checkout, as SkyPilot copies it: without links."""

    def __init__(self, folder: Path, task: str, **envs: str):
        self.task = yaml.safe_load((REPOSITORY / f"tpu/sky/{task}.yaml").read_text())
        self.workdir = folder / "sky_workdir"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "bert_keras", "pipelines", "tpu"],
            capture_output=True,
            text=True,
            check=True,
            cwd=REPOSITORY,
        ).stdout.split("\0")
        for name in filter(None, listed):
            if (REPOSITORY / name).is_symlink() or not (REPOSITORY / name).exists():
                continue
            (self.workdir / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, self.workdir / name)
        own = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        self.env = self.task["envs"] | own | envs

    def set_up(self) -> None:
        assert self.start("setup").wait() == 0
        # An editable install would find what is missing here.
        for name in ("pipelines", "tpu"):
            assert (self.workdir / "bert_keras" / name / "__init__.py").is_file()

    def start(self, part: str) -> subprocess.Popen:
        """Gives a part of the task to a shell."""
        return subprocess.Popen(
            ["bash", "-c", self.task[part]],
            cwd=self.workdir,
            env=self.env,
            start_new_session=True,
        )


@pytest.mark.slow
def test_a_new_machine_continues_the_run(tiny_examples, tmp_path):
    """Preempted once, a run ends with the bits of one that was not."""
    settings = "num_train_steps=300 optimizer.warmup_steps=2 global_batch_size=4 "
    settings += "num_eval_steps=1 evaluate_steps=300 save_checkpoint_steps=20 "
    settings += "draw_steps=9999 model.hidden_size=32 model.num_hidden_layers=1 "
    settings += "model.intermediate_size=64"
    envs = {
        "EXAMPLES": str(tiny_examples),
        "CONFIG": "bert_tiny",
        # There is neither here; the last of two options counts.
        "OPTIONS": " --set ".join(["--strategy cpu", *settings.split()]),
        "ENVIRONMENT": sys.prefix,
    }
    whole, preempted = tmp_path / "bucket/whole", tmp_path / "bucket/preempted"

    machine = Machine(tmp_path / "1", "tpu", OUTPUT_DIR=str(preempted), **envs)
    machine.set_up()
    training = machine.start("run")
    while training.poll() is None and not [*preempted.glob("checkpoints/*")]:
        time.sleep(0.05)
    os.killpg(training.pid, signal.SIGKILL)
    assert training.wait() == -signal.SIGKILL
    machines = [
        Machine(tmp_path / "2", "tpu", OUTPUT_DIR=str(preempted), **envs),
        Machine(tmp_path / "3", "gpu", OUTPUT_DIR=str(whole), **envs),
    ]
    for machine in machines:
        machine.set_up()
        assert machine.start("run").wait() == 0
    weights = [(run / "model.safetensors").read_bytes() for run in (whole, preempted)]
    assert weights[0] == weights[1]

"""Stand-ins for what a cluster has: workers elsewhere, Cloud Storage, Dataflow."""

import bz2
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import urllib.parse
import urllib.request
import venv
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pytest

from tests import conftest

HERE = Path(__file__).resolve().parent
BUCKET = "bert-bucket"
WORDS = "snow road letter lamp horse bridge river winter old man waited came".split()


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """A dump, three books and JSON lines, some 300 KB together."""
    folder = tmp_path_factory.mktemp("text")
    articles = (resources.files("bert_keras") / "demo_articles.xml").read_bytes()
    (folder / "dump.xml.bz2").write_bytes(bz2.compress(articles))
    choose = random.Random(0)

    def sentence() -> str:
        words = [choose.choice(WORDS) for _ in range(choose.randint(5, 15))]
        return " ".join(words).capitalize() + "."

    def paragraph() -> str:
        return " ".join(sentence() for _ in range(choose.randint(3, 8)))

    for name in ("winter", "spring", "autumn"):
        paragraphs = "\n\n".join(paragraph() for _ in range(60))
        (folder / f"{name}.txt").write_text(paragraphs)
    with open(folder / "lines.jsonl", "w") as file:
        for number in range(40):
            joined = r"\n\n".join(paragraph() for _ in range(4))
            file.write(f'{{"id": "line-{number}", "text": "{joined}"}}\n')
    return folder


def own_environment(**more: str) -> dict[str, str]:
    """This process's environment, without what would lead to this checkout."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **more}


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory) -> Path:
    """A Python with Beam and all else that is installed here, but not this package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    packages = sysconfig.get_path("purelib")
    (own,) = folder.glob("lib/python*/site-packages")
    # A folder that is added so brings its packages, but not its editable ones.
    (own / "installed_here.pth").write_text(packages + "\n")
    return folder / "bin/python"


@pytest.fixture(scope="session")
def start_worker_pool(tmp_path_factory, bare_python, start) -> Callable[..., str]:
    """Starts a pool of workers that have our package only if it is staged."""

    def start_one(**environment: str) -> str:
        boot = tmp_path_factory.mktemp("pool") / "boot"
        boot.write_text(f'#!/bin/sh\nexec {bare_python} {HERE / "boot.py"} "$@"\n')
        boot.chmod(0o755)
        port = start(
            [
                *(bare_python, "-m", "apache_beam.runners.worker.worker_pool_main"),
                *("--service_port", "PORT", "--container_executable", boot),
            ],
            environment=own_environment(**environment),
        )
        return f"localhost:{port}"

    return start_one


@pytest.fixture(scope="session")
def job_server(tmp_path_factory, start) -> str:
    """Address of Beam's own job server for local runs, in a process of its own."""
    staging = tmp_path_factory.mktemp("staging")
    module = "apache_beam.runners.portability.local_job_service_main"
    command = [sys.executable, "-m", module, "--port", "PORT", "--staging_dir", staging]
    return f"localhost:{start(command, environment=own_environment())}"


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Cloud Storage with one bucket, credentials, and Dataflow."""

    environment: dict[str, str]
    """What a driver needs."""
    dataflow_endpoint: str
    hold: Path
    """Jobs wait while there is this file."""
    bucket: Path
    """Where the emulator keeps the bucket's files."""
    upload_url: str

    @property
    def jobs_url(self) -> str:
        """Of Dataflow's REST interface."""
        place = "projects/test-project/locations/test"
        return f"{self.dataflow_endpoint}/v1b3/{place}/jobs"

    def jobs(self, name: str) -> list[dict]:
        """The jobs of a name that Dataflow has been sent."""
        with urllib.request.urlopen(self.jobs_url) as answer:
            listed = json.load(answer)["jobs"]
        return [job for job in listed if job["name"] == name]

    def is_done(self, name: str) -> bool:
        return self.jobs(name)[0]["currentState"] != "JOB_STATE_RUNNING"

    def send(self, job: bytes) -> None:
        """Starts a job, as the service does from a template."""
        request = urllib.request.Request(self.jobs_url, job, method="POST")
        urllib.request.urlopen(request).close()

    def upload(self, folder: Path, name: str) -> str:
        """Copies the files of a folder to `gs://`; returns its path there."""
        for path in filter(Path.is_file, folder.iterdir()):
            target = urllib.parse.quote(f"{name}/{path.name}", safe="")
            url = f"{self.upload_url}?uploadType=media&name={target}"
            request = urllib.request.Request(url, path.read_bytes(), method="POST")
            request.add_header("Content-Type", "application/octet-stream")
            urllib.request.urlopen(request).close()
        return f"gs://{BUCKET}/{name}"


@pytest.fixture(scope="session")
def cloud(tmp_path_factory, start, start_worker_pool) -> Cloud:
    pytest.importorskip("gcp_storage_emulator")
    folder = tmp_path_factory.mktemp("storage")
    storage_port = start(
        [
            *(sys.executable, HERE / "cloud_storage.py", "--data-dir", folder),
            *("start", "--host", "localhost", "--port", "PORT", "--quiet"),
            *("--default-bucket", BUCKET),
        ]
    )
    storage = f"http://localhost:{storage_port}"
    port = conftest.free_port()
    environment = {
        "STORAGE_EMULATOR_HOST": storage,
        "CLOUDSDK_CONFIG": str(tmp_path_factory.mktemp("gcloud")),
        # Where a VM asks for its credentials.
        "GCE_METADATA_HOST": f"localhost:{port}",
        "GCE_METADATA_IP": f"localhost:{port}",
    }
    pool = start_worker_pool(**environment)
    hold = tmp_path_factory.mktemp("service") / "hold"
    service = [sys.executable, HERE / "dataflow_service.py", "--worker_pool", pool]
    start(
        [*service, "--port", "PORT", "--hold", hold],
        environment=own_environment(**environment),
        port=port,
    )
    return Cloud(
        environment=environment,
        dataflow_endpoint=f"http://localhost:{port}",
        hold=hold,
        bucket=folder / ".cloudstorage" / BUCKET,
        upload_url=f"{storage}/upload/storage/v1/b/{BUCKET}/o",
    )


@dataclass(frozen=True, kw_only=True)
class StoreFront:
    """The cloud's storage behind TLS, with faults; see `store_front.py`."""

    training: dict[str, str]
    """Environment of a process whose TensorFlow uses the store."""
    data: dict[str, str]
    """Environment of a process whose Beam does."""
    folder: Path

    def fail(self, every: int, *kinds: str) -> None:
        """Lets every so many requests fail, in these ways by turns; 0: none."""
        rule = self.folder / "faults"
        rule.unlink(missing_ok=True)
        if every:
            rule.with_suffix(".new").write_text(
                json.dumps({"every": every, "kinds": kinds})
            )
            rule.with_suffix(".new").rename(rule)

    def requests(self) -> list[str]:
        """Method, path, range and fault of every request so far."""
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture(scope="session")
def store_front(cloud, start, tmp_path_factory) -> StoreFront:
    if not shutil.which("openssl"):
        pytest.skip("needs openssl, which makes the store's certificate")
    folder = tmp_path_factory.mktemp("front")
    names = "subjectAltName=DNS:storage.googleapis.com,DNS:www.googleapis.com"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=store"
    subprocess.run(
        [*make.split(), "-addext", names, "-keyout", "key", "-out", "crt"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    emulator = urllib.parse.urlsplit(cloud.upload_url).netloc
    command = [sys.executable, HERE / "store_front.py", "PORT", emulator]
    port = start([*command, folder / "crt", folder / "key", folder])
    address = f"http://localhost:{port}"
    data = {**cloud.environment, "STORAGE_EMULATOR_HOST": address}
    return StoreFront(
        # TensorFlow knows no stand-in, and speaks to the store itself.
        training={
            **data,
            "https_proxy": address,
            "no_proxy": "localhost",
            "CURL_CA_BUNDLE": str(folder / "crt"),
            "REQUESTS_CA_BUNDLE": str(folder / "crt"),
            "NO_GCE_CHECK": "true",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "1000",
        },
        data=data,
        folder=folder,
    )

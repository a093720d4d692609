"""A stand-in for the Dataflow service: its REST interface, as far as a driver sees it.

A job is taken as the service takes it: from the pipeline and the packages that the
driver has staged on Cloud Storage, with a container for environment. The containers
are replaced by the workers of a pool (see `boot.py`), the rest is run as it is. Also
answers as the metadata server of a Google VM does, which gives out credentials.
"""

import argparse
import json
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.portability.api import (
    beam_provision_api_pb2,
    beam_runner_api_pb2,
    endpoints_pb2,
)
from apache_beam.runners.job import utils
from apache_beam.runners.portability.fn_api_runner import fn_runner

VM = {
    "instance/service-accounts/default/": {"email": "vm@test", "scopes": []},
    "instance/service-accounts/default/token": {
        "access_token": "none",
        "expires_in": 3600,
        "token_type": "Bearer",
    },
}


class Service(ThreadingHTTPServer):
    def __init__(self, port: int, *, worker_pool: str, hold: Path):
        super().__init__(("localhost", port), Handler)
        self.worker_pool = worker_pool
        self.hold = hold
        self.jobs: dict[str, dict[str, Any]] = {}
        self.messages: dict[str, list[str]] = {}

    def create(self, sent: dict[str, Any]) -> dict[str, Any]:
        """As the service does, answers with the running job of that name, if any."""
        for other in self.jobs.values():
            running = other["currentState"] == "JOB_STATE_RUNNING"
            if running and other["name"] == sent["name"]:
                return other
        created = {
            "id": f"job-{len(self.jobs)}",
            "currentState": "JOB_STATE_RUNNING",
            **{name: sent[name] for name in ("name", "type")},
            "clientRequestId": sent.get("clientRequestId", ""),
        }
        self.jobs[created["id"]] = created
        self.messages[created["id"]] = []
        threading.Thread(target=self.run, args=(created, sent), daemon=True).start()
        return created

    def run(self, created: dict[str, Any], sent: dict[str, Any]) -> None:
        while self.hold.exists():
            time.sleep(0.1)
        try:
            options = sent["environment"]["sdkPipelineOptions"]["options"]
            with FileSystems.open(options["pipelineUrl"]) as file:
                pipeline = beam_runner_api_pb2.Pipeline.FromString(file.read())
            for environment in pipeline.components.environments.values():
                self.replace_container(environment)
            info = beam_provision_api_pb2.ProvisionInfo(
                pipeline_options=utils.dict_to_struct(options)
            )
            runner = fn_runner.FnApiRunner(
                provision_info=fn_runner.ExtendedProvisionInfo(info)
            )
            runner.run_via_runner_api(pipeline, PipelineOptions([]))
            created["currentState"] = "JOB_STATE_DONE"
        except Exception:
            self.messages[created["id"]].append(traceback.format_exc())
            created["currentState"] = "JOB_STATE_FAILED"

    def replace_container(self, environment: beam_runner_api_pb2.Environment) -> None:
        if environment.urn != common_urns.environments.DOCKER.urn:
            raise ValueError(f"the service runs containers only: {environment.urn}")
        environment.urn = common_urns.environments.EXTERNAL.urn
        environment.payload = beam_runner_api_pb2.ExternalPayload(
            endpoint=endpoints_pb2.ApiServiceDescriptor(url=self.worker_pool)
        ).SerializeToString()
        for artifact in environment.dependencies:
            url = beam_runner_api_pb2.ArtifactUrlPayload
            staged = url.FromString(artifact.type_payload).url
            if not staged.startswith("gs://"):
                raise ValueError(f"not staged on Cloud Storage: {staged}")
            artifact.type_urn = common_urns.artifact_types.FILE.urn
            artifact.type_payload = beam_runner_api_pb2.ArtifactFilePayload(
                path=staged
            ).SerializeToString()


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(self.server.create(sent))

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/computeMetadata/v1/")
        if path == "/":
            return self.answer({})
        if path in VM:
            return self.answer(VM[path])
        parts = path.split("/")
        if "jobs" not in parts:
            return self.send_error(404)
        job_id, *what = parts[parts.index("jobs") + 1 :] or [""]
        if not job_id:
            return self.answer({"jobs": list(self.server.jobs.values())})
        if what == ["messages"]:
            texts = self.server.messages[job_id]
            self.answer(
                {
                    "jobMessages": [
                        {
                            "id": str(number),
                            "messageText": text,
                            "messageImportance": "JOB_MESSAGE_ERROR",
                            "time": "2026-01-01T00:00:00Z",
                        }
                        for number, text in enumerate(texts)
                    ]
                }
            )
        else:
            self.answer({} if what else self.server.jobs[job_id])

    def answer(self, what: dict[str, Any]) -> None:
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        print(*args[1:], file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--worker_pool", required=True)
    parser.add_argument("--hold", type=Path, help="file: jobs wait while it exists")
    arguments = parser.parse_args()
    service = Service(
        arguments.port, worker_pool=arguments.worker_pool, hold=arguments.hold
    )
    service.serve_forever()

"""What the entry point of a worker's container does, as a program.

Asks the runner what was staged, fetches it, installs the staged packages (and nothing
else: no index, no dependencies) into a folder of its own, and becomes the worker. The
counterpart of Beam's `sdks/python/container/boot.go`, without a container.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
from apache_beam.portability.api import (
    beam_artifact_api_pb2,
    beam_artifact_api_pb2_grpc,
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    beam_runner_api_pb2,
    endpoints_pb2,
)
from google.protobuf import json_format, text_format

EXTRA_PACKAGES = "extra_packages.txt"
WORKFLOW = "workflow.tar.gz"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--id", required=True)
    for name in ("logging", "artifact", "provision", "control"):
        parser.add_argument(f"--{name}_endpoint", required=True)
    arguments = parser.parse_args()
    metadata = [("worker_id", arguments.id)]

    with grpc.insecure_channel(arguments.provision_endpoint) as channel:
        provision = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        info = provision.GetProvisionInfo(request, metadata=metadata).info

    folder = Path(tempfile.mkdtemp(prefix=f"boot-{arguments.id}-"))
    (folder / "staged").mkdir()
    with grpc.insecure_channel(arguments.artifact_endpoint) as channel:
        fetch(channel, metadata, info.dependencies, folder / "staged")
    install(folder / "staged", folder / "installed")

    endpoint = endpoints_pb2.ApiServiceDescriptor
    os.environ.update(
        WORKER_ID=arguments.id,
        PIPELINE_OPTIONS=options_json(info.pipeline_options),
        RUNNER_CAPABILITIES=" ".join(info.runner_capabilities),
        SEMI_PERSISTENT_DIRECTORY=str(folder),
        LOGGING_API_SERVICE_DESCRIPTOR=text_format.MessageToString(
            endpoint(url=arguments.logging_endpoint)
        ),
        CONTROL_API_SERVICE_DESCRIPTOR=text_format.MessageToString(
            endpoint(url=arguments.control_endpoint)
        ),
        PYTHONPATH=str(folder / "installed"),
    )
    os.chdir(folder)
    worker = "apache_beam.runners.worker.sdk_worker_main"
    os.execv(sys.executable, [sys.executable, "-m", worker])


def options_json(options) -> str:
    """As Go writes it: a `Struct` knows only floats, and 1.0 is no whole number."""

    def whole(value):
        is_whole = isinstance(value, float) and value.is_integer()
        return int(value) if is_whole else value

    found = json_format.MessageToDict(options)
    return json.dumps({name: whole(value) for name, value in found.items()})


def fetch(channel, metadata, dependencies, folder: Path) -> None:
    """Writes each staged file under the name that it was staged to."""
    retrieval = beam_artifact_api_pb2_grpc.ArtifactRetrievalServiceStub(channel)
    for artifact in dependencies:
        role = beam_runner_api_pb2.ArtifactStagingToRolePayload
        name = role.FromString(artifact.role_payload).staged_name
        request = beam_artifact_api_pb2.GetArtifactRequest(artifact=artifact)
        with open(folder / name, "wb") as file:
            for part in retrieval.GetArtifact(request, metadata=metadata):
                file.write(part.data)


def install(staged: Path, target: Path) -> None:
    names = []
    if (staged / EXTRA_PACKAGES).exists():
        names += (staged / EXTRA_PACKAGES).read_text().split()
    if (staged / WORKFLOW).exists():
        names.append(WORKFLOW)
    if not names:
        return
    pip = "install --quiet --no-deps --no-index --no-build-isolation --ignore-installed"
    subprocess.run(
        [sys.executable, "-m", "pip", *pip.split(), "--target", target]
        + [str(staged / name) for name in names],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )


if __name__ == "__main__":
    main()

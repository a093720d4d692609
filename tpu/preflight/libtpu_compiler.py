"""Compiles StableHLO for a TPU with libtpu: run by the compiler's own Python.

The script reads a request, a line of JSON, from standard input and writes its answer,
JSON too, to standard output. It needs jax and libtpu, nothing of ours: TensorFlow and
libtpu share symbols and cannot be in one process. No TPU is needed.
"""

import json
import os
import shutil
import sys
import threading

os.environ.update(
    # No machine on Google's cloud has to be asked, and no TPU is locked.
    TPU_SKIP_MDS_QUERY="1",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    JAX_PLATFORMS="cpu",
    TF_CPP_MIN_LOG_LEVEL="3",
)

MEMORY = ("argument", "output", "alias", "temp", "generated_code")


def compile_step(request: dict) -> dict:
    """Compiles a module for one chip; returns `memory` by kind, `bytes` moved and
    `flops`. `request` has `module`, a file of StableHLO; `topology`, the words of
    `get_topology_desc`; `num_replicas`; `hlo`, a file for the optimised program."""
    # Private modules: jax's public functions compile functions of Python, not a module
    # that another program wrote.
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib.mlir import ir

    devices = topologies.get_topology_desc(
        platform="tpu", **request["topology"]
    ).devices[: request["num_replicas"]]
    with open(request["module"], encoding="utf-8") as file:
        text = file.read()
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        options = compiler.get_compile_options(
            num_replicas=request["num_replicas"], num_partitions=1
        )
        executable = devices[0].client.compile(
            module, xla_client.DeviceList(tuple(devices)), options
        )
    found = executable.get_compiled_memory_stats()
    cost = executable.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    with open(request["hlo"], "w", encoding="utf-8") as file:
        file.write(executable.hlo_modules()[0].to_string())
    return {
        "memory": {name: getattr(found, f"{name}_size_in_bytes") for name in MEMORY},
        "flops": cost["flops"],
        "bytes": cost["bytes accessed"],
    }


def end_with_caller(folder: str) -> None:
    """Ends this process when the caller's end of standard input closes, and deletes the
    request's folder, which the caller can no longer delete."""
    sys.stdin.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    request = json.loads(sys.stdin.readline())
    threading.Thread(
        target=end_with_caller, args=[os.path.dirname(request["module"])], daemon=True
    ).start()
    try:
        answer = compile_step(request)
    except Exception as error:  # whatever jaxlib raises: the caller reads the message
        answer = {"error": str(error), "type": type(error).__name__}
    json.dump(answer, sys.stdout)
    sys.stdout.flush()
    # The thread waits for input with Python's lock of it.
    os._exit(0)

"""The steps as a TPU gets them: what would be compiled for it, traced without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("traced_steps.py")
TRAININGS = (
    *("pretraining", "accumulated", "classification", "regression"),
    *("tagging", "span", "choice"),
)
# Operations that compilers for TPUs know, none of which waits for the host. A new one
# is looked up in tensorflow/compiler/tf2xla/kernels before it comes here.
COMPILED = set(
    """
    AddN AddV2 AssignVariableOp BatchMatMulV2 BiasAdd BiasAddGrad BitwiseXor
    BroadcastGradientArgs BroadcastTo Cast ConcatV2 Const CrossReplicaSum DivNoNan Equal
    Erf Exp ExpandDims Fill FloorDiv GatherV2 GreaterEqual Identity IdentityN
    InvertPermutation IsFinite L2Loss Less Log LogSoftmax LogicalAnd LogicalNot MatMul
    Max Maximum Mean Minimum Mul Neg NoOp OneHot Pack Pow Prod Range ReadVariableOp
    RealDiv Reshape RightShift Rsqrt RsqrtGrad SelectV2 Softmax Sqrt Square StridedSlice
    StridedSliceGrad Sub Sum TPUReplicateMetadata Tanh TanhGrad Tile Transpose Unpack
    UnsortedSegmentSum While XlaOptimizationBarrier
    """.split()
)
# The host draws the batch and measures how long it waits for it.
BESIDE = set(
    """
    AddV2 Cast ConcatV2 Const Identity IteratorGetNext Max NoOp Pack Placeholder Sub
    TPUCompilationResult TPUReplicatedInput TPUReplicatedOutput Timestamp
    """.split()
)


@pytest.fixture(scope="module")
def traced() -> dict[str, dict]:
    """What the steps of each kind hold, by kind."""
    command = [sys.executable, SCRIPT, *TRAININGS, "evaluation", "printing"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    return {line.pop("kind"): line for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*TRAININGS, "evaluation"])
def test_a_step_is_one_program_for_the_device(kind, traced):
    found = traced[kind]
    assert set(found["inside"]) <= COMPILED
    assert set(found["beside"]) <= BESIDE
    assert found["num_clusters"] == 1
    assert found["compiled_by_themselves"] == 0
    assert ("CrossReplicaSum" in found["inside"]) == (kind != "evaluation")


@pytest.mark.slow
def test_an_operation_of_the_host_is_noticed(traced):
    assert set(traced["printing"]["inside"]) - COMPILED == {"PrintV2", "StringFormat"}

"""The steps as a TPU gets them: what would be compiled for it, traced without one."""

import json
from pathlib import Path

import pytest

from tests import conftest

SCRIPT = Path(__file__).with_name("traced_steps.py")
TRAININGS = (
    *("pretraining", "accumulated", "packed", "packed_accumulated"),
    *("classification", "regression", "tagging", "span", "choice"),
    *("tagging_accumulated", "features"),
)
FORWARD = (
    *("evaluation", "classification_answers", "tagging_answers"),
    *("span_answers", "choice_answers"),
)
# Operations that compilers for TPUs know, none of which waits for the host. A new one
# is looked up in tensorflow/compiler/tf2xla/kernels before it comes here.
COMPILED = set(
    """
    AddN AddV2 AssignVariableOp BatchMatMulV2 BiasAdd BiasAddGrad BitwiseXor
    BroadcastGradientArgs BroadcastTo Cast ConcatV2 Const CrossReplicaSum DivNoNan Equal
    Erf Exp ExpandDims Fill FloorDiv GatherV2 Greater GreaterEqual Identity IdentityN
    InvertPermutation IsFinite L2Loss Less LessEqual Log LogSoftmax LogicalAnd
    LogicalNot MatMul Max Maximum Mean Minimum Mul Neg NoOp NotEqual OneHot Pack Pow
    Prod Range ReadVariableOp RealDiv Reshape RightShift Rsqrt RsqrtGrad SelectV2
    Softmax Sqrt Square StopGradient StridedSlice StridedSliceGrad Sub Sum
    TPUReplicateMetadata Tanh TanhGrad Tile Transpose Unpack UnsortedSegmentSum While
    XlaOptimizationBarrier
    """.split()
)
# Of the loop over the words of a BiLSTM, whose lists have as many entries, and of its
# answers, which are as many for each replica.
LOOP = set(
    """
    ConcatOffset Einsum EmptyTensorList FloorMod Pad ReverseV2 Sigmoid SigmoidGrad Slice
    Split StatelessWhile TensorListElementShape TensorListFromTensor TensorListGetItem
    TensorListLength TensorListPopBack TensorListPushBack TensorListReserve
    TensorListSetItem TensorListStack VariableShape ZerosLike
    """.split()
)
# The host draws the batch, measures how long it waits for it and puts answers together.
BESIDE = set(
    """
    AddV2 Cast ConcatV2 Const EnsureShape Identity IteratorGetNext Max NoOp Pack
    Placeholder Sub TPUCompilationResult TPUReplicatedInput TPUReplicatedOutput
    Timestamp
    """.split()
)


@pytest.fixture(scope="module")
def traced() -> dict[str, dict]:
    """What the steps of each kind hold, by kind."""
    done = conftest.run_python(SCRIPT, *TRAININGS, *FORWARD)
    lines = map(json.loads, done.stdout.splitlines())
    return {line.pop("kind"): line for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*TRAININGS, *FORWARD])
def test_a_step_is_one_program_for_the_device(kind, traced):
    found = traced[kind]
    assert set(found["inside"]) <= (COMPILED | LOOP if kind == "features" else COMPILED)
    assert set(found["beside"]) <= BESIDE
    assert found["num_clusters"] == 1
    assert found["compiled_by_themselves"] == 0
    assert found["of_unknown_shape"] == []
    assert ("CrossReplicaSum" in found["inside"]) == (kind in TRAININGS)

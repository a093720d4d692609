from bert_keras.tpu.preflight import hlo

PROGRAM = """
  %all-reduce.1 = (f32[8,128]{1,0:T(8,128)}, bf16[4]{0}) all-reduce(%a), channel_id=1
  ROOT %all-reduce.2 = f32[]{:T(128)} all-reduce(%c), replica_groups={{0,1}}
  %start = ((f32[2]{0}), (f32[2]{0})) all-reduce-start(%d), to_apply=%add
  %done = f32[2]{0} all-reduce-done(%start)
  %x = f32[1000]{0} fusion(%all-reduce.2), kind=kLoop, calls=%all-reduce.9
"""


def test_all_reduces_and_shapes_are_counted_with_their_bytes():
    expected = 8 * 128 * 4 + 4 * 2 + 4 + 2 * 4
    assert hlo.all_reduces(PROGRAM) == (3, expected)
    assert hlo.all_reduces("%x = f32[4] fusion(%y)") == (0, 0)
    assert hlo.bytes_of_shapes("(pred[3], s8[2,2], u32[], f16[5]{0:T(256)})") == 21


def test_copies_become_reshapes():
    expected = "%2 = stablehlo.reshape %1 : (tensor<f32>) -> tensor<f32> loc(#loc4)"
    for text in (
        "%2 = mhlo.copy %1 : tensor<f32> loc(#loc4)",
        '%2 = "mhlo.copy"(%1) : (tensor<f32>) -> tensor<f32> loc(#loc4)',
    ):
        assert hlo.without_mhlo_copies(text) == expected


def test_what_the_compiler_says_of_memory():
    message = "for HLO temporaries (23.26G) exceeds available HBM (15.75G)."
    assert hlo.memory_shortage(message) == {"temporary_bytes": 23.26 * 2**30}
    message = "Ran out of memory in memory space hbm. Used 20.5M of 15.75G hbm."
    assert hlo.memory_shortage(message) == {"whole_bytes": 20.5 * 2**20}
    assert hlo.memory_shortage("INVALID_ARGUMENT") == {}


def test_the_place_of_a_failure():
    message = 'error: fused["encoder/layer_1/Reshape_1", "ops.py":12:0]: no'
    assert hlo.scope_in(message) == "encoder/layer_1/Reshape_1"
    assert hlo.scope_in("no place") is None

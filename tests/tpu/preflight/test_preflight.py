import json
import re

import pytest

from bert_keras.commands import main as cli
from bert_keras.core import chips
from bert_keras.core.errors import InputError
from bert_keras.core.settings import loading, pretraining
from bert_keras.tpu import preflight
from bert_keras.tpu.preflight import compiling, steps

TINY = loading.load(
    pretraining.PretrainingConfig, "bert_tiny", ["global_batch_size=64"]
)


def plan(device="v5e-8", **changes):
    changes = {"settings": TINY, "max_seq_length": 128} | changes
    return steps.plan(device=chips.parse_device(device), **changes)


def test_steps_of_pretraining():
    training, evaluation = plan()
    assert (training.purpose, evaluation.purpose) == ("training", "evaluation")
    assert training.batch() == {
        "input_ids": ((8, 128), "int32"),
        "input_mask": ((8, 128), "int32"),
        "segment_ids": ((8, 128), "int32"),
        "masked_lm_positions": ((8, 20), "int32"),
        "masked_lm_ids": ((8, 20), "int32"),
        "masked_lm_weights": ((8, 20), "float32"),
        "next_sentence_labels": ((8, 1), "int32"),
        "dropout_seeds": ((8,), "int32"),
    }
    assert "dropout_seeds" not in evaluation.batch()
    assert training.precision == "mixed_bfloat16"


@pytest.mark.parametrize(
    ("task", "texts", "dtype"),
    [
        ("text", (4, 128), "int32"),
        ("STS-B", (4, 128), "float32"),
        ("choice", (4, 4, 128), "int32"),
    ],
)
def test_steps_of_tasks_take_their_own_batch(task, texts, dtype):
    """What a kind takes is a law of kinds."""
    training, evaluation = plan(task=task)
    labels = {"label_ids": ((4,), dtype)}
    names = ("input_ids", "input_mask", "segment_ids")
    inputs = dict.fromkeys(names, (texts, "int32"))
    of_rows = dict.fromkeys(("dropout_seeds", "batch_lengths"), ((4,), "int32"))
    of_rows["example_weights"] = ((4,), "float32")
    assert training.batch() == inputs | labels | of_rows
    assert evaluation.batch() == inputs


def test_a_batch_is_shared_by_chips_and_parts():
    training, _ = plan(settings=PARTS, global_batch_size=96)
    assert (training.batch_size, training.num_parts) == (12, 4)


PARTS = TINY.model_copy(update={"gradient_accumulation_steps": 4})
HALF = TINY.model_copy(update={"precision": "mixed_float16"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": None}, "either --examples or --max_seq_length"),
        ({"examples": "somewhere"}, "either --examples or --max_seq_length"),
        ({"max_seq_length": 513}, "sequences of 513 tokens"),
        # Its texts are compared over all chips.
        ({"task": "embedding"}, "`preflight` does not know --task embedding"),
        ({"settings": PARTS, "global_batch_size": 100}, "_batch_size a multiple of 32"),
        ({"settings": HALF}, "v5e multiplies in float32 and bfloat16, got"),
    ],
)
def test_what_cannot_be_planned(changes, message):
    with pytest.raises(InputError, match=message):
        plan(**changes)


DEVICE = chips.parse_device("v5e-1")


def compiled(**figures):
    values = {
        **{"state_bytes": 2e9, "argument_bytes": 2.1e9, "temporary_bytes": 3e9},
        **{"code_bytes": 5e6, "flops": 197e9, "moved_bytes": 8.19e9},
    }
    return compiling.Compiled(**(values | figures))


def test_a_step_fits_into_what_a_program_may_use():
    assert compiled().fits(DEVICE.chip)
    assert not compiled(temporary_bytes=15e9).fits(DEVICE.chip)
    assert not compiled(is_too_large=True).fits(DEVICE.chip)


def test_least_times_follow_from_the_data_sheet():
    assert compiled().least_seconds(DEVICE.chip) == pytest.approx((1e-3, 10e-3))


def text_of(*figures):
    planned, _ = plan("v5e-1", global_batch_size=32)
    return "\n".join(preflight.lines(DEVICE, [(planned, one) for one in figures]))


def test_the_table():
    other = compiled(is_too_large=True, temporary_bytes=2e10)
    assert text_of(compiled(), other) == TABLE


TABLE = """\
v5e-1: 1 chip; 32 examples of 128 tokens a chip; 2 layers of 128; mixed_bfloat16
Compiled by libtpu for this chip, which was not there.

                            pretraining, training  pretraining, training
------------------------------------------------------------------------
compiles                                      yes                    yes
fits                                          yes                     NO
memory of a chip, needed                  5.11 GB               22.11 GB
  variables and batch                     2.10 GB                2.10 GB
  activations, temporaries                3.00 GB               20.00 GB
  program                                5.000 MB
memory of a chip, usable                 16.91 GB               16.91 GB
TFLOP                                       0.197
GB moved                                     8.19
least time by arithmetic                  1.00 ms
least time by memory                     10.00 ms
all-reduces                                     0
  of together                            0.000 MB"""


def test_operations_that_do_not_compile_are_told():
    refused = steps.Refused(operation="Unique", scope="layer_0/x", reason="why")
    text = text_of(compiled(refused=(refused,)))
    assert text.endswith("pretraining, training: Unique in layer_0/x: why")
    assert re.search("^compiles +no$", text, re.MULTILINE)
    text = text_of(compiled(refused=(refused,) * 12))
    assert text.count("Unique") == 3
    assert text.endswith("and 9 more")


COMMAND = "preflight --config bert_tiny --max_seq_length 128 --device v5e-1".split()


def test_json(monkeypatch, capsys):
    monkeypatch.setattr(compiling, "compile_step", lambda *_: compiled())
    assert cli.main([*COMMAND, "--json", "--global_batch_size", "32"]) == 0
    found = json.loads(capsys.readouterr().out)["steps"]
    names = [step["step"] for step in found]
    assert names == ["pretraining, training", "pretraining, evaluation"]
    assert found[0]["needed_bytes"] == 2.1e9 + 3e9 + 5e6
    assert found[0]["least_seconds"] == pytest.approx(0.01)

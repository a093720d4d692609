"""The paper's recipes train as they always did: to recorded numbers everywhere, and to
recorded bits on kinds of processor that bits were recorded on.

Sums of floats differ in their last bits from one vector width to another, and from one
version of TensorFlow to another. So the batches and the learning rates are compared
exactly; weights and optimizer state after ten steps to within rounding; and their bits
where `tests/golden/paper_bits.json` has those of this processor, with these versions.

    PYTHONPATH=. python tests/test_paper_bits.py

adds this processor's bits to the file, if the numbers are those recorded. Where they
are to change, delete the recipe's entry first.
"""

import functools
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from bert_keras.core.settings import loading, pipelines, pretraining
from bert_keras.pipelines import examples
from bert_keras.pipelines.engine import engines
from tests import conftest

RECORD = Path(__file__).parent / "golden" / "paper_bits.json"
RECIPES = ("bert_base", "bert_base_lamb", "ablation_ltr_no_nsp")
"""The kinds of step that recipes of the paper take; the rest differ from `bert_base` in
size alone, see `tests.test_recipes`."""
SMALLER = (
    *("model.num_hidden_layers=1", "model.hidden_size=48"),
    *("model.intermediate_size=64", "global_batch_size=4"),
    *("num_train_steps=10", "optimizer.warmup_steps=4", "num_eval_shards=0"),
    "precision=float32",
)
"""Sizes, what costs time without changing a weight, and a precision that all have."""
TOLERANCE = 1e-4
"""Of a variable's root mean square. With narrower vectors (`ONEDNN_MAX_CPU_ISA=AVX2`)
and without oneDNN the largest difference was 3e-6 of it; with one core instead of two
there was none (`bert_base`, 2026-11-23)."""


def processor() -> str:
    """Kind of processor and versions: what the last bits of sums depend on."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    vendor = re.search(r"^vendor_id\s*: (\S+)", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)", text, re.MULTILINE)
    kinds = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
    has = flags[1].split() if flags else []
    widest = next((kind for kind in kinds if kind in has), "another kind")
    versions = [f"{name} {metadata.version(name)}" for name in ("tensorflow", "keras")]
    return ", ".join([vendor[1] if vendor else "unknown", widest, *versions])


def make_examples(directory: Path) -> list[Path]:
    """Examples of 32 and of 64 tokens of the same documents."""
    vocab = directory / "vocab.txt"
    vocab.write_text("\n".join([*conftest.features.SPECIAL_TOKENS, *conftest.WORDS]))
    conftest.write_documents(directory / "corpus", conftest.counting_documents())
    made = {length: directory / f"examples_{length}" for length in (32, 64)}
    for length, output in made.items():
        examples.build_examples(
            *(directory / "corpus", vocab, output),
            config=pipelines.ExamplesConfig(max_seq_length=length, dupe_factor=1),
            do_lower_case=True,
            num_shards=3,
            engine=engines.make_engine(),
        )
    return list(made.values())


def sha256(arrays: Mapping[str, np.ndarray]) -> str:
    summary = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        summary.update(f"{name} {array.dtype} {array.shape}\n".encode())
        summary.update(array.tobytes())
    return summary.hexdigest()


def described(array: np.ndarray) -> str:
    """Root mean square, and three values that lie apart."""
    flat = array.astype(np.float64).ravel()
    some = flat[np.linspace(0, flat.size - 1, 5).astype(int)[1:4]]
    return " ".join(f"{x:.7g}" for x in (np.sqrt(np.mean(flat**2)), *some))


def train(name: str, made: list[Path], run: Path) -> dict[str, Any]:
    """What ten steps of a recipe, cut small, leave behind."""
    # TensorFlow takes ten seconds: who only collects tests does without.
    import tensorflow as tf

    from bert_keras.training import pretrain
    from bert_keras.training.pretraining import phases

    settings = loading.load(pretraining.PretrainingConfig, name, SMALLER)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    pretrain.pretrain(settings, made, run, strategy=strategy)
    batches = {}
    for phase in phases.read_phases(settings, made, vocab_path=None, num_replicas=1):
        given = phase.to_train(start_step=phase.first_step)
        count = phase.last_step - phase.first_step
        for step, batch in enumerate(given.take(count), start=phase.first_step):
            batches |= {f"{step} {key}": value.numpy() for key, value in batch.items()}
    arrays = safetensors.numpy.load_file(
        run / "checkpoints" / "step-0000000010.safetensors"
    )
    return {
        "batches": sha256(batches),
        "numbers": {key: described(array) for key, array in arrays.items()},
        "bits": {processor(): sha256(arrays)},
    }


def differences(found: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[str]:
    """What is not as recorded, bits apart."""
    if found["numbers"].keys() != recorded["numbers"].keys():
        names = found["numbers"].keys() ^ recorded["numbers"].keys()
        return [f"variables that only one side has: {sorted(names)}"]
    differing = [] if found["batches"] == recorded["batches"] else ["the batches"]
    for name in recorded["numbers"]:
        ours, theirs = (
            np.array(side["numbers"][name].split(), float) for side in (found, recorded)
        )
        # A gradient that is 0 but for rounding has no digits to compare.
        limit = TOLERANCE * theirs[0] + 1e-12
        error = np.abs(ours - theirs).max()
        if error > limit:
            differing.append(f"{name}: {error:.3g}, at most {limit:.3g}")
    return differing


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Callable[[str], dict[str, Any]]:
    directory = tmp_path_factory.mktemp("paper")
    made = functools.cache(lambda: make_examples(directory))
    return functools.cache(lambda name: train(name, made(), directory / name))


# One recipe is trained in every run of the tests.
of_recipes = pytest.mark.parametrize(
    "name",
    [RECIPES[0], *(pytest.param(n, marks=pytest.mark.slow) for n in RECIPES[1:])],
)


@of_recipes
def test_batches_and_numbers_are_those_recorded(trained, name):
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    assert differences(trained(name), recorded) == []


@of_recipes
def test_bits_are_those_recorded(trained, name):
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[name]["bits"]
    here = processor()
    if here not in recorded:
        pytest.skip(
            f"no bits of {here} are recorded: the numbers were compared to within "
            "rounding; `PYTHONPATH=. python tests/test_paper_bits.py` records them"
        )
    assert trained(name)["bits"] == {here: recorded[here]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert_base", [0, 1e-8, 9.999e-5, 9.9e-5, 5e-5, 1e-10]),
        ("bert_base_lamb", [0, 8e-7, 2.4992e-3, 2.25e-3, 1.25e-3, 8e-8]),
    ],
)
def test_learning_rates(name, expected):
    """At steps 0 and 1, before and after the end of the warm-up, half-way and last."""
    from bert_keras.training.step import optimization

    settings = loading.load(pretraining.PretrainingConfig, name)
    warmup, num = settings.optimizer.warmup_steps, settings.num_train_steps
    schedule = optimization.build_optimizer(
        settings.optimizer, num_train_steps=num
    )._learning_rate
    rates = [float(schedule(n)) for n in (0, 1, warmup - 1, warmup, num // 2, num - 1)]
    # 1 - step / steps in float32 has an error of 1e-7 of 1.
    np.testing.assert_allclose(rates, expected, rtol=1e-6, atol=1e-7 * max(expected))


def main() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    with tempfile.TemporaryDirectory() as directory:
        made = make_examples(Path(directory))
        for name in RECIPES:
            found = train(name, made, Path(directory) / name)
            known = record.setdefault(name, found)
            if wrong := differences(found, known):
                sys.exit(f"{name}: not as recorded: {'; '.join(wrong)}")
            known["bits"] |= found["bits"]
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

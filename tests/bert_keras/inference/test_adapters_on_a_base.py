"""`load(base, adapter=...)`: answers of merged models, in the memory of one base."""

import numpy as np
import pytest

import bert_keras
from bert_keras.checkpoints import conversion, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from tests import make
from tests.bert_keras.checkpoints.formats import making

pytestmark = pytest.mark.usefixtures("eagerly")

SETTINGS = finetuning.FinetuningConfig(max_seq_length=16)
TASKS = {
    "classification": {"labels": ("no", "so", "yes")},
    "tagging": {"labels": ("O", "B")},
    "embedding": {},
}
TEXTS = ["w1 w2 w3", "w9"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("base") / "run"
    return make.make_run(path, making.WORDS, bert_config=making.CONFIG, kind="encoder")


@pytest.fixture(scope="module")
def adapters(base):
    return {
        kind: make.make_adapter(
            *(base.with_name(kind), base, SETTINGS), kind=kind, **task
        )
        for kind, task in TASKS.items()
    }


@pytest.mark.parametrize("kind", TASKS)
def test_answers_are_those_of_the_merged_model(kind, base, adapters):
    merged = bert_keras.load(adapters[kind])
    loaded = bert_keras.load(base, adapter=adapters[kind])
    batch = merged.encode(TEXTS)
    outputs, expected = (model.network(batch) for model in (loaded, merged))
    for name in expected:
        np.testing.assert_allclose(outputs[name], expected[name], rtol=0, atol=1e-6)
    found, records = (model.predict(TEXTS) for model in (loaded, merged))
    for one, other in zip(found, records, strict=True):
        assert one.prediction == pytest.approx(other.prediction, abs=1e-6)


def test_a_directory_of_peft_is_an_adapter(base, adapters, tmp_path):
    run = adapters["classification"]
    conversion.convert(run, tmp_path / "peft", to="peft")
    model = bert_keras.load(base, adapter=tmp_path / "peft")
    batch = model.encode(TEXTS)
    models = (model, bert_keras.load(run))
    logits, expected = (m.network(batch)["logits"] for m in models)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6)
    assert model.predict(TEXTS)[0].prediction in ("0", "1", "2")


def test_one_memory_holds_the_base(base, adapters):
    first = bert_keras.load(base)
    before = weights.from_network(first.network)
    models = [bert_keras.load(first, adapter=path) for path in adapters.values()]
    own = sum(weight.value.shape.num_elements() for weight in first.network.weights)
    values = {
        id(weight.value): weight.value.shape.num_elements()
        for model in (first, *models)
        for weight in model.network.weights
    }
    # Rank 2 of two matrices of 16 x 16 in each of two layers, and the heads.
    of_changes = 2 * 2 * (2 * 16 * 2)
    assert sum(values.values()) == own + 3 * of_changes + 17 * (3 + 2)
    making.assert_same_arrays(weights.from_network(first.network), before)


def test_what_is_no_adapter_and_no_base(base, adapters):
    run = adapters["classification"]
    on_base = bert_keras.load(base, adapter=run)
    for of, adapter, message in (
        (base, base, f"^{base}: a whole model, but only an adapter has a base$"),
        (on_base, run, f"^{run}: an adapter, expected the base of {run}$"),
        (run, run, f"^{run}: was trained on another base than {run}: "),
    ):
        with pytest.raises(InputError, match=message):
            bert_keras.load(of, adapter=adapter)
    with pytest.raises(InputError, match="^an adapter has its own task: leave `task`"):
        bert_keras.load(base, adapter=run, task=on_base.task)


def test_a_model_on_a_base_is_saved_whole(base, adapters, tmp_path):
    loaded = bert_keras.load(base, adapter=adapters["classification"])
    loaded.save(tmp_path / "saved")
    saved, expected = (
        conversion.read(path).arrays
        for path in (tmp_path / "saved", adapters["classification"])
    )
    making.assert_same_arrays(saved, expected)

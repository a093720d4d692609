import dataclasses

import numpy as np
import pytest

from bert_keras.checkpoints import native, run_directory, training_state, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.kinds import registry
from tests.bert_keras.checkpoints.formats import making

TASK = tasks.Task(kind="regression")


@pytest.fixture
def run(tmp_path):
    run = run_directory.Run(
        directory=tmp_path,
        task=TASK,
        bert_config=making.CONFIG,
        vocabulary=making.VOCABULARY,
        do_lower_case=True,
    )
    run_directory.describe_run(run, None)
    return run


def test_weights_come_back_and_the_run_is_finished(run):
    network = registry.build_network(making.CONFIG, TASK, seed=1)
    weights.finish_run(run, network, {"steps": 3})
    assert native.read_finished_run(run.directory) == run
    assert run_directory.read_results(run.directory) == {"steps": 3}
    assert not list(run.directory.glob(".*"))
    other = registry.build_network(making.CONFIG, TASK, seed=2)
    weights.assign(other, native.read(run.directory).arrays)
    for first, second in zip(network.weights, other.weights, strict=True):
        np.testing.assert_array_equal(first, second)


def test_an_unfinished_run_names_its_best_checkpoint(run):
    with pytest.raises(InputError, match="the run is not finished.*to resume it$"):
        native.read_finished_run(run.directory)
    path = run.directory / "checkpoints" / "step-0000000007.safetensors"
    path.parent.mkdir()
    training_state.save_state(path, {}, facts=training_state.Facts(step=7))
    (path.parent / training_state.SCORES_NAME).write_text('{"7": 2.0}')
    # That of a fine-tuning is read by its own command only.
    with pytest.raises(InputError, match="the run is not finished.*to resume it$"):
        native.read_finished_run(run.directory)
    pretraining = dataclasses.replace(run, task=tasks.Task(kind="pretraining"))
    run_directory.describe_run(pretraining, None)
    with pytest.raises(InputError, match=f"or take its best checkpoint, {path}$"):
        native.read_finished_run(run.directory)

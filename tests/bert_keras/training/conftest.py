"""What the tests of trainings do without."""

from collections.abc import Iterator

import keras
import pytest

from bert_keras.report import task_summaries
from bert_keras.training.step import replicas


@pytest.fixture(scope="module", autouse=True)
def no_pictures() -> Iterator[None]:
    """A fine-tuning draws its answers at its end, which takes as long as the rest.

    The pictures have tests of their own, and the pages' commands draw theirs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_summaries, "write", lambda *args, **kwargs: None)
        yield


@pytest.fixture
def at_step(monkeypatch):
    """A function that has something called after a step of the next trainings."""
    fit = keras.Model.fit

    def arrange(step: int, action) -> None:
        class Act(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if replicas.optimizer_step(self.model) == step:
                    action()

        def fit_and_act(self, *args, callbacks, **options):
            return fit(self, *args, callbacks=[Act(), *callbacks], **options)

        monkeypatch.setattr(keras.Model, "fit", fit_and_act)

    yield arrange
    monkeypatch.setattr(keras.Model, "fit", fit)

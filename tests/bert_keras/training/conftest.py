"""What the tests of trainings do without."""

from collections.abc import Iterator

import pytest

from bert_keras.report import task_summaries


@pytest.fixture(scope="module", autouse=True)
def no_pictures() -> Iterator[None]:
    """A fine-tuning draws its answers at its end, which takes as long as the rest.

    The pictures have tests of their own, and the pages' commands draw theirs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_summaries, "write", lambda *args, **kwargs: None)
        yield

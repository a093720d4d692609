"""What the tests of trainings share, and what they do without."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_keras.core.settings import pipelines
from bert_keras.pipelines import examples
from bert_keras.pipelines.engine import engines
from bert_keras.report import task_summaries


@pytest.fixture(scope="module", autouse=True)
def no_pictures() -> Iterator[None]:
    """A fine-tuning draws its answers at its end, which takes as long as the rest.

    The pictures have tests of their own, and the pages' commands draw theirs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_summaries, "write", lambda *args, **kwargs: None)
        yield


@pytest.fixture(scope="session")
def examples_of(tiny_examples, tiny_vocab, tmp_path_factory) -> Callable[..., Path]:
    """A function that makes other examples, of the documents of `tiny_examples` if no
    others are given."""

    def make(corpus=None, vocab=tiny_vocab, *, num_shards=3, **values) -> Path:
        directory = tmp_path_factory.mktemp("made") / "examples"
        examples.build_examples(
            *(corpus or tiny_examples.parent / "corpus", vocab, directory),
            config=pipelines.ExamplesConfig(**values),
            do_lower_case=True,
            num_shards=num_shards,
            engine=engines.make_engine(),
        )
        return directory

    return make

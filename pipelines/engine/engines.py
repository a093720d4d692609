"""The engine that a command line asks for."""

from collections.abc import Sequence

from bert_keras.pipelines.engine import passes, steps


def make_engine(
    arguments: Sequence[str] = (),
    *,
    num_workers: int = 1,
    memory_limit: int = 4_000_000_000,
) -> steps.Engine:
    """Makes the engine for a command line. With Beam's options, a job is one graph for
    the runner that they name. Without options, a job runs in passes here, with
    `memory_limit` bytes for all of them."""
    if not arguments:
        return passes.Passes(num_workers=num_workers, memory_limit=memory_limit)
    # Not at the top: Beam takes a second and 140 MB to load, and passes do not need it.
    from bert_keras.pipelines.engine import graphs, runner_options

    return graphs.BeamRunner(runner_options.parse(arguments, num_workers=num_workers))

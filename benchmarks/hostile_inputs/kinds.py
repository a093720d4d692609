"""All kinds of inputs, by name."""

from benchmarks.hostile_inputs import (
    checkpoint_kinds,
    run_kinds,
    source_kinds,
    task_kinds,
)
from benchmarks.hostile_inputs.reading import Kind

KINDS: dict[str, Kind] = {
    **source_kinds.KINDS,
    **run_kinds.KINDS,
    **task_kinds.KINDS,
    **checkpoint_kinds.KINDS,
}

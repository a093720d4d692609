"""The cost of hostile input: four times as much may take about four times as long."""

import time
from collections.abc import Callable


def assert_linear(work: Callable[[str], object], text: Callable[[int], str]) -> None:
    """Fails where `work` takes more than linear time, in each of three attempts.

    Linear is a factor of 4, quadratic of 16; the sum forgives the first millisecond.
    """

    def cpu_seconds(size: int) -> float:
        argument = text(size)
        start = time.process_time()
        work(argument)
        return time.process_time() - start

    assert any(cpu_seconds(16_000) < 9 * cpu_seconds(4_000) + 0.004 for _ in range(3))

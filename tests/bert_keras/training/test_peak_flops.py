import time

import numpy as np

from bert_keras.training import peak_flops


def test_peak_is_that_of_another_library():
    factor = np.full((1024, 1024), 1e-3, "float32")
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        factor @ factor
        seconds.append(time.perf_counter() - start)
    # The machine may be busy with other things at one time or the other.
    numpy_peak = 2 * 1024**3 / min(seconds)
    assert numpy_peak / 10 < peak_flops.measure("float32") < numpy_peak * 10

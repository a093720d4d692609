"""Python processes that are started here find our modules and no one else's."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def without_current_directory() -> Iterator[None]:
    """Keeps the current directory off the module path of processes started inside.

    multiprocessing and Beam start Python with `-c` and `-m`, which look there first: a
    user's own `pipelines/` would be imported in place of ours.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before

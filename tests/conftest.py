"""Fixtures that several test folders share."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real public data sets beside the repository, if it is there."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the real data sets in ../shared/data, which are not here")
    return folder

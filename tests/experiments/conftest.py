from collections.abc import Iterator

import pytest

from tests.commands import fork_workers


@pytest.fixture(autouse=True, scope="package")
def forked_workers() -> Iterator[None]:
    """Fork the workers of all comparisons, those of fixtures of a module too: a spawned one imports
    PyTorch anew."""
    with pytest.MonkeyPatch.context() as patch:
        fork_workers(patch)
        yield

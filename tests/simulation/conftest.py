import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def quiet_rounds() -> Iterator[None]:
    """Keep the lines that every round logs out of what failing tests print."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)

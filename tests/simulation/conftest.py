import logging
from collections.abc import Callable, Iterator

import pytest
import torch


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let PyTorch compute with one thread, as a run does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def lost_workers(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], set[str]]]:
    """Return what the log says of workers that ended."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.WARNING, logger="flwr")

    def said() -> set[str]:
        messages = [entry.getMessage() for entry in caplog.records]
        return {message for message in messages if message.startswith("a worker ended")}

    yield said
    logger.removeHandler(caplog.handler)

import pytest

from tests.commands import fork_workers


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_workers(monkeypatch)

"""Clients in this process, without messages: one that fails is one refused reply, and the run goes on."""

from pathlib import Path
from typing import Any

import pytest

from fairbloom.client.local import LocalClient, Metrics, Update
from fairbloom.client.states import StateDict
from fairbloom.protocol.terms import Terms

from .helpers import rounds, run, table


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client fails in the second round, and another one whenever it evaluates."""
    train, evaluate = LocalClient.train, LocalClient.evaluate

    def fails_once(self: LocalClient, received: StateDict, terms: Terms, sent: Any) -> Update:
        if self.name == "client-2" and terms.server_round == 2:
            raise RuntimeError("the disk of clinic 2 is gone")
        return train(self, received, terms, sent)

    def fails(self: LocalClient, received: StateDict, terms: Terms) -> Metrics:
        if self.name == "client-3":
            raise ValueError("no test data")
        return evaluate(self, received, terms)

    monkeypatch.setattr(LocalClient, "train", fails_once)
    monkeypatch.setattr(LocalClient, "evaluate", fails)


@pytest.mark.usefixtures("flaky")
def test_a_client_that_raises_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", fraction=1.0, num_rounds=3, engine="loop")
    first, second, third = rounds(folder)
    assert [row["replies_used"] for row in (first, second, third)] == ["5", "4", "5"]
    assert {row["participants"] for row in (first, second, third)} == {"5"}
    for row in (first, second, third):
        assert ("client-2" in row["refused"]) == (row is second)
        assert "client-3: evaluation: ValueError: no test data (test_clients.py, line" in row["refused"]
    assert "client-2: RuntimeError: the disk of clinic 2 is gone" in second["refused"]
    clients = table(folder / "clients.csv")
    assert {row["client"] for row in clients} == {f"client-{k}" for k in (0, 1, 2, 4)}
    refused = [row for row in clients if row["client"] == "client-2"]
    assert [row["participated"] for row in refused] == ["1", "0", "1"]
    assert [row["coefficient"] != "" for row in refused] == [True, False, True]
    assert (folder / "model.safetensors").exists()

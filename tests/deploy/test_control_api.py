"""The operator's calls of a real control API over TLS: Flower's app behind our door, with a database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairbloom.deploy import pki
from fairbloom.deploy.errors import DeployError, UnauthorizedError, UnreachableError
from fairbloom.deploy.flower.operator.control_api import connected
from fairbloom.deploy.operator.enrolment import enroll, revoke
from fairbloom.deploy.operator.federation import Federation
from tests.deploy.processes import free_port

from .served import Served
from .state import submit


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    there = Served(tmp_path_factory.mktemp("served"))
    there.start()
    yield there
    there.stop()


def test_twenty_sites_are_enrolled_without_a_command_of_flowers(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.run", None)
    monkeypatch.setattr("subprocess.Popen", None)
    names = [f"site-{number:02d}" for number in range(20)]
    for name in names:
        enroll(served.federation, name)
    with connected(served.federation) as api:
        nodes = api.nodes()
    known = {client.name: client for client in served.federation.clients}
    assert [nodes[known[name].node_id] for name in names] == [{"status": "registered", "offline-at": ""}] * 20
    assert sorted(known[name].partition_id for name in names) == list(range(20))
    revoke(served.federation, "site-07")
    with connected(served.federation) as api:
        assert api.nodes()[known["site-07"].node_id]["status"] == "unregistered"


def test_runs_are_told_with_their_status(served: Served) -> None:
    run, task = submit(served.place.state)
    with connected(served.federation) as api:
        (about,) = api.runs(str(run))
        assert (about["run-id"], about["status"], about["fab-id"]) == (str(run), "pending", "a/b")
        assert about in api.runs()
        served.place.state.finish_task(task, "failed", "ServerApp failed with exception: nothing was learned")
        (about,) = api.runs(str(run))
    assert about["status"] == "finished:failed"
    assert about["status-details"].endswith("nothing was learned")


def test_what_the_superlink_refuses_is_said_in_its_words(served: Served) -> None:
    with connected(served.federation) as api:
        public = pki.make_node_key().public
        api.register("twice", public)
        with pytest.raises(DeployError, match=r"the SuperLink does not register a client: \[code: \d+\] .*[Kk]ey"):
            api.register("twice", public)
        with pytest.raises(DeployError, match=r"the SuperLink does not unregister a client: \[code: \d+\] "):
            api.unregister("12345")


def test_another_credential_is_refused(served: Served, tmp_path: Path) -> None:
    other = Federation.init(tmp_path / "other", ["localhost"], free_port(), served.federation.control, 10)
    for name in ("ca.crt", "ca.key"):
        (other.path / name).write_bytes((served.federation.path / name).read_bytes())
    with connected(other) as api, pytest.raises(UnauthorizedError, match="does not accept the credential in"):
        api.nodes()


@pytest.mark.parametrize("why", ["nobody is there", "another authority"])
def test_a_control_api_that_is_not_reached_is_named(served: Served, tmp_path: Path, why: str) -> None:
    control = served.federation.control if why == "another authority" else f"127.0.0.1:{free_port()}"
    other = Federation.init(tmp_path / "other", ["localhost"], free_port(), control, 10)
    said = f"control API at {control} cannot be reached: is fairbloom server up there"
    with connected(other) as api, pytest.raises(UnreachableError, match=said):
        api.runs()


def test_an_expired_certificate_is_named_with_its_remedy(served: Served, tmp_path: Path) -> None:
    other = Federation.init(tmp_path / "other", ["localhost"], free_port(), f"127.0.0.1:{free_port()}", 10)
    authority = (other.authority, other.authority_key)
    pki.make_server_certificate(*authority, other.certificate, other.certificate_key, ["localhost"], -3)
    said = r"cannot be reached: server certificate: .*server\.crt expired 3 days ago: fairbloom deploy renew"
    with connected(other) as api, pytest.raises(UnreachableError, match=said):
        api.runs()
    other.renew([], 10)
    with connected(other) as api, pytest.raises(UnreachableError, match="is fairbloom server up there"):
        api.runs()

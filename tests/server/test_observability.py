"""What a run shows while it goes on: metrics over HTTP, and log lines as JSON."""

import http.client
import json
import logging
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairbloom.protocol.scores import ACCURACY
from fairbloom.rounds.screening import Refusals
from fairbloom.server.observability import JsonLines, Metrics, MetricsError
from fairbloom.server.run_folder.recorded import RecordedRound
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.deploy.processes import free_port
from tests.simulation.helpers import checkpoints_every

from .run_folder.test_recorder import a_round

SMALL: dict[str, Any] = {"clients": 4, "num-rounds": 3, "device": "cpu"}


def test_a_run_serves_its_rounds_accuracies_and_clients(tmp_path: Path) -> None:
    port, pages = free_port(), []

    def scrape(recorded: RecordedRound) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            pages.append(dict(line.rsplit(" ", 1) for line in page.read().decode().splitlines() if line[0] != "#"))

    simulate(Settings.of({**SMALL, "metrics-port": port, "out": str(tmp_path / "run")}), scrape)
    assert [float(page["fairbloom_rounds_total"]) for page in pages] == [1, 2, 3]
    assert float(pages[-1]["fairbloom_connected_clients"]) == 4
    assert 0 <= float(pages[-1]['fairbloom_test_accuracy_percent{over="worst_10"}']) <= 100
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0  # nothing is left behind


def test_a_run_logs_the_accuracy_of_each_round_and_who_is_served_worst(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rounds: list[RecordedRound] = []
    logging.getLogger("flwr").addHandler(caplog.handler)
    caplog.set_level(logging.INFO, "flwr")
    try:
        with checkpoints_every(1):
            simulate(Settings.of({**SMALL, "evaluate-every": 2, "out": str(tmp_path / "run")}), rounds.append)
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    messages = dict.fromkeys(record.getMessage() for record in caplog.records)  # some come by the root's handler too
    said = [message for message in messages if message.startswith(("round", "worst"))]
    mean, worst, best = (rounds[2].measures[over] for over in ("mean", "worst", "best"))
    assert said[0] == "round 1 is finished"
    assert said[2].startswith(f"round 3 is finished: test accuracy {mean:.1f} %, of the worst 10 % of clients")
    client = r"client-\d"
    others = rf"{client} {worst:.1f} %(, {client} [\d.]+ %){{2}}"
    assert re.fullmatch(rf"worst served: {others}; best: {client} {best:.1f} %", said[3])


def test_rounds_that_share_a_checkpoint_share_the_log_line_of_the_last_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)
    caplog.set_level(logging.INFO, "flwr")
    try:
        with checkpoints_every(3):
            simulate(Settings.of({**SMALL, "num-rounds": 8, "out": str(tmp_path / "run")}))
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    said = dict.fromkeys(record.getMessage().split(" is")[0] for record in caplog.records)
    assert [line for line in said if line.startswith("round ")] == ["round 3", "round 6", "round 8"]


def answer(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Return the port of a page that asks for a credential."""
    (tmp_path / "metrics.token").write_text("s3cret\n")
    monkeypatch.setenv("FAIRBLOOM_METRICS_TOKEN_FILE", str(tmp_path / "metrics.token"))
    metrics = Metrics(port := free_port(), ACCURACY)
    yield port
    metrics.close()


def test_who_brings_the_credential_sees_the_page(guarded: int) -> None:
    status, page = answer(guarded, Authorization="Bearer s3cret")
    assert status == 200
    assert "fairbloom_rounds_total 0.0" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crett", "bearer s3cret", "s3cret", "Bearer None"],
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/metrics"), ("GET", "/"), ("OPTIONS", "/metrics"), ("HEAD", "/")]
)
def test_who_does_not_is_told_nothing(guarded: int, header: str | None, method: str, path: str) -> None:
    headers = {} if header is None else {"Authorization": header}
    assert answer(guarded, path, method, **headers) == (401, "")


def test_a_credential_that_is_no_ascii_is_a_wrong_one(guarded: int) -> None:
    assert answer(guarded, Authorization="Bearer s3cr\xe9t")[0] == 401


def test_two_credentials_are_none(guarded: int) -> None:
    with socket.create_connection(("127.0.0.1", guarded), timeout=300) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\nAuthorization: Bearer s3cret\r\nAuthorization: Bearer x\r\n\r\n")
        assert b" 401 " in connection.recv(1000)


def test_there_is_one_page_and_it_is_only_read(guarded: int) -> None:
    for path in ("/", "/metrics/", "/favicon.ico", "/../metrics", "/metricsx"):
        assert answer(guarded, path, Authorization="Bearer s3cret") == (404, "")
    for method in ("HEAD", "POST", "PUT", "DELETE"):
        assert answer(guarded, method=method, Authorization="Bearer s3cret")[0] == 405


def test_a_credential_in_an_empty_or_missing_file_is_an_error_and_no_open_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.token"
    monkeypatch.setenv("FAIRBLOOM_METRICS_TOKEN_FILE", str(path))
    with pytest.raises(MetricsError, match=f"FAIRBLOOM_METRICS_TOKEN_FILE = {path} cannot be read: .*No such file"):
        Metrics(free_port(), ACCURACY)
    path.write_text(" \n")
    with pytest.raises(MetricsError, match=f"FAIRBLOOM_METRICS_TOKEN_FILE = {path} is empty: write the credential"):
        Metrics(free_port(), ACCURACY)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(MetricsError, match="cannot be read"):
        Metrics(free_port(), ACCURACY)


def addresses(port: int) -> set[str]:
    """Return the addresses of this machine at which somebody listens on `port`."""
    listening = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = {local.partition(":")[0] for local, _, state in listening if state == "0A" and int(local[-4:], 16) == port}
    return {".".join(str(byte) for byte in bytes.fromhex(address)[::-1]) for address in found}


def test_the_page_is_served_to_this_machine_alone_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for host, expected in ((None, "127.0.0.1"), ("127.0.0.2", "127.0.0.2"), ("0.0.0.0", "0.0.0.0")):
        if host is not None:
            monkeypatch.setenv("FAIRBLOOM_METRICS_HOST", host)
        metrics = Metrics(port := free_port(), ACCURACY)
        try:
            assert addresses(port) == {expected}
        finally:
            metrics.close()


def test_an_address_that_is_not_here_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRBLOOM_METRICS_HOST", "192.0.2.1")
    with pytest.raises(MetricsError, match=r"cannot be served on 192\.0\.2\.1"):
        Metrics(free_port(), ACCURACY)


def test_the_page_counts_the_rounds_that_one_client_decided() -> None:
    metrics = Metrics(port := free_port(), ACCURACY)
    try:
        for number, decider in ((1, "site-a"), (2, ""), (3, "site-a")):
            row = {"seconds": 0.1, "decided_by": decider}
            metrics.observe(RecordedRound.of(a_round(number), row, ACCURACY), connected=3)
        page = answer(port)[1]
    finally:
        metrics.close()
    assert re.findall(r"^fairbloom_decided_rounds_total.*$", page, re.MULTILINE) == [
        'fairbloom_decided_rounds_total{client="site-a"} 2.0'
    ]


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MetricsError, match=f"metrics-port = {port} cannot be served"):
            Metrics(port, ACCURACY)


def test_a_refusal_is_logged_as_json_with_run_round_and_client(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        refused = Refusals(7)
        refused.add("site-2", "array 'w' is not finite")
        refused.log()
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    entry = json.loads(JsonLines("run-a").format(caplog.records[0]))
    assert (entry["run"], entry["round"], entry["client"], entry["level"]) == ("run-a", 7, "site-2", "warning")
    assert "not finite" in entry["message"]


def test_metrics_and_log_format_may_differ_when_a_run_is_continued(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    simulate(Settings.of({**SMALL, "out": out}))
    simulate(Settings.of({**SMALL, "out": out, "log-format": "json", "metrics-port": free_port()}))

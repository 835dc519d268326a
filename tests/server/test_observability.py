"""What a run tells the outside: metrics over HTTP, and log lines as JSON."""

import json
import logging
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from deploy.client import free_port
from server.observability import JsonLines, Metrics
from server.records import Row
from server.settings import Settings
from simulation.run import simulate
from strategies.round import Exchange

SMALL: dict[str, Any] = {"clients": 4, "num-rounds": 3, "device": "cpu"}


def test_a_run_serves_its_rounds_accuracies_and_clients(tmp_path: Path) -> None:
    port, pages = free_port(), []

    def scrape(row: Row) -> None:
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
    rows: list[Row] = []
    logging.getLogger("flwr").addHandler(caplog.handler)
    caplog.set_level(logging.INFO, "flwr")
    try:
        simulate(Settings.of({**SMALL, "evaluate-every": 2, "out": str(tmp_path / "run")}), rows.append)
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    messages = dict.fromkeys(record.getMessage() for record in caplog.records)  # some come by the root's handler too
    said = [message for message in messages if message.startswith(("round", "worst"))]
    mean, worst, best = (rows[2][f"test_accuracy_of_global_model_{over}"] for over in ("mean", "worst", "best"))
    assert said[0] == "round 1 is finished"
    assert said[2].startswith(f"round 3 is finished: test accuracy {mean:.1f} %, of the worst 10 % of clients")
    client = r"client-\d"
    others = rf"{client} {worst:.1f} %(, {client} [\d.]+ %){{2}}"
    assert re.fullmatch(rf"worst served: {others}; best: {client} {best:.1f} %", said[3])


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"metrics-port = {port} cannot be served"):
            Metrics(port)


def test_a_refusal_is_logged_as_json_with_run_round_and_client(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        Exchange(round=7).refuse("site-2", "array 'w' is not finite")
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    entry = json.loads(JsonLines("run-a").format(caplog.records[0]))
    assert (entry["run"], entry["round"], entry["client"], entry["level"]) == ("run-a", 7, "site-2", "warning")
    assert "not finite" in entry["message"]


def test_metrics_and_log_format_may_differ_when_a_run_is_continued(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    simulate(Settings.of({**SMALL, "out": out}))
    simulate(Settings.of({**SMALL, "out": out, "log-format": "json", "metrics-port": free_port()}))

"""Four real clients train for hundreds of rounds while one fault follows another.

`make soak` runs it, `make test` does not; SOAK_ROUNDS and SOAK_SEED choose the length and the
faults.
"""

import hashlib
import os
import random
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.deployment import REHEARSAL, federation, names, rounds, wait_for_rounds
from benchmarks.flower import ROOT, wait_until
from benchmarks.processes import pss

from .faults import FAULTS, Site
from .records import trained_again

pytestmark = pytest.mark.soak

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "300"))
SEED = int(os.environ.get("SOAK_SEED", "0"))
FAULT_SECONDS = 60.0
CALM_ROUNDS = 3
# A fault begins a minute after the last one, or after CALM_ROUNDS rounds with all replies. But it
# waits until a round is finished, for at most LONGEST_SECONDS.
LONGEST_SECONDS = 600.0

# The limit of a process's growth from the first to the last quarter of the run. It holds for
# processes that lived through half of the run.
SLACK_MB = 60.0

CLIENTS = names(4)
HOSTILE = CLIENTS[3]
SETTINGS: dict[str, Any] = {
    "smallest-batch": 5,
    "clients": len(CLIENTS),
    "partition": "iid",
    "fraction": 1.0,
    "num-rounds": ROUNDS,
    "method": "fedfv",
    "momentum": 0.9,
    "local-epochs": 4,
    "device": "cpu",
    "round-timeout": 60.0,
    "seed": SEED,
    "wait-for-clients": 600.0,
}


class Soak:
    """A run, its faults, and the memory of its processes after each fault."""

    def __init__(self, site: Site, out: Path, log: Path) -> None:
        self.site = site
        self.out = out
        self._log = log
        self.memory: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
        self.faults = 0

    def say(self, words: str) -> None:
        line = f"{time.strftime('%H:%M:%S')} round {len(rounds(self.out))}: {words}"
        print(line, flush=True)
        with self._log.open("a") as file:
            file.write(f"{line}\n")

    def run(self) -> None:
        """Cause one fault after another until the run's last rounds."""
        chance = random.Random(SEED)
        coming: list[str] = []
        while (
            len(rounds(self.out)) < ROUNDS - 2 * CALM_ROUNDS
            and self.site.there.submitted.poll() is None
        ):
            if not coming:  # each fault once, before one is repeated
                coming = chance.sample(sorted(FAULTS), len(FAULTS))
            fault = coming.pop()
            began = time.monotonic()
            self.say(f"{fault}: {FAULTS[fault](self.site, chance)}")
            self.faults += 1
            self.say(self._wait(since=began))
            self._measure()

    def _wait(self, since: float) -> str:
        """Wait until the next fault may begin; return how the run recovered from the last one."""
        first = len(rounds(self.out))
        while (
            seconds := time.monotonic() - since
        ) < LONGEST_SECONDS and self.site.there.submitted.poll() is None:
            later = rounds(self.out)[first:]
            if len(later) > CALM_ROUNDS and all(
                row["replies_used"] == "4" for row in later[-CALM_ROUNDS:]
            ):
                return f"healed in {seconds:.0f} s"
            if later and seconds > FAULT_SECONDS:
                return f"goes on after {seconds:.0f} s, with {later[-1]['replies_used']} replies"
            time.sleep(0.5)
        return f"no round in {seconds:.0f} s"

    def _measure(self) -> None:
        for name, pid in self.site.processes().items():
            self.memory[name, pid].append((len(rounds(self.out)), pss(pid)))


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soak]:
    # outside a run, Flower cannot make messages
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    home = tmp_path_factory.mktemp("soak") / "home"
    with federation(home, len(CLIENTS)) as there:
        (there.bundle(HOSTILE) / "owner.toml").write_text(
            'app = "tests.soak.hostile:app"\n' + REHEARSAL
        )
        there.environment["PYTHONPATH"] = str(ROOT)
        site = Site(there, CLIENTS)
        try:
            submitted = there.submitting({**SETTINGS, "out": str(home / "run")})
            wait_for_rounds(home / "run", 2)
            soak = Soak(site, home / "run", home / "soak.log")
            soak.say(f"{ROUNDS} rounds, seed {SEED}, logs in {home}")
            soak.run()
            wait_until(
                lambda: submitted.poll() is not None,
                seconds=600.0,
                otherwise=lambda: there.log(submitted)[-3000:],
            )
            soak.say(f"over after {soak.faults} faults")
            yield soak
        finally:
            site.close()


def test_the_run_ends_by_itself_with_every_round(soaked: Soak) -> None:
    there = soaked.site.there
    assert there.submitted.returncode == 0, there.log(there.submitted)[-3000:]
    assert [int(row["round"]) for row in rounds(soaked.out)] == [*range(1, ROUNDS + 1)]
    assert soaked.faults >= min(len(FAULTS), ROUNDS // 20)


def test_the_model_is_that_of_the_recorded_run_to_the_bit(soaked: Soak, tmp_path: Path) -> None:
    digests = {
        hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        for folder in (soaked.out, trained_again(soaked.out, SETTINGS, CLIENTS, tmp_path / "again"))
    }
    assert len(digests) == 1


def test_only_the_hostile_client_is_refused_for_its_replies(soaked: Soak) -> None:
    about_a_reply = re.compile(r"(\S+): (?:array|metric|loss|num-examples|update)")
    refusals = " | ".join(row["refused"] for row in rounds(soaked.out))
    assert set(about_a_reply.findall(refusals)) <= {HOSTILE}


def test_memory_is_flat(soaked: Soak, subtests: pytest.Subtests) -> None:
    for (name, _), samples in soaked.memory.items():
        with subtests.test(samples=samples, name=name):
            if samples[-1][0] - samples[0][0] < ROUNDS // 2:
                continue
            quarter = max(1, len(samples) // 4)
            first = statistics.median(mb for _, mb in samples[:quarter])
            last = statistics.median(mb for _, mb in samples[-quarter:])
            assert last < first + SLACK_MB, (
                f"{name}: {first:.0f} MB at first, {last:.0f} MB at last"
            )


def test_the_servers_folder_does_not_grow_with_the_rounds(soaked: Soak) -> None:
    files = [file for file in (soaked.site.there.folder / "state").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 10e6

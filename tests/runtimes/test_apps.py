"""Flower finds both apps, in any order in which its threads look for them."""

import subprocess
import sys

import pytest

from tests.checkout import ROOT

pytestmark = pytest.mark.slow

LOOK = """
import sys, threading, time
from importlib.util import find_spec
sys.path.insert(0, sys.argv[1])
lost, moment = [], time.monotonic() + 0.02
def look(name):
    time.sleep(max(0.0, moment - time.monotonic()))
    try:
        find_spec(name)
        __import__(name)
    except ModuleNotFoundError as error:
        lost.append(error.name)
threads = [threading.Thread(target=look, args=(name,)) for name in sys.argv[2:]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(bool(lost))
"""


@pytest.mark.parametrize("attempt", range(6))
def test_two_threads_find_both_apps_at_once(attempt: int) -> None:
    apps = ("fairbloom.serverapp", "fairbloom.clientapp")
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(ROOT), *apps], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr

"""The commands of a client, each in a separate process."""

import os
import subprocess
import sys
from pathlib import Path

from tests.checkout import ROOT


def client_command(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairbloom.deploy", "client", *map(str, words)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

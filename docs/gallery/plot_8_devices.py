"""
Real devices on this machine
============================

A server and two clients are processes of their own. They talk over TLS, each with its own key.
"""

import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import fairbloom

folder = tempfile.mkdtemp()
port = socket.create_server(("localhost", 0)).getsockname()[1]  # a free one


def start(command):
    return subprocess.Popen(
        [sys.executable, "-m", "fairbloom", *command.split()],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def show(command):
    print(f"$ fairbloom {command}\n{start(command).communicate()[0]}")


# %%
# The operator makes a federation, and a folder with a key and a certificate for each device.

show(f"deploy init federation --host localhost --port {port}")
show("deploy enroll site-a site-b")

# %%
# The server and the devices stay, and a run is submitted to them.

with ExitStack() as running:
    for command in (
        "server",
        "client federation/bundles/site-a/client.toml",
        "client federation/bundles/site-b/client.toml",
    ):
        process = running.enter_context(start(command))
        running.callback(process.terminate)
        print(process.stdout.readline().strip())
    show("deploy submit --set method=fedfv --set clients=2 --set num-rounds=5")
    show("deploy status")

# %%
# Its run folder is that of a simulation.

fairbloom.load(next(Path(folder, "runs").iterdir())).chart()

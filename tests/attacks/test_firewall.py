"""The firewall of the deployment page, in a network of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks

NFT = shutil.which("nft", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")

# It prints how many connections each of the addresses gets.
CONNECT = """
import socket

listener = socket.create_server(
    ("::", 9092), family=socket.AF_INET6, backlog=500, dualstack_ipv6=True
)
held = []
for own, other in (
    ("10.9.0.1", "10.9.0.9"), ("10.9.0.2", "10.9.0.9"), ("fd00::1", "fd00::9"), ("fd00::2", "fd00::9")
):
    before = len(held)
    for _ in range(80):
        try:
            held.append(socket.create_connection((other, 9092), 5, source_address=(own, 0)))
        except ConnectionRefusedError:
            pass
    print(len(held) - before)
for connection in held:
    listener.accept()[0].close()
    connection.close()
for own, other in (("10.9.0.3", "10.9.0.9"), ("fd01::3", "fd01::9")):
    made = 0
    try:
        for made in range(400):
            with socket.create_connection((other, 9092), 0.5, source_address=(own, 0)):
                listener.accept()[0].close()
    except TimeoutError:
        print(made)
"""


CONTAINER = """
import socket, time

listener = socket.create_server(("0.0.0.0", 9093), backlog=500)
time.sleep(30)
"""

FAR = """
import socket

held = []
for _ in range(80):
    try:
        held.append(socket.create_connection(("10.8.0.1", 9092), 5))
    except ConnectionRefusedError:
        pass
print(len(held))
"""


def in_own_network(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["unshare", "--map-root-user", "--net", "sh", "-ec", script, "sh", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def write_rules(place: Path) -> Path:
    """Write the rules of the page; skip the test where they cannot be loaded."""
    if NFT is None or in_own_network("ip link set lo up").returncode:
        pytest.skip("needs nft, ip, and networks of one's own")
    rules, command = (
        block for block in blocks("docs/deployment.md") if block.section == "A firewall"
    )
    assert command.commands == ["sudo nft -f fairbloom.nft"]
    file = place / "fairbloom.nft"
    file.write_text(rules.text)
    return file


@pytest.mark.slow
def test_the_firewall_of_the_page_counts_by_address(tmp_path: Path) -> None:
    file = write_rules(tmp_path)
    script = (
        "ip link set lo up\n"
        "for host in 1 2 3 9; do\n"
        "  ip address add 10.9.0.$host/24 dev lo\n"
        "  ip address add fd00::$host/64 dev lo nodad\n"
        "  ip address add fd01::$host/64 dev lo nodad\n"
        "done\n"
        '"$1" -f "$2"\n'
        '"$3" -c "$4"\n'
    )
    done = in_own_network(script, str(NFT), str(file), sys.executable, CONNECT)
    assert done.returncode == 0, done.stderr
    *counts, made4, made6 = map(int, done.stdout.split())
    assert counts == [64, 64, 64, 0]  # two addresses of IPv6 are one network
    assert 200 <= made4 < 400
    assert 200 <= made6 < 400


@pytest.mark.slow
def test_the_firewall_counts_before_docker_maps_the_port(tmp_path: Path) -> None:
    file = write_rules(tmp_path)
    file.write_text(
        file.read_text()
        + "table ip docker {\n"
        + "  chain ports {\n"
        + "    type nat hook prerouting priority dstnat; tcp dport 9092 redirect to :9093\n"
        + "  }\n"
        + "}\n"
    )
    script = (
        "unshare --net sleep 30 &\n"
        "far=$!\n"
        # the other process has a network of its own
        "until ! [ /proc/$far/ns/net -ef /proc/self/ns/net ]; do sleep 0.1; done\n"
        "ip link add near type veth peer name far netns $far\n"
        "ip address add 10.8.0.1/24 dev near\n"
        "ip link set near up\n"
        "nsenter --net=/proc/$far/ns/net ip address add 10.8.0.2/24 dev far\n"
        "nsenter --net=/proc/$far/ns/net ip link set far up\n"
        '"$1" -f "$2"\n'
        '"$3" -c "$4" &\n'
        # it listens at port 9093
        "until grep -q ':2385 00000000:0000 0A' /proc/net/tcp; do sleep 0.1; done\n"
        'nsenter --net=/proc/$far/ns/net "$3" -c "$5"\n'
        "kill $far $!\n"
    )
    done = in_own_network(script, str(NFT), str(file), sys.executable, CONTAINER, FAR)
    assert (done.returncode, done.stdout) == (0, "64\n"), done.stderr

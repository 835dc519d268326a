"""The memory of a machine, or of the service that a process belongs to."""

import os
from pathlib import Path

from fairbloom.system.machine import half_of_memory


def test_a_services_limit_is_its_memory(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert half_of_memory(tmp_path) == machine // 2
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/client.service\n")
    folder = tmp_path / "sys/fs/cgroup/system.slice/client.service"
    folder.mkdir(parents=True)
    for limit, memory in (("max", machine), ("1000000", 1_000_000), (str(2**60), machine)):
        (folder / "memory.max").write_text(f"{limit}\n")
        assert half_of_memory(tmp_path) == memory // 2

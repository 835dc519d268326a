"""Installed packages are the locked ones: every file has a hash, every image a digest."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import distributions, packages_distributions, requires
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from .requirements import needed

ROOT = Path(__file__).parents[1]
LOCKS = {path.stem: path for path in (ROOT / "requirements.lock", *(ROOT / "locks").glob("*.lock"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OPTIONAL = PROJECT["project"]["optional-dependencies"]
# The most direct dependencies of a bare install.
DEPENDENCIES = 23
# The lock files of a client's device and of a server.
EXTRAS = {"client": ("client",), "server": ("client", "server")}

DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
SYSTEMS = {
    "laptop": LINUX | {"platform_machine": "x86_64"},
    "raspberry-pi": LINUX | {"platform_machine": "aarch64"},
    "mac": {
        "sys_platform": "darwin",
        "platform_system": "Darwin",
        "os_name": "posix",
        "platform_machine": "arm64",
    },
}
DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")


class Locked(NamedTuple):
    requirement: Requirement
    options: list[str]

    @property
    def version(self) -> str:
        (specifier,) = self.requirement.specifier
        return specifier.version


def entries(lock: Path) -> Iterator[str]:
    """Return the lines of a lock file that pip acts on, with continued lines joined."""
    lines = lock.read_text().replace("\\\n", " ").splitlines()
    return (line.strip() for line in lines if line.strip() and not line.startswith("#"))


@cache
def locked(name: str) -> dict[str, list[Locked]]:
    """Return the versions of each package in a lock file: one, or one for each range of Python."""
    found: dict[str, list[Locked]] = {}
    for entry in entries(LOCKS[name]):
        if not entry.startswith("-"):
            requirement, *options = re.split(r"\s+(?=--)", entry)
            parsed = Requirement(requirement)
            found.setdefault(canonicalize_name(parsed.name), []).append(Locked(parsed, options))
    return found


def declared(*, extras: bool = True, group: str | None = None) -> list[Requirement]:
    if group is not None:
        return [Requirement(line) for line in PROJECT["dependency-groups"][group]]
    apart = ("all", "vision")  # torchvision is of PyTorch's build, and in no lock
    optional = [line for extra, lines in OPTIONAL.items() if extra not in apart for line in lines]
    return [
        Requirement(line)
        for line in (*PROJECT["project"]["dependencies"], *(optional if extras else []))
    ]


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_one_version_and_hashes(name: str) -> None:
    """A lock file has no host or address; its only option is that source archives are not built."""
    packages = locked(name)
    assert packages
    assert "://" not in LOCKS[name].read_text()
    assert [entry for entry in entries(LOCKS[name]) if entry.startswith("-")] == [
        "--only-binary :all:"
    ]
    for versions in packages.values():
        for pin in versions:
            (specifier,) = pin.requirement.specifier
            assert not pin.requirement.url
            assert specifier.operator == "=="
            assert "*" not in specifier.version
            assert pin.options
            assert all(
                re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", option) for option in pin.options
            ), pin.requirement
        assert len(versions) == 1 or None not in [pin.requirement.marker for pin in versions], (
            f"two versions of {versions[0].requirement.name} at once"
        )


def test_lock_files_agree(subtests: pytest.Subtests) -> None:
    """Versions and hashes of a package are equal in all files, except PyTorch's CPU build."""
    everything = [locked(name) for name in LOCKS if name != "torch-cpu"]
    for package in {package for lock in everything for package in lock}:
        with subtests.test(package=package):
            pins = [
                {(pin.version, *pin.options) for pin in lock[package]}
                for lock in everything
                if package in lock
            ]
            assert all(pin == pins[0] for pin in pins), (
                f"{package} differs between lock files; run make lock"
            )


@pytest.mark.parametrize(
    ("lock", "asked"),
    [
        ("requirements", [*declared(), *declared(group="dev"), *declared(group="build")]),
        *(
            (group, declared(group=group))
            for group in ("docs", "build", "inventory", "audit", "publish")
        ),
    ],
)
def test_what_the_project_asks_for_is_locked_in_its_range(
    lock: str, asked: list[Requirement]
) -> None:
    pins = locked(lock) | locked("torch")
    for requirement in asked:
        for pin in pins[canonicalize_name(requirement.name)]:
            assert pin.version in requirement.specifier, (
                f"{requirement} is locked at {pin.version}; run make lock"
            )


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("lock", ["requirements", "client", "server"])
def test_a_lock_file_is_complete(lock: str, system: str) -> None:
    """The requirements of a locked package are locked, too: otherwise pip refuses it.

    PyTorch, which the user chooses, is separate: the CPU build's requirements are all here, another
    build's here or in torch.lock. This holds for each build that may be installed.
    """
    if lock == "requirements":
        asked = [*declared(), *declared(group="dev"), *declared(group="build")]
    else:
        asked = [Requirement(line) for extra in EXTRAS[lock] for line in OPTIONAL[extra]]
    for cuda, pins in ((False, locked(lock)), (True, locked("torch") | locked(lock))):
        for requirement in needed(asked, SYSTEMS[system], cuda=cuda):
            if requirement.name != "torch":
                on_system = [
                    pin
                    for pin in pins.get(canonicalize_name(requirement.name), [])
                    if pin.requirement.marker is None
                    or pin.requirement.marker.evaluate(SYSTEMS[system])
                ]
                assert len(on_system) == 1, f"{requirement} is not in {LOCKS[lock].name}"
                assert on_system[0].version in requirement.specifier


@pytest.mark.parametrize("line", [*OPTIONAL["client"], *OPTIONAL["server"]])
def test_an_extra_asks_for_no_other_version_than_the_project(line: str) -> None:
    """The extra asks for nothing else: an installation that simulates can be a client as well."""
    others = [Requirement(line) for line in OPTIONAL["images"]]
    ranges = {
        requirement.name: requirement.specifier
        for requirement in (*declared(extras=False), *others)
    }
    assert ranges["flwr"] == SpecifierSet(">=1.39")
    assert ranges[Requirement(line).name] == Requirement(line).specifier, line


def test_a_bare_install_has_few_direct_dependencies() -> None:
    assert len(PROJECT["project"]["dependencies"]) <= DEPENDENCIES


def test_the_extra_all_brings_every_other_one() -> None:
    """Except the extras that list the libraries of images and devices."""
    (line,) = OPTIONAL["all"]
    assert Requirement(line).name == PROJECT["project"]["name"]
    assert Requirement(line).extras == OPTIONAL.keys() - {"all", "client", "server", "vision"}


def test_no_client_gets_what_only_simulation_and_figures_need() -> None:
    assert not {"ray", "vl-convert-python", "cvxopt", "pytest"} & set(locked("client"))
    assert set(locked("client")) < set(locked("server")) < set(locked("requirements"))


def imports_of(module: Path) -> Iterator[str]:
    """Return the names that a file imports, also in functions: our modules and others' packages."""
    package = ["fairbloom", *module.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            of = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*of, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def files_of(module: str) -> Iterator[Path]:
    """Return the files that an import of a module runs, without those of fairbloom itself."""
    parts = module.split(".")[1:]
    for size in range(1, len(parts) + 1):
        place = ROOT.joinpath("fairbloom", *parts[:size])
        yield from (
            file.resolve()
            for file in (place / "__init__.py", place.with_suffix(".py"))
            if file.is_file()
        )


def test_the_extra_client_names_all_imports_of_a_deployed_client() -> None:
    started = [
        file
        for room in ("client", "deploy/device", "deploy/fleet", "fairbloom/tasks")
        for file in (ROOT / room).rglob("*.py")
    ]
    waiting = [*started, ROOT / "fairbloom" / "clientapp.py"]
    seen = set()
    others = set()
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            for name in imports_of(file):
                if name.startswith("fairbloom.strategies"):
                    # imported only for a run folder, which no device has
                    # (tests/install/test_plain.py)
                    continue
                if name.partition(".")[0] == "fairbloom":
                    waiting += files_of(name)
                else:
                    others.add(name.partition(".")[0])
    assert ROOT / "fairbloom" / "protocol" / "settings.py" in seen
    # several packages share google; protobuf's part is imported; torchvision need not be installed
    owners = {
        **packages_distributions(),
        "google": ["protobuf"],
        "torchvision": ["torchvision"],
    }
    imported = {
        canonicalize_name(owners[name][0])
        for name in others - sys.stdlib_module_names - {"__future__"}
    }

    def names(lines: Iterable[str]) -> set[str]:
        return {canonicalize_name(Requirement(line).name) for line in lines}

    optional = names(line for extra in ("images", "excel", "torchjd") for line in OPTIONAL[extra])
    optional -= {"pillow"}  # of "images", used for reading a device's images
    optional |= {"torchvision"}
    optional |= {"datasets", "pandas"}  # a data frame is predicted only if a user has made one
    brought = names([*(requires("flwr") or []), *(requires("pydantic") or [])])
    brought -= names(PROJECT["project"]["dependencies"])
    assert {"flwr", "torch", "pydantic", "pillow"} <= imported
    assert imported - optional - brought <= names(OPTIONAL["client"])


def test_pytorch_and_its_cuda_libraries_are_locked_apart() -> None:
    cuda = set(locked("torch")) - set(locked("requirements")) - {"torch"}
    assert any(name.startswith("nvidia-") for name in cuda)
    assert all("linux" in str(locked("torch")[name][0].requirement.marker) for name in cuda)
    assert "torch" not in {*locked("requirements"), *locked("client"), *locked("server")}


def test_the_environment_is_the_locked_one() -> None:
    installed = {
        canonicalize_name(found.name): found.version
        for found in distributions(path=[sysconfig.get_path("purelib")])
    }
    here = {
        name: pin.version
        for name, versions in locked("requirements").items()
        for pin in versions
        if pin.requirement.marker is None or pin.requirement.marker.evaluate()
    }
    assert {name: installed.get(name) for name in here} == here, (
        "make setup installs the locked versions"
    )
    apart = {"fairbloom", *locked("torch"), *locked("docs")}
    assert set(installed) <= {*here, *apart, "setuptools"}, (
        "something is installed that is not locked"
    )


def torch_for(*requirement: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, ROOT / "locks" / "pytorch.py", *requirement]
    environment = os.environ | ({} if path is None else {"PATH": path})
    return subprocess.run(script, capture_output=True, text=True, check=True, env=environment)


def test_the_default_pytorch_comes_with_hashes() -> None:
    (of_images,) = re.findall(r"^ARG TORCH=(.*)$", DOCKERFILE, re.MULTILINE)
    printed = torch_for(of_images)
    assert printed.stdout == LOCKS["torch-cpu"].read_text()
    assert f"\n{of_images} \\\n    --hash=sha256:" in printed.stdout
    assert not printed.stderr
    # With hashes, pip refuses what PyTorch needs unless it is there.
    words = (ROOT / "locks" / "pytorch.py").read_text()
    assert words.index("--no-deps --requirement requirements.lock") < words.index("> torch.txt")
    assert torch_for().stdout in (LOCKS["torch"].read_text(), LOCKS["torch-cpu"].read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is one build")
def test_without_a_driver_the_cpu_build_is_taken_if_pip_has_it(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "nvidia-smi").touch(mode=0o755)
    with_driver = torch_for(path=str(tmp_path))
    assert (with_driver.stdout, with_driver.stderr) == (LOCKS["torch"].read_text(), "")
    (tmp_path / "nvidia-smi").unlink()
    (tmp_path / "pip.py").write_text("print('Available versions: 2.15.0, 2.13.0+cpu, 2.13.0')")
    for module, lock in (("pip", "torch-cpu"), ("missing", "torch")):
        with subtests.test(module=module, lock=lock):
            (tmp_path / "pytorch.py").write_text(
                (ROOT / "locks" / "pytorch.py")
                .read_text()
                .replace('"-m", "pip"', f'"-m", "{module}"')
            )
            for name in ("torch", "torch-cpu"):
                (tmp_path / f"{name}.lock").write_text(LOCKS[name].read_text())
            printed = subprocess.run(
                [sys.executable, "pytorch.py"],
                cwd=tmp_path,
                env={"PATH": "", "PYTHONPATH": str(tmp_path)},
                capture_output=True,
                text=True,
            )
            assert printed.stdout == LOCKS[lock].read_text()
            assert ("No NVIDIA driver here" in printed.stderr) == (lock == "torch-cpu")


@pytest.mark.parametrize(
    "requirement", ["torch", "torch==2.15", "torch==2.13.0+cu130", "torch>=2.6"]
)
def test_another_pytorch_is_taken_unchecked_with_a_warning(requirement: str) -> None:
    printed = torch_for(requirement)
    assert printed.stdout == f"{requirement}\n"
    assert f"{requirement} is in no lock file" in printed.stderr


@pytest.mark.parametrize("path", ["docker/Dockerfile", "deploy/edge/wheels.sh", "Makefile"])
def test_whatever_is_installed_is_checked(path: str) -> None:
    """Each command by which pip or uv downloads packages.

    Exempt are PyTorch, because locks/pytorch.py gives the hashes, and our own code, which is not
    downloaded.
    """
    text = (ROOT / path).read_text().replace("\\\n", " ")
    text = re.sub(r"^(#|gather\(\)|INSTALL =).*$", "", text, flags=re.MULTILINE)
    if path == "Makefile":
        # The newest Flower, torchvision, dp-accounting, ONNX and what a user gets are in no lock
        # file.
        for target in (
            "test-latest-flower",
            r"\.venv-vision/ready",
            "test-privacy",
            "test-onnx",
            "try-package",
        ):
            text = re.sub(rf"^{target}:(.*\n)+?\n", "", text, flags=re.MULTILINE)
    gets = re.compile(r"pip .*\b(install|wheel|download) |\(INSTALL\)|gather ")
    found = [command for command in re.split(r"\n|&&|\|\|", text) if gets.search(command)]
    assert len(found) >= 4
    for command in found:
        ours = "--no-deps" in command and re.search(r"--no-build-isolation|--no-index", command)
        torch = re.search(r"--requirement \S*torch\.txt", command)
        vision = "$VISION" in command  # of PyTorch's build, by whoever asks for it
        checked = re.search(r"--require-hashes|locked\[@\]", command)
        assert checked or ours or torch or vision, command


def test_every_stage_stands_on_a_digest() -> None:
    (base,) = re.findall(r"^ARG BASE=(.*)$", DOCKERFILE, re.MULTILINE)
    assert DIGEST.fullmatch(base)
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)
    assert len(stages) == DOCKERFILE.count("\nFROM ")
    assert {under for under, _ in stages} <= {"$BASE", *(name for _, name in stages)}
    assert set(re.findall(r"--from=(\S+)", DOCKERFILE)) <= {name for _, name in stages}


NEW = "2" * 64


@pytest.fixture
def registry(tmp_path: Path) -> dict[str, str]:
    """An environment with a docker that answers like a registry: tests cannot reach a real one."""
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(
        '#!/bin/sh\n[ "$1 $2 $3" = "buildx imagetools inspect" ] && echo "$ANSWER" || exit 9\n'
    )
    docker.chmod(0o755)
    shutil.copy(ROOT / "docker" / "Dockerfile", tmp_path)
    return os.environ | {
        "PATH": f"{docker.parent}:{os.environ['PATH']}",
        "ANSWER": f'"sha256:{NEW}"',
    }


def renew(folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    script = [ROOT / "docker" / "digests.sh", folder / "Dockerfile"]
    return subprocess.run(script, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("tag", ["", f"@sha256:{'1' * 64}"])
def test_a_digest_is_renewed_or_added(tmp_path: Path, registry: dict[str, str], tag: str) -> None:
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(
        re.sub(r"(?m)^(ARG BASE=[^@\n]+).*$", rf"\g<1>{tag}", dockerfile.read_text())
    )
    done = renew(tmp_path, registry)
    assert done.returncode == 0, done.stderr
    assert f"ARG BASE=python:3.11-slim@sha256:{NEW}\n" in dockerfile.read_text()


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "sha256:12",
        "error: no such image",
        f"sha256:{NEW} {NEW}",
        "sha256:" + "g" * 64,
    ],
)
def test_what_is_not_a_digest_is_not_written(
    tmp_path: Path, registry: dict[str, str], answer: str
) -> None:
    before = (tmp_path / "Dockerfile").read_text()
    done = renew(tmp_path, registry | {"ANSWER": answer})
    assert done.returncode == 1
    assert "not a digest" in done.stderr
    assert (tmp_path / "Dockerfile").read_text() == before


AUDIT: dict[str, Any] = runpy.run_path(str(ROOT / "locks" / "audit.py"))
SAFE = {"name": "numpy", "version": "2.4.6", "vulns": []}
HOLED = {
    "name": "jinja2",
    "version": "2.4.1",
    "vulns": [{"id": "CVE-2019-10906", "fix_versions": ["2.10.1"]}],
}
UNKNOWN = {
    "name": "flwr",
    "skip_reason": "Dependency not found and could not be audited: flwr (1.39.0)",
}


@pytest.mark.parametrize(
    ("answers", "code", "words"),
    [
        ([SAFE], 0, "no vulnerability is known"),
        ([SAFE, HOLED], 1, "jinja2 2.4.1: CVE-2019-10906, fixed in 2.10.1"),
        ([SAFE, UNKNOWN], 1, "does not know: flwr"),
        ([UNKNOWN, UNKNOWN], 0, "SKIPPED"),
        (None, 0, "SKIPPED"),
    ],
)
def test_an_audit_without_a_database_says_so(answers: Any, code: int, words: str) -> None:
    message, exit_code = AUDIT["judge"](answers)
    assert exit_code == code
    assert words in message


def test_every_version_that_is_locked_is_audited() -> None:
    versions = AUDIT["read_pins"](list(LOCKS.values()))
    assert {name for lock in LOCKS for name in locked(lock)} == set(versions)
    (torch,) = locked("torch")["torch"]
    (cpu,) = locked("torch-cpu")["torch"]
    assert set(versions["torch"]) == {torch.version, cpu.version.partition("+")[0]}

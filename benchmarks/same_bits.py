"""Compare what two checkouts compute, bit by bit: the same settings are run in both.

    python -m benchmarks.same_bits BEFORE AFTER --jobs 2 --keep runs/same

BEFORE and AFTER are checkouts with a .venv each. A refactoring changes no number: the models are
compared by names, types and bytes of their arrays, tables cell by cell, all other files of run
folders and studies, and what the commands print, line by line. What a run needs only to continue
has a format of its own and is not compared; resumed and extended runs show that it is read
correctly. With --keep, what a clean checkout BEFORE has computed is used again.
"""

import argparse
import csv
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from signal import SIGKILL

import numpy as np
import pandas

from fairbloom.strategies import METHODS

from .deployment import federation, names

# What is not compared: internal states, pages, versions, and hidden files and folders.
IGNORED = ("*checkpoint", "*clients", "*contexts", "*.html", "*env.json", ".*", "*/.*")

# The columns that differ between two runs of the same code.
TIMES = frozenset({"seconds"})

# How the line of config.toml begins that has the number of the format, which a change may raise.
RAISED = "run-folder-format"

# The file with the version of the checkout and the setting, once a setting is carried out.
VERSION = ".version"


@dataclass(frozen=True)
class Place:
    """Where a setting is carried out: a checkout's commands, a folder, the folder of the inputs."""

    scripts: Path
    folder: Path
    inputs: Path


@dataclass(frozen=True)
class Command:
    """A command of `fairbloom` that ends with success, or is killed after a round of its run."""

    words: Sequence[str]
    killed_after: int = 0

    def carry_out(self, place: Place) -> None:
        """Carry it out; what it prints is a file of the folder. Raise RuntimeError if it fails."""
        own = {"PYTHONPATH": str(place.inputs), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
        printed = place.folder / f"terminal-{len([*place.folder.glob('terminal-*')])}.txt"
        errors = place.folder / ".errors"
        with printed.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(  # noqa: S603 (the words are those below)
                [place.scripts / "fairbloom", *self.words],
                cwd=place.folder,
                env=os.environ | own,
                stdout=out,
                stderr=err,
            )
        rows = place.folder / "run" / "rounds.csv"
        while self.killed_after and process.poll() is None:
            if rows.exists() and rows.read_bytes().count(b"\n") > self.killed_after:
                process.kill()
            time.sleep(0.02)
        if process.wait() != (-SIGKILL if self.killed_after else 0):
            raise RuntimeError(f"exit code {process.returncode}: {errors.read_text()[-500:]}")


@dataclass(frozen=True)
class Deployed:
    """A run of a server and three clients, each a process, over mutual TLS on loopback."""

    options: Sequence[str]

    def carry_out(self, place: Place) -> None:
        """Carry it out, as the run folder `run`. Raise AssertionError if it fails."""
        with (
            tempfile.TemporaryDirectory() as scratch,
            federation(Path(scratch, "home"), 3, place.scripts) as there,
        ):
            there.start_clients(*names(3))
            words = [*self.options, f"--set=out={place.folder / 'run'}"]
            there.wait_for_end(there.start("fairbloom", "deploy", "submit", *words))


@dataclass(frozen=True)
class Setting:
    """What is carried out in both checkouts, step by step in one folder."""

    name: str
    steps: Sequence[Command | Deployed]


# The settings -------------------------------------------------------------------------------------

# With half of the clients in a round, what a method remembers of the others matters.
SHARED = "clients=6 num-rounds=5 fraction=0.5 seed=3 device=cpu engine=stacked"

# Tables with groups.
CLINICS = "clients= task=csv data-dir=../../inputs/clinics schema=../../inputs/schema.toml"

# What single methods need.
NEEDS = {"fairfed": CLINICS, "fcfl": f"{CLINICS} fcfl.stage1-rounds=2"}

# A model with pauses, so that each round has a checkpoint.
SLOW = "engine=loop model=own:Slow batch-size=0"

# Single runs.
RUNS: Mapping[str, str] = {
    **{name: f"method={name} engine=loop model=mlp {NEEDS.get(name, '')}" for name in METHODS},
    # weights
    "prior": "method=fedavg prior='client-0=3 client-4=0.5'",
    "afl-prior": "method=afl afl.gamma=0.5 prior='client-0=3'",
    "afl-draw": "method=afl draw=examples partition=sizes",
    "uniform": "method=term weighting=uniform partition=sizes",
    "draw": "method=fedavg draw=examples partition=sizes",
    "lipschitz": "method=qfedavg qfedavg.q=0.5 qfedavg.lipschitz=10",
    "term-negative": "method=term term.tilt=-2",
    "fedavgn-decay": "method=fedavgn fedavgn.server-lr=0.5 fedavgn.decay=0.1 fedavgn.decay-every=2",
    "fedprox-inexact": "method=fedprox fedprox.mu=0.5 fedprox.inexactness=true stragglers=0.5"
    " local-epochs=3",
    "fedfv-long": "method=fedfv fedfv.alpha=0.5 fedfv.tau=3 fedfv.order=random",
    "fedmgda-prior": "method=fedmgda fedmgda.epsilon=0.2 prior='client-1=2'",
    "fedmgdaplus-decay": "method=fedmgdaplus fedmgdaplus.server-lr=0.5 fedmgdaplus.decay=0.1"
    " fedmgdaplus.decay-every=2",
    "aaggff-ftrl": "method=aaggff aaggff.rule=ftrl aaggff.cdf=normal",
    "fedlf-gradient": "method=fedlf fedlf.history=false fedlf.guidance=gradient model=mlp",
    "fedmdfg-gradient": "method=fedmdfg fedmdfg.angle=30 fedmdfg.guidance=gradient",
    "fcfl-opportunity": f"{CLINICS} method=fcfl fcfl.disparity=equal-opportunity"
    " fcfl.budgets='north=0.02' fcfl.delta-decay=0.5",
    "torchjd": "method=torchjd:upgrad",
    # the server's step
    "average-models": "method=fedfv average-models=true",
    "avgm": "method=fedavg server-optimizer=avgm",
    "adagrad": "method=fedavg server-optimizer=adagrad server-optimizer-lr=0.05",
    "adam": "method=qfedavg server-optimizer=adam server-optimizer-lr=0.05",
    "yogi": "method=fedprox server-optimizer=yogi server-optimizer-lr=0.05"
    " server-optimizer-tau=0.01",
    # states on clients
    "control-variates": "method=fedprox control-variates=true weighting=uniform",
    "scaffold-adam": "method=scaffold server-optimizer=adam server-optimizer-lr=0.05",
    "feddyn-alpha": "method=feddyn feddyn.alpha=0.1 weight-decay=0.01",
    # personal models
    "ditto-epochs": "method=ditto ditto.lam=0.5 ditto.personal-epochs=2 momentum=0.5",
    "personal-lambda": "method=fedfv personal-lambda=0.5 proximal-mu=0.1",
    "personal-head": "method=fedavg personal-parameters=head model=mlp",
    "personal-body": "method=fedmgdaplus personal-parameters=body model=mlp",
    "head-first": "method=fedavg personal-parameters=head personal-steps=head-first head-epochs=2"
    " model=mlp",
    "fine-tune": "method=afl fine-tune-epochs=2",
    # hostile clients
    "clip": "method=fedfv attack=sign-flip attackers=client-1 defence=clip fraction=1.0",
    "nnm": "method=drfa attack=alie attackers=0.34 defence=nnm fraction=1.0",
    "krum": "method=fedavg attack=scale attackers=client-1 defence=krum attack-from=2 fraction=1.0",
    "trimmed-mean": "method=fedavg attack=noise attackers=client-1 defence=trimmed-mean"
    " fraction=1.0",
    "median": "method=propfair attack=ipm attackers=client-1 defence=geometric-median"
    " defence-tolerance=2 fraction=1.0",
    "label-flip": "method=term attack=label-flip attackers=client-1",
    "false-loss": "method=qfedavg attack=loss-scale attackers=client-1 reported-loss=batches",
    # privacy
    "private": "method=fedavg privacy.mode=simulated privacy.epsilon=8 batch-size=0",
    "private-losses": "method=fedfv privacy.mode=simulated batch-size=0"
    " privacy.epsilon='client-0=1 client-1=8'",
    # who trains, for how long, and what is evaluated
    "early-stopping": "method=ditto validation-share=0.2 early-stopping=1 best-model=worst-10"
    " num-rounds=8 learning-rate=0.5",
    "held-out": "method=fedavg held-out-clients=0.34 fine-tune-epochs=1",
    "stragglers": "method=afl stragglers=0.7 local-epochs=3",
    "drop-stragglers": "method=fedfv stragglers=0.5 drop-stragglers=true fraction=1.0",
    "training-clients": "method=drfa training-clients=client-0,client-1,client-4",
    "pooled": "method=fedavg pooled=true fraction=",
    "bfloat16": "method=drfa wire-dtype=bfloat16",
    "bfloat16-updates": "method=fedfv wire-dtype=bfloat16-updates",
    "schedule": "method=fedavg schedule=cosine warmup=1 optimizer=adamw learning-rate=0.01"
    " gradient-clip=0.5",
    "decay": "method=qfedsgd learning-rate-decay=0.5 personal-lambda=0.5",
    "evaluated-last": "method=fedfv evaluate-every=0",
    "evaluated-share": "method=eagle evaluate-every=2 fraction-evaluate=0.5",
    "scores": f"{CLINICS} method=semivred scores=f1,brier score=balanced-accuracy",
    # engines and tasks
    "loop": "method=fedmgdaplus engine=loop model=cnn num-rounds=3",
    "workers": "method=ditto engine=workers model=cnn num-rounds=3",
    "auto": "method=fedfv engine=auto",
    "regression": "clients= task=csv data-dir=../../inputs/clinics csv.target=cost method=fedfv"
    " learning-rate=0.01",
    "own": "method=own:Softmax softmax.heat=2.0",
}

# Runs of three rounds that are extended to six: what they remember is read from a checkpoint.
EXTENDED: Mapping[str, str] = {
    "fedfv": "method=fedfv fedfv.tau=2",
    "scaffold": "method=scaffold engine=loop",
    "adam": "method=afl server-optimizer=adam server-optimizer-lr=0.05 average-models=true",
    "ditto": "method=ditto validation-share=0.2",
    "groups": f"method=fairfed {CLINICS}",
}

# Runs that are killed after three rounds of five.
KILLED: Mapping[str, str] = {
    "fedlf": f"method=fedlf personal-lambda=0.5 {SLOW}",
    "scaffold": f"method=scaffold average-models=true {SLOW}",
}

# Runs of real processes.
DEPLOYED: Mapping[str, str] = {
    "scaffold": "method=scaffold",
    "fedfv": "method=fedfv personal-lambda=0.5 wire-dtype=bfloat16",
}
THREE = "clients=3 num-rounds=4 engine= smallest-batch=5"


def options(settings: str) -> list[str]:
    """Return the shared settings, changed by these, as options; without those of no value."""
    words = [word.partition("=") for word in shlex.split(f"{SHARED} {settings}")]
    values = {key: value for key, _, value in words}  # of two values of a key, the last
    return [f"--set={key}={value}" for key, value in values.items() if value]


def run(settings: str, killed_after: int = 0) -> Command:
    """Return the command of a run with these settings, in the folder `run`."""
    return Command(("run", "--out=run", *options(settings)), killed_after)


SETTINGS = (
    *(
        Setting(f"deployed-{name}", (Deployed(options(f"{text} {THREE}")),))
        for name, text in DEPLOYED.items()
    ),
    *(Setting(f"killed-{name}", (run(text, 3), run(text))) for name, text in KILLED.items()),
    Setting(
        "compare",
        (
            Command(
                (
                    *("compare", "--methods=fedavg,qfedavg(q=1),fedfv", "--seeds=2", "--jobs=1"),
                    *("--out=study", *options("seed= num-rounds=3 digits.rotated-clients=1")),
                )
            ),
            Command(("show", "study", "--json")),
        ),
    ),
    *(
        Setting(
            f"extended-{name}",
            (
                run(f"{text} num-rounds=3"),
                run(f"{text} num-rounds=6"),
                Command(("show", "run", "--json")),
            ),
        )
        for name, text in EXTENDED.items()
    ),
    *(Setting(name, (run(text),)) for name, text in RUNS.items()),
)


# Carrying out -------------------------------------------------------------------------------------


def main() -> int:
    """Print a line for each setting; return 1 if one differs or fails."""
    known = {setting.name: setting for setting in SETTINGS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", nargs="+", choices=known, default=[*known], metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2, help="settings at a time; 2 by default")
    parser.add_argument("--keep", type=Path, help="folder of the run folders, which are kept")
    chosen = parser.parse_args()
    picked = [known[name] for name in chosen.only]
    faults = 0
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(chosen.jobs) as pool:
        home = (chosen.keep or Path(scratch)).resolve()
        write_inputs(home / "inputs")
        trees = [chosen.before.resolve(), chosen.after.resolve()]
        found = pool.map(partial(compare, trees=trees, home=home), picked)
        for setting, verdict in zip(picked, found, strict=True):
            print(f"{setting.name}: {verdict or 'same'}", flush=True)
            faults += bool(verdict)
    print(f"{len(picked) - faults} of {len(picked)} settings are the same")
    return int(faults > 0)


def compare(setting: Setting, trees: Sequence[Path], home: Path) -> str:
    """Carry out a setting in both checkouts; return the first difference, "" without one."""
    # equally long names: what is printed breaks its lines after as many characters
    old = home / "old" / setting.name
    new = home / "new" / setting.name
    for tree, folder in zip(trees, (old, new), strict=True):
        about = f"{version_of(tree)}\n{setting}"
        done = folder / VERSION
        if folder == old and done.exists() and done.read_text() == about:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            for step in setting.steps:
                step.carry_out(Place(tree / ".venv" / "bin", folder, home / "inputs"))
        except (AssertionError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            return f"FAILED in {tree}: {error}"
        if "-dirty" not in about:
            done.write_text(about)
    different = first_difference(old, new)
    return different and f"DIFFERS in {different}"


def version_of(tree: Path) -> str:
    """Return the commit of a checkout, with -dirty if files have changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout.strip()


def write_inputs(folder: Path) -> None:
    """Copy the schema and the user's own module, and write tables of four clinics."""
    shutil.copytree(Path(__file__).parent / "same", folder, dirs_exist_ok=True)
    (folder / "clinics").mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for clinic, size in {"north": 90, "south": 60, "east": 120, "west": 75}.items():
        age = rng.integers(20, 90, size)
        sex = rng.choice(["female", "male"], size)
        pressure = (110 + age / 3 + rng.normal(0, 12, size)).round(1)
        risk = (age - 20) / 80 + 0.2 * (sex == "male")
        columns = {
            "age": age,
            "sex": sex,
            "pressure": pressure,
            "sick": (rng.random(size) < risk).astype(int),
            "cost": (risk + pressure / 100).round(3),
        }
        pandas.DataFrame(columns).to_csv(folder / "clinics" / f"{clinic}.csv", index=False)


# Comparing ----------------------------------------------------------------------------------------


def first_difference(before: Path, after: Path) -> str:
    """Return where two folders differ first: file and place, with both values; "" if nowhere."""
    for name in sorted({*files_in(before), *files_in(after)}):
        sides = [folder / name for folder in (before, after)]
        if missing := [str(path.parent) for path in sides if not path.exists()]:
            return f"{name}: not in {missing[0]}"
        one = parts_of(sides[0], before)
        other = parts_of(sides[1], after)
        for part in {**one, **other}:
            if one.get(part) != other.get(part):
                values = (f"{each.get(part)!r:.100}" for each in (one, other))
                return f"{name}: {part}: {' and '.join(values)}"
    return ""


def files_in(folder: Path) -> Iterator[str]:
    """Yield the files that are compared, relative to the folder."""
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        above = [relative, *relative.parents]
        if path.is_file() and not any(fnmatch(str(a), i) for a in above[:-1] for i in IGNORED):
            yield str(relative)


def parts_of(path: Path, folder: Path) -> Mapping[str, object]:
    """Return what is compared of a file, by its place; paths are relative to the folder."""
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        return arrays_in(content)
    if path.suffix in (".npz", ".png", ".parquet"):
        return {"content": content}
    text = content.replace(str(folder).encode(), b".").decode()
    if path.suffix == ".csv":
        return cells_in(text)
    return {
        f"line {number}": line
        for number, line in enumerate(text.split("\n"), 1)
        if not line.startswith(RAISED)
    }


def arrays_in(content: bytes) -> dict[str, object]:
    """Return the type, shape and bytes of each array of a safetensors file, by name."""
    start = 8 + int.from_bytes(content[:8], "little")
    return {
        name: (array["dtype"], array["shape"], content[start:][slice(*array["data_offsets"])])
        for name, array in json.loads(content[8:start]).items()
        if name != "__metadata__"
    }


def cells_in(text: str) -> dict[str, object]:
    """Return the cells of a table, by row and column; without those of times."""
    rows = [*csv.reader(text.splitlines(keepends=True))]
    columns = rows[0] if rows else []
    return {"columns": columns} | {
        f"row {number}, column {column}": cell
        for number, row in enumerate(rows[1:], 1)
        for column, cell in zip(columns, row, strict=True)
        if column not in TIMES
    }


if __name__ == "__main__":
    sys.exit(main())

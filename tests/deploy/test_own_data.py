"""Four deployed hospitals, each with its own CSV file on its device."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import Deployment, federation, rounds
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from tests.experiments.helpers import fairbloom
from tests.simulation.helpers import assert_same_model, table

DATA = Path(os.environ.get("FAIRBLOOM_DATA", "no folder"), "heart-disease")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not DATA.is_dir(), reason="FAIRBLOOM_DATA names no folder with heart-disease"
    ),
]

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,target"
CATEGORIES = {
    "sex": (0, 1),
    "cp": (1, 2, 3, 4),
    "fbs": (0, 1),
    "restecg": (0, 1, 2),
    "exang": (0, 1),
    "slope": (1, 2, 3),
    "thal": (3, 6, 7),
    "target": (0, 1),
}


def schema_of(*groups: str) -> str:
    lines = ['target = "target"', f"groups = {list(groups)}", 'missing = "fill"']
    for name in COLUMNS.split(","):
        of = CATEGORIES.get(name)
        kind = f'type = "integer"\ncategories = {list(of)}' if of else 'type = "number"'
        lines += ["", f"[fields.{name}]", kind]
    return "\n".join(lines) + "\n"


OURS: dict[str, Any] = {
    "task": "csv",
    "schema": schema_of("sex", "age>=60"),
}
SETTINGS: dict[str, Any] = OURS | {
    "method": "fedfv",
    "num-rounds": 4,
    "fraction": 0.75,
    "learning-rate": 0.05,
    "device": "cpu",
    "seed": 3,
    "scores": "f1,brier",
    "wait-for-clients": 1.0,  # a run begins without a client that goes on refusing it
}


def write_hospital(name: str, file: Path) -> None:
    """Write a hospital's file with a header, and disease yes or no instead of its degree."""
    lines = (DATA / f"processed.{name}.data").read_text().splitlines()
    cells = (line.rpartition(",") for line in lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "\n".join([COLUMNS, *(f"{row},{int(float(degree) > 0)}" for row, _, degree in cells)])
        + "\n"
    )


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "hospitals"
    for name in HOSPITALS:
        write_hospital(name, folder / f"{name}.csv")
    return folder


@pytest.fixture(scope="module")
def there(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A federation with a client for each hospital; each has only its own file."""
    with federation(tmp_path_factory.mktemp("deployed") / "home") as runtime:
        runtime.enroll(*HOSPITALS)
        for name in HOSPITALS:
            own = runtime.home / f"data-{name}"
            own.mkdir()
            shutil.copy(hospitals / f"{name}.csv", own)
            # as in process, where nothing is withheld
            (runtime.bundle(name) / "owner.toml").write_text(
                '[limits]\nrows = 1\nschema = "any"\norder = "run"\n'
            )
            runtime.start_client(name, "--data-dir", str(own))
        runtime.wait_for_clients(*HOSPITALS)
        yield runtime


def restart(there: Deployment, folder: Path) -> None:
    there.stop(there.clients["va"])
    there.start_client("va", "--data-dir", str(folder))
    there.wait_for_clients("va")


def test_four_nodes_with_a_file_each_give_the_run_in_process(
    there: Deployment, hospitals: Path, tmp_path: Path
) -> None:
    deployed = tmp_path / "deployed"
    here = tmp_path / "in-process"
    there.submit({**SETTINGS, "out": str(deployed)})
    simulate(Settings.of({**SETTINGS, "data-dir": str(hospitals), "out": str(here)}))
    assert (deployed / "schema.toml").read_bytes() == (here / "schema.toml").read_bytes()
    assert_same_model(deployed, here)
    assert {row["refused"] for row in rounds(deployed)} == {""}
    groups, expected = (table(folder / "groups.csv") for folder in (deployed, here))
    keys = ("round", "client", "model", "grouping", "group", "count")
    assert [[row[key] for key in keys] for row in groups] == [
        [row[key] for key in keys] for row in expected
    ]
    assert min(int(row["count"]) for row in groups) >= 5  # smaller groups do not leave their device
    assert {row["client"] for row in groups if row["grouping"] == "sex"} < set(HOSPITALS)
    assert table(deployed / "clients.csv")[0].keys() == table(here / "clients.csv")[0].keys()
    assert all(row["test_f1_of_global_model"] for row in table(deployed / "clients.csv"))


@pytest.mark.parametrize(
    "chosen",
    [{"method": "fairfed", "fairfed.beta": 0.1}, {"method": "fcfl", "fcfl.stage1-rounds": 2}],
    ids=str,
)
def test_four_nodes_train_for_women_and_men_as_in_process(
    chosen: dict[str, Any], there: Deployment, hospitals: Path, tmp_path: Path
) -> None:
    deployed = tmp_path / "deployed"
    here = tmp_path / "in-process"
    asked = {**SETTINGS, **chosen, "schema": schema_of("sex")}
    there.submit({**asked, "out": str(deployed)})
    simulate(Settings.of({**asked, "data-dir": str(hospitals), "out": str(here)}))
    assert_same_model(deployed, here)
    assert {row["refused"] for row in rounds(deployed)} == {""}
    found, expected = (
        [float(row["coefficient"] or 0.0) for row in table(folder / "clients.csv")]
        for folder in (deployed, here)
    )
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_node_uses_a_schema_once_its_owner_has_accepted_it(
    there: Deployment, tmp_path: Path
) -> None:
    own = there.bundle("va") / "owner.toml"
    text = own.read_text()
    own.write_text(text.replace('schema = "any"\n', ""))
    restart(there, there.home / "data-va")
    asked = {**SETTINGS, "num-rounds": 2, "fraction": 1.0}
    there.submit({**asked, "out": str(tmp_path / "refused")})
    refused = {row["refused"] for row in rounds(tmp_path / "refused")}
    assert all("fairbloom client accept" in each for each in refused), refused
    assert fairbloom("client", "accept", str(there.home / "state-va"), "--yes") == 0
    there.submit({**asked, "out": str(tmp_path / "accepted"), "seed": 4})
    assert {row["refused"] for row in rounds(tmp_path / "accepted")} == {""}
    own.write_text(text)
    restart(there, there.home / "data-va")


def test_a_file_without_a_header_sends_none_of_its_values(there: Deployment, out: Path) -> None:
    own = there.home / "data-headless"
    write_hospital("va", own / "va.csv")
    _, rows = (own / "va.csv").read_text().split("\n", 1)
    (own / "va.csv").write_text(rows.replace(",", ",Svensson-", 1))
    restart(there, own)
    there.submit({**SETTINGS, "num-rounds": 2, "fraction": 1.0, "out": str(out)})
    refused = {row["refused"] for row in rounds(out)}
    assert all(each.startswith("va: ") and "column" in each for each in refused), refused
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert b"Svensson" not in written + there.log(there.submitted).encode()


def test_a_node_with_a_bad_file_is_named_with_the_reason(there: Deployment, out: Path) -> None:
    own = there.home / "data-worse"
    write_hospital("va", own / "va.csv")
    (own / "va.csv").write_text((own / "va.csv").read_text().replace("chol", "cholesterol", 1))
    restart(there, own)
    there.submit({**SETTINGS, "num-rounds": 2, "fraction": 1.0, "out": str(out)})
    rows = rounds(out)
    assert [row["replies_used"] for row in rows] == ["3", "3"]
    reason = (
        "it has columns that the schema does not name (1): add them to ignore, or its owner does so"
        " under [files.'*'] in owner.toml"
    )
    assert all(row["refused"].startswith("va: ") and reason in row["refused"] for row in rows), rows

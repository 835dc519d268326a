"""Clients of one file: encoded once, each to the bits of a file of its own."""

import cProfile
import json
import logging
import pstats
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fairbloom.client.guard.accepted_settings import work_settings
from fairbloom.client.states import keep_preprocessing
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import RunSettings
from fairbloom.server.settings import Settings
from fairbloom.simulation.run import simulate
from fairbloom.tables import encoding
from fairbloom.tables.folders import files_in, folders_in
from fairbloom.tables.schema import parse_schema
from fairbloom.tasks import Examples, check_data, describe_data, forget_tasks, load_task
from fairbloom.tasks.columns import ENDINGS
from fairbloom.tasks.score import decide_score
from tests.tables.helpers import SCHEMA, Folder, config, csv_of, load, schema_with

from .made import everything

BY_SITE = schema_with(('target = "target"', 'target = "target"\nclient = "site"'))


def file_of(path: Path, sizes: dict[str, int]) -> Path:
    """Write one file with these clients, their rows in random order."""
    rows = []
    for seed, (name, size) in enumerate(sizes.items()):
        rows += [f"{name},{line}" for line in csv_of(size, seed).splitlines()[1:]]
    order = np.random.default_rng(0).permutation(len(rows))
    path.write_text("\n".join(["site,age,dose,ward,target", *(rows[each] for each in order)]))
    return path


def names_of(count: int) -> list[str]:
    return [f"site-{k:04d}" for k in range(count)]


# Encoded once -------------------------------------------------------------------------------------


def test_a_file_is_encoded_once_for_clients_and_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Counter[str]()
    read_column = encoding.read_column

    def counted(*arguments: object) -> object:
        made[str(arguments[1])] += 1
        return read_column(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding, "read_column", counted)
    file = file_of(tmp_path / "all.csv", dict.fromkeys(names_of(50), 8))
    for seed in (1, 2):
        settings = RunSettings.of(config(file, BY_SITE, seed=seed))
        check_data(settings)
        describe_data(settings)
    assert set(made.values()) == {1}
    assert made.keys() == {"age", "dose", "ward", "target"}


def test_clients_of_a_file_are_rows_of_the_same_tensors(tmp_path: Path) -> None:
    task = load(file_of(tmp_path / "all.csv", dict.fromkeys(names_of(5), 8)), BY_SITE)
    parts = [each for name in task.clients for each in task.splits(name)]
    tensors = [each for each in parts if isinstance(each, Examples)]
    assert len({id(each.inputs) for each in tensors}) == 1
    assert sorted(torch.cat([each.rows for each in tensors if each.rows is not None]).tolist()) == [
        *range(40)
    ]


def test_a_client_with_its_own_file_has_the_same_bits(
    tmp_path: Path, folder: Folder, subtests: pytest.Subtests
) -> None:
    """Sizes beside the blocks of NumPy's pairwise sums, and a column with missing values."""
    sizes = dict(zip(names_of(8), (5, 7, 9, 17, 127, 130, 1000, 5000), strict=True))
    file = file_of(tmp_path / "all.csv", sizes)
    lines = [line.split(",") for line in file.read_text().splitlines()]
    for line in lines[1::7]:
        line[1] = "NA"
    file.write_text("\n".join(map(",".join, lines)))
    by_site = schema_with(('target = "target"', 'target = "target"\nmissing = "fill"'))
    together = load(file, by_site.replace('"fill"', '"fill"\nclient = "site"', 1))
    for name in sizes:
        with subtests.test(name=name):
            own = [line[1:] for line in lines if line[0] == name]
            alone = load(folder(**{name: "\n".join(map(",".join, [lines[0][1:], *own]))}), by_site)
            for ours, theirs in zip(together.splits(name), alone.splits(name), strict=True):
                assert all(map(torch.equal, everything(ours), everything(theirs)))
            assert together.preprocessing is not None
            assert alone.preprocessing is not None
            columns = [each.preprocessing(name).columns for each in (together, alone)]  # type: ignore[misc]
            assert columns[0] == columns[1]


def test_a_fault_of_one_client_leaves_the_others_usable(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    file = file_of(tmp_path / "all.csv", dict.fromkeys(names_of(30), 8))
    lines = file.read_text().splitlines()
    wrong = [place for place, line in enumerate(lines) if line.startswith("site-0007")]
    for place in wrong[2:4]:
        name, _, rest = lines[place].split(",", 2)
        lines[place] = f"{name},high,{rest}"
    # more kinds of faults than are listed
    others = [place for place, line in enumerate(lines) if line.startswith("site-001")][:20]
    for place in others:
        name, age, dose, _, target = lines[place].split(",")
        lines[place] = f"{name},{age},{dose},ward {place},{target}"
    file.write_text("\n".join(lines))
    task = load(file, BY_SITE)
    faulty = {lines[place].partition(",")[0] for place in others} | {"site-0007"}
    for name in task.clients:
        with subtests.test(name=name):
            if name not in faulty:
                assert all(torch.isfinite(everything(each)[0]).all() for each in task.splits(name))
                continue
            with pytest.raises(FairbloomError, match="line") as error:
                task.splits(name)
            if name == "site-0007":
                assert error.match(
                    f"line {wrong[2] + 1}, column 'age' holds 'high', .*as 1 more row does"
                )


def count_calls(file: Path, kept: Path) -> int:
    """Return the function calls until a run's first round, from the inference of the schema."""
    settings = RunSettings.of(config(file, client="site"))
    profile = cProfile.Profile()
    with profile:
        check_data(settings)
        task = load_task(settings)
        decide_score(settings, task)
        keep_preprocessing(kept, task, task.clients)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_a_start_takes_five_hundred_calls_a_client(tmp_path: Path) -> None:
    sizes = (20, 60, 160)
    files = [file_of(tmp_path / f"{size}.csv", dict.fromkeys(names_of(size), 20)) for size in sizes]
    # The first one imports modules and fills caches.
    _, few, many = [count_calls(file, tmp_path / "kept") for file in files]
    assert (many - few) / (sizes[2] - sizes[1]) < 500


# Names of clients ---------------------------------------------------------------------------------


def spelled(path: Path, names: list[str]) -> Path:
    """Write one file of 30 rows, in which the clients' names take turns."""
    head, *rows = csv_of(30).splitlines()
    lines = [f"{names[place % len(names)]},{line}" for place, line in enumerate(rows)]
    path.write_text("\n".join([f"site,{head}", *lines]))
    return path


def remarks_on_site(file: Path, every: bool = True) -> list[tuple[str, str]]:
    return [
        (str(row["client"]), str(row["remark"]))
        for row in describe_data(RunSettings.of(config(file, client="site")), every)["remarks"]
        if row["column"] == "site"
    ]


def test_spellings_of_a_name_are_one_client_with_a_remark(tmp_path: Path) -> None:
    file = spelled(tmp_path / "all.csv", ["North", "north", "South", "NORTH", "North  "])
    wide = spelled(tmp_path / "wide.csv", ["North", "Ｎorth", "South", "\u200bNorth", "nOrth"])
    plain = spelled(tmp_path / "plain.csv", ["North", "North", "South", "North", "North"])
    for schema in ("", BY_SITE):
        found = [
            load(each, schema, **({} if schema else {"client": "site"})) for each in (file, plain)
        ]
        assert found[0].clients == found[1].clients == ("North", "South")
        for name in found[0].clients:
            for ours, theirs in zip(*(each.splits(name) for each in found), strict=True):
                assert all(map(torch.equal, everything(ours), everything(theirs)))
    said = "it is written NORTH in 6 rows, North in 12 rows, north in 6 rows: they are one client"
    assert remarks_on_site(file) == remarks_on_site(file, every=False) == [("North", said)]
    assert [name for name, _ in remarks_on_site(wide)] == ["North"]
    assert remarks_on_site(plain) == []


def test_numbers_name_the_same_client_with_and_without_a_point(tmp_path: Path) -> None:
    file = spelled(tmp_path / "all.csv", ["1", "2", "1.0", "2", "1"])
    assert load(file, client="site").clients == ("1", "2")
    assert [name for name, _ in remarks_on_site(file)] == ["1"]
    text = spelled(tmp_path / "comma.csv", ["1", "2", "1.0"]).read_text()
    (tmp_path / "comma.csv").write_text(text.replace(",", ";").replace(".", ","))
    assert load(tmp_path / "comma.csv", client="site").clients == ("1", "2")


def test_a_persons_number_is_the_same_in_all_spellings(tmp_path: Path) -> None:
    """The rows of a person, such as P1 and p1, are never split between training and test."""
    file = spelled(
        tmp_path / "all.csv",
        [spelling for k in range(6) for spelling in (f"P{k}", f"p{k}", f"P{k} ")],
    )
    schema = schema_with(('target = "target"', 'target = "target"\nunit = "site"'))
    units = encoding.encode_files([file], "all", parse_schema(schema)).units
    assert units is not None
    assert len({*units.tolist()}) == 6


@pytest.mark.parametrize("names", [("North", "north"), ("1", "1.0"), ("Straße", "STRASSE")])
def test_two_files_of_one_name_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    for name, ending in zip(names, (".csv", ".tsv"), strict=True):
        (tmp_path / f"{name}{ending}").write_text("age,target\n50,1\n40,0\n")
        (tmp_path / "folders" / name).mkdir(parents=True)
    list_files = partial(files_in, endings=ENDINGS)
    for list_clients, place in ((list_files, tmp_path), (folders_in, tmp_path / "folders")):
        with pytest.raises(FairbloomError, match=r"would both be client .*: rename one"):
            list_clients(str(place))


def test_a_column_of_clients_is_found_in_any_case(tmp_path: Path) -> None:
    file = spelled(tmp_path / "all.csv", ["north", "south"])
    assert load(tmp_path, client="SITE").clients == ("north", "south")
    assert load(tmp_path, BY_SITE.replace('"site"', '"Site"')).clients == ("north", "south")
    (tmp_path / "more.csv").write_text(file.read_text().replace("site", "Site", 1))
    for schema, client in ((BY_SITE, "site"), ("", "Site")):
        with pytest.raises(FairbloomError, match=rf"client = '{client}' is for a single file, and"):
            load(tmp_path, schema, **({} if schema else {"client": client}))


# Clients of few rows ------------------------------------------------------------------------------


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A file of 12 clients, of which those with even numbers have four usable rows or fewer."""
    return file_of(
        tmp_path / "all.csv",
        {name: (4 if place % 2 == 0 else 9) for place, name in enumerate(names_of(12))},
    )


@pytest.mark.parametrize(("schema", "settings"), [(BY_SITE, {}), ("", {"client": "site"})])
def test_clients_of_few_rows_are_left_out_and_said_once(
    few: Path, caplog: pytest.LogCaptureFixture, schema: str, settings: dict[str, str]
) -> None:
    with caplog.at_level(logging.WARNING, "flwr"):
        task = load(few, schema, **settings)
        check_data(RunSettings.of(config(few, schema, **settings)))
    assert task.clients == tuple(names_of(12)[1::2])
    assert [each for each in caplog.messages if "left out: site" in each] == [
        "6 of 12 clients have fewer than 5 rows and are left out: site-0000, site-0002,"
        " site-0004 and 3 more"
    ]
    forget_tasks()


def test_rows_that_are_dropped_do_not_count(few: Path) -> None:
    lines = few.read_text().splitlines()
    for place in [place for place, line in enumerate(lines) if line.startswith("site-0001")][:5]:
        name, _, rest = lines[place].split(",", 2)
        lines[place] = f"{name},NA,{rest}"
    few.write_text("\n".join(lines))
    assert load(
        few, BY_SITE.replace('client = "site"', 'client = "site"\nmissing = "drop"')
    ).clients == tuple(names_of(12)[3::2])


def test_the_limit_may_be_raised_beside_a_schema(few: Path) -> None:
    assert len(load(few, BY_SITE, **{"smallest-client": 9}).clients) == 6
    with pytest.raises(FairbloomError, match=r"12 of 12 clients have fewer than 10 rows"):
        load(few, BY_SITE, **{"smallest-client": 10})
    with pytest.raises(FairbloomError, match=r"csv\.smallest-client.*at least 5"):
        load(few, BY_SITE, **{"smallest-client": 4})


def test_a_run_names_the_clients_that_are_left_out(few: Path, tmp_path: Path) -> None:
    settings = {
        **config(few, BY_SITE),
        "num-rounds": 1,
        "fraction": 1.0,
        "device": "cpu",
        "out": str(tmp_path / "run"),
    }
    run = simulate(Settings.of(settings))
    data = json.loads((run / "data.json").read_text())
    assert data["left-out"] == names_of(12)[::2]
    assert {*data} == {"all.csv", "left-out"}
    assert simulate(Settings.of({**settings, "num-rounds": 2})) == run  # the data are the same


def test_devices_do_not_take_the_limit() -> None:
    taken = work_settings({"task": "csv"})
    assert "csv.target" in taken
    assert "csv.smallest-client" not in taken


def test_a_site_of_few_rows_with_its_own_file_is_refused(folder: Folder) -> None:
    with pytest.raises(FairbloomError, match=r"client a cannot be used: .*has 4 rows"):
        check_data(RunSettings.of(config(folder(a=csv_of(4), b=csv_of(9)), SCHEMA)))


def test_a_message_names_three_clients_at_most(folder: Folder) -> None:
    sites = {name: csv_of(3) for name in names_of(9)}
    with pytest.raises(
        FairbloomError, match="of site-0001, site-0002, site-0003 and 5 more cannot"
    ):
        check_data(RunSettings.of(config(folder(**sites), SCHEMA)))

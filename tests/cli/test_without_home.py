"""A user without HOME and without an entry in /etc/passwd, as in a container."""

import pwd
from pathlib import Path

import pytest

from fairbloom.client.private.account import Known
from fairbloom.errors import FairbloomError
from fairbloom.tasks import permit
from fairbloom.tasks.permit import ABOUT, account_folders
from tests.experiments.helpers import fairbloom, refusal

WORDS = ("run", "--task", "csv", "--set", "csv.target=outcome", "--rounds", "1")


@pytest.fixture(autouse=True)
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be such a user, with the tables of two clients in the folder `data`."""

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(permit, "SYSTEM_FOLDER", tmp_path / "none")
    for name in ("HOME", "XDG_STATE_HOME", "FAIRBLOOM_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name in ("north", "south"):
        rows = "".join(f"{age},{'yes' if age > 50 else 'no'}\n" for age in range(30, 70))
        Path("data", f"{name}.csv").write_text(f"age,outcome\n{rows}")


def test_a_run_needs_no_home() -> None:
    assert fairbloom(*WORDS, "--data-dir", "data", "--out", "out") == 0


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ((*WORDS, "--data-dir", "~/data"), "set HOME, or write the whole path"),
        (
            (*WORDS, "--data-dir", "data", "--schema", "~/s.toml"),
            "set HOME, or write the whole path",
        ),
        (("run", "--task", "adult"), "name the folder by data-dir or FAIRBLOOM_DATA"),
    ],
)
def test_what_is_at_home_is_refused_with_a_remedy(
    words: tuple[str, ...], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, *words)
    assert "the home folder of this user is not known" in said
    assert remedy in said


def test_only_an_owner_that_allows_an_account_needs_its_folder(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    node = {"name": "north", "data-dir": str(tmp_path / "data")}
    with subtests.test("no account"):
        assert account_folders({}) == []
        assert not Known.of(node, node["data-dir"]).accounts
    with subtests.test("an account"), pytest.raises(FairbloomError, match=r"limits\.privacy\.ledg"):
        account_folders({"epsilon": 3.0})
    with subtests.test("its folder is named"):
        (tmp_path / "kept" / "1").mkdir(parents=True)
        (tmp_path / "kept" / "1" / ABOUT).touch()
        limits = {"epsilon": 3.0, "ledger": str(tmp_path / "kept")}
        assert account_folders(limits) == [tmp_path / "kept" / "1"]

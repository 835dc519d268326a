"""Settings of a client: their meaning, and the errors of invalid ones.

The parts of a run that a client accepts: some settings, and never code.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.client.guard.accepted_schemas import Schemas
from fairbloom.client.guard.accepted_settings import SettingRefusedError
from fairbloom.client.guard.limits import Limits
from fairbloom.deploy import pki
from fairbloom.deploy.device.accepted import Installed, RunDescription, distribution_of
from fairbloom.deploy.device.client import APP, ClientSettings
from fairbloom.deploy.device.connectivity import connection_fault
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.fleet import client as loop
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.deploy.processes import load_app
from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import ACCOUNT_FILE, FILES
from fairbloom.tables.schema import read_schema
from tests.client.hospital import SCHEMA as HOSPITAL
from tests.system.test_files import ENCODINGS
from tests.tables.helpers import SCHEMA

from .commands import client_command

# Settings -----------------------------------------------------------------------------------------


def test_paths_of_the_file_are_relative_to_it_and_options_win(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    client = ClientSettings.of(
        {"partition-id": 5, "state-dir": "state", "app": None}, bundle / "client.toml"
    )
    assert (client.ca, client.key) == (str(bundle / "ca.crt"), str(bundle / "key"))
    assert (client.partition_id, client.state_dir, client.name) == (5, "/state", "site-a")


def test_the_owners_file_wins_key_by_key(bundle: Path) -> None:
    (bundle / "owner.toml").write_text(
        'data-dir = "data"\nallow = ["x:y"]\npartition-id = 8\n[limits]\nrows = 9\n'
    )
    client = ClientSettings.of({}, bundle / "client.toml")
    assert (client.data_dir, client.allow, client.limits) == (
        str(bundle / "data"),
        ("x:y",),
        {"rows": 9},
    )
    assert (client.partition_id, client.state_dir) == (8, str(bundle / "state"))
    assert ClientSettings.of({"partition-id": 5}, bundle / "client.toml").partition_id == 5
    (bundle / "owner.toml").write_text('[files."bern.csv"]\ndecimalChar = ","\n')
    assert json.loads(ClientSettings.of({}, bundle / "client.toml").node()["files"]) == {
        "bern.csv": {"decimalChar": ","}
    }
    (bundle / "owner.toml").write_text('[files."bern.csv"]\ndecimalMark = ","\n')
    with pytest.raises(
        FairbloomError, match=r"owner\.toml: files\.bern\.csv\.decimalMark is unknown"
    ):
        ClientSettings.of({}, bundle / "client.toml")
    (bundle / "owner.toml").write_text("data-dir = ''\npartition-id = 0\n")
    client = ClientSettings.of({}, bundle / "client.toml")
    assert (client.data_dir, client.partition_id) == ("", 0)
    (bundle / "owner.toml").write_text("data-dir = ")
    with pytest.raises(DeployError, match=r"owner\.toml is not a TOML file"):
        ClientSettings.of({}, bundle / "client.toml")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_files_of_a_device_may_have_a_mark(bundle: Path, encoding: str) -> None:
    """Notepad writes one, and an operator's federation.toml and a schema may have it, too."""
    (bundle / "owner.toml").write_text('data-dir = "/srv/nörd"\n', encoding)
    federation = bundle.parents[1]
    for file in (bundle / "client.toml", federation / "federation.toml"):
        file.write_text(file.read_text(), encoding)
    assert ClientSettings.of({}, bundle / "client.toml").data_dir == "/srv/nörd"
    assert [each.name for each in Federation.read(federation).enrolled()] == ["site-a"]
    (bundle / "schema.toml").write_text(HOSPITAL, encoding)
    assert read_schema(str(bundle / "schema.toml")) == HOSPITAL


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"server": "example.org"}, "server = 'example.org': write it as HOST:PORT"),
        ({"server": ""}, "server is missing in"),
        ({"ca": "/nowhere/ca.crt"}, "ca = /nowhere/ca.crt: file not found"),
        (
            {"certificate": "/nowhere"},
            "certificate = /nowhere: file not found; take it from the client's bundle",
        ),
        ({"partition-id": -1}, "partition-id = -1: it is counted from 0"),
        ({"limits": {"row": 5}}, "limits has row = 5"),
        ({"limits": {"privacy": {}}}, "epsilon is missing, as in epsilon = 3"),
        ({"limits": {"privacy": {"epsilon": 0.0}}}, "epsilon"),
        ({"limits": {"privacy": {"epsilon": 3.0, "steps": 0}}}, "steps"),
        ({"limits": {"privacy": {"epsilon": 3.0, "clip": 9}}}, "clip is unknown"),
        (
            {"app": "json.tool:main", "limits": {"privacy": {"epsilon": 3.0}}},
            "only Fairbloom's own app",
        ),
        ({"partition-id": "0"}, "partition-id = '0': it must be of type int"),
        ({"colour": 1}, "unknown setting colour = 1: there are allow, app"),
        ({"name": "me"}, "unknown setting name = 'me': there are allow, app"),
        ({"app": "client"}, "app = 'client': write it as module:attribute"),
        ({"app": "nowhere.at:all"}, "module not found; install it"),
        ({"allow": "x:y"}, "allow = 'x:y': it must be of type list"),
        ({"allow": [3]}, "allow = [3]: it must be a list of texts"),
        ({"node-config": {"a": 1}}, "node-config is only for your own app"),
        (
            {"app": "json.tool:main", "node-config": {"name": "x"}},
            "node-config has name = 'x': write name outside node-config",
        ),
        (
            {"app": "json.tool:main", "node-config": {"a": [1]}},
            "node-config has a = [1]: it must be a number, true, false, or a text",
        ),
    ],
)
def test_an_invalid_setting_is_named_with_value_and_remedy(
    bundle: Path, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(FairbloomError, match=re.escape(words)):
        ClientSettings.of(given, bundle / "client.toml")


@pytest.mark.parametrize("place", [".", "site-a"])
def test_an_account_of_the_data_is_seen_in_the_clients_folder(bundle: Path, place: str) -> None:
    folder = bundle / "data" / place
    folder.mkdir(parents=True, exist_ok=True)
    client = ClientSettings.of({"data-dir": str(bundle / "data")}, bundle / "client.toml")
    assert not client.has_account
    (folder / ACCOUNT_FILE).touch()
    assert client.has_account


def test_owner_toml_is_compared_with_the_accepted_schemas(bundle: Path) -> None:
    (bundle / "owner.toml").write_text('[files."bern.csv"]\nfields.Alter.unit = "years"\n')
    schemas = Schemas(bundle / "state")
    settings = ClientSettings.of({}, bundle / "client.toml")
    settings.check_own_files()  # no schema is accepted yet
    schemas.accept(SCHEMA)
    with pytest.raises(
        FairbloomError, match=r"owner\.toml: files\.bern\.csv\.fields\.Alter: .*one of"
    ):
        settings.check_own_files()
    replace(settings, limits={"schema": "any"}).check_own_files()
    schemas.accept(SCHEMA.replace("age", "Alter"), also=True)
    settings.check_own_files()
    schemas.accept("no [ toml")
    replace(settings, files={}).check_own_files()  # without files, there is nothing to compare


@pytest.mark.parametrize(
    ("text", "words"), [(None, "cannot be read"), ("a = ", "is not a TOML file")]
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "client.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(DeployError, match=f"{re.escape(str(file))} {words}"):
        ClientSettings.of({}, file)


def test_the_worker_gets_what_the_app_needs_and_no_key(bundle: Path) -> None:
    *command, pipe, given = ClientSettings.of(
        {"data-dir": "/my data"}, bundle / "client.toml"
    ).worker(7)
    code = f"from fairbloom.deploy.fleet.app_process import main; main({os.getpid()})"
    assert command == [sys.executable, "-P", "-c", code]
    assert pipe == "7"
    assert json.loads(given) == {
        "app": APP,
        "allow": [],
        "limits": {},
        "node": {
            "partition-id": 3,
            "name": "site-a",
            "data-dir": "/my data",
            "state-dir": str(bundle / "state"),
        },
    }
    (bundle / "owner.toml").write_text('app = "json.tool:main"\nallow = ["x:y"]\n')
    given = json.loads(ClientSettings.of({}, bundle / "client.toml").worker(7)[-1])
    assert (given["app"], given["allow"]) == ("json.tool:main", ["x:y"])


def test_a_users_app_finds_the_node_config_of_the_file(bundle: Path) -> None:
    (bundle / "owner.toml").write_text(
        'app = "json.tool:main"\nnode-config = { num-partitions = 2, path = \'/my "data"\', on ='
        " true, a = 0.5 }\n"
    )
    node = ClientSettings.of({}, bundle / "client.toml").node()
    assert {**node, "num-partitions": 2, "path": '/my "data"', "on": True, "a": 0.5} == node


@pytest.fixture
def own_handlers() -> Iterator[None]:
    """Restore the signal handlers that a client's process replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("own_handlers")
def test_the_small_process_gets_all_settings(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = ClientSettings.of(
        {"allow": ["x:y"], "app": "json.tool:main", "node-config": {"num-partitions": 2}},
        bundle / "client.toml",
    )
    there = list[ClientSettings]()
    monkeypatch.setattr(loop, "run_alone", there.append)
    monkeypatch.setattr(
        os, "execv", lambda program, words: monkeypatch.setattr(sys, "argv", words[3:])
    )
    masks: list[int] = []
    monkeypatch.setattr(os, "umask", masks.append)
    loop.replace_process(client)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}
    loop.main()
    assert there == [client]
    assert masks == [0o077]  # only the client's account can read its files


# Files that cannot be used ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", os.urandom(600), b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"],
)
def test_a_corrupt_authority_is_named(bundle: Path, content: bytes) -> None:
    good = ClientSettings.of({}, bundle / "client.toml")
    (bundle / "ca.crt").write_bytes(content)
    words = (
        f"ca = {bundle / 'ca.crt'}: it holds no certificate; take ca.crt from the client's bundle"
        " again"
    )
    with pytest.raises(DeployError, match=f"^{re.escape(words)}$"):
        ClientSettings.of({}, bundle / "client.toml")
    assert connection_fault(good) == words  # if the file breaks after the start


def encrypted_key(bundle: Path) -> bytes:
    form = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    return load_pem_private_key((bundle / "key").read_bytes(), None).private_bytes(*form)


@pytest.mark.parametrize(
    "make",
    [
        lambda bundle: b"",
        lambda bundle: os.urandom(600),
        lambda bundle: b"-----BEGIN PRIVATE KEY-----\n",
        lambda bundle: pki.format_key(pki.make_key()),
        encrypted_key,
    ],
)
def test_a_key_that_does_not_fit_is_named_when_the_client_starts(
    bundle: Path, make: Callable[[Path], bytes]
) -> None:
    (bundle / "key").write_bytes(make(bundle))
    with pytest.raises(DeployError) as error:
        ClientSettings.of({}, bundle / "client.toml")
    assert str(error.value).startswith(f"key = {bundle / 'key'} is not the key of certificate = ")


def test_the_error_of_a_missing_key_says_how_to_make_one(bundle: Path) -> None:
    (bundle / "key").unlink()
    words = f"key = {bundle / 'key'}: file not found.*fairbloom client keys NAME --out {bundle}"
    with pytest.raises(DeployError, match=words):
        ClientSettings.of({}, bundle / "client.toml")


# The command --------------------------------------------------------------------------------------


def test_help_shows_both_commands(tmp_path: Path) -> None:
    printed = client_command("--help", folder=tmp_path).stdout
    assert re.search(r"\brun\b.+Run a client", printed)
    assert re.search(r"\bkeys\b.+private key", printed)


def test_a_files_name_goes_to_the_client(tmp_path: Path) -> None:
    done = client_command("x/client.toml", "--state-dir", "state", folder=tmp_path)
    assert done.returncode == 2
    assert "x/client.toml cannot be read: No such file or directory" in done.stderr


VERSION = version("fairbloom")
SETTINGS = {"clients": 3, "device": "cpu"}


def run_of(
    *, distribution: str = "fairbloom", version: str = VERSION, **settings: Any
) -> RunDescription:
    said = {key.replace("_", "-"): value for key, value in settings.items()}
    return RunDescription(1, distribution, version, {**SETTINGS, **said})


def context(**node: Any) -> Context:
    return Context(1, 2, {"partition-id": 1, **node}, RecordDict(), {})


@pytest.fixture(scope="module")
def installed() -> Installed:
    return Installed(APP, distribution=("Fairbloom", VERSION))


# Versions and settings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distribution", "number"),
    [
        ("hearts", "1.1"),
        ("other", "1.0"),
        ("fairbloom", "1.0"),
        ("hearts", "1.0.post1"),
    ],
)
def test_another_app_or_version_is_refused_with_both_named(distribution: str, number: str) -> None:
    hearts = Installed(APP, distribution=("hearts", "1.0"))
    with pytest.raises(
        SettingRefusedError,
        match=f"^the run is of {distribution} {re.escape(number)}, this client has hearts 1\\.0"
        " installed: install the same version on both$",
    ):
        hearts.accept(run_of(distribution=distribution, version=number), context())
    hearts.accept(run_of(distribution="Hearts", version="1.0"), context())


def test_questions_are_counted_where_a_device_keeps_anything(tmp_path: Path) -> None:
    """Not those without a model, nor on a node without a state folder."""
    device = Installed(APP, distribution=("Fairbloom", VERSION), limits=Limits(questions_a_run=1))
    for number, question in enumerate(("", "train 1", "", "train 1")):
        device.accept(replace(run_of(), question=question), context(**{"state-dir": str(tmp_path)}))
        device.accept(replace(run_of(), question=f"train {number}"), context())
    with pytest.raises(SettingRefusedError, match="questions-a-run"):
        device.accept(
            replace(run_of(), question="train 2"), context(**{"state-dir": str(tmp_path)})
        )


def test_a_mended_file_begins_no_new_count_of_questions(tmp_path: Path) -> None:
    """The owner allows a third try by the number in the refusal, before the first round."""
    run = run_of(num_rounds=6, schema=SCHEMA)

    def device(**limits: Any) -> Installed:
        return Installed(APP, distribution=("Fairbloom", VERSION), limits=Limits.of(limits))

    def ask(device: Installed, number: int) -> None:
        # a file is mended before each try, or how it is read: the first model stays the same
        files = json.dumps({"*": {"decimal": ".,"[number % 2]}})
        here = context(**{"state-dir": str(tmp_path), FILES: files})
        device.accept(run, here)
        for message in ["first", *(f"{number}.{each}" for each in range(11))]:
            device.accept(replace(run, question=message), here)

    for number in range(3):  # a schema that is not accepted is refused, and nothing counted
        with pytest.raises(SettingRefusedError, match="schema"):
            ask(device(), number)
    ask(device(schema="any"), 1)
    ask(device(schema="any"), 2)
    with pytest.raises(SettingRefusedError, match="a mended file begins no new count") as refusal:
        ask(device(schema="any"), 3)
    assert "1 of 24 messages with a model are left" in str(refusal.value)
    allowed = re.findall(r"questions-a-run = (\d+) or more", str(refusal.value))
    assert allowed == [str(1 + 11 + 11 + 12)]
    with pytest.raises(SettingRefusedError, match="no new count"):
        ask(device(**{"schema": "any", "questions-a-run": int(allowed[0]) - 1}), 3)
    ask(device(**{"schema": "any", "questions-a-run": int(allowed[0])}), 3)


@pytest.mark.parametrize("number", ["0.0.9", f"{VERSION}.post1", "7.0"])
def test_a_run_of_another_version_of_ours_is_taken(installed: Installed, number: str) -> None:
    """Each message has the number of its protocol, which shows whether both versions fit."""
    app, _ = installed.accept(run_of(version=number), context())
    assert app is sys.modules["fairbloom.client.app"].app
    with pytest.raises(SettingRefusedError, match="the run is of other"):
        installed.accept(run_of(distribution="other"), context())


def test_the_app_gets_the_short_list_and_the_devices_own_places(
    installed: Installed, tmp_path: Path
) -> None:
    run = run_of(state_dir="/etc", out="/root", data_dir="/home", method="fedfv")
    _, settings = installed.accept(run, context(**{"state-dir": str(tmp_path), "name": "site-a"}))
    assert settings["state-dir"] == str(tmp_path)
    assert not {"out", "data-dir", "fraction"} & set(settings)
    assert settings["method"] == "fedfv"  # the owner may limit this setting
    assert settings["clients"] == SETTINGS["clients"]
    _, settings = installed.accept(run, context())
    assert not {"state-dir", "data-dir"} & set(settings)
    _, settings = installed.accept(run, context(**{"data-dir": "/of/the/device"}))
    assert settings["data-dir"] == "/of/the/device"


def test_a_setting_of_another_kind_is_refused(installed: Installed) -> None:
    with pytest.raises(
        SettingRefusedError, match="the run's setting seed is neither a number, a text"
    ):
        installed.accept(run_of(seed=[1]), context())


def test_an_import_string_is_refused_unless_the_owner_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without permission, the module is not even imported; with it, its settings are known."""
    (tmp_path / "hers_on_device.py").write_text("def load(setup, *, noise: float = 0.1): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    task = "hers_on_device:load"
    run = run_of(task=task, **{"own-settings": "load.noise=0.3"})
    with pytest.raises(
        SettingRefusedError, match=f"the run sets task = '{task}', and this client allows no"
    ):
        Installed.of(APP, ()).accept(run, context())
    assert "hers_on_device" not in sys.modules
    _, settings = Installed.of(APP, (task,)).accept(run, context())
    assert settings["task"] == task
    assert settings["load.noise"] == 0.3
    del sys.modules["hers_on_device"]


# The app that is installed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("fairbloom.client.app", "fairbloom"),
        ("numpy", "numpy"),
        ("typing_extensions", "typing_extensions"),
        ("flwr", "flwr"),
        ("sklearn", "scikit-learn"),
    ],
)
def test_an_installed_module_is_found_in_its_distribution(module: str, name: str) -> None:
    assert distribution_of(module) == (name, version(name))


@pytest.fixture
def loose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An app on the path that was never installed."""
    (tmp_path / "loose_app.py").write_text(
        "from flwr.clientapp import ClientApp\napp = ClientApp()\nnumber = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "loose_app"
    sys.modules.pop("loose_app", None)


def test_an_editable_app_is_found_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among folders of modules, and distributions that list no files."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_many").mkdir()
    for name, url in (("other", ""), ("mine", f"{tmp_path.as_uri()}/src")):
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        if url:
            (about / "direct_url.json").write_text(
                f'{{"url": "{url}", "dir_info": {{"editable": true}}}}'
            )
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mine_on_device.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "src")
    assert Installed.of("mine_on_device:app", ()).distribution == ("mine", "1.0")
    assert distribution_of("of_many") is distribution_of("no_such_module") is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"task": "digits"}, "the run sets task = 'digits', and this device allows 'csv'"),
        (
            {"task": "csv", "schema": HOSPITAL},
            "the run's schema is not one that this device's owner",
        ),
    ],
)
def test_a_run_beyond_its_owners_limits_is_refused(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    limited = Installed(APP, limits=Limits.of({"tasks": ["csv"]}))
    with pytest.raises(SettingRefusedError, match=words):
        limited.accept(run_of(**settings), context(**{"state-dir": str(tmp_path)}))
    free = Installed(APP, limits=Limits.of({"schema": "any"}))
    assert free.accept(run_of(**settings), context())[1]["task"] == settings["task"]


def test_an_app_that_was_never_installed_has_no_version(loose: str) -> None:
    mine = Installed.of(f"{loose}:app", ())
    assert mine.distribution is None
    app, _ = mine.accept(run_of(distribution="loose", version="3"), context())
    assert app is sys.modules[loose].app


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ("no_such_module:app", "No module named 'no_such_module'"),
        ("loose_app:nothing", "has no attribute 'nothing'"),
        ("loose_app:number", "is of type int, not ClientApp"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_named(loose: str, app: str, words: str) -> None:
    with pytest.raises(ImportError, match=f"app = '{app}' of this client .*{words}"):
        load_app(app, ClientApp, "this client")

"""No command lets words of others, a name, a class or a value, steer a terminal.

Each command is either run here with such words, or listed with the reason why it is not.
"""

import ast
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import typer

from fairbloom.cli.main import LateCommand, app
from fairbloom.client.guard.accepted_schemas import Schemas
from fairbloom.client.guard.log_files import open_log
from fairbloom.command import print_json
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.deploy.device.profile import choose_letter
from fairbloom.deploy.device.table import choose_table
from fairbloom.deploy.device.today import read_site
from fairbloom.deploy.fleet.federation import Federation
from fairbloom.deploy.fleet.profiles import keep
from fairbloom.deploy.fleet.runs import Order, submit
from fairbloom.deploy.fleet.wire_pb2 import Told
from fairbloom.logs import print_lines, print_traceback
from fairbloom.tables.toml import quote
from tests.checkout import ROOT
from tests.experiments.helpers import fairbloom
from tests.test_style import package_files

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b\u202e\x7f"

SCHEMA = f"""
target = "outcome"
[fields.age]
type = "number"
unit = {quote(f"y{EVIL}")}
center = 50.0
scale = 20.0
[fields.{quote(f"dose{EVIL}")}]
type = "number"
center = 1.0
scale = 0.5
[fields.outcome]
type = "string"
categories = ["well", "ill", {quote(EVIL)}]
"""

# What follows a command's name, and whether its words come from others.
CASES: dict[str, tuple[str, bool]] = {
    "client accept": ("{toml} --schema {folder}/newer.toml --yes", True),
    "client schemas": ("{toml}", False),
    "client log": ("{toml}", True),
    "client profile": ("{toml} --yes --out {folder}/letter.json", True),
    "client describe": ("{toml} --yes", True),
    "client data": ("{toml}", True),
    "client release": ("show {toml}", True),
    "client report": ("{toml}", True),
    "client account open": ("{private}", True),
    "client account show": ("{private}", True),
    "client account resume": ("{private}", False),
    "client account close": ("{private}", False),
    "deploy profiles": ("--target outcome --write-schema {folder}/drafted", True),
    "deploy describe": ("--schema {schema} --by-class", True),
    "deploy status": ("", True),
    "deploy doctor": ("--client {toml}", False),
    "deploy stop": ("{run}", False),
    "deploy enroll": ("c", False),
    "deploy revoke": ("b", False),
    "deploy renew": ("", False),
}

PAGE = "it prints a page, as show does, which tests/experiments/test_hostile_names.py runs"
OWN = "it prints our own words, and what its user has just written"
FOLLOWS = "it follows a run's log, for which tests/deploy/test_submit.py has a case"
ELSEWHERE = {
    **dict.fromkeys(("run", "compare", "refit", "search", "reproduce", "deploy compare"), PAGE),
    **dict.fromkeys(("show", "data", "evaluate"), PAGE),
    **dict.fromkeys(("report", "predict", "methods", "tasks", "settings", "new"), OWN),
    **dict.fromkeys(("client keys", "deploy init"), OWN),
    **dict.fromkeys(("deploy submit", "deploy release"), FOLLOWS),
    **dict.fromkeys(("client run", "server"), "it writes log records: tests/test_logs.py"),
}


def find_commands() -> Iterator[str]:
    """Yield the names of all commands, those of groups with their groups' names."""
    waiting = [("", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        command = command.imported() if isinstance(command, LateCommand) else command
        if isinstance(command, click.Group):
            waiting += [(f"{name} {each}", own) for each, own in command.commands.items()]
        else:
            yield name.strip()


def test_each_command_is_tried_or_listed() -> None:
    """Whoever adds a command adds a case, or says why there is none."""
    assert sorted([*CASES, *ELSEWHERE]) == sorted(find_commands())


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A federation with two devices whose data, schema, log and last run have hostile words."""
    folder = tmp_path_factory.mktemp("escapes")
    made = folder / "federation"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRBLOOM_FEDERATION", str(made))
        assert fairbloom("deploy", "init", made, "--host", "localhost") == 0
        assert fairbloom("deploy", "enroll", "a", "b") == 0
        schema = folder / "schema.toml"
        schema.write_text(SCHEMA)
        (folder / "newer.toml").write_text(SCHEMA.replace("50.0", "51.0"))
        for name, more in (("a", ""), ("b", "[limits.privacy]\nepsilon = 3.0\n")):
            prepare(made / "bundles" / name, folder / f"of {name}{EVIL}", more)
        settings = ClientSettings.of({}, made / "bundles/a/client.toml")
        letter = choose_letter(settings, read_site(settings), "2025-01-31").release.content
        keep(made, "a", Told(profile=letter.encode()))
        hostile = {**json.loads(letter), "client": "b", "unit": EVIL}
        keep(made, "b", Told(profile=json.dumps(hostile).encode()))
        table = choose_table(settings, SCHEMA, "2025-01-31").release.content
        keep(made, "a", Told(table=table.encode()))
        order = Order(app="a:b", distribution="d", version="1", settings={}, folder="")
        run = submit(Federation.read(made).runs, order)
        run.log.write_text(f"the run ends: {EVIL}\n")
        run.end(1)
        bundles = made / "bundles"
        yield {
            "folder": str(folder),
            "schema": str(schema),
            "run": str(run.number),
            "toml": str(bundles / "a/client.toml"),
            "private": str(bundles / "b/client.toml"),
        }


def prepare(bundle: Path, data: Path, more: str) -> None:
    """Write a device's data and owner.toml; its log has a refusal, and it has accepted SCHEMA."""
    data.mkdir()
    rows = [f"{20 + n % 50},{n % 7},{('well', 'ill', EVIL)[n % 3]}" for n in range(120)]
    (data / "site.csv").write_text("\n".join([f"age,dose{EVIL},outcome", *rows, ""]))
    ledger = text_of_ledger(bundle) if more else ""
    (bundle / "owner.toml").write_text(
        f'data-dir = {quote(str(data))}\nunit = "row"\n[limits]\ndescribe = "all"\n{more}{ledger}'
    )
    Schemas(bundle / "state").accept(SCHEMA)
    open_log(bundle / "state").note({"run": 1, "asked": EVIL, "refused": EVIL}, {})


def text_of_ledger(bundle: Path) -> str:
    return f"ledger = {quote(str(bundle / 'accounts'))}\n"


@pytest.mark.parametrize("command", CASES)
def test_no_command_lets_words_steer_the_terminal(
    command: str,
    places: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words, has_evil = CASES[command]
    released = "fairbloom.client.guard.released_model."
    monkeypatch.setattr(f"{released}describe_models", lambda folder: iter([f"model {EVIL}"]))
    monkeypatch.setattr(f"{released}read_scores", lambda folder: iter([(1, {EVIL: 0.5})]))
    if command.startswith("client account") and not command.endswith("open"):
        fairbloom("client", "account", "open", places["private"])
        capsys.readouterr()
    given = [each.format(**places) for each in words.split()]
    fairbloom(*command.split(), *given)
    printed = "".join(capsys.readouterr())
    assert printed
    assert not [each for each in printed if not (each.isprintable() or each == "\n")]
    assert ("\\x1b" in printed or "\\u001b" in printed) == has_evil


# What prints without the command line's own functions, and why.
OTHERS = {
    "fairbloom/logs.py": "the functions themselves",
    "fairbloom/flower.py": "a table of our own words",
    "fairbloom/scaffold/template/my_app/__main__.py": "a user's own app",
    "fairbloom/scaffold/template/my_app/server_app.py": "a user's own app",
    "deploy/edge/unpack.py": "it runs without Fairbloom, and prints fixed names",
}


def test_all_that_is_printed_goes_through_one_place() -> None:
    """Neither print nor a stream is used elsewhere, so a new command cannot forget to escape."""
    found = set[str]()
    for path in package_files():
        for node in ast.walk(ast.parse(Path(ROOT, path).read_text())):
            if isinstance(node, ast.Call) and prints(ast.unparse(node.func)):
                found.add(str(path))
    assert found - OTHERS.keys() == set()


def prints(function: str) -> bool:
    streams = ("sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines")
    return function in ("print", "pprint", "typer.echo", "click.echo", "secho", *streams)


@pytest.mark.parametrize(
    ("show", "shown"),
    [
        (lambda: print_lines(f"a{EVIL}\nb\tc", "d"), "b c\nd\n"),
        (lambda: print_json({"a": f"{EVIL}ü"}), '": "\\u001b]0;owned\\u0007'),
    ],
)
def test_lines_and_json_are_escaped(
    show: Callable[[], None], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show()
    out = capsys.readouterr().out
    assert shown.partition(": ")[2] or shown in out
    assert out.replace("\n", "").isprintable()


def test_json_is_read_back_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([EVIL, {"a\u2028": "\ud800"}])
    assert json.loads(capsys.readouterr().out) == [EVIL, {"a\u2028": "\ud800"}]


def test_a_traceback_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise RuntimeError(EVIL)
    except RuntimeError as error:
        print_traceback(type(error), error, error.__traceback__)
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last):\n")
    assert said.replace("\n", "").isprintable()


def test_a_bugs_traceback_goes_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(EVIL)

    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr("fairbloom.scaffold.new.write_app", fail)
    with pytest.raises(RuntimeError):
        fairbloom("new", "my-app")
    assert sys.excepthook is print_traceback

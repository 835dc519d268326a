"""The commands `fairbloom client`, of which `run` is the default."""

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from fairbloom.command import Terminal, print_json
from fairbloom.deploy.device.client import ClientSettings
from fairbloom.logs import escape_unprintable, print_lines

DEFAULT = "run"


class WithDefault(TyperGroup):
    """A group with a default command for an unknown first word: fairbloom client client.toml."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command's name before its arguments."""
        if not args or args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


client = typer.Typer(
    suggest_commands=False,
    cls=WithDefault,
    help="Run a client of a federation, profile its tables, accept a schema, or read its log.",
)


@client.command(DEFAULT)
def run(
    config: Annotated[
        Path, typer.Argument(metavar="CLIENT.TOML", help="Settings, from the bundle.")
    ],
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The federation's server.")
    ] = None,
    partition_id: Annotated[
        int | None, typer.Option(help="Number of this client's partition of the data, from 0.")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder of its data.")] = None,
    state_dir: Annotated[
        str | None, typer.Option(help="Folder for its state between rounds and the last model.")
    ] = None,
    app: Annotated[
        str | None, typer.Option(metavar="MODULE:ATTRIBUTE", help="Installed app to run.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE", help="A path or import string that a run may use."),
    ] = None,
) -> None:
    """Run a client: it keeps model and data in memory during a run, and reconnects by itself.

    An owner.toml next to CLIENT.TOML has the settings of the device's owner, and wins key by
    key; options win over both.
    """
    from fairbloom.deploy.fleet.client import replace_process

    settings = ClientSettings.of(
        {
            "server": server,
            "partition-id": partition_id,
            "data-dir": data_dir,
            "state-dir": state_dir,
            "app": app,
            "allow": allow or None,
        },
        config,
    )
    settings.check_own_files()
    replace_process(settings)


@client.command(epilog="Example: fairbloom client keys site-a")
def keys(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of this client in the federation.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the key; default: NAME.")
    ] = None,
) -> None:
    """Create this device's private key, and print a request for the operator.

    The key stays on the device.
    """
    from fairbloom.deploy.device.keys import make

    folder = out or Path(name)
    print_lines(*make(folder, name).splitlines())
    print_lines(
        f"{folder / 'key'} is this device's private key and stays here. Send the lines above, which"
        f" are no secret and lie in {folder / f'{name}.request'}, to the federation's operator, by"
        " a way that prevents changes; unpack the bundle that comes back next to the"
        f" key, so that {folder / 'client.toml'} is there",
        to=sys.stderr,
    )


StatePlace = Annotated[
    Path,
    typer.Argument(
        metavar="STATE_DIR", help="The client's state-dir, or the client.toml that names it."
    ),
]


def find_state_dir(place: Path) -> Path:
    """Return a client's state-dir, which a client.toml may name."""
    return Path(ClientSettings.of({}, place).state_dir) if place.suffix == ".toml" else place


def _limits_at(place: Path) -> Mapping[str, Any]:
    """Return the owner's limits by a client.toml; a state-dir names none."""
    if place.suffix != ".toml":
        return {}
    return ClientSettings.of({}, place).limits


@client.command(epilog="Example: fairbloom client accept client.toml")
def accept(
    place: StatePlace,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The schema to accept; default: the one that was refused last."
        ),
    ] = None,
    also: Annotated[
        bool, typer.Option("--also", help="Keep the schemas that are accepted now.")
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Accept this file's weights, which a refused run begins with."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Accept it without a question.")] = False,
) -> None:
    """Show a schema, such as that of a refused run, and accept it for runs to come.

    It takes the place of the accepted one: runs that have begun keep theirs.
    """
    if weights is not None:
        from fairbloom.client.guard.initial_weights import accept_weights

        accept_weights(find_state_dir(place), weights)
        print_lines("accepted, for runs with this schema and model")
        return
    from fairbloom.client.guard.accepted_schemas import (
        Schemas,
        describe_acceptance,
        describe_change,
        read_refused,
    )
    from fairbloom.tables.schema import read_schema

    folder = find_state_dir(place)
    text = read_refused(folder) if schema is None else read_schema(str(schema))
    schemas = Schemas(folder)
    print_lines(*describe_change(schemas, text), "")
    print_lines(*describe_acceptance(schemas, text, also=also))
    settings = ClientSettings.of({}, place) if place.suffix == ".toml" else None
    if settings is not None:
        from fairbloom.deploy.device.answers import find_faults, note_columns, send_yes

        print_lines(*find_faults(settings, text))
    accepts = yes or typer.confirm(
        "Accept this schema, so that runs may read this device's data by it?"
    )
    if accepts:
        schemas.accept(text, also=also)
        if settings is not None:
            note_columns(settings, text)
        print_lines("accepted")
        if settings is not None:
            day = str(datetime.now(UTC).date())
            _tell_server(partial(send_yes, settings, day))


@client.command("schemas", epilog="Example: fairbloom client schemas client.toml")
def list_schemas(
    place: StatePlace,
    withdraw: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST", help="Withdraw the schema with this digest, or its beginning."
        ),
    ] = None,
) -> None:
    """List the schemas that were accepted, or withdraw one, from runs that have begun too."""
    from fairbloom.client.guard.accepted_schemas import Schemas, describe_schemas

    schemas = Schemas(find_state_dir(place))
    before = schemas.accepted()
    if withdraw is not None:
        schemas.withdraw(withdraw)
    print_lines(*describe_schemas(schemas))
    if before and not schemas.accepted() and place.suffix == ".toml":
        from fairbloom.deploy.device.answers import send_unknown

        _tell_server(partial(send_unknown, ClientSettings.of({}, place)))


def _tell_server(send: Callable[[], None]) -> None:
    """Tell the server something, or say why it does not learn it."""
    from fairbloom.errors import FairbloomError

    try:
        send()
    except FairbloomError as error:
        print_lines(f"the server does not learn it: {error}", to=sys.stderr)


@client.command(epilog="Example: fairbloom client log client.toml")
def log(
    place: StatePlace,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every entry, with all numbers, as JSON.")
    ] = False,
) -> None:
    """Show the requests to this device and its replies, run by run, and how many are left."""
    from fairbloom.client.guard.limits import Limits
    from fairbloom.client.guard.log_entries import describe_entries
    from fairbloom.client.guard.log_files import read_entries
    from fairbloom.client.guard.questions import Questions

    folder = find_state_dir(place)
    entries = read_entries(folder)
    if as_json:
        print_json(list(entries))
        return
    limits = Limits.of(_limits_at(place))
    print_lines(*describe_entries(entries), *Questions(folder).describe(limits))


@client.command(epilog="Example: fairbloom client release show client.toml")
def release(
    choice: Annotated[
        Literal["show", "take", "back"],
        typer.Argument(help="Only show it, take the one that waits, or go back to the one before."),
    ],
    place: StatePlace,
) -> None:
    """Show or choose the model that fairbloom predict uses on this device.

    Under limits.release = "ask", runs may begin with the weights of a model that you take.
    """
    from fairbloom.client.guard.released_model import choose, describe_models

    folder = find_state_dir(place)
    if choice != "show":
        choose(folder, choice, _limits_at(place).get("release", "take"))
    lines = [*describe_models(folder)] or ["no model is kept here: a run brings one"]
    print_lines(*lines)


@client.command(epilog="Example: fairbloom client report client.toml")
def report(place: StatePlace) -> None:
    """Show what this device has reported of the run of the model in use."""
    from fairbloom.client.guard.released_model import describe_models, read_scores

    folder = find_state_dir(place)
    print_lines(*describe_models(folder))
    scores = dict(read_scores(folder))
    names = dict.fromkeys(name for metrics in scores.values() for name in metrics)
    table = Table("round")
    for name in names:
        table.add_column(Text(escape_unprintable(name)))
    for number, metrics in scores.items():
        cells = [f"{metrics[name]:.4g}" if name in metrics else "–" for name in names]
        table.add_row(str(number), *cells)
    Terminal().print(table)


def confirm(question: str) -> bool:
    """Ask the owner a question, which may name what others have written."""
    return typer.confirm(escape_unprintable(question))


ClientToml = Annotated[
    Path, typer.Argument(metavar="CLIENT.TOML", help="Settings, from the bundle.")
]


@client.command(epilog="Example: fairbloom client profile client.toml")
def profile(
    config: ClientToml,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what leaves into this file, and send nothing."),
    ] = None,
    target: Annotated[
        str,
        typer.Option(metavar="COLUMN", help="Show you, by this column, which numbers are codes."),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Let it leave without a question.")] = False,
) -> None:
    """Show what the device's tables have wrong; then what would leave, which it asks about.

    A profile has counts and quantiles of no fewer rows, or persons, than limits.rows. The operator
    compares the profiles of all sites and writes the common schema.
    """
    from fairbloom.deploy.device import profile as letters, today

    settings = ClientSettings.of({}, config)
    site = today.read_site(settings)
    print_lines("For your eyes; what would leave comes after it:")
    print_lines(*[*letters.show_site(settings, site, target)] or ["nothing stands out"])
    with today.lock_sent(settings):
        day = str(datetime.now(UTC).date())
        chosen = letters.choose_letter(settings, site, day)
        print_lines("")
        if chosen.note:
            print_lines(chosen.note)
        print_lines("This would leave:")
        print_lines(*letters.describe_letter(chosen.letter), chosen.release.content)
        if yes or confirm(f"May it leave, to {out or settings.server}?"):
            today.send(settings, chosen, out)
            print_lines(f"it has left, to {out or settings.server}")


SchemaOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Schema of the rows; default: the accepted one.")
]


@client.command(epilog="Example: fairbloom client describe client.toml")
def describe(
    config: ClientToml,
    schema: SchemaOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Let it leave without a question.")] = False,
) -> None:
    """Show the table of the rows by a schema, and let it leave for the operator's Table 1.

    It has counts and quartiles of no fewer rows, or persons, than limits.rows.
    """
    from fairbloom.deploy.device import table, today
    from fairbloom.deploy.device.profile import describe_letter

    settings = ClientSettings.of({}, config)
    text = read_own_schema(settings, schema)
    with today.lock_sent(settings):
        day = str(datetime.now(UTC).date())
        chosen = table.choose_table(settings, text, day)
        if chosen.note:
            print_lines(chosen.note)
        print_lines("This would leave:")
        for name, letter in chosen.table.letters.items():
            print_lines(f"{name or 'all rows'}:", *describe_letter(letter))
        if yes or confirm(f"May it leave, to {settings.server}?"):
            today.send(settings, chosen)
            print_lines(f"it has left, to {settings.server}")


@client.command(epilog="Example: fairbloom client data client.toml")
def data(config: ClientToml, schema: SchemaOption = None) -> None:
    """Show what the device's tables hold by a schema, and their faults, as fairbloom data does.

    They are read as owner.toml describes them. The exit code is 1 if there are faults.
    """
    from fairbloom.client.private.split import settings_of_rows
    from fairbloom.tasks import describe_data
    from fairbloom.tasks.permit import permit_reading

    settings = ClientSettings.of({}, config)
    text = read_own_schema(settings, schema)
    with permit_reading():
        read = settings_of_rows(settings.node(), settings.data_dir, text)
        described = describe_data(read, every=False)
    for name, rows in described.items():
        # A run's seed and share decide which rows test, and the device keeps their sides.
        of_runs = ("train", "test") if name == "clients" else ()
        headings = [*dict.fromkeys(heading for row in rows for heading in row)]
        headings = [heading for heading in headings if heading not in of_runs]
        if name == "clients" and len(rows) == 1:  # else it is called as its file
            rows = [{**rows[0], "client": settings.name}]
        table = Table(*headings, title=name, title_justify="left")
        for row in rows:
            cells = [str(row.get(heading, "")) for heading in headings]
            table.add_row(*map(Text, cells))
        if rows:
            Terminal().print(table)
    if any("problem" in row for row in described["clients"]):
        raise typer.Exit(1)


def read_own_schema(settings: ClientSettings, schema: Path | None) -> str:
    """Return the text of a file, by default of the schema that was accepted last."""
    from fairbloom.client.guard.accepted_schemas import Schemas
    from fairbloom.errors import FairbloomError
    from fairbloom.tables.schema import read_schema

    if schema is not None:
        return read_schema(str(schema))
    schemas = Schemas(Path(settings.state_dir))
    accepted = schemas.accepted()
    if accepted:
        return schemas.text_of(accepted[-1])
    raise FairbloomError("no schema is accepted yet: name one, --schema FILE")


account = typer.Typer(
    suggest_commands=False,
    help="Open, show, resume or close the privacy account of the data (limits.privacy).",
)
client.add_typer(account, name="account")


@account.command("open", epilog="Example: fairbloom client account open client.toml")
def open_account(
    config: ClientToml,
    test_share: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the rows that are never trained on.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split into these and others.")] = 0,
    schema: SchemaOption = None,
    state_dir: Annotated[
        str | None, typer.Option(help="Folder of the client's state, if it runs with this option.")
    ] = None,
) -> None:
    """Open the account that owner.toml asks for, for the data as they are now.

    It fixes the split, and it prints what the account allows.
    """
    from fairbloom.client.private.opening import describe_account, open_account
    from fairbloom.deploy.device.profile import describe_sent
    from fairbloom.errors import FairbloomError

    settings = ClientSettings.of({"state-dir": state_dir}, config)
    if "privacy" not in settings.limits:
        raise FairbloomError(
            "owner.toml asks for no account: write [limits.privacy] with epsilon = 3, for example"
        )
    made = open_account(
        settings.node(),
        settings.limits["privacy"],
        read_own_schema(settings, schema),
        test_share=test_share,
        seed=seed,
    )
    print_lines(*describe_account(made))
    print_lines(*describe_sent(settings))


@account.command("show", epilog="Example: fairbloom client account show client.toml")
def show_account(config: ClientToml) -> None:
    """Show what the account allows, what is left, and what had left before without noise."""
    from fairbloom.client.private.opening import describe_account, known_account
    from fairbloom.deploy.device.profile import describe_sent

    settings = ClientSettings.of({}, config)
    known = known_account(settings.node())
    print_lines(*describe_account(known))
    print_lines(*describe_sent(settings))


@account.command("resume", epilog="Example: fairbloom client account resume client.toml")
def resume_account(config: ClientToml) -> None:
    """Let a halted account work again, after its owner has read why in the log."""
    from fairbloom.client.private.opening import known_account

    known = known_account(ClientSettings.of({}, config).node())
    known.ledger.resume()
    print_lines("resumed; what was charged stays spent")


@account.command("close", epilog="Example: fairbloom client account close client.toml")
def close_account(config: ClientToml) -> None:
    """Remove an account of which nothing is spent, to open it anew in other words."""
    from fairbloom.client.private.opening import close_account

    closed = close_account(ClientSettings.of({}, config).node())
    print_lines(f"account {closed.number} is closed: nothing of it was spent")

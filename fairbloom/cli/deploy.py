"""The commands `fairbloom client`, `fairbloom server` and `fairbloom deploy`."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import typer

from fairbloom.command import INTERRUPTED, Terminal, print_json
from fairbloom.deploy.errors import DeployError
from fairbloom.deploy.fleet.federation import SERVER_UNIT, Federation
from fairbloom.logs import print_lines
from fairbloom.protocol.parameters import Value
from fairbloom.system.supervise import become

from .device import client as client

if TYPE_CHECKING:
    from fairbloom.deploy.fleet.runs import Order

app = typer.Typer(
    no_args_is_help=True,
    suggest_commands=False,
    help="Operate a federation of real devices: certificates, clients and runs.",
)


HERE: Any = Path("federation")  # the callback opens it
_option = partial(
    typer.Option,
    "--dir",
    envvar="FAIRBLOOM_FEDERATION",
    help="The federation's folder, made by init.",
)
FederationOption = Annotated[
    Federation, _option(click_type=click.Path(path_type=Path), callback=Federation.read)
]


SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help=(
            "A setting of the run, as fairbloom settings lists them, or one of your app's run"
            " config."
        ),
    ),
]
SchemaOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="What the clients' tables hold; each device's owner accepts it."
    ),
]
SpendOption = Annotated[
    str,
    typer.Option(
        metavar="UNITS|all|lowest",
        help=(
            "What the run may spend of each client's privacy account; lowest: the least of each"
            " round, even if accounts do not last."
        ),
    ),
]


def server(federation: FederationOption = HERE) -> None:
    """Run the server of a federation: devices connect to it, and it carries out runs.

    It listens where federation.toml says, keeps its state in DIR/state, reports when it is ready,
    and stops on Ctrl-C.
    """
    # In a small process, without the libraries that the command line has loaded.
    become("fairbloom.deploy.fleet.daemon", str(federation.path))


@app.command(epilog="Example: fairbloom deploy init federation --host fl.example.org")
def init(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help=(
                "New folder. Keep it safe: it contains the private key of the certificate"
                " authority."
            ),
        ),
    ],
    host: Annotated[
        list[str], typer.Option(help="Name or address of the server, as devices reach it.")
    ],
    port: Annotated[int, typer.Option(help="Port that devices connect to.")] = 9092,
) -> None:
    """Create the folder of a federation: certificate authority, server certificate, settings."""
    made = Federation.init(folder, host, port)
    unit = (folder / SERVER_UNIT.name).absolute()
    print_lines(
        f"{folder}: devices reach the server at {made.server}",
        "start it with",
        f"  fairbloom server --dir {shlex.quote(str(folder))}",
        "or, for good, as a service:",
        f"  sudo systemctl enable --now {shlex.quote(str(unit))}",
    )


@app.command()
def renew(
    host: Annotated[
        list[str],
        typer.Option(help="Host name of the new certificate; default: the old one's."),
    ] = [],  # noqa: B006
    federation: FederationOption = HERE,
) -> None:
    """Create a new server certificate. A server takes it within seconds; devices need no change."""
    print_lines(
        f"{federation.identity[0]} is new, for {', '.join(federation.renew(host))} and loopback: a"
        " server that runs takes it within seconds"
    )


@app.command(
    epilog=(
        "Example: fairbloom deploy enroll hospital-7 --request hospital-7.request --examples 1200"
    )
)
def enroll(
    clients: Annotated[
        list[str],
        typer.Argument(metavar="CLIENT...", help="Names of the clients, as reports show them."),
    ],
    request: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What fairbloom client keys printed on the device."),
    ] = None,
    partition_id: Annotated[
        int | None,
        typer.Option(
            help=(
                "Number of the client's partition of the data, from 0; default: the first free one."
            )
        ),
    ] = None,
    examples: Annotated[
        int, typer.Option(help="Number of training examples of each client; 0: unknown.")
    ] = 0,
    federation: FederationOption = HERE,
) -> None:
    """Enrol clients and write a folder for each device: certificate, settings, systemd unit.

    With --request, the private key stays on the device and the folder contains nothing secret.
    Without it, the key is made here and the folder contains it: use this only for trials. A client
    that is enrolled already gets the new key; the one before never connects again.
    """
    from fairbloom.deploy.fleet.enrolment import describe_clients_beyond, enroll_all
    from fairbloom.deploy.operator.submit import say

    for option, given in (("--partition-id", partition_id), ("--request", request)):
        if given is not None and len(clients) > 1:
            raise DeployError(f"{option} {given} is for one client, and {len(clients)} are named")
    bundles = enroll_all(
        federation, clients, partition=partition_id, examples=examples, request=request
    )
    for name, bundle in zip(clients, bundles, strict=True):
        print_lines(f"{name}: {bundle}")
        federation.note("enroll", client=name)
    enrolled = federation.enrolled()
    far = describe_clients_beyond(enrolled, len(enrolled))
    if far:
        say(f"where data are dealt to clients: {far}")


@app.command()
def revoke(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="The client's name.")],
    federation: FederationOption = HERE,
) -> None:
    """Revoke a client: its key never connects again. Enrolling the name again makes a new one."""
    from fairbloom.deploy.fleet.enrolment import revoke as revoke_one

    revoke_one(federation, client)
    federation.note("revoke", client=client)
    print_lines(f"{client} is revoked")


@app.command(epilog="Example: watch -n 2 fairbloom deploy status")
def status(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; the documentation lists its keys.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help=(
                "Only print what is wrong, and exit with 0 (serving), 1 (down) or 2 (degraded: a"
                " run waits for clients, a certificate ends within 14 days, or less than 5 % of"
                " the disk is free)."
            ),
        ),
    ] = False,
    federation: FederationOption = HERE,
) -> None:
    """Show clients, runs and their rounds, disk space and certificate."""
    if check:
        from fairbloom.deploy.operator.health import check_health

        raise typer.Exit(check_health(federation))
    from fairbloom.deploy.operator.status import show, survey

    found = survey(federation)
    if as_json:
        print_json(found)
    else:
        show(found)


@app.command(epilog="Example: fairbloom deploy profiles --write-schema schemas --target outcome")
def profiles(
    letters: Annotated[
        list[Path],
        typer.Argument(
            metavar="[LETTER]...",
            help="Files of fairbloom client profile --out, in place of sent ones.",
        ),
    ] = [],  # noqa: B006
    write_schema: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the common schema and each client's lines for its owner.toml.",
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with a picture of who stands out."),
    ] = None,
    target: Annotated[str, typer.Option(help="The column to predict.")] = "",
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="csv.target, csv.missing or csv.kind."),
    ] = [],  # noqa: B006
    federation: FederationOption = HERE,
) -> None:
    """Compare the clients' profiles: show who stands out, and draft the schema of all.

    No data meet: each device's owner sends a profile by fairbloom client profile.
    """
    from fairbloom.deploy.operator import profiles as of_clients
    from fairbloom.deploy.operator.submit import say
    from fairbloom.imports import imported
    from fairbloom.protocol.settings import parse_assignments
    from fairbloom.server.settings import Settings
    from fairbloom.tables.findings import say_and_propose
    from fairbloom.tables.letters import NUMBER, compare_letters
    from fairbloom.tables.schema import EVERY_FILE

    given = dict(parse_assignments(settings))
    if target:
        given["csv.target"] = target
    other = [*given.keys() - {"csv.target", "csv.missing", "csv.kind"}]
    if other:
        raise DeployError(f"--set {other[0]}: write csv.target, csv.missing or csv.kind")
    Settings.of({"task": "csv", **given})  # raises an error for an impossible value
    received = of_clients.read_letters(federation, letters)
    for each in received.left_out:
        say(each)
    found = received.usable
    known = {} if write_schema is None else of_clients.read_drafted(write_schema)
    fields, findings = compare_letters(found.values(), known)
    written: list[str] = []
    if write_schema is not None:
        wanted = {key.removeprefix("csv."): value for key, value in given.items()}
        written = [*of_clients.write_schema(found, findings, write_schema, wanted)]
        known = of_clients.read_drafted(write_schema)  # a line depends on what a field is
    said = of_clients.describe_findings(findings, known, ", which --page shows")
    print_lines(*[*said] or ["no client stands out"])
    if page is not None:
        # by its name: a bare server lacks what draws it
        write_page = imported("page", "fairbloom.cli.data:write_page")
        files = dict.fromkeys(found, EVERY_FILE)
        advice = []
        for finding in findings:
            about = known.get(finding.field, NUMBER)
            advice.append(say_and_propose(finding, about, files))
        write_page(page, fields, findings, advice)
    print_lines(*written)


def read_given(settings: list[str], schema: Path | None, spend: str) -> dict[str, Value]:
    """Return the settings that options give."""
    from fairbloom.protocol.settings import parse_assignments

    named = {"schema": str(schema or ""), "privacy.spend": spend}
    return {**parse_assignments(settings), **{key: each for key, each in named.items() if each}}


@app.command(
    epilog="Example: fairbloom deploy compare --methods fedavg,fedfv --seeds 5 --set clients=4"
)
def compare(
    methods: Annotated[
        str, typer.Option(help="The methods, separated by commas, as in fairbloom compare.")
    ],
    baseline: Annotated[
        str, typer.Option(help="The method that the others are compared with.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="The number of seeds.")] = 3,
    seed: Annotated[int, typer.Option(help="The first seed; the others follow.")] = 0,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the tables, the report and the runs.")
    ] = Path("runs/comparison"),
    settings: SetOption = [],  # noqa: B006
    schema: SchemaOption = None,
    spend: SpendOption = "",
    federation: FederationOption = HERE,
) -> None:
    """Compare methods on the devices: submit a run of each with each seed, and show who gains.

    The same command continues an interrupted comparison. Ctrl-C leaves the current run going.
    """
    from fairbloom.deploy.operator import submit as runs
    from fairbloom.imports import imported

    # by its name: a bare server lacks what a comparison needs
    compare_deployed = imported(
        "methods", "fairbloom.experiments.studies.deployed:compare_deployed"
    )
    given = {**read_given(settings, schema, spend), "out": str(out)}
    compare_deployed(
        methods, baseline, [*range(seed, seed + seeds)], given, partial(runs.carry_out, federation)
    ).show()


@app.command(epilog="Example: fairbloom deploy describe --schema schema.toml --out table1.csv")
def describe(
    schema: Annotated[
        Path, typer.Option(metavar="FILE", help="The schema that the devices' owners accepted.")
    ],
    by_class: Annotated[
        bool, typer.Option("--by-class", help="Also count each class of the target by itself.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table as .csv, or as .md.")
    ] = None,
    federation: FederationOption = HERE,
) -> None:
    """Print Table 1 of the clients, by the tables that their owners let leave, and who stands out.

    Each device's owner sends one by fairbloom client describe, where owner.toml allows it.
    """
    from fairbloom.deploy.operator import profiles as of_clients
    from fairbloom.deploy.operator.submit import say
    from fairbloom.server.run_folder.tables import format_csv
    from fairbloom.system.files import write_whole
    from fairbloom.tables.schema import parse_schema, read_schema
    from fairbloom.tables.site_table import compare_tables, join_tables

    text = read_schema(str(schema))
    received, waits = of_clients.read_tables(federation, text)
    for each in received.left_out:
        say(each)
    parsed = parse_schema(text)
    rows = [*join_tables(parsed, received.usable, by_class=by_class)]
    shown = of_clients.write_markdown(rows)
    if out is not None:
        heads = tuple(dict.fromkeys(head for row in rows for head in row))
        written = format_csv(heads, rows) if out.suffix == ".csv" else shown
        write_whole(out, written.encode())
        print_lines(f"{out} is written")
    else:
        print_lines(*shown.splitlines())
    findings = [*compare_tables(parsed, received.usable)]
    print_lines(*of_clients.describe_findings(findings, parsed.fields))
    for name in waits:
        print_lines(f"waits for {name}: fairbloom client describe, on its device")


@app.command(
    epilog="Example: fairbloom deploy submit --set method=fedfv --set clients=4 --set num-rounds=50"
)
def submit(
    settings: SetOption = [],  # noqa: B006
    schema: SchemaOption = None,
    chosen: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="APP",
            help=(
                "Folder of a Flower app, or module:attribute of an installed ServerApp; default:"
                " the app in the "
                "current directory if there is one, else Fairbloom's."
            ),
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Print the run's number and exit, without following its log."
        ),
    ] = False,
    refit: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help=(
                "Train --method of the comparison in this folder on all rows; --set changes other"
                " settings of its runs."
            ),
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="The method of --refit.")] = "",
    spend: SpendOption = "",
    release: Annotated[
        bool, typer.Option("--release", help="Send the final model to all devices at the end.")
    ] = False,
    federation: FederationOption = HERE,
) -> None:
    """Submit a run, follow its log, and exit with the run's exit status: 0 only if it completed.

    The same settings continue a run that was interrupted. Ctrl-C leaves the run going.
    """
    from fairbloom.deploy.operator import submit as runs
    from fairbloom.protocol.settings import Mark, marked

    given = read_given(settings, schema, spend)
    if release:
        given["release"] = "last"
    if method and not refit:
        raise DeployError(f"--method {method} is of --refit: write --set method={method}")
    if refit:
        from fairbloom.experiments.studies.compare import settings_of_refit

        of_machine = {"out", "enrolled-sizes", *marked(Mark.PLACE, Mark.DEVICE, Mark.ROUNDING)}
        compared = settings_of_refit(refit, method)
        given = {**{key: compared[key] for key in compared if key not in of_machine}, **given}
    _carry_out(federation, runs.choose_app(chosen).order(federation, given), detach=detach)


@app.command("release", epilog="Example: fairbloom deploy release 1764500000000")
def release_run(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The number or the folder of a finished run.")
    ],
    model: Annotated[
        Literal["last", "best"],
        typer.Option(help="The model after the last round, or the one with the best mean score."),
    ] = "last",
    federation: FederationOption = HERE,
) -> None:
    """Send a run's model to all devices, which predict by it from then on.

    Say by name who takes it, whose owner is asked, who takes none, and who is away. The same
    command sends it again.
    """
    from fairbloom.deploy.operator.submit import order_release

    _carry_out(federation, order_release(federation, run, model), detach=False)


def _carry_out(federation: Federation, order: "Order", *, detach: bool) -> None:
    """Write an order, follow its log unless `detach`, and exit with its exit status."""
    from fairbloom.deploy.fleet.runs import submit as write_order
    from fairbloom.deploy.operator import submit as runs

    run = write_order(federation.runs, order)
    print_lines(f"run {run.number}")
    federation.note("submit", run=run.number)
    if detach:
        return
    try:
        ended = runs.follow(federation, run)
    except KeyboardInterrupt:
        runs.say(
            f"run {run.number} continues: follow it by tail -f {run.log}, stop it by fairbloom"
            f" deploy stop {run.number}"
        )
        raise typer.Exit(INTERRUPTED) from None
    print_lines(f"run {run.number}: {runs.describe_end(ended)}")
    raise typer.Exit(ended)


@app.command()
def stop(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="The run's number; default: the only one that has not ended."
        ),
    ] = None,
    after_run: Annotated[
        bool,
        typer.Option(
            "--after-run", help="Stop no run, but begin no further one until the next start."
        ),
    ] = False,
    federation: FederationOption = HERE,
) -> None:
    """Stop a run. The same submit continues it after its last finished round."""
    from fairbloom.deploy.operator import submit as runs

    if after_run:
        print_lines(runs.drain(federation))
        return
    print_lines(runs.stop(federation, runs.choose_run(federation, run)))


@app.command()
def doctor(
    client: Annotated[
        Path | None,
        typer.Option(
            metavar="CLIENT.TOML", help="Check the device of this client instead of the server."
        ),
    ] = None,
    folder: Annotated[Path, _option()] = HERE,
) -> None:
    """Check certificates, keys, permissions, port, clock and disk.

    Exits with 1 if something is wrong.
    """
    from fairbloom.deploy.device.client import ClientSettings
    from fairbloom.deploy.operator import doctor as checks

    if client:
        findings = checks.examine_device(ClientSettings.of({}, client))
    else:
        findings = checks.examine(Federation.read(folder))
    signs = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "fault": "[red]fault[/]"}
    console = Terminal(soft_wrap=True, highlight=False)
    worst = 0
    for finding in findings:
        console.print(f"{signs[finding.verdict]:<8} {finding.subject}: ", end="")
        console.print(finding.words, markup=False)
        worst = max(worst, int(finding.verdict == "fault"))
    raise typer.Exit(worst)

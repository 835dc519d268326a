"""The commands `fairbloom client`, `fairbloom server` and `fairbloom deploy`."""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from fairbloom.command import Terminal

from .device.cli import client as client
from .errors import DeployError
from .operator.federation import Federation, warn

app = typer.Typer(
    no_args_is_help=True,
    suggest_commands=False,
    help="Operate a federation of real devices: certificates, clients and runs.",
)


HERE: Any = Path("federation")  # the callback opens it
_option = partial(typer.Option, "--dir", envvar="FAIRBLOOM_FEDERATION", help="The federation's folder, made by init.")
FederationOption = Annotated[Federation, _option(click_type=click.Path(path_type=Path), callback=Federation)]
DirOption = Annotated[Path, _option()]
CertificateDaysOption = Annotated[float, typer.Option(help="Days that the server certificate is valid.")]
ClientArgument = Annotated[str, typer.Argument(metavar="CLIENT", help="The client's name.")]


def server(
    federation: FederationOption = HERE,
    untested_flower: Annotated[
        bool, typer.Option("--untested-flower", help="Run with a Flower newer than those that were tested.")
    ] = False,
) -> None:
    """Run the server of a federation (SuperLink and SuperExec), and restart parts that fail.

    It listens at the addresses given to deploy init, keeps its state in DIR/state, reports when it is ready, and stops
    on Ctrl-C.
    """
    from .server.supervisor import replace_process

    replace_process(federation, untested_flower)


@app.command(epilog="Example: fairbloom deploy init federation --host fl.example.org")
def init(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="New folder. Keep it safe: it contains the private key of the certificate authority."
        ),
    ],
    host: Annotated[list[str], typer.Option(help="Name or address of the SuperLink, as clients reach it.")],
    fleet_port: Annotated[int, typer.Option(help="Port that clients connect to.")] = 9092,
    control: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the control API, as you reach it.")
    ] = "127.0.0.1:8000",
    listen: Annotated[str, typer.Option(metavar="HOST", help="Where the server listens for clients.")] = "0.0.0.0",  # noqa: S104
    days: CertificateDaysOption = 398,
) -> None:
    """Create the folder of a new federation: certificate authority, server certificate and operator's credentials."""
    made = Federation.init(folder, host, fleet_port, control, days, listen)
    print(f"{folder}: clients reach the SuperLink at {made.superlink}, you reach it at {made.control}")
    _print_start(folder)
    print("or, for good, as a service:")
    print(f"  sudo systemctl enable --now {shlex.quote(str(made.unit.absolute()))}")


@app.command()
def renew(
    host: Annotated[
        list[str], typer.Option(help="Host name of the new certificate; default: those of the old one.")
    ] = [],  # noqa: B006
    days: CertificateDaysOption = 398,
    federation: FederationOption = HERE,
) -> None:
    """Create a new server certificate. Restart the server to use it. Clients need no change."""
    names = federation.renew(host, days)
    print(f"{federation.certificate} is new, for {', '.join(names)} and loopback: restart the server")


@app.command(epilog="Example: fairbloom deploy enroll hospital-7 --request hospital-7.request --examples 1200")
def enroll(
    clients: Annotated[
        list[str], typer.Argument(metavar="CLIENT...", help="Names of the clients, as reports show them.")
    ],
    request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What fairbloom client keys printed on the device.")
    ] = None,
    partition_id: Annotated[
        int | None,
        typer.Option(help="Number of the client's partition of the data, from 0; default: the first free one."),
    ] = None,
    examples: Annotated[int, typer.Option(help="Number of training examples of each client; 0: unknown.")] = 0,
    federation: FederationOption = HERE,
) -> None:
    """Register clients with the SuperLink and write a folder for each device: certificate, settings, systemd unit.

    With --request, the private key stays on the device and the folder contains nothing secret. Without it, the key is
    made here and the folder contains it: use this only for trials. A client that is enrolled already gets the new key;
    the one before never connects again.
    """
    from .operator.enrolment import describe_clients_beyond
    from .operator.enrolment import enroll as enroll_one

    for option, given in (("--partition-id", partition_id), ("--request", request)):
        if given is not None and len(clients) > 1:
            raise DeployError(f"{option} {given} is for one client, and {len(clients)} are named")
    for name in clients:
        bundle = enroll_one(federation, name, partition_id=partition_id, examples=examples, request=request)
        print(f"{name}: {bundle}", flush=True)
    if far := describe_clients_beyond(federation, len(federation.enrolled)):
        warn(f"where data are dealt to clients: {far}")


@app.command()
def revoke(
    client: ClientArgument,
    federation: FederationOption = HERE,
) -> None:
    """Revoke a client: its key never connects again. Enrolling the name again makes new keys."""
    from .operator.enrolment import revoke as revoke_one

    print(f"{revoke_one(federation, client).name} is revoked")


@app.command(epilog="Example: fairbloom deploy status --watch --interval 5")
def status(
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON; the documentation lists its keys. With --watch, one line for each update."
        ),
    ] = False,
    everyone: Annotated[
        bool, typer.Option("--all", help="List every client, where they are more than 20; without --watch.")
    ] = False,
    watched: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="With --watch: the time between two refreshes.")
    ] = 2.0,
    federation: FederationOption = HERE,
) -> None:
    """Show the current run, connected clients, refused attempts, disk space and certificate.

    All values come from the server. A value that it does not report is shown as unknown.
    """
    from .operator.status import show, survey, watch

    if watched:
        watch(federation, interval, as_json=as_json)
        return
    found = survey(federation)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        show(found, everyone)


@app.command(epilog="Example: fairbloom deploy submit --set method=fedfv --set clients=4 --set num-rounds=50")
def submit(
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the run, as fairbloom settings lists them, or one of your app's run config.",
        ),
    ] = [],  # noqa: B006
    app_folder: Annotated[
        Path | None,
        typer.Option(
            "--app",
            help="Folder of a Flower app; default: the current directory if it is one, else the installed Fairbloom.",
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the run's id and exit, without following its log.")
    ] = False,
    federation: FederationOption = HERE,
) -> None:
    """Submit a run, stream its log, and exit with 0 only if it completed.

    The same settings continue a run that was interrupted. Ctrl-C leaves the run going.
    """
    from fairbloom.protocol.settings import parse_assignments

    from .operator import submit as runs

    with runs.choose_app(app_folder) as chosen:
        config = chosen.prepare(federation, parse_assignments(settings))
        run_id = runs.submit(federation, chosen.folder, config)
    print(f"run {run_id}", flush=True)
    if not detach:
        final, reason = runs.watch(federation, run_id)
        failed = final != runs.COMPLETED
        print(f"run {run_id}: {final}{f': {reason}' if failed and reason else ''}")
        raise typer.Exit(failed)


@app.command()
def stop(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="The run's id (default: all runs that have not ended).")
    ] = None,
    federation: FederationOption = HERE,
) -> None:
    """Stop a run at once. The same submit continues it after its last finished round."""
    from .operator import submit as runs

    stopped = runs.stop(federation, run or "")
    print("\n".join(f"run {each} is stopped" for each in stopped) or "no run is going on")


def _print_start(folder: Path) -> None:
    print(f"start it with\n  fairbloom server --dir {shlex.quote(str(folder))}")


@app.command()
def doctor(
    client: Annotated[
        Path | None, typer.Option(metavar="CLIENT.TOML", help="Check the device of this client instead of the server.")
    ] = None,
    folder: DirOption = HERE,
) -> None:
    """Check clocks, certificates, keys, ports, versions and disk. Exits with 1 if something is wrong."""
    from .device.client import ClientSettings
    from .operator import doctor as checks

    findings = checks.examine_device(ClientSettings.of({}, client)) if client else checks.examine(Federation(folder))
    signs = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "fault": "[red]fault[/]"}
    console, worst = Terminal(soft_wrap=True, highlight=False), 0
    for finding in findings:
        console.print(f"{signs[finding.verdict]:<8} {finding.what}: ", end="")
        console.print(finding.words, markup=False)
        worst = max(worst, int(finding.verdict == "fault"))
    raise typer.Exit(worst)

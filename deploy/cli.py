"""The commands `fairbloom client` and `fairbloom deploy`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Run a federation of real nodes: certificates, clients, runs.")


def client(
    config: Annotated[Path | None, typer.Argument(metavar="[CLIENT.TOML]", help="Settings, from the bundle.")] = None,
    superlink: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Fleet API of the SuperLink.")] = None,
    ca: Annotated[str | None, typer.Option(help="Certificate of the authority that signed the SuperLink's.")] = None,
    key: Annotated[str | None, typer.Option(help="Private key of this node.")] = None,
    partition_id: Annotated[int | None, typer.Option(help="Which of the task's clients this is, from 0.")] = None,
    name: Annotated[str | None, typer.Option(help="Of this client, where no name was registered with its key.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Where its data is.")] = None,
    state_dir: Annotated[str | None, typer.Option(help="Where it keeps personal models and bundles.")] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Go without TLS.")] = None,
    isolated: Annotated[bool | None, typer.Option("--isolated", help="A forked process a message.")] = None,
    bundles: Annotated[str | None, typer.Option(help="ours: only code installed here; any: what comes.")] = None,
    host: Annotated[str | None, typer.Option(help="Where this node's own API listens.")] = None,
    port: Annotated[int | None, typer.Option(help="Of this node's own API; 0: a free one.")] = None,
) -> None:
    """Be a client: a SuperNode that keeps model and data warm, and starts again whenever it ends."""
    from .client import Client, replace_process

    given = {"superlink": superlink, "ca": ca, "key": key, "partition-id": partition_id, "name": name}
    given |= {"data-dir": data_dir, "state-dir": state_dir, "insecure": insecure, "isolated": isolated}
    replace_process(Client.of(given | {"bundles": bundles, "host": host, "port": port}, config))


DirOption = Annotated[
    Path, typer.Option("--dir", envvar="FAIRBLOOM_FEDERATION", help="The federation's folder, made by init.")
]
HERE = Path("federation")


@app.command(epilog="Example: fairbloom deploy init federation --host fl.example.org")
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder; keep it safe, it holds the CA's key.")],
    host: Annotated[list[str], typer.Option(help="Name or address of the SuperLink, as clients reach it.")],
    fleet_port: Annotated[int, typer.Option(help="Port that clients connect to.")] = 9092,
    control: Annotated[str, typer.Option(metavar="HOST:PORT", help="Control API, as you reach it.")] = "127.0.0.1:8000",
    days: Annotated[float, typer.Option(help="How long the server certificate holds.")] = 398,
) -> None:
    """Make a federation: certificate authority, server certificate, the operator's connection."""
    from .federation import Federation

    made = Federation.init(folder, host, fleet_port, control, days)
    print(f"{folder}: clients reach the SuperLink at {made.superlink}, you reach it at {made.control}")
    print("start it with")
    print(
        f"  flower-superlink --isolation process --fleet-api-address 0.0.0.0:{fleet_port} --enable-supernode-auth "
        f"--ssl-ca-certfile {made.authority} --ssl-certfile {made.certificate} --ssl-keyfile {made.certificate_key} "
        "--database state.db --disable-runtime-dependency-installation"
    )
    print(f"  flower-superexec --root-certificates {made.authority} --runtime-api-address {made.control}")


@app.command()
def renew(
    host: Annotated[list[str], typer.Option(help="Names of the new certificate; without, those of the old.")] = [],  # noqa: B006
    days: Annotated[float, typer.Option(help="How long the server certificate holds.")] = 398,
    folder: DirOption = HERE,
) -> None:
    """Make a new server certificate; the SuperLink takes it when it is restarted, clients need nothing."""
    from .federation import Federation

    names = Federation(folder).renew(host, days)
    print(f"{folder / 'server.crt'} is new, for {', '.join(names)} and loopback: restart the SuperLink")


@app.command(epilog="Example: fairbloom deploy enroll hospital-7 --partition-id 6")
def enroll(
    clients: Annotated[list[str], typer.Argument(metavar="CLIENT...", help="Names, as reports will show them.")],
    partition_id: Annotated[int | None, typer.Option(help="Which of the task's clients; default: the next.")] = None,
    unpacked: Annotated[bool, typer.Option("--unpacked", help="Write a folder in place of a .tar.gz.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave clients that are enrolled as they are.")] = False,
    folder: DirOption = HERE,
) -> None:
    """Register clients with the SuperLink and write a bundle for each: certificate, key, settings, systemd unit."""
    from .federation import DeployError, Federation

    federation = Federation(folder)
    if partition_id is not None and len(clients) > 1:
        raise DeployError(f"--partition-id {partition_id} is for one client, and {len(clients)} are named")
    there = {client.name for client in federation.clients if not client.revoked}
    for name in clients:
        if keep and name in there:
            print(f"{name} is enrolled already")
        else:
            print(f"{name}: {federation.enroll(name, partition_id, unpacked)}")


@app.command()
def revoke(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Its name.")],
    folder: DirOption = HERE,
) -> None:
    """Strike a client off: its key never connects again. Enrolling the name anew makes new keys."""
    from .federation import Federation

    print(f"{Federation(folder).revoke(client).name} is revoked")


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False, folder: DirOption = HERE
) -> None:
    """Show who is connected, when each was last seen, and what runs."""
    import json

    from .federation import Federation
    from .status import show, survey

    found = survey(Federation(folder))
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


@app.command(epilog="Example: fairbloom deploy submit --set method=fedfv --set clients=4 --set num-rounds=50")
def submit(
    settings: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Any of fairbloom settings.")] = [],  # noqa: B006
    app_folder: Annotated[Path | None, typer.Option("--app", help="Checkout of the app; default: this one.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Print the run's id and leave it.")] = False,
    folder: DirOption = HERE,
) -> None:
    """Run on the federation: submit, stream the log, exit with 0 only if the run completed.

    The same settings continue a run that was interrupted. Ctrl-C leaves the run going.
    """
    from server.settings import Settings, assigned, check_used

    from . import submit as runs
    from .federation import Federation

    federation = Federation(folder)
    config = assigned(settings)
    app, ours = runs.app_folder(app_folder)
    if ours:
        check_used(config, Settings.of(config).method)  # what is impossible stops here, before anything is sent
    run_id = runs.submit(federation, app, config)
    print(f"run {run_id}", flush=True)
    if not detach:
        final = runs.watch(federation, run_id)
        print(f"run {run_id}: {final}")
        raise typer.Exit(runs.exit_code(final))


@app.command()
def stop(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Its id; default: all that have not ended.")
    ] = None,
    folder: DirOption = HERE,
) -> None:
    """Stop a run at once. The same submit continues it after its last finished round."""
    from . import submit as runs
    from .federation import Federation

    stopped = runs.stop(Federation(folder), run or "")
    print("\n".join(f"run {each} is stopped" for each in stopped) or "no run is going on")


@app.command()
def doctor(
    client: Annotated[Path | None, typer.Option(metavar="CLIENT.TOML", help="Check this client's device.")] = None,
    folder: DirOption = HERE,
) -> None:
    """Look for what is wrong: clocks, certificates, ports, versions, disk. Exits with 1 where something is."""
    from rich.console import Console

    from . import doctor as checks
    from .client import Client
    from .federation import Federation

    findings = checks.examine_device(Client.of({}, client)) if client else checks.examine(Federation(folder))
    signs = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "fault": "[red]fault[/]"}
    console, worst = Console(soft_wrap=True, highlight=False), 0
    for finding in findings:
        console.print(f"{signs[finding.verdict]:<8} {finding.what}: ", end="")
        console.print(finding.words, markup=False)
        worst = max(worst, int(finding.verdict == "fault"))
    raise typer.Exit(worst)

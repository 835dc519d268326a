"""The commands `fairbloom client`: run (the default), keys, log, models and predict."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import click
import typer
from typer.core import TyperGroup

from fairbloom.command import TrustOption

DEFAULT = "run"


class WithDefault(TyperGroup):
    """A group with a default command, taken where the first word names none: fairbloom client client.toml."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command's name before its arguments."""
        if not args or args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


client = typer.Typer(
    suggest_commands=False,
    cls=WithDefault,
    help="Run a client of a federation, create its key, or use its stored models.",
)


@client.command(DEFAULT)
def run(
    config: Annotated[Path | None, typer.Argument(metavar="[CLIENT.TOML]", help="Settings, from the bundle.")] = None,
    superlink: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Fleet API of the SuperLink.")] = None,
    ca: Annotated[str | None, typer.Option(help="Certificate of the authority that signed the SuperLink's.")] = None,
    key: Annotated[str | None, typer.Option(help="Private key of this node.")] = None,
    partition_id: Annotated[
        int | None, typer.Option(help="Number of this client's partition of the data, from 0.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of this client, if none was registered with its key.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder of its data.")] = None,
    state_dir: Annotated[
        str | None, typer.Option(help="Folder for its state between rounds and for final models.")
    ] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Connect without TLS.")] = None,
    app: Annotated[str | None, typer.Option(metavar="MODULE:ATTRIBUTE", help="Installed app to run.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="VALUE", help="A path or import string that a run may use.")
    ] = None,
) -> None:
    """Run a client: a node that keeps model and data in memory during a run, and reconnects if it fails."""
    from .client import ClientSettings
    from .supervisor import replace_process

    given: dict[str, object] = {"superlink": superlink, "ca": ca, "key": key, "name": name, "insecure": insecure}
    given |= {"partition-id": partition_id, "data-dir": data_dir, "state-dir": state_dir}
    given |= {"app": app, "allow": allow or None}
    replace_process(ClientSettings.of(given, config))


@client.command(epilog="Example: fairbloom client keys site-a")
def keys(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of this client in the federation.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the key; default: NAME.")] = None,
) -> None:
    """Create this device's private key, and print a request for the operator. The key stays on the device."""
    from .keys import make

    folder = Path(name) if out is None else out
    request = make(folder, name)
    print(request)
    print(
        f"{folder / 'key'} is this device's private key and stays here. Send the line above, which is no secret and "
        f"lies in {folder / f'{name}.request'}, to the federation's operator, by a way on which nobody can change it; "
        f"unpack the bundle that comes back next to the key, so that {folder / 'client.toml'} is there",
        file=sys.stderr,
    )


@client.command(epilog="Example: fairbloom client log client.toml")
def log(
    place: Annotated[
        Path, typer.Argument(metavar="STATE_DIR", help="The client's state-dir, or the client.toml that names it.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print every entry, with all numbers, as JSON.")] = False,
) -> None:
    """Show what this device was asked and what it sent, run by run."""
    import json

    from fairbloom.client.record import describe_entries, read_entries

    from .client import ClientSettings

    folder = Path(ClientSettings.of({}, place).state_dir) if place.suffix == ".toml" else place
    entries = read_entries(folder)
    print(json.dumps(entries, indent=2, ensure_ascii=False) if as_json else "\n".join(describe_entries(entries)))


PlaceArgument = Annotated[
    Path, typer.Argument(metavar="STATE_DIR", help="The client's state-dir, or the folder of one run in it.")
]


@client.command(epilog="Example: fairbloom client models state")
def models(place: PlaceArgument) -> None:
    """List the models on this device, the latest run first."""
    from fairbloom.client.kept import list_kept

    for kept in list_kept(place):
        about = kept.about
        final = "no final model" if about is None else f"run {about.run}, final model of round {about.round}"
        personal = f", personal model of round {kept.personal_rounds[-1]}" if kept.personal_rounds else ""
        print(f"{kept.folder}: {final}{personal}")


@client.command(epilog="Example: fairbloom client predict state new.csv --out predictions.csv --model personal")
def predict(
    place: PlaceArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new data, with the columns of training.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The CSV file to write. It must not exist yet.")],
    model: Annotated[
        Literal["last", "personal"],
        typer.Option("--model", help="The run's final model, or the personal one that never left this device."),
    ] = "last",
    run_name: Annotated[
        str, typer.Option("--run", metavar="NAME", help="The run, as fairbloom client models lists it; or the latest.")
    ] = "",
    trust: TrustOption = False,
) -> None:
    """Predict on this device with a stored model. Data and predictions stay on the device."""
    from fairbloom.client.kept import choose_kept
    from fairbloom.prediction.predictor import check_new, load_predictor

    check_new(out)
    kept = choose_kept(place, run_name)
    predictor = load_predictor(kept.folder, model=model, trust=trust)
    print(f"{predictor.describe(predictor.predict_file(file, out))} by {kept.folder}: {out}")

"""What an owner says of the device's files, and what the device says of them."""

from pathlib import Path

import pytest

from fairbloom.tasks.sides import read_columns
from tests.experiments.helpers import captured
from tests.tables.test_letters import hospital, renamed

from .test_profiles import SCHEMA, write

FILLED = f'missing = "fill"\n{SCHEMA}'.replace("person", "patient")


def test_an_accepted_schema_has_the_columns_of_that_day(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one of them, a later run warns; accepting the schema again takes the files as is."""
    toml = bundle / "client.toml"
    schema = bundle / "schema.toml"
    schema.write_text(FILLED)
    (bundle / "owner.toml").write_text('data-dir = "data"\nunit = "patient"\n')
    for rows, known in (
        (hospital(), {"age", "stage", "sex", "outcome"}),
        (renamed(hospital(), age="remark2"), {"stage", "sex", "outcome"}),
    ):
        write(bundle / "data", rows)
        captured(capsys, "client", "accept", toml, "--schema", schema, "--yes")
        assert read_columns(bundle / "state") == known

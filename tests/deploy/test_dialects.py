"""A federation of hospitals in other languages and units: from raw profiles to mended ones."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fairbloom.client.guard.accepted_schemas import digest_of
from fairbloom.tables.letters import decode_letter
from tests.experiments.helpers import captured, fairbloom

SCHEMA = """
target = "dead"
unit = "person"
missing = "fill"

[fields.age]
type = "number"

[fields.glucose]
type = "number"
unit = "mmol/l"

[fields.weight]
type = "number"
unit = "kg"

[fields.sex]
type = "string"
categories = ["female", "male"]

[fields.dead]
type = "string"
categories = ["no", "yes"]
"""

Row = dict[str, str]


@dataclass(frozen=True)
class Hospital:
    """A hospital's dialect: how it writes a patient, its files' marks, and its owner's lines."""

    write: Callable[[float, float, float, bool, bool], Row]
    lines: tuple[str, ...]
    unit: str
    delimiter: str = ","
    encoding: str = "utf-8"
    tables: Mapping[str, str] = field(default_factory=dict)


def comma(number: float) -> str:
    return f"{number:.1f}".replace(".", ",")


KOELN = Hospital(
    lambda age, glucose, weight, is_male, is_dead: {
        "Fallnr": "",
        "Geburtsjahr": f"{2025 - age:.0f}",
        "Glukose": f"{glucose * 18.016:.0f}",
        "Gewicht": comma(weight),
        "Geschlecht": "m" if is_male else "w",
        "verstorben": "ja" if is_dead else "nein",
    },
    (
        'encoding = "cp1252"',
        'fields.person.name = "Fallnr"',
        'fields.age.name = "Geburtsjahr"',
        "fields.age.factor = -1",
        "fields.age.offset = 2025",
        'fields.glucose.name = "Glukose"',
        "fields.glucose.factor = 0.0555062",
        'fields.weight.name = "Gewicht"',
        'fields.sex.name = "Geschlecht"',
        'fields.sex.spellings = {female = ["w"], male = ["m"]}',
        'fields.dead.name = "verstorben"',
        'fields.dead.spellings = {no = ["nein"], yes = ["ja"]}',
    ),
    unit="Fallnr",
    delimiter=";",
    encoding="cp1252",
)

LYON = Hospital(
    lambda age, glucose, weight, is_male, is_dead: {
        "dossier": "",
        "âge": f"{age:.0f}",
        "glycémie": comma(glucose),
        "poids": comma(weight),
        "sexe": "homme" if is_male else "femme",
        "décès": "oui" if is_dead else "non",
    },
    (
        'fields.person.name = "dossier"',
        'fields.age.name = "âge"',
        'fields.glucose.name = "glycémie"',
        'fields.weight.name = "poids"',
        'fields.sex.name = "sexe"',
        'fields.sex.spellings = {female = ["femme"], male = ["homme"]}',
        'fields.dead.name = "décès"',
        'fields.dead.spellings = {no = ["non"], yes = ["oui"]}',
    ),
    unit="dossier",
    delimiter=";",
)

OSAKA = Hospital(
    lambda age, glucose, weight, is_male, is_dead: {
        "患者": "",
        "年齢": f"{age:.0f}",
        "血糖": f"{glucose * 18.016:.0f}",
        "体重": f"{weight:.1f}",
        "性別": "男" if is_male else "女",
        "死亡": "1" if is_dead else "0",
    },
    (
        'fields.person.name = "患者"',
        'fields.age.name = "年齢"',
        'fields.glucose.name = "血糖"',
        "fields.glucose.factor = 0.0555062",
        'fields.weight.name = "体重"',
        'fields.sex.name = "性別"',
        'fields.sex.spellings = {female = ["女"], male = ["男"]}',
        'fields.dead.name = "死亡"',
        'fields.dead.spellings = {no = ["0"], yes = ["1"]}',
    ),
    unit="患者",
)

# A newcomer with the schema's own names and words, and two other units.
BOSTON = Hospital(
    lambda age, glucose, weight, is_male, is_dead: {
        "person": "",
        "age": f"{age:.0f}",
        "glucose": f"{glucose * 18.016:.0f}",
        "weight": f"{weight * 2.2046:.0f}",
        "sex": "male" if is_male else "female",
        "dead": "yes" if is_dead else "no",
    },
    (),
    unit="person",
)

HOSPITALS = {"koeln": KOELN, "lyon": LYON, "osaka": OSAKA, "boston": BOSTON}


class Federation:
    """Devices whose owners write profiles into files, and the operator who compares these."""

    def __init__(self, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.made = made
        self.capsys = capsys
        assert fairbloom("deploy", "enroll", *HOSPITALS) == 0
        for seed, (name, hospital) in enumerate(HOSPITALS.items()):
            self._write(name, hospital, seed)
            self.say(name)

    def _write(self, name: str, hospital: Hospital, seed: int) -> None:
        random = np.random.default_rng(seed)
        rows = []
        for number in range(200):
            age, glucose = random.normal(64, 13), float(np.exp(random.normal(1.8, 0.25)))
            is_male, is_dead = random.random(2) < (0.5, 0.3)
            row = hospital.write(age, glucose, random.normal(78, 13), is_male, is_dead)
            rows.append(row | {hospital.unit: f"{name[0].upper()}{90_000 + 7 * number}"})
        lines = [
            hospital.delimiter.join(each) for each in ([*rows[0]], *(r.values() for r in rows))
        ]
        folder = self.made / "bundles" / name / "data"
        folder.mkdir()
        (folder / "data.csv").write_text("\n".join([*lines, ""]), encoding=hospital.encoding)

    def say(self, name: str, *lines: str) -> None:
        first = ['data-dir = "data"', f'unit = "{HOSPITALS[name].unit}"', '[files."*"]']
        text = "\n".join([*first, *lines, ""])
        (self.made / "bundles" / name / "owner.toml").write_text(text)

    def accept(self, name: str) -> None:
        (self.made / "schema.toml").write_text(SCHEMA)
        toml = self.made / "bundles" / name / "client.toml"
        asked = ("client", "accept", toml, "--schema", self.made / "schema.toml", "--yes")
        assert "column" not in captured(self.capsys, *asked).out  # no fault

    def profile(self, name: str) -> Path:
        out = self.made / f"{name}.json"
        toml = self.made / "bundles" / name / "client.toml"
        captured(self.capsys, "client", "profile", toml, "--yes", "--out", out)
        return out

    def compare(self, *names: str) -> str:
        files = [self.profile(name) for name in names]
        return str(captured(self.capsys, "deploy", "profiles", *files).out)


@pytest.fixture
def federation(made: Path, capsys: pytest.CaptureFixture[str]) -> Federation:
    return Federation(made, capsys)


def test_a_newcomer_among_three_dialects_is_named_alone(federation: Federation) -> None:
    three = ("koeln", "lyon", "osaka")
    for name in three:
        federation.say(name, *HOSPITALS[name].lines)
        federation.accept(name)
    assert federation.compare(*three) == "no client stands out\n"
    made = decode_letter(federation.profile("osaka").read_bytes())
    assert made.columns.keys() == {"person", "age", "glucose", "weight", "sex", "dead"}
    assert made.schema == digest_of(SCHEMA)
    said = federation.compare(*three, "boston")
    found = [line for line in said.splitlines() if ": " in line and "median" in line]
    assert {line.split(":")[0] for line in found} == {"boston"}
    assert {line.split(": ")[1] for line in found} == {"glucose", "weight"}
    lines = re.findall(r"fields\.\w+\.factor = \S+", said)
    assert sorted(lines) == ["fields.glucose.factor = 0.0555062", "fields.weight.factor = 0.453597"]
    federation.say("boston", *lines)
    federation.accept("boston")
    assert federation.compare(*three, "boston") == "no client stands out\n"


def test_a_mended_profile_follows_a_raw_one_of_the_same_rows(federation: Federation) -> None:
    """Each has sent its columns as the files have them, and sends them once more."""
    three = ("koeln", "lyon", "osaka")
    raw = federation.compare(*three)
    assert "look alike" in raw
    for name in three:
        federation.say(name, *HOSPITALS[name].lines)
        federation.accept(name)
    assert federation.compare(*three) == "no client stands out\n"


def test_an_owner_who_forgets_a_factor_is_named(federation: Federation) -> None:
    """All three are read by the schema: its unit says who is right, though two are wrong."""
    three = ("koeln", "lyon", "osaka")
    for name in three:
        lines = [line for line in HOSPITALS[name].lines if "glucose.factor" not in line]
        federation.say(name, *lines)
        federation.accept(name)
    files = [federation.profile(name) for name in three]
    words = ("deploy", "profiles", *files, "--write-schema", federation.made / "agreed")
    (federation.made / "agreed").mkdir()
    (federation.made / "agreed" / "schema.toml").write_text(SCHEMA)
    said = captured(federation.capsys, *words, "--target", "dead").out
    (line,) = [line for line in said.splitlines() if "glucose: median" in line]
    assert line.startswith("koeln, osaka: ")
    assert "fields.glucose.factor = 0.0555062" in said
    lyon = (federation.made / "agreed" / "clients" / "lyon.toml").read_text()
    assert "glucose" not in lyon

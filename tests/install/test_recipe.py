"""The recipe for conda-forge asks for what pyproject.toml asks for."""

import tomllib

import yaml

from tests.docs.pages import ROOT

# The names of conda-forge that differ from those of the Python package index.
ELSEWHERE = {"torch": "pytorch"}


def test_the_recipe_has_the_projects_version_and_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == project["project"]["version"]
    asked = [word.replace(">=", " >=") for word in project["project"]["dependencies"]]
    asked = [
        " ".join([ELSEWHERE.get(name, name), *bound]) for name, *bound in map(str.split, asked)
    ]
    _, *run = recipe["requirements"]["run"]
    assert run == asked
    assert {*project["build-system"]["requires"]} <= {*recipe["requirements"]["host"]}
    (entry,) = project["project"]["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(entry)]

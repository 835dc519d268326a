"""Results are values: the views above them are found where `fairbloom` hands results out, and only there."""

import subprocess
import sys
from pathlib import Path

import pytest

from fairbloom.experiments.results.presentation import page_of


def test_a_result_without_a_page_names_what_to_import() -> None:
    with pytest.raises(NotImplementedError, match=r"page of int .* import fairbloom\.experiments\.api"):
        page_of(1)


@pytest.mark.slow
def test_the_remedy_brings_the_views_and_none_is_imported_before_it_is_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""\
import sys
from fairbloom.experiments.results.comparison import Comparison

assert "fairbloom.experiments.views" not in sys.modules
values = Comparison({"FedAvg": [{"accuracy": {"a": 50.0, "b": 70.0}}]}, "FedAvg")
import fairbloom.experiments.api

values.show()
assert "vl_convert" not in sys.modules
assert "<table>" in values._repr_html_() and values.chart()["layer"]
""")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "FedAvg" in ended.stdout

"""The notebook runs from data frames to a verdict, a chart and a prediction."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .pages import ROOT

CELLS = json.loads((ROOT / "docs" / "frames.ipynb").read_text())["cells"]


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in CELLS:
        if cell["cell_type"] == "code":
            *lines, last = "".join(cell["source"]).rsplit("\n", 1)
            exec("\n".join(lines), names)  # noqa: S102 (a page of ours)
            shown.append(eval(last, names) if re.match(r"[a-z]+[.\[]", last) else None)  # noqa: S307
            if shown[-1] is None:
                exec(last, names)  # noqa: S102
    comparison = names["comparison"]
    assert comparison.verdict.headline.startswith("FedAvg serves island worst (in 3 of 3 seeds)")
    chart, prediction = shown[-2:]
    assert "image/png" in chart._repr_mimebundle_()
    assert {"outcome", "predicted_outcome", "probability_ill"} <= {*prediction.columns}


def test_the_notebook_has_no_outputs() -> None:
    assert not any(cell.get("outputs") for cell in CELLS)

"""Figures of runs, written as PNG and SVG."""

import io
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fairbloom.server.files import write_whole, written

from .catalogue import title
from .compare import Comparison


def sorted_clients(comparison: Comparison, path: Path) -> list[Path]:
    """Draw each method's client accuracies from the worst client to the best, mean and range over the seeds.

    Returns
    -------
    list
        The files written: `path` with the endings .png and .svg.
    """
    with matplotlib.rc_context({"svg.hashsalt": "fairbloom"}):  # the same figure twice is the same file
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for number, (method, seeds) in enumerate(comparison.accuracies.items()):
            ascending = np.array([sorted(accuracies.values()) for accuracies in seeds])
            rank = np.arange(1, ascending.shape[1] + 1)
            label = title(method)
            axes.plot(rank, ascending.mean(axis=0), marker="o", markersize=3, label=label, color=f"C{number}")
            axes.fill_between(rank, ascending.min(axis=0), ascending.max(axis=0), alpha=0.12, color=f"C{number}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("clients, from the worst served to the best")
        axes.set_ylabel("test accuracy of the global model, %")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, loc="lower right")
        files = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
        for file in files:
            drawn = io.BytesIO()
            metadata = {"Date": None} if file.suffix == ".svg" else {}
            figure.savefig(drawn, format=file.suffix[1:], dpi=160, metadata=metadata)
            with written("the figure", path.parent):
                write_whole(file, drawn.getvalue())
    return files

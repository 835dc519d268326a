"""A comparison on a federation: its runs are submitted to the server, one after the other."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from fairbloom.protocol.settings import Value

from ..results.comparison import Comparison, read_comparison
from ..study import Study
from .compare import prepare, seeds_before, write_comparison
from .running import study_folder

# Carries out a run with these settings on the federation, and returns why it failed, or "".
CarryOut = Callable[[Mapping[str, Value]], str]


def compare_deployed(study: Study, out: Path, carry_out: CarryOut) -> Comparison:
    """Carry out the missing runs of a comparison; write its tables, figure and report into `out`.

    A failed run does not end the others; the same call tries it again.
    """
    out = out.absolute()
    study = replace(prepare(study, out, deployed=True), extended_from=seeds_before(study, out))
    with study_folder(study, out):
        failed = dict[str, str]()
        for seed in study.seeds:
            for arm in study.arms:
                name = study.folder(arm, seed)
                given = {**study.config(arm), "seed": seed, "out": str(out / name)}
                if not study.is_done(arm, seed, out) and (reason := carry_out(given)):
                    failed[name] = reason
        study = replace(study, failed=failed)
        study.write(out)
        comparison = read_comparison(out, study)
        write_comparison(comparison, out)
        return comparison

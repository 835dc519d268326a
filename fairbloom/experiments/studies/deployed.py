"""A comparison on a federation: its runs are submitted to the server, one after the other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairbloom.protocol.settings import Value

from ..arms import baseline_of, parse_arms
from ..results.comparison import Comparison, read_comparison
from ..study import Study
from .compare import prepare, seeds_before, write_comparison
from .running import study_folder

# Carries out a run with these settings on the federation, and returns why it failed, or "".
CarryOut = Callable[[Mapping[str, Value]], str]


def compare_deployed(
    methods: str,
    baseline: str,
    seeds: Sequence[int],
    given: Mapping[str, Value],
    carry_out: CarryOut,
) -> Comparison:
    """Carry out the missing runs of a comparison; write its tables, figure and report.

    `given` has the settings of all runs, and the folder as `out`. A failed run does not end the
    others; the same call tries it again.
    """
    settings = {key: value for key, value in given.items() if key != "out"}
    out = Path(str(given["out"])).absolute()
    arms = parse_arms(methods, settings)
    study = Study("compare", arms, seeds, baseline_of(baseline, arms), settings, deployed=True)
    study = replace(prepare(study, out, deployed=True), extended_from=seeds_before(study, out))
    with study_folder(study, out):
        failed = dict[str, str]()
        for seed in study.seeds:
            for arm in study.arms:
                name = study.folder(arm, seed)
                own = {**study.config(arm), "seed": seed, "out": str(out / name)}
                if study.is_done(arm, seed, out):
                    continue
                reason = carry_out(own)
                if reason:
                    failed[name] = reason
        study = replace(study, failed=failed)
        study.write(out)
        comparison = read_comparison(out, study)
        write_comparison(comparison, out)
        return comparison

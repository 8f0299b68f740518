"""Tables about everything around the figures: hazards and limits, memory growth, and the environment."""

from __future__ import annotations

import math

from harness.records import ImplementationInfo, NoiseTrial, RunInfo
from reports import growth, text
from reports.frames import Run
from reports.tables import HAZARD_MEANING, Cell, Column, Names, Table, Tone

_GROWTH_TONES: dict[str, Tone] = {
    "as declared": "good",
    "faster than declared": "bad",
    "slower than declared": "warn",
    "too few lengths": "quiet",
}


def implementations(info: RunInfo, names: Names) -> Table:
    """What each implementation says of itself, limits and hazards included."""
    return Table(
        slug="hazards",
        title="Hazards and declared limits",
        columns=(
            Column("implementation"),
            Column("fully masked row"),
            Column("serves"),
            Column("declared limits and known failures", wide=True),
            Column("source", wide=True),
        ),
        rows=[_implementation_row(implementation, names) for implementation in info.implementations],
        note="Fully masked row: what a row gives whose keys are all masked: mean of V (uniform), 0, or NaN.",
    )


def _implementation_row(described: ImplementationInfo, names: Names) -> tuple[Cell, ...]:
    hazard = described.fully_masked_row == "nan"
    serves = [
        ", ".join(described.dtypes),
        f"masks {', '.join(described.mask_kinds)}",
        ", ".join(described.devices),
        "inference and training" if described.gradients else "inference only",
    ]
    limits = [*described.declared]
    if described.unavailable:
        limits.insert(0, f"unavailable: {described.unavailable}")
    if described.verify_only:
        limits.insert(0, f"verified, never timed: {described.verify_only}")
    return (
        Cell(names.text(described.name), sort=described.name, detail=described.summary),
        Cell(
            described.fully_masked_row,
            tone="warn" if hazard else "",
            detail=f"hazard: {HAZARD_MEANING}" if hazard else "",
        ),
        Cell("; ".join(serves)),
        Cell("; ".join(limits) or "none"),
        Cell(described.source, detail=described.origin),
    )


def memory_growth(run: Run, names: Names) -> Table:
    """Fitted exponent of peak memory over S against the declaration."""
    declared = {i.name: i.memory_growth for i in run.info.implementations}
    return Table(
        slug="growth",
        title="Memory growth with the sequence length",
        columns=(
            Column("implementation"),
            Column("declared"),
            Column("fitted exponent", number=True),
            Column("growth"),
            Column("evidence", wide=True),
        ),
        rows=[_growth_row(fit, names) for fit in growth.fit(run.measurements, declared)],
        note="Slope of log(peak memory) over log(S) by least squares, for each series of workloads that "
        "differ in S alone; the median is shown. O(S) is 1, O(S^2) is 2, agreeing within "
        f"{growth.TOLERANCE}: at small S the terms linear in S outweigh the quadratic one.",
    )


def _growth_row(fit: growth.Fit, names: Names) -> tuple[Cell, ...]:
    first = (names.cell(fit.implementation), Cell(fit.declared or "nothing"))
    if not fit.exponents:
        evidence = f"a fit needs at least {growth.MIN_LENGTHS} sequence lengths that differ in nothing else"
        return (*first, Cell("", sort=math.inf), Cell(fit.growth, tone="quiet"), Cell(evidence))
    low, high = min(fit.exponents), max(fit.exponents)
    evidence = f"{text.plural(len(fit.exponents), 'fit')} over S {fit.lengths[0]} to {fit.lengths[1]}"
    return (
        *first,
        Cell(f"{fit.exponent:.2f}", sort=fit.exponent, detail=f"{low:.2f} to {high:.2f}"),
        Cell(fit.growth if fit.declared else "nothing declared", tone=_GROWTH_TONES[fit.growth]),
        Cell(evidence),
    )


def noise(info: RunInfo) -> Table:
    """The trials that the run began with, in which one implementation was timed against itself."""
    seen = info.noise
    trials = seen.trials if seen is not None else ()
    return Table(
        slug="noise",
        title="What this machine could tell",
        columns=(
            Column("trial", number=True),
            Column("verdict on equals"),
            Column("interval of the ratio", number=True),
            Column("resolves", number=True),
            Column("rounds", number=True),
            Column("seconds", number=True),
        ),
        rows=[_noise_row(number, trial) for number, trial in enumerate(trials, start=1)],
        note="Before the run one implementation was timed against itself as different ones are. Anything but tied and "
        "unresolved is false; half of an interval's width is the difference that such a trial can tell."
        + (f" {text.noise_sentence(seen)}" if seen is not None else ""),
    )


def _noise_row(number: int, trial: NoiseTrial) -> tuple[Cell, ...]:
    tone: Tone = "good" if trial.verdict == "tied" else "warn" if trial.verdict == "unresolved" else "bad"
    width = trial.resolves
    interval = f"{trial.low:.3f} to {trial.high:.3f}" if math.isfinite(width) else "none"
    return (
        Cell(str(number), sort=number),
        Cell(trial.verdict, tone=tone),
        Cell(interval, sort=width),
        Cell(f"{width:.1%}" if math.isfinite(width) else "nothing", sort=width),
        Cell(str(trial.rounds), sort=trial.rounds),
        Cell(f"{trial.timed_s:.1f}", sort=trial.timed_s),
    )


def environment(run: Run) -> Table:
    """Everything recorded about machine, software and run."""
    info, environment = run.info, run.info.environment
    facts: list[tuple[str, str]] = [
        ("run", info.run_id),
        ("created", info.created),
        ("command", info.command),
        ("preset", info.preset),
        ("baseline", info.baseline),
        ("tied within", f"{info.resolution:.1%}"),
        ("seed", str(info.seed)),
        ("commit", environment.commit or "not recorded"),
        ("machine", environment.machine_id),
        ("processor", environment.processor),
        ("cores", str(environment.cores)),
        ("allowed CPUs", environment.affinity or "not recorded"),
        ("memory", f"{text.significant(environment.memory_bytes / 1024**3)} GiB"),
        ("accelerator", environment.accelerator or "none"),
        ("system", environment.system),
        ("cores kept busy by others when it began", f"{environment.busy_cores:.1f}"),
        ("python", environment.python),
        *((name, version or "missing") for name, version in environment.packages.items()),
        *((f"torch: {key}", value) for key, value in environment.torch_config.items()),
        *((f"time for {phase}", f"{text.significant(seconds)} s") for phase, seconds in info.phases_s.items()),
        ("records superseded by a resumed run", str(run.superseded)),
    ]
    return Table(
        slug="environment",
        title="Environment",
        columns=(Column("what"), Column("value", wide=True)),
        rows=[(Cell(what), Cell(value, code=what == "command")) for what, value in facts],
        full="run.json",
    )

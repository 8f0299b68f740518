"""Files for other tools: CSV, JUnit XML, and the JSON of pytest-benchmark and of benchmark actions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean, median
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd

from harness.records import Environment
from reports import text
from reports.frames import DERIVED_FIELDS, MEASUREMENT_FIELDS, WORKLOAD_FIELDS, Run, groups, measured
from reports.judgement import Judgement

SCHEMA_VERSION = "5.3.1"
"""The pytest-benchmark whose JSON is written."""

_JUNIT_TAGS = {
    "failed": "failure",
    "unexpected_pass": "failure",
    "crashed": "error",
    "timeout": "error",
    "known_failure": "skipped",
    "no_evidence": "skipped",
    "unsupported": "skipped",
    "unavailable": "skipped",
}
"""Element within a test case; a passed check has none."""


def results_csv(judgement: Judgement, path: Path) -> None:
    """One row for each measurement: scalar fields, medians and quartiles, and the ratio to the reference."""
    fields = [
        "implementation",
        "key",
        *WORKLOAD_FIELDS,
        *(field for field in MEASUREMENT_FIELDS if field not in ("implementation", "samples")),
        *DERIVED_FIELDS,
        *("reference", "ratio", "low", "high", "verdict"),
    ]
    _write_csv(judgement.measurements[fields], path, lists=("reasons", "kernels"))


def checks_csv(checks: pd.DataFrame, path: Path) -> None:
    """One row for each check."""
    _write_csv(checks, path, lists=("reasons",))


def _write_csv(frame: pd.DataFrame, path: Path, lists: tuple[str, ...]) -> None:
    joined = {column: frame[column].map("; ".join) for column in lists}
    frame.assign(**joined).to_csv(path, index=False)


def junit_xml(checks: pd.DataFrame, created: str, path: Path) -> None:
    """The checks as test cases: a suite for each implementation, a class for each check.

    Args:
        checks: a row for each check, as `reports.frames.checks_frame` makes them.
        created: ISO 8601 time of the run.
        path: the file.
    """
    root = ET.Element("testsuites", name="mha verify")
    for (name,), own in groups(checks, ["implementation"]):
        root.append(_suite(name, own, created))
    ET.indent(root)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _suite(name: str, checks: pd.DataFrame, created: str) -> ET.Element:
    tags = checks["status"].map(_JUNIT_TAGS).value_counts()
    suite = ET.Element(
        "testsuite",
        name=text.printable(name),
        timestamp=created,
        tests=str(len(checks)),
        failures=str(tags.get("failure", 0)),
        errors=str(tags.get("error", 0)),
        skipped=str(tags.get("skipped", 0)),
        time=f"{checks['duration_s'].sum():.6f}",
    )
    suite.extend(_case(row) for row in checks.itertuples(index=False))
    return suite


def _case(row: Any) -> ET.Element:  # noqa: ANN401 - a pandas row
    case = ET.Element(
        "testcase",
        classname=text.printable(f"{row.implementation}.{row.check}"),
        name=text.printable(row.case),
        time=f"{row.duration_s:.6f}",
    )
    tag = _JUNIT_TAGS.get(row.status)
    if tag:
        reasons = "; ".join(row.reasons) or row.claim
        outcome = ET.SubElement(case, tag, message=text.printable(f"{row.status}: {reasons}"))
        if tag != "skipped":
            outcome.set("type", row.status)
            outcome.text = "\n".join(text.printable(line) for line in _evidence(row))
    return case


def _evidence(row: Any) -> list[str]:  # noqa: ANN401 - a pandas row
    lines = [f"claim: {row.claim}", *row.reasons]
    if not math.isnan(row.max_error):
        where = f" at {row.max_error_at}" if row.max_error_at else ""
        lines.append(f"largest error {text.scientific(row.max_error)}{where}")
    if not math.isnan(row.budget):
        lines.append(f"budget {text.scientific(row.budget)} ({row.budget_set_by or 'source not recorded'})")
    if row.likely_cause:
        lines.append(f"likely cause: {row.likely_cause}")
    return [*lines, f"repeat it with: {row.reproduce}"] if row.reproduce else lines


def pytest_benchmark_json(run: Run, judgement: Judgement, path: Path) -> None:
    """What ``pytest-benchmark compare`` reads: a benchmark for each time, a group for each workload."""
    timed = measured(judgement.measurements)
    content = {
        "machine_info": _machine_info(run.info.environment),
        "commit_info": _commit_info(run.info.environment.commit),
        "benchmarks": [_benchmark(row) for row in timed.itertuples(index=False)],
        "datetime": run.info.created,
        "version": SCHEMA_VERSION,
    }
    path.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")


def _machine_info(environment: Environment) -> dict[str, Any]:
    return {
        "node": environment.machine_id,
        "processor": environment.processor,
        "system": environment.system,
        "python_version": environment.python,
        "cpu": {"brand_raw": environment.processor, "count": environment.cores},
        "packages": environment.packages,
    }


def _commit_info(commit: str) -> dict[str, Any]:
    identity, _, changes = commit.partition("+")
    return {
        "id": identity or "unknown",
        "dirty": bool(changes),
        "project": "mha-harness",
        "branch": "(unknown)",
    }


def _benchmark(row: Any) -> dict[str, Any]:  # noqa: ANN401 - a pandas row
    name = f"{row.implementation}[{row.key}]"
    return {
        "group": row.key,
        "name": name,
        "fullname": f"mha::{name}",
        "params": {"implementation": row.implementation, **{f: getattr(row, f) for f in WORKLOAD_FIELDS}},
        "param": row.key,
        "extra_info": _extra_info(row),
        "options": {"timer": "perf_counter", "disable_gc": False, "warmup": True},
        "stats": {**benchmark_stats(row.samples.wall_s), "iterations": _whole(row.repeats, 1)},
    }


def _extra_info(row: Any) -> dict[str, Any]:  # noqa: ANN401 - a pandas row
    return {
        "peak_bytes": _whole(row.peak_bytes, None),
        "flops": _whole(row.flops, None),
        "ratio": row.ratio,
        "reference": row.reference,
        "verdict": row.verdict,
        "kernels": list(row.kernels),
    }


def _whole(value: float | None, missing: int | None) -> int | None:
    return missing if value is None or math.isnan(value) else int(value)


def benchmark_stats(wall_s: tuple[float, ...]) -> dict[str, Any]:
    """The statistics that pytest-benchmark keeps of a benchmark, by its own definitions."""
    data = sorted(wall_s)
    values = np.asarray(data)
    average, deviation = fmean(data), float(values.std(ddof=1)) if len(data) > 1 else 0.0
    q1, q3 = _hinges(data)
    fence = 1.5 * (q3 - q1)
    first, behind = values.searchsorted(q1 - fence), values.searchsorted(q3 + fence, side="right")
    within = data[first:behind]
    lowest, highest = values.searchsorted(average - deviation), values.searchsorted(average + deviation, side="right")
    by_deviation = len(data) - int(highest - lowest)
    by_quartiles = len(data) - len(within)
    return {
        "min": data[0],
        "max": data[-1],
        "mean": average,
        "stddev": deviation,
        "rounds": len(data),
        "median": median(data),
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": by_quartiles,
        "stddev_outliers": by_deviation,
        "outliers": f"{by_deviation};{by_quartiles}",
        "ld15iqr": within[0],
        "hd15iqr": within[-1],
        "ops": len(data) / sum(data),
        "total": sum(data),
        "data": list(wall_s),
    }


def _hinges(data: list[float]) -> tuple[float, float]:
    """Quartiles of sorted data: medians of the halves; with an odd count, weighted between neighbours."""
    count = len(data)
    if count == 1:
        return data[0], data[0]
    if count % 2 == 0:
        return median(data[: count // 2]), median(data[count // 2 :])
    n, rest = divmod(count, 4)
    if rest == 1:
        return 0.25 * data[n - 1] + 0.75 * data[n], 0.75 * data[3 * n] + 0.25 * data[3 * n + 1]
    return 0.75 * data[n] + 0.25 * data[n + 1], 0.25 * data[3 * n + 1] + 0.75 * data[3 * n + 2]


def benchmark_action_json(judgement: Judgement, path: Path) -> None:
    """Medians and peak memory in the ``customSmallerIsBetter`` form of continuous-benchmark actions."""
    entries: list[dict[str, Any]] = []
    for row in judgement.measurements.itertuples(index=False):
        entries.extend(_action_entries(row))
    path.write_text(json.dumps(entries, allow_nan=False) + "\n", encoding="utf-8")


def _action_entries(row: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a pandas row
    name = f"{row.implementation} / {row.key}"
    entries: list[dict[str, Any]] = []
    if not math.isnan(row.median_s):
        spread = (row.q3_s - row.q1_s) / 2 * 1e3
        entries.append(
            {
                "name": f"{name} / latency",
                "unit": "ms",
                "value": row.median_s * 1e3,
                "range": f"± {text.significant(spread, 2)}",
                "extra": f"median of {int(row.rounds)} rounds; range is half the interquartile range",
            }
        )
    if not math.isnan(row.peak_bytes):
        entries.append(
            {
                "name": f"{name} / peak memory",
                "unit": "bytes",
                "value": int(row.peak_bytes),
                "range": "± 0",
                "extra": row.memory_source or "source not recorded",
            }
        )
    return entries

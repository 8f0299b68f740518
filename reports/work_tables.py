"""Tables about what a call costs beside its time: memory, arithmetic, traffic, and the kernels that did it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.records import RunInfo
from reports import text
from reports.frames import measured
from reports.judgement import Judgement
from reports.tables import MAX_ROWS, Cell, Column, Names, Table, workload_cells, workload_columns
from reports.timing_tables import number_cell, peak_cell
from reports.work import DeclaredKernels


def memory(judgement: Judgement, names: Names) -> Table:
    """Where the peak of each call comes from."""
    frame = measured(judgement.measurements)
    frame = frame[frame["peak_bytes"].notna()]
    return Table(
        slug="memory",
        title="Memory of one call",
        columns=(
            *workload_columns(judgement.titles),
            Column("implementation"),
            Column("peak", number=True),
            Column("output", number=True),
            Column("saved for backward", number=True),
            Column("workspace", number=True),
            Column("counted by"),
        ),
        rows=[
            (
                *workload_cells(judgement.titles, row.workload),
                names.cell(row.implementation),
                *(peak_cell(size) for size in (row.peak_bytes, row.output_bytes, row.saved_bytes, row.workspace_bytes)),
                Cell(row.memory_source),
            )
            for row in _rows(frame)
        ],
        note="Exact bytes above the level before the call; inputs and weights are not counted. Saved for backward is "
        "what a forward keeps, inputs and weights apart. Workspace is what of the peak is gone when the call returns: "
        "all but the output and, in training, the gradients.",
        full="results.csv",
        omitted=max(0, len(frame) - MAX_ROWS),
    )


def work(judgement: Judgement, names: Names, info: RunInfo) -> Table:
    """Rates, the share of the machine's roofline, and the kernels."""
    frame = measured(judgement.measurements)
    kernels = DeclaredKernels(info.implementations)
    return Table(
        slug="work",
        title="Arithmetic, roofline and kernels",
        columns=(
            *workload_columns(judgement.titles),
            Column("implementation"),
            Column("GFLOP", number=True),
            Column("of it unmasked", number=True),
            Column("moved at least", number=True),
            Column("GFLOP/s", number=True),
            Column("unmasked GFLOP/s", number=True),
            Column("roof, GFLOP/s", number=True),
            Column("share of the roof", number=True),
            Column("kernels that ran", wide=True),
        ),
        rows=[_work_row(row, judgement, names, kernels) for row in _rows(frame)],
        note=_work_note(info),
        full="results.csv",
        omitted=max(0, len(frame) - MAX_ROWS),
    )


def _work_row(row: Any, judgement: Judgement, names: Names, kernels: DeclaredKernels) -> tuple[Cell, ...]:  # noqa: ANN401 - a pandas row
    declared = kernels.missed(row)
    return (
        *workload_cells(judgement.titles, row.workload),
        names.cell(row.implementation),
        number_cell(row.flops / 1e9, text.significant),
        number_cell(row.flops_unmasked / 1e9, text.significant),
        peak_cell(row.bytes_moved),
        number_cell(row.flops_per_s / 1e9, text.significant),
        number_cell(row.unmasked_flops_per_s / 1e9, text.significant),
        number_cell(row.roof_flops_per_s / 1e9, text.significant),
        number_cell(row.roof_share, lambda share: f"{share:.0%}"),
        Cell(
            ", ".join(row.kernels),
            code=bool(row.kernels),
            tone="warn" if declared else "",
            detail=f"not the declared {' or '.join(declared)}" if declared else "",
        ),
    )


def _work_note(info: RunInfo) -> str:
    note = (
        "Operations are analytic, projections included, training at three times the forward; unmasked are those on "
        "scores that the mask leaves. Moved at least are inputs, weights, mask and results, once each."
    )
    if not info.roofs:
        return note
    seen = text.listed(
        f"{roof.dtype} with {text.plural(roof.threads, 'thread')} {text.significant(roof.flops_per_s / 1e9)} GFLOP/s "
        f"and {text.significant(roof.bytes_per_s / 1e9)} GB/s"
        for roof in info.roofs
    )
    return (
        f"{note} The roof is what this machine did when the run began in a large matrix product, or what its memory "
        f"could feed at the call's operations for each byte, whichever is lower: {seen}."
    )


def _rows(frame: pd.DataFrame) -> Any:  # noqa: ANN401 - pandas rows
    return frame.head(MAX_ROWS).itertuples(index=False)

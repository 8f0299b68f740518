"""Rooflines, memory by its parts, and kernels that are not the declared ones."""

import dataclasses

import pytest

from harness.records import ImplementationInfo, Measurement, Roof, Samples, Workload
from reports.advice import advise
from reports.content import compose
from reports.frames import Run, read
from reports.judgement import judge
from reports.tables import Names
from reports.work import by_dtype_and_threads, roofline


@pytest.fixture
def record():
    workload = Workload(
        label="", batch_size=1, seq_len=64, d_model=64, num_heads=2, dtype="float32", mask="causal", mode="inference"
    )
    samples = Samples(round=(0,), wall_s=(2.0,), cpu_s=(2.0,), involuntary_switches=(0,))
    figures = {"flops": 4_000, "flops_unmasked": 2_000, "bytes_moved": 500}
    return Measurement(implementation="any", workload=workload, status="measured", samples=samples, **figures)


@pytest.mark.parametrize(("bytes_per_s", "height"), [(1e9, 10_000.0), (1_000.0, 4_000.0)])
def test_the_roof_is_the_lower_one_of_arithmetic_and_memory(record, bytes_per_s, height):
    roofs = by_dtype_and_threads([Roof(dtype="float32", threads=1, flops_per_s=10_000.0, bytes_per_s=bytes_per_s)])
    found = roofline(record, 2.0, roofs)
    assert found == {"unmasked_flops_per_s": 1000.0, "roof_flops_per_s": height, "roof_share": 1000.0 / height}


def test_a_roof_of_another_dtype_or_thread_count_is_no_roof(record):
    roofs = by_dtype_and_threads([Roof(dtype="float32", threads=2, flops_per_s=1.0, bytes_per_s=1.0)])
    assert roofline(record, 2.0, roofs) == {"unmasked_flops_per_s": 1000.0}


def content_of(run: Run):
    return compose(run, judge(run))


def column(table, heading):
    place = [each.heading for each in table.columns].index(heading)
    return [row[place] for row in table.rows]


def test_every_time_stands_beside_its_share_of_the_roof_and_its_kernels(make_run):
    table = content_of(read(make_run())).work
    assert len(table.rows) == 5 * 3
    assert all(cell.text.endswith("%") for cell in column(table, "share of the roof"))
    assert {cell.text for cell in column(table, "kernels that ran")} == {
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::bmm",
    }
    assert "float32 with 2 threads 200 GFLOP/s and 10.0 GB/s" in table.note


def test_memory_is_told_by_its_parts(make_run):
    table = content_of(read(make_run())).memory
    headings = [each.heading for each in table.columns]
    assert headings[-5:] == ["peak", "output", "saved for backward", "workspace", "counted by"]
    assert column(table, "output")[0].text == "0.250 MiB"


def with_kernels(run: Run, name: str, kernels: tuple[str, ...]) -> Run:
    """The run, as if an implementation declared these."""

    def changed(info: ImplementationInfo) -> ImplementationInfo:
        return info.model_copy(update={"kernels": kernels}) if info.name == name else info

    implementations = tuple(changed(info) for info in run.info.implementations)
    return dataclasses.replace(run, info=run.info.model_copy(update={"implementations": implementations}))


def test_a_kernel_other_than_the_declared_one_is_flagged_beside_the_time_and_warned_of(make_run):
    run = with_kernels(read(make_run()), "einsum", ("aten::flash", "aten::efficient"))
    judgement = judge(run)
    warnings = advise(run, judgement, Names(run.info.implementations)).warnings
    assert "einsum ran aten::bmm in place of aten::flash or aten::efficient on 3 workloads." in warnings
    flagged = [cell for cell in column(content_of(run).work, "kernels that ran") if cell.tone == "warn"]
    assert [cell.detail for cell in flagged] == ["not the declared aten::flash or aten::efficient"] * 3


def test_a_declared_kernel_that_ran_is_not_warned_of(make_run):
    run = read(make_run())
    assert not any(
        " in place of " in line for line in advise(run, judge(run), Names(run.info.implementations)).warnings
    )

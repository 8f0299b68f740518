"""A builder of run folders as the harness writes them: realistic figures from a seed, by harness.records."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

import reports
from harness.records import (
    CheckRecord,
    Environment,
    ImplementationInfo,
    Measurement,
    Noise,
    Roof,
    RunFolder,
    RunInfo,
    Samples,
    Workload,
)

IMPLEMENTATIONS = ("document", "einsum", "sdpa", "torch_mha", "torch_mha_weights", "xformers")
SPEED = {"document": 1.0, "einsum": 0.93, "sdpa": 0.34, "torch_mha": 0.342, "torch_mha_weights": 0.8}
"""Attention's time as a share of the document's, apart from the projections, which all share."""
CHECKS = {
    "matches_the_oracle": "The output equals the formula in float64 within the budget.",
    "gradients_match_the_oracle": "All gradients equal those of the formula in float64 within the budget.",
    "masked_keys_have_no_influence": "Changing masked keys changes neither outputs nor gradients.",
    "rows_of_the_softmax_sum_to_one": "Attention weights are at least 0, and each row sums to 1.",
    "fully_masked_row_is_as_declared": "A row whose keys are all masked gives what was declared.",
    "later_tokens_leave_earlier_rows_alone": "In a causal run a token has no influence on earlier rows.",
    "a_wrong_mask_is_refused": "A mask that is not bool or does not fit is an error that says so.",
    "repeats_are_bit_identical": "Two calls in eval give the same bits.",
}


@dataclass(frozen=True)
class Sketch:
    """What a synthetic run holds; tests change what they are about with `dataclasses.replace`."""

    seed: int = 0
    lengths: tuple[int, ...] = (128, 512, 2048)
    masks: tuple[str, ...] = ("causal",)
    dtypes: tuple[str, ...] = ("float32",)
    modes: tuple[str, ...] = ("inference",)
    scopes: tuple[str, ...] = ("module",)
    left_out: dict[str, str] = field(default_factory=dict)
    """Why workloads of these keys were left out."""
    threads: tuple[int, ...] = (2,)
    implementations: tuple[str, ...] = IMPLEMENTATIONS
    speed: dict[str, float] = field(default_factory=lambda: dict(SPEED))
    speed_by_length: dict[str, dict[int, float]] = field(default_factory=dict)
    """For some implementations, that share at each S."""
    rounds: int = 80
    noise: float = 0.02
    baseline: str = "sdpa"
    untimed: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """(implementation, dtype) -> (status, reason) instead of a time."""
    unmeasured: Callable[[Workload, str], bool] = lambda _workload, _name: False
    """Which records an interruption has cost."""
    checked: bool = True
    planned: bool = True
    """Whether there are workloads at all."""
    machine_noise: Noise | None = None
    busy_cores: float = 0.1

    def workloads(self) -> tuple[Workload, ...]:
        """All planned workloads."""
        if not self.planned:
            return ()
        return tuple(
            Workload(
                label="Transformer-base",
                batch_size=1,
                seq_len=seq_len,
                d_model=512,
                num_heads=8,
                dtype=dtype,
                mask=mask,
                mode=mode,
                scope=scope,
                threads=threads,
                padded_share=0.25 if mask == "padding" else 0.0,
            )
            for threads in self.threads
            for scope in self.scopes
            for mode in self.modes
            for dtype in self.dtypes
            for mask in self.masks
            for seq_len in self.lengths
        )


def describe(name: str) -> ImplementationInfo:
    """What an implementation of this name says of itself."""
    quadratic = name not in ("sdpa", "torch_mha", "xformers")
    return ImplementationInfo(
        name=name,
        summary=f"Synthetic stand-in for {name}.",
        source="a test",
        origin=f"implementations/{name}.py",
        dtypes=("float64", "float32", "bfloat16"),
        devices=("cpu",),
        mask_kinds=("none", "causal", "padding"),
        gradients=name != "xformers",
        fully_masked_row={"torch_mha_weights": "nan", "document": "uniform"}.get(name, "zero"),
        memory_growth="O(S^2)" if quadratic else "O(S)",
        kernels=("aten::_scaled_dot_product_flash_attention_for_cpu",) if name == "sdpa" else (),
        verify_only="its kernel is interpreted on this machine" if name == "xformers" else "",
        declared=("float16 cannot hold the fill of -1e9",) if name == "document" else (),
    )


def run_info(sketch: Sketch) -> RunInfo:
    """``run.json`` of a sketch."""
    return RunInfo(
        format_version=1,
        run_id="20260801-101500-quick",
        created="2026-08-01T10:15:00+00:00",
        command="mha bench --preset quick",
        preset="quick",
        baseline=sketch.baseline,
        resolution=0.02,
        seed=sketch.seed,
        environment=Environment(
            machine_id="5b1c9e02",
            processor="Synthetic CPU at 2.8 GHz",
            cores=2,
            memory_bytes=24 * 1024**3,
            system="Linux 6.1",
            python="3.11.7",
            packages={"torch": "2.13.0", "numpy": "2.4.6", "xformers": ""},
            torch_config={"BLAS": "mkl", "CPU capability": "AVX512"},
            commit="0123abc+changes",
            busy_cores=sketch.busy_cores,
        ),
        implementations=tuple(describe(name) for name in sketch.implementations),
        workloads=sketch.workloads(),
        noise=sketch.machine_noise,
        roofs=tuple(
            Roof(dtype=dtype, threads=threads, flops_per_s=1e11 * threads, bytes_per_s=1e10)
            for threads in sketch.threads
            for dtype in sketch.dtypes
        ),
        left_out=sketch.left_out,
        phases_s={"verification": 41.2, "timing": 163.0},
    )


def peak_bytes(name: str, workload: Workload) -> int:
    """Scores of S x S for each head where the kernel keeps them, and a few rows of S."""
    size = {"float32": 4, "bfloat16": 2}[workload.dtype]
    rows = 4 * workload.seq_len * workload.d_model * size
    if describe(name).memory_growth == "O(S)":
        return rows
    return rows + 2 * workload.num_heads * workload.seq_len**2 * size


def samples(sketch: Sketch, workload: Workload, name: str, rng: np.random.Generator) -> Samples:
    """Times around what the shape costs at some GFLOP/s; all of a round share the noise of its moment."""
    share = sketch.speed_by_length.get(name, {}).get(workload.seq_len, sketch.speed[name])
    attention = 4 * workload.seq_len**2 * workload.d_model * share
    projections = 8 * workload.seq_len * workload.d_model**2
    rate = 5e10 * workload.threads * (0.5 if workload.dtype == "bfloat16" else 1.0)
    seconds = (attention * 8 + projections) / rate * (3 if workload.mode == "training" else 1)
    moment = np.random.default_rng(workload.seq_len).normal(0, 5 * sketch.noise, sketch.rounds)
    wall = seconds * np.exp(np.abs(moment) + rng.normal(0, sketch.noise, sketch.rounds))
    return Samples(
        round=tuple(range(sketch.rounds)),
        wall_s=tuple(float(value) for value in wall),
        cpu_s=tuple(float(value) * workload.threads for value in wall),
        involuntary_switches=(0,) * sketch.rounds,
    )


def measurement(sketch: Sketch, workload: Workload, name: str, rng: np.random.Generator) -> Measurement:
    """One implementation on one workload."""
    verify_only = describe(name).verify_only
    status, reason = ("skipped", f"verify-only: {verify_only}") if verify_only else ("measured", "")
    status, reason = sketch.untimed.get((name, workload.dtype), (status, reason))
    if status != "measured":
        return Measurement(implementation=name, workload=workload, status=status, reasons=(reason,))
    attention = 4 * workload.seq_len**2 * workload.d_model
    return Measurement(
        implementation=name,
        workload=workload,
        status="measured",
        samples=samples(sketch, workload, name, rng),
        repeats=3,
        first_call_s=0.02,
        rounds_stopped_by="verdict",
        looks=4,
        pairs=math.comb(len(sketch.speed), 2),
        peak_bytes=peak_bytes(name, workload),
        output_bytes=workload.seq_len * workload.d_model * 4,
        saved_bytes=0,
        workspace_bytes=peak_bytes(name, workload) // 2,
        memory_source="profiler",
        max_error=3e-7,
        budget_used=0.31,
        error_over_baseline=1.4,
        flops=attention + 8 * workload.seq_len * workload.d_model**2,
        flops_unmasked=attention // 2 + 8 * workload.seq_len * workload.d_model**2,
        bytes_moved=4 * (2 * workload.seq_len * workload.d_model + 4 * workload.d_model**2),
        kernels=("aten::_scaled_dot_product_flash_attention_for_cpu",) if name == "sdpa" else ("aten::bmm",),
    )


def checks(sketch: Sketch, name: str, rng: np.random.Generator) -> list[CheckRecord]:
    """Checks of one implementation: all pass, but for what is known, unsupported or planted below."""
    records = []
    for check, claim in CHECKS.items():
        for dtype in ("float64", "float32", "bfloat16"):
            for mask in ("none", "causal", "padding"):
                for mode in ("inference", "training"):
                    used = float(rng.uniform(0.05, 0.7))
                    case = f"b3-s130-d48-h4-{mask}-{dtype}-{mode}-cpu"
                    records.append(
                        CheckRecord(
                            implementation=name,
                            check=check,
                            claim=claim,
                            case=case,
                            dtype=dtype,
                            mask=mask,
                            mode=mode,
                            device="cpu",
                            status="passed",
                            max_error=used * 1e-6,
                            max_error_at=(1, 5, 7),
                            budget=1e-6,
                            budget_set_by="rounding of the logits",
                            budget_used=used,
                            error_over_baseline=used * 4,
                            duration_s=0.01,
                            reproduce=f"mha verify --only {name} --check {check} --case {case}",
                        )
                    )
    return [_ended(record) for record in records]


def _ended(record: CheckRecord) -> CheckRecord:
    """How the record ends in the synthetic run."""
    if record.implementation == "xformers" and record.mode == "training":
        return _without_numbers(record, "unsupported", "it has no backward, so it cannot train")
    if record.implementation == "document" and record.dtype == "float64":
        return _without_numbers(record, "no_evidence", "judged at float32 level")
    if record.implementation == "torch_mha" and record.check == "fully_masked_row_is_as_declared":
        known = record.model_copy(update={"max_error": math.nan, "budget_used": math.nan})
        return _without_numbers(known, "known_failure", "the fast path gives NaN in eval", keep=True)
    if record.implementation == "xformers" and record.check == "masked_keys_have_no_influence":
        wrong = record.model_copy(update={"max_error": 0.87, "budget_used": 8.7e5})
        return _without_numbers(wrong, "failed", "a bool bias is added as 0 and 1 | not as -inf", keep=True)
    return record


def _without_numbers(record: CheckRecord, status: str, reason: str, *, keep: bool = False) -> CheckRecord:
    numbers = ("max_error", "max_error_at", "budget", "budget_used", "error_over_baseline")
    gone = {} if keep else dict.fromkeys(numbers)
    return record.model_copy(update={"status": status, "reasons": (reason,), **gone})


def build(folder: Path, sketch: Sketch) -> Path:
    """Write a run folder."""
    rng = np.random.default_rng(sketch.seed)
    files = RunFolder(folder)
    files.create(run_info(sketch))
    for name in sketch.implementations if sketch.checked else ():
        for record in checks(sketch, name, rng):
            files.append(record)
    for workload in sketch.workloads():
        for name in sketch.implementations:
            if workload.key not in sketch.left_out and not sketch.unmeasured(workload, name):
                files.append(measurement(sketch, workload, name, rng))
    return folder


@pytest.fixture(scope="session")
def rendered_run(tmp_path_factory):
    """The folder of the default run, rendered once: for tests that only look at it."""
    folder = build(tmp_path_factory.mktemp("rendered") / "run", Sketch())
    reports.render(folder)
    return folder


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """A run of two implementations on one workload: for tests that copy it."""
    small = Sketch(implementations=("sdpa", "einsum"), lengths=(128,), rounds=9)
    return build(tmp_path_factory.mktemp("small") / "run", small)


@pytest.fixture
def sketch():
    """A small run: one series of three lengths."""
    return Sketch()


@pytest.fixture
def make_run(tmp_path, sketch):
    """``make_run(lengths=(128,), ...)`` builds a run folder, by another name if given, and returns its path."""

    def make(folder="run", **changes) -> Path:
        return build(tmp_path / folder, replace(sketch, **changes))

    return make

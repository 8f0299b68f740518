"""The record format: what a run writes, and all that a report reads.

A run is a folder with four files. ``run.json`` says what ran where; ``checks.jsonl``, ``semantics.jsonl`` and
``measurements.jsonl`` are append-only, one record a line, written as results come. A record is immutable and
holds raw samples: statistics are derived from it later, never stored. This module imports neither torch nor
pandas, so that reports can be made on a machine without torch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.errors import UserError

FORMAT_VERSION = 1
"""Version of the run folder's format.

1: first published format.
"""

RUN_FILE = "run.json"
CHECKS_FILE = "checks.jsonl"
SEMANTICS_FILE = "semantics.jsonl"
MEASUREMENTS_FILE = "measurements.jsonl"

CheckStatus = Literal[
    "passed",
    "failed",
    "known_failure",
    "unexpected_pass",
    "no_evidence",
    "unsupported",
    "unavailable",
    "crashed",
    "timeout",
]
"""How a check ended.

``known_failure``: failed as declared. ``unexpected_pass``: a declared failure did not happen. ``no_evidence``:
the error budget is so wide that an output of zeros would pass, so the case proves nothing. ``unsupported``: the
implementation declares that it does not serve the case. ``unavailable``: a package or device is missing.
"""

BAD_CHECK_STATUSES: tuple[CheckStatus, ...] = ("failed", "unexpected_pass", "crashed", "timeout")
"""Statuses that make `mha verify` exit with 1."""

SemanticsStatus = Literal["as_declared", "differs", "undeclared", "no_answer"]
"""How an answer stands to what the implementation declares.

``differs`` is a failure. ``undeclared``: nothing is declared, so whatever was seen is only shown. ``no_answer``: it
could not be seen, for lack of support, of a package, of a compiler or of time.
"""

MeasurementStatus = Literal[
    "measured",
    "wrong",
    "unverified",
    "unsupported",
    "unavailable",
    "skipped",
    "crashed",
    "timeout",
]
"""How a measurement ended; a time exists only on ``measured``.

``wrong``: the output (or a gradient) at the exact shape differs from the oracle. ``unverified``: verification
failed for this dtype, mask and pass, so it was not timed. ``skipped``: predicted not to fit into memory, or
verify-only.
"""


class Record(BaseModel):
    """Base of everything written to disk: immutable, and strict about its keys."""

    # JSON has no NaN: a kernel's NaN error is written as the string "NaN", not lost as null.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Workload(Record):
    """One problem that implementations are compared on."""

    label: str
    """Name of the shape as its preset gives it, e.g. ``Transformer-base``; not part of the identity."""
    batch_size: int = Field(ge=0)
    seq_len: int = Field(ge=0)
    d_model: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    dtype: str
    """float64, float32, bfloat16 or float16."""
    mask: str
    """Mask kind, e.g. none, causal (the flag), causal_mask (the dense mask), padding."""
    mode: Literal["inference", "forward", "training"]
    """The pass: inference is a forward under no_grad; forward one in train mode that keeps what a backward needs;
    training a forward and a backward."""
    scope: Literal["module", "attention"] = "module"
    """What is timed: the whole module on x, or its `attend` alone on q, k and v."""
    device: str = "cpu"
    threads: int = Field(ge=1, default=1)
    """Intra-op CPU threads."""
    padded_share: float = 0.0
    """Share of the keys that the mask hides, for padding masks."""

    @property
    def key(self) -> str:
        """Identity of the workload: two workloads with the same key ask the same question."""
        return (
            f"b{self.batch_size}-s{self.seq_len}-d{self.d_model}-h{self.num_heads}-{self.mask}-{self.dtype}"
            f"-{self.mode}-{self.device}-t{self.threads}{'' if self.scope == 'module' else f'-{self.scope}'}"
        )


class CheckRecord(Record):
    """One check of one implementation on one case."""

    implementation: str
    check: str
    """Name of the check, e.g. ``matches_the_oracle``."""
    claim: str
    """What holds if it passed, in a sentence."""
    case: str
    """The case in words, unique within implementation and check, e.g. ``b3-s7-d48-h4-causal-float32-training``."""
    dtype: str
    """Empty for a search over several."""
    mask: str
    """Mask kind of the case; empty for a check that is not about one mask."""
    mode: str
    """inference, training, or empty where the check covers both."""
    device: str
    status: CheckStatus
    reasons: tuple[str, ...] = ()
    """Why it failed, is unsupported or unavailable: every reason, as text."""
    max_error: float | None = None
    """Largest absolute difference from the oracle."""
    max_error_at: tuple[int, ...] | None = None
    """Index of the element that is furthest beyond (or nearest to) its budget."""
    budget: float | None = None
    """Allowed error at ``max_error_at``."""
    budget_set_by: str = ""
    """What the budget comes from, in words."""
    budget_used: float | None = None
    """Largest error/budget over all elements: above 1 is a failure."""
    error_over_baseline: float | None = None
    """Error as a multiple of a careful baseline's error (float32 internals, one rounding at the end)."""
    duration_s: float = 0.0
    likely_cause: str = ""
    """A known fault that would give exactly what came, in words, or several that would; empty if none fits."""
    reproduce: str = ""
    """Command that repeats exactly this check."""
    reproducer: str = ""
    """A script that shows the fault with torch and the implementation's file alone; empty if there is none."""


class SemanticsRecord(Record):
    """The answer of one implementation to one question that the contract leaves open, seen by running it."""

    implementation: str
    probe: str
    """Name of the question, e.g. ``nan_query``."""
    question: str
    """The question as a sentence."""
    answer: str
    """What was seen, in a few words."""
    evidence: str = ""
    """Figures and messages behind the answer."""
    declared: str = ""
    """The answer that the implementation declares; empty if it declares none."""
    declared_source: str = ""
    """Where that is described, or how it was seen."""
    device: str
    status: SemanticsStatus
    duration_s: float = 0.0
    reproduce: str = ""
    """Command that asks exactly this question again."""


class Samples(Record):
    """Raw samples of one implementation in one cell, column by column; index = order within the cell."""

    round: tuple[int, ...] = Field(min_length=1)
    """Round number: samples of different implementations with equal numbers were taken side by side."""
    wall_s: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...]
    """Wall time of one call (the block's time divided by its repeats)."""
    cpu_s: tuple[float, ...]
    """CPU time of one call: of the thread at one thread, of the process above."""
    involuntary_switches: tuple[int, ...]
    """Involuntary context switches during the block."""

    @model_validator(mode="after")
    def _columns_are_equally_long(self) -> Samples:
        lengths = {len(self.round), len(self.wall_s), len(self.cpu_s), len(self.involuntary_switches)}
        if len(lengths) > 1:
            raise ValueError(f"the columns of samples must be equally long, not {sorted(lengths)}")
        return self


class Measurement(Record):
    """One implementation on one workload: raw time samples, exact peak memory, error at this very shape."""

    implementation: str
    workload: Workload
    status: MeasurementStatus
    reasons: tuple[str, ...] = ()
    """Why there is no time: every reason, as text."""
    samples: Samples | None = None
    repeats: int | None = None
    """Calls per timed block."""
    first_call_s: float | None = None
    """Wall time of the very first call, warm-up and lazy initialisation included."""
    rounds_stopped_by: Literal["", "verdict", "max_rounds", "time_budget"] = ""
    looks: int | None = None
    """How many looks at the data the stopping rule may have taken."""
    pairs: int | None = None
    """Number of pairs compared in the cell."""
    sm_clock_mhz: int | None = None
    """Clock of the CUDA device right after the timed rounds; None elsewhere, or where it is not told."""
    peak_bytes: int | None = None
    """Peak bytes allocated during one call, above the level before it (weights and inputs not counted)."""
    output_bytes: int | None = None
    """Of the output."""
    saved_bytes: int | None = None
    """Of what a forward keeps for the backward, inputs and weights not counted; 0 in inference."""
    workspace_bytes: int | None = None
    """Of the peak, what is gone when the call returns: all but the output and, in training, the gradients."""
    memory_source: str = ""
    """Where ``peak_bytes`` comes from."""
    max_error: float | None = None
    budget_used: float | None = None
    """Largest error/budget over output and gradients at this exact shape."""
    error_over_baseline: float | None = None
    flops: int | None = None
    """Analytic floating point operations of one call, projections included, recomputation not."""
    flops_unmasked: int | None = None
    """The same without those on scores that the mask hides: causality takes about half of them."""
    bytes_moved: int | None = None
    """Compulsory traffic of one call: inputs, weights, mask and results, once each."""
    kernels: tuple[str, ...] = ()
    """Attention operators that really ran, as the profiler names them."""


class ImplementationInfo(Record):
    """What an implementation said of itself when the run was made."""

    name: str
    summary: str
    source: str
    origin: str
    """File or entry point that it was loaded from."""
    source_hash: str = ""
    """Short hash of that file: a run is not resumed with another version. Empty where there is no file."""
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    mask_kinds: tuple[str, ...]
    gradients: bool
    """Whether it has a backward on the run's device."""
    fully_masked_row: Literal["uniform", "zero", "nan"]
    """What a row whose keys are all masked yields: mean of V, zero, or NaN (a hazard)."""
    memory_growth: str
    """Declared growth of memory with the sequence length: ``O(S)`` or ``O(S^2)``."""
    kernels: tuple[str, ...] = ()
    """Operators of which it declares that one runs; empty where it declares none."""
    verify_only: str = ""
    """Why it is never timed; empty if it is."""
    unavailable: str = ""
    """Why it cannot run on this machine; empty if it can."""
    declared: tuple[str, ...] = ()
    """Declared limits and known failures, in words."""


class Environment(Record):
    """The machine and the software; two runs with different ``machine_id`` are never mixed."""

    machine_id: str
    """Short hash of processor, core count, operating system and torch build."""
    processor: str
    cores: int
    """Physical cores that the run could use."""
    affinity: str = ""
    """Logical CPUs that the process may run on, e.g. ``0-3,8``."""
    memory_bytes: int
    system: str
    python: str
    packages: dict[str, str]
    """Versions of torch, xformers, triton, numpy, ..., empty string where missing."""
    torch_config: dict[str, str]
    """BLAS, OpenMP and CPU capability as torch reports them."""
    accelerator: str = ""
    commit: str = ""
    """Commit of the checkout the run was made from, with ``+changes`` when it was not clean."""
    busy_cores: float = 0.0
    """Cores that everything else on the machine kept busy when the run began."""


class NoiseTrial(Record):
    """One implementation, timed against itself."""

    verdict: Literal["faster", "slower", "tied", "unresolved"]
    """Anything but ``tied`` and ``unresolved`` is false."""
    low: float
    """Lower end of the interval of the ratio of their times; 0 without a finite interval."""
    high: float
    """Upper end; infinite without a finite interval."""
    rounds: int
    timed_s: float

    @property
    def resolves(self) -> float:
        """Half of the interval's width, as a share: the difference that these rounds can tell."""
        return math.sqrt(self.high / self.low) - 1.0 if self.low > 0 else math.inf


class Noise(Record):
    """How fine a difference the machine could see, from trials in which there was none."""

    threads: int
    seconds: float
    """Of timed rounds that each trial was given."""
    resolution: float
    """Half-width of the band of ratios called tied."""
    trials: tuple[NoiseTrial, ...] = Field(min_length=1)

    @property
    def resolves(self) -> float:
        """What a trial can tell, as a share: the median over the trials."""
        return median(trial.resolves for trial in self.trials)

    @property
    def worst(self) -> float:
        """The same of the noisiest trial."""
        return max(trial.resolves for trial in self.trials)

    def count(self, *verdicts: str) -> int:
        """Trials with one of these verdicts."""
        return sum(trial.verdict in verdicts for trial in self.trials)


class Roof(Record):
    """What this machine does at most, as seen during the run."""

    dtype: str
    threads: int
    flops_per_s: float = Field(gt=0)
    """Of a large matrix product."""
    bytes_per_s: float = Field(gt=0)
    """Of copying what fits no cache, read and written bytes together."""


class RunInfo(Record):
    """Contents of ``run.json``."""

    format_version: int
    run_id: str
    created: str
    """ISO 8601 time with zone."""
    command: str
    """Command line that repeats the run."""
    preset: str
    baseline: str
    """Implementation that ratios are shown against."""
    resolution: float
    """Half-width of the band of ratios called tied, e.g. 0.02."""
    seed: int
    cell_seconds: float = 3.0
    """Time budget of the timed rounds of one cell."""
    max_rounds: int = 160
    plugins: tuple[str, ...] = ()
    """Files with implementations that were given on the command line."""
    environment: Environment
    implementations: tuple[ImplementationInfo, ...]
    workloads: tuple[Workload, ...]
    """Every planned workload, also those not finished."""
    noise: Noise | None = None
    """How fine a difference the machine could see when the run began; None where it was not measured."""
    roofs: tuple[Roof, ...] = ()
    """For each dtype and thread count of the workloads; empty where it was not measured."""
    left_out: dict[str, str] = Field(default_factory=dict)
    """By workload key, why it was left out to end in time; a resumed run measures it."""
    phases_s: dict[str, float] = Field(default_factory=dict)
    """Wall seconds by phase (verification, timed, warm-up, memory, ...), once known."""


RecordT = TypeVar("RecordT", bound=Record)

_FILES: dict[type[Record], str] = {
    CheckRecord: CHECKS_FILE,
    SemanticsRecord: SEMANTICS_FILE,
    Measurement: MEASUREMENTS_FILE,
}
"""The file that holds each kind of record."""


class RunFolder:
    """A run's files: append-only writing, and reading that names file and line of whatever does not fit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, info: RunInfo) -> None:
        """Make the folder and write ``run.json``."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_info(info)

    def write_info(self, info: RunInfo) -> None:
        """Write ``run.json`` whole, through a temporary file, so that a kill never leaves half of one."""
        temporary = self.path / (RUN_FILE + ".tmp")
        temporary.write_text(info.model_dump_json(indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.path / RUN_FILE)

    def append(self, record: CheckRecord | SemanticsRecord | Measurement) -> None:
        """Append one record and flush it, so that a kill of the process loses nothing that was finished."""
        with (self.path / _FILES[type(record)]).open("a", encoding="utf-8") as file:
            file.write(record.model_dump_json(exclude_defaults=True) + "\n")

    def info(self) -> RunInfo:
        """Read ``run.json``.

        Raises:
            UserError: no such file, not JSON, another format version, or a key that does not fit.
        """
        path = self.path / RUN_FILE
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(
                f"{self.path} is not a run folder: it has no {RUN_FILE}; `mha bench` makes one under results/"
            ) from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UserError(f"{path}: not readable as JSON: {error}") from None
        version = content.get("format_version") if isinstance(content, dict) else None
        if version != FORMAT_VERSION:
            raise UserError(
                f"{path}: format version {version!r}, and this mha reads {FORMAT_VERSION}; "
                "use the mha that wrote it, or run `mha bench` again"
            )
        return _validated(RunInfo, content, str(path))

    def checks(self) -> list[CheckRecord]:
        """Read all check records written so far."""
        return self._read(CHECKS_FILE, CheckRecord)

    def semantics(self) -> list[SemanticsRecord]:
        """Read all answers of probes written so far."""
        return self._read(SEMANTICS_FILE, SemanticsRecord)

    def measurements(self) -> list[Measurement]:
        """Read all measurements written so far."""
        return list(self.each_measurement())

    def each_measurement(self) -> Iterator[Measurement]:
        """The same one by one, for runs too large to hold all samples at once."""
        return self._each(MEASUREMENTS_FILE, Measurement)

    def _read(self, name: str, model: type[RecordT]) -> list[RecordT]:
        return list(self._each(name, model))

    def _each(self, name: str, model: type[RecordT]) -> Iterator[RecordT]:
        path = self.path / name
        if not path.exists():
            return
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    # A last line without its newline was cut short by a kill: the record was never finished.
                    if line.strip() and line.endswith(b"\n"):
                        yield _validated(model, line.decode("utf-8"), f"{path}:{number}")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not readable: {error}") from None

    def repair(self) -> None:
        """Drop a last line that a kill cut short, so that appending can go on."""
        for name in _FILES.values():
            path = self.path / name
            if path.exists():
                with path.open("rb") as file:
                    whole = sum(len(line) for line in file if line.endswith(b"\n"))
                if whole != path.stat().st_size:
                    os.truncate(path, whole)


def _validated(model: type[RecordT], content: object, where: str) -> RecordT:
    try:
        if isinstance(content, str):
            return model.model_validate_json(content)
        return model.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{where}: {describe(error)}") from None


def describe(error: ValidationError) -> str:
    """The first thing wrong, in one line: key, what came, what is allowed."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    more = error.error_count() - 1
    came = "" if first["type"] in ("missing", "json_invalid") else f", got {repr(first['input'])[:80]}"
    return (f"{key}: " if key else "") + f"{first['msg']}{came}" + (f" (and {more} more)" if more else "")

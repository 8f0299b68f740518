"""Turns a failure into a script that shows it without the harness: torch, the implementation's file, and the numbers.

The script holds the tensors of the failing call (or lies beside a ``.pt`` file with them, if they are large), the
formula in float64, and as many functions of `harness.verification.standalone` as it needs. It exits with 1 while the
fault is there and with 0 once it is gone. `Reproduction.shows_the_fault` tries the same functions in this process.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import io
import math
import re
import textwrap
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.errors import UserError
from harness.records import CheckRecord
from harness.registry import Registered, file_of
from harness.verification import standalone
from implementations.projections import ProjectedAttention, check_mask
from implementations.spec import FullyMaskedRow, Implementation

MAX_INLINE_BYTES = 1 << 19
"""Tensors beyond this size (512 KiB) go into a file beside the script."""
ATTEMPTS_BY_CHANCE = 30
"""How often a fault that comes and goes is tried."""
LINE = 100
_CALL = ("x", "mask", "is_causal", "training", "with_gradients", "cotangent", "written_over")
_COMMON = (standalone.load_implementation, standalone.load_module, standalone.tensor, standalone.build)
_FOR_ANSWERS = (
    standalone.copy_of,
    standalone.run,
    standalone.replay,
    standalone.formula,
    standalone.right_answer,
    standalone.differs,
)

Step = Callable[..., bool]
STEPS: Mapping[str, tuple[Step, tuple[Callable[..., Any], ...]]] = {
    "wrong_mask_dtype_is_a_type_error": (standalone.accepts_wrong_mask_dtypes, (standalone.refuses,)),
    "wrong_mask_shape_is_a_value_error": (standalone.accepts_wrong_mask_shapes, (standalone.refuses,)),
    "wrong_d_model_is_an_error": (standalone.accepts_wrong_d_model, (standalone.refuses,)),
    "indivisible_d_model_is_an_error": (standalone.accepts_indivisible_d_model, (standalone.refuses,)),
    "inputs_are_left_alone": (standalone.changes_its_inputs, (standalone.run,)),
    "calls_repeat_bit_for_bit": (standalone.does_not_repeat, (standalone.run,)),
    "outputs_never_alias": (standalone.shares_its_output, (standalone.run,)),
    "weights_survive_the_round_trip": (standalone.loses_parameters, ()),
}
"""Checks that are not about the value of an answer: what shows their fault, and what that needs."""


@dataclass(frozen=True)
class Reproduction:
    """What has to be done to see a fault again."""

    weights: Mapping[str, Tensor]
    num_heads: int
    calls: Sequence[Mapping[str, Any]]
    """As `harness.verification.standalone` describes them."""
    check: str = ""
    """One of `STEPS`, whose step is performed; empty if an answer is judged."""
    judged: int = 0
    """Which call's answer is wrong."""
    budgets: Mapping[str, Tensor] = field(default_factory=dict)
    """Of the tensors that are wrong."""
    fully_masked_row: FullyMaskedRow = "zero"
    attempts: int = 1

    @property
    def empty_row(self) -> float:
        """Weight of each key in a row that has none left."""
        x: Tensor = self.calls[self.judged]["x"]
        return {"zero": 0.0, "nan": math.nan, "uniform": 1.0 / max(1, x.shape[1])}[self.fully_masked_row]

    @property
    def step(self) -> Step:
        """The function whose result says whether the fault is there."""
        return STEPS[self.check][0] if self.check else standalone.answers_wrongly

    def shows_the_fault(self, implementation: Implementation) -> bool:
        """Try it in this process: the answer is wrong, or a call raises."""
        arguments: dict[str, Any] = {} if self.check else self._how_to_judge()
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                return any(
                    self.step(implementation, dict(self.weights), self.num_heads, self._copies(), **arguments)
                    for _ in range(self.attempts)
                )
            except Exception:  # noqa: BLE001 - whatever an implementation raises is the fault, and the script shows it
                return True

    def comes_and_goes(self, implementation: Implementation) -> bool:
        """Whether the judged answer differs beyond its budget between fresh modules that are called alike."""
        budget = self.budgets.get("output")
        if self.check or budget is None:
            return False
        weights = dict(self.weights)
        try:
            first, *others = (
                standalone.replay(
                    implementation,
                    standalone.build(implementation, weights, self.num_heads),
                    self._copies(),
                    self.judged,
                )["output"]
                for _ in range(3)
            )
        except Exception:  # noqa: BLE001 - a call that raises gives no answers to compare
            return False
        return any(each.shape == budget.shape and bool(((each - first).abs() > budget).any()) for each in others)

    def _how_to_judge(self) -> dict[str, Any]:
        return {"judged": self.judged, "budgets": dict(self.budgets), "empty_row": self.empty_row}

    def _copies(self) -> list[dict[str, Any]]:
        """Calls that an implementation may write into."""
        return [
            {key: standalone.copy_of(value) if isinstance(value, Tensor) else value for key, value in call.items()}
            for call in self.calls
        ]


def write_reproducer(folder: Path, record: CheckRecord, registered: Registered, reproduction: Reproduction) -> Path:
    """Write the script, and the tensors beside it if they are large.

    Args:
        folder: made if it is not there.
        record: of the failure, with the likely cause if it is known.
        registered: the implementation and where it comes from.
        reproduction: what the script does.

    Returns:
        The script's path.

    Raises:
        UserError: the folder cannot be written to.
    """
    name = re.sub(r"[^\w.-]+", "_", f"{record.implementation}-{record.check}-{record.case}")
    path = folder.absolute() / f"{name}.py"
    tensors = _Tensors()
    calls = _calls(reproduction, tensors)
    parts = [
        _title(record, registered),
        _imports(reproduction),
        _constants(registered, reproduction),
        *(inspect.getsource(function) for function in _sources(reproduction)),
        tensors.source(),
        calls,
        _main(reproduction),
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if tensors.are_large:
            torch.save(tensors.by_name, path.with_suffix(".pt"))
        path.write_text("\n\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"reproducers cannot be written to {folder}: {error.strerror}; name another folder") from None
    return path


class _Tensors:
    """The script's tensors by name; equal ones are kept once."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._names: dict[tuple[object, ...], str] = {}

    def name(self, wanted: str, tensor: Tensor) -> str:
        """The name under which the script finds this tensor."""
        layout = (str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        return self._names.setdefault((*layout, _memory(tensor)), self._add(wanted, tensor, layout))

    def _add(self, wanted: str, tensor: Tensor, layout: tuple[object, ...]) -> str:
        if (*layout, _memory(tensor)) not in self._names:
            self.by_name[wanted] = tensor
        return wanted

    @property
    def are_large(self) -> bool:
        return sum(len(_memory(tensor)) for tensor in self.by_name.values()) > MAX_INLINE_BYTES

    def source(self) -> str:
        if self.are_large:
            return 'TENSORS = torch.load(Path(__file__).with_suffix(".pt"), map_location=DEVICE)'
        lines = [f'    "{name}": {_literal(tensor)},' for name, tensor in self.by_name.items()]
        return "\n".join(["TENSORS = {", *lines, "}"])


def _memory(tensor: Tensor) -> bytes:
    """All of a tensor's memory, whatever part of it the tensor shows."""
    everything = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.detach().untyped_storage())
    return everything.cpu().numpy().tobytes()


def _literal(tensor: Tensor) -> str:
    packed = base64.b64encode(zlib.compress(_memory(tensor), 9)).decode()
    dtype = str(tensor.dtype).removeprefix("torch.")
    layout = f'"{dtype}", {tuple(tensor.shape)}, {tensor.stride()}, {tensor.storage_offset()}'
    lines = textwrap.wrap(packed, LINE) or [""]
    if len(lines) == 1:
        return f'tensor({layout}, "{packed}").to(DEVICE)'
    return "\n".join([f'tensor({layout}, """', *lines, '    """).to(DEVICE)'])


def _title(record: CheckRecord, registered: Registered) -> str:
    """What failed, how, and why as far as it is known."""
    command = record.reproduce + registered.plugin_option
    lines = [
        f"{record.implementation}: {record.check} fails on {record.case}.",
        "",
        f"Claim:  {record.claim}",
        *(f"Found:  {reason}" for reason in record.reasons),
        *([f"Likely: {record.likely_cause}"] if record.likely_cause else []),
        *([f"Budget: {record.budget_set_by}"] if record.budget_set_by else []),
        "",
        "Run this file with a Python that has torch and the implementation. It exits with 1 while the fault is there,",
        "with 0 once it is gone, and with 2 if the implementation cannot be loaded. The whole check:",
        f"    {command}",
    ]
    text = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""'


def _imports(reproduction: Reproduction) -> str:
    """Those modules that the copied functions use."""
    source = "".join(inspect.getsource(function) for function in _sources(reproduction)) + _main(reproduction)
    plain = [name for name in ("base64", "importlib", "importlib.util", "math", "sys", "zlib") if f"{name}." in source]
    lines = ["from __future__ import annotations", "", *(f"import {name}" for name in plain)]
    lines += ["from collections.abc import Callable", "from pathlib import Path", "from types import SimpleNamespace"]
    lines += ["from typing import Any", ""]
    lines += ["import torch", "import torch.nn.functional as F", "from torch import Tensor, nn"]
    return "\n".join(lines)


def _constants(registered: Registered, reproduction: Reproduction) -> str:
    implementation = registered.implementation
    code = getattr(implementation.build or implementation.attend, "__name__", "")
    return "\n".join(
        [
            f"ORIGIN = {origin_of(registered)!r}",
            f'NAME = "{implementation.name}"',
            f'CODE = "{code}"',
            f"HAS_CAUSAL_FLAG = {implementation.has_causal_flag}",
            f"NUM_HEADS = {reproduction.num_heads}",
            f'DEVICE = "{reproduction.calls[0]["x"].device}"',
        ]
    )


def origin_of(registered: Registered) -> str:
    """What the script imports: the file of a plugin, or the module of an implementation that is installed."""
    if registered.plugin is not None:
        return str(file_of(registered.plugin))
    if registered.origin.startswith("entry point "):
        return registered.origin.removeprefix("entry point ").partition(":")[0]
    return f"implementations.{Path(registered.origin).stem}"


def _sources(reproduction: Reproduction) -> Iterator[Callable[..., Any]]:
    """What the script is copied from, in the order of its definitions."""
    yield from (check_mask, ProjectedAttention)
    yield from _COMMON
    yield from STEPS[reproduction.check][1] if reproduction.check else _FOR_ANSWERS
    yield reproduction.step


def _calls(reproduction: Reproduction, tensors: _Tensors) -> str:
    """The calls, with their tensors by name; also names weights and budgets."""
    lines = ["WEIGHTS = {"]
    for name, weight in reproduction.weights.items():
        lines.append(f'    "{name}": TENSORS["{tensors.name(name, weight)}"],')
    lines += ["}", "CALLS = ["]
    for index, call in enumerate(reproduction.calls):
        lines.append("    {")
        for key in _CALL:
            value = call[key]
            if isinstance(value, Tensor):
                lines.append(f'        "{key}": TENSORS["{tensors.name(f"{key} of call {index}", value)}"],')
            else:
                lines.append(f'        "{key}": {value},')
        lines.append("    },")
    lines.append("]")
    if not reproduction.check:
        lines.append("BUDGETS = {")
        for name, budget in reproduction.budgets.items():
            lines.append(f'    "{name}": TENSORS["{tensors.name(f"budget of {name}", _short(budget))}"],')
        lines.append("}")
    return "\n".join(lines)


def _short(budget: Tensor) -> Tensor:
    """A budget in two bytes an element, rounded up."""
    return (1.01 * budget).clamp(min=1e-37).to(torch.bfloat16).contiguous()


def _main(reproduction: Reproduction) -> str:
    arguments = "implementation, WEIGHTS, NUM_HEADS, CALLS"
    if not reproduction.check:
        empty = {"zero": "0.0", "nan": "math.nan", "uniform": repr(reproduction.empty_row)}
        arguments += (
            f", judged={reproduction.judged}, budgets=BUDGETS, empty_row={empty[reproduction.fully_masked_row]}"
        )
    wrong = f"{reproduction.step.__name__}({arguments})"
    if reproduction.attempts > 1:
        wrong = f"any({wrong} for _ in range({reproduction.attempts}))  # it comes and goes"
    lines = [
        'if __name__ == "__main__":',
        "    implementation = load_implementation(ORIGIN, NAME, CODE, HAS_CAUSAL_FLAG)",
        f"    wrong = {wrong}",
        '    print("The fault is there." if wrong else "The fault is gone.")',
        "    sys.exit(1 if wrong else 0)",
    ]
    return "\n".join(lines)

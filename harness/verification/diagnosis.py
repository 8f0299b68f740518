"""Why an output is wrong, where a pattern is known: which known fault would have given exactly this?

What came is held against every formula of `harness.verification.variants`; where none of them fits, a factor is fitted
to the logits, to the rows of weights and to the gradients, and rows are looked for in other places. A cause is named
only if it explains the whole tensor within the error budget (or all but a thousandth of the error), and if several
do, all of them are named. Nothing is said where nothing fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from harness.verification.recording import Call
from harness.verification.rounding import Expectation, expect
from harness.verification.variants import (
    BACKWARD_VARIANTS,
    MEMORY_VARIANTS,
    VARIANTS,
    Formula,
    Variant,
    in_words,
)
from implementations.spec import FullyMaskedRow

WITHIN_BUDGETS = 2.0
"""A fault's formula rounds differently from the right one (larger logits), so it may be off by twice the budget."""
SHARE_LEFT = 1e-3
"""A fault that leaves at most this share of the error explains most of it, and is named as that."""
CLEARLY_BETTER = 0.25
"""No fault is named that leaves more than this share of the error, however wide the budget is."""
MAX_CAUSES = 3
"""More than this many causes that cannot be told apart say nothing."""
MAX_ELEMENTS = 1 << 24
"""Elements of the weights (B, H, S, S) beyond which a diagnosis would take minutes."""


@dataclass(frozen=True)
class Symptom:
    """A call that went wrong, and what would have been right."""

    call: Call
    expectation: Expectation
    fully_masked_row: FullyMaskedRow
    earlier: tuple[Call, ...] = ()
    """Calls of the same module without which it would have been right; mostly none."""

    @property
    def got(self) -> Tensor:
        """The output, in float64."""
        assert self.call.output is not None
        return self.call.output.double()

    @property
    def expected(self) -> Tensor:
        """The right output."""
        return self.expectation.solution.output

    @property
    def budget(self) -> Tensor:
        """Of the output; where NaN is declared, the largest of the others."""
        budget = self.expectation.budgets["output"]
        finite = budget[budget.isfinite()]
        return budget.nan_to_num(float(finite.max()) if finite.numel() else 0.0)

    @property
    def error(self) -> float:
        """Of the output, in budgets."""
        return distance(self.got, self.expected, self.budget)

    def formula(self) -> Formula:
        """The right formula of the call."""
        return Formula(self.call, self.fully_masked_row)


def diagnose(symptom: Symptom, others: Sequence[Symptom] = ()) -> str:
    """The likely cause in words; empty if no known pattern fits.

    Args:
        symptom: a call whose output or gradients are wrong.
        others: further wrong calls of the same check, which decide between causes that this call cannot tell apart.
    """
    call = symptom.call
    if call.output is None or call.x.numel() == 0:
        return ""
    if call.output.shape != call.x.shape:
        return _shape(symptom)
    if call.num_heads * call.x.shape[0] * call.x.shape[1] ** 2 > MAX_ELEMENTS:
        return ""
    if symptom.error <= 1.0:
        return _in_words(_gradients(symptom))
    with torch.no_grad():
        if not bool(symptom.got.isfinite().any()):
            return _all_nan(symptom)
        return _output(symptom, others)


def distance(got: Tensor, candidate: Tensor, budget: Tensor) -> float:
    """The largest difference in budgets; infinite if one is NaN or infinite where the other is not."""
    finite = got.isfinite()
    if not torch.equal(finite, candidate.isfinite()):
        return math.inf
    used = ((got - candidate).abs() / budget)[finite]
    return float(used.max()) if used.numel() else 0.0


def _fits(left: float, error: float) -> bool:
    """Whether a candidate that is `left` budgets from what came explains an error of so many budgets."""
    if math.isinf(error):
        return left <= WITHIN_BUDGETS
    return left <= max(min(WITHIN_BUDGETS, CLEARLY_BETTER * error), SHARE_LEFT * error)


def _in_words(causes: Sequence[str]) -> str:
    if not causes or len(causes) > MAX_CAUSES:
        return ""
    return causes[0] if len(causes) == 1 else f"one of: {'; '.join(causes)}"


def _output(symptom: Symptom, others: Sequence[Symptom]) -> str:
    """The first kind of explanation that gives any."""
    left_behind = _of_earlier_calls(symptom)
    if left_behind:
        return _in_words(left_behind)
    fitting = _known(symptom, others)
    if len(fitting) > MAX_CAUSES:
        about = {VARIANTS[variant] for variant in fitting}
        where = f" of {about.pop()}" if len(about) == 1 else ""
        return f"several known faults{where} would give exactly this; a larger case may tell them apart"
    if fitting:
        rest = "" if min(fitting.values()) <= WITHIN_BUDGETS else ", and something small besides"
        return _in_words([in_words(variant) + rest for variant in fitting])
    kinds = (_places, _scale, _row_sums, _first_block)
    return next((_in_words(causes) for kind in kinds if (causes := kind(symptom))), "")


def _known(symptom: Symptom, others: Sequence[Symptom]) -> dict[Variant, float]:
    """Variants that fit, under whatever a wrong implementation may do with rows without any key, and what is left."""
    policies: tuple[FullyMaskedRow, ...] = ("zero", "uniform", "nan")
    for policy in sorted(policies, key=lambda each: each != symptom.fully_masked_row):
        fitting = _fitting(VARIANTS, symptom, policy)
        if fitting:
            agreeing = {v: left for v, left in fitting.items() if all(_fitting([v], each, policy) for each in others)}
            return agreeing or fitting
    return {}


def _fitting(variants: Iterable[Variant], symptom: Symptom, policy: FullyMaskedRow) -> dict[Variant, float]:
    """Variants within the budget of what came, else those that leave little of the error, and how much they leave."""
    formula, close = Formula(symptom.call, policy), {}
    for variant in variants:
        output = variant(formula)
        left = math.inf if output is None else distance(symptom.got, output, symptom.budget)
        if left < math.inf and _fits(left, symptom.error):
            close[variant] = left
    return {variant: left for variant, left in close.items() if left <= WITHIN_BUDGETS} or close


def _explains(symptom: Symptom, output: Tensor) -> bool:
    return _fits(distance(symptom.got, output, symptom.budget), symptom.error)


def _of_earlier_calls(symptom: Symptom) -> list[str]:
    """Something that an earlier call left behind."""
    formula = symptom.formula()
    earlier = [Formula(call, symptom.fully_masked_row) for call in symptom.earlier if call.is_within_the_contract]
    outputs = ((variant, variant(formula, each)) for variant in MEMORY_VARIANTS for each in earlier)
    fitting = [variant for variant, output in outputs if output is not None and _explains(symptom, output)]
    return [in_words(variant) for variant in dict.fromkeys(fitting)]


# Rows in other places.


def _places(symptom: Symptom) -> list[str]:
    """Right answers that came at another item or token."""
    for dim, what in ((0, "batch item"), (1, "token")):
        places = _permutation(symptom, dim)
        if places is not None:
            return [_in_places(what, places)]
    return []


def _permutation(symptom: Symptom, dim: int) -> list[int] | None:
    """For each index along an axis, where its right answer is; None if it is nowhere."""
    got, expected, budget = (t.transpose(0, dim).flatten(1) for t in (symptom.got, symptom.expected, symptom.budget))
    if not bool(got.isfinite().all()) or not bool(expected.isfinite().all()):
        return None
    unit = budget.mean(dim=0).clamp(min=torch.finfo(budget.dtype).tiny)
    places = torch.cdist(got / unit, expected / unit, p=math.inf).argmin(dim=1)
    if len(places) < 2 or not _explains(symptom, symptom.expected.index_select(dim, places)):
        return None
    return [int(place) for place in places]


def _in_places(what: str, places: list[int]) -> str:
    size = len(places)
    shifts = {(index - place) % size for index, place in enumerate(places)}
    if len(shifts) == 1:
        shift = min(shifts)
        steps, side = (shift, "before") if shift <= size // 2 else (size - shift, "behind")
        return f"each {what} holds the answer of the one {f'{steps} places ' if steps > 1 else ''}{side} it"
    wrong = [f"{index} holds that of {place}" for index, place in enumerate(places) if index != place]
    more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return f"answers are in the wrong place: {what} {', '.join(wrong[:3])}{more}"


# Factors.


def _scale(symptom: Symptom) -> list[str]:
    """A factor on all logits: that of a padded d_k, or one found by a search over five orders of magnitude."""
    formula = symptom.formula()
    if not bool(symptom.got.isfinite().all()):
        return []
    for size in _PADDED:
        padded = size * math.ceil(formula.head_dim / size)
        factor = math.sqrt(formula.head_dim / padded)
        if padded != formula.head_dim and _explains(symptom, formula.shaping(formula.logits * factor)):
            return [f"{_too_large(factor)}, as if d_k were {padded} instead of {formula.head_dim}"]
    factor = _fitted_scale(symptom, formula)
    if not _explains(symptom, formula.shaping(formula.logits * factor)):
        return []
    if torch.finfo(symptom.call.x.dtype).eps > _FINE:
        return [_too_large(float(f"{factor:.3g}"))]  # more digits would be rounding
    seems = formula.head_dim / factor**2
    whole = round(seems)
    if whole in (0, formula.head_dim) or abs(seems / whole - 1.0) > 1e-3:
        return [_too_large(factor)]
    return [f"{_too_large(factor)}, as if d_k were {whole} instead of {formula.head_dim}"]


_PADDED = (8, 16, 32, 64, 128)
"""What head dims are padded to a multiple of."""
_FINE = 1e-5
"""Largest eps of a dtype in which a fitted factor has five digits that mean something."""


def _too_large(factor: float) -> str:
    return f"logits are {_number(factor)} times as large as 1/sqrt(d_k) makes them"


def _fitted_scale(symptom: Symptom, formula: Formula) -> float:
    """The factor on the logits that comes nearest, in budgets, to what came."""

    def squares(log_factor: float) -> float:
        output = formula.shaping(formula.logits * math.exp(log_factor))
        return float(((output - symptom.got) / symptom.budget).square().mean())

    start = min((index / 5.0 for index in range(-30, 31)), key=squares)
    found = minimize_scalar(squares, bounds=(start - 0.2, start + 0.2), method="bounded", options={"xatol": 1e-9})
    return math.exp(float(found.x))


def _row_sums(symptom: Symptom) -> list[str]:
    """A factor on each row of weights: what the rows sum to."""
    formula = symptom.formula()
    weight = formula.w["W_o.weight"]
    if formula.head_dim < 4 or not bool(symptom.got.isfinite().all()) or float(torch.linalg.cond(weight)) > 1e6:
        return []
    merged = torch.linalg.solve(weight, (symptom.got - formula.w["W_o.bias"]).mT.contiguous()).mT
    heads, right = formula.split(merged), formula.softmax(formula.logits, formula.hidden) @ formula.v
    sizes = right.square().sum(dim=-1, keepdim=True)
    sums = torch.where(sizes > 0.0, (heads * right).sum(dim=-1, keepdim=True) / sizes, 1.0)
    if not _explains(symptom, formula.output(formula.merge(sums * right))):
        return []
    low, high = float(sums.min()), float(sums.max())
    if high - low <= 1e-2 * min(abs(high), abs(high - 1.0)):
        return [f"rows of weights sum to {_number(high)} instead of 1{_as_root(high, formula.head_dim)}"]
    return [f"rows of weights sum to {_number(low)} to {_number(high)} instead of 1"]


def _number(factor: float) -> str:
    """A factor; one that is nearly 1 by what it adds to 1."""
    return f"{factor:.5g}" if abs(factor - 1.0) > 1e-4 else f"1 {factor - 1.0:+.2g}"


def _as_root(factor: float, head_dim: int) -> str:
    """A factor that is a power of sqrt(d_k), in words."""
    names = {0.5: "sqrt(d_k)", -0.5: "1/sqrt(d_k)", 1.0: "d_k", -1.0: "1/d_k"}
    close = (f" ({name})" for power, name in names.items() if abs(factor / head_dim**power - 1.0) < 2e-3)
    return next(close, "")


# NaN, and errors that are small.

_BLOCKS = (16, 32, 64, 128, 256, 512)


def _all_nan(symptom: Symptom) -> str:
    """An output without a single finite number: there are few ways to get there, and most formulas say nothing."""
    hidden = symptom.call.hidden
    if hidden is not None and bool(hidden.all(dim=-1).any()):
        return "rows without any key turn the whole output into NaN, other rows included"
    softmaxes = [variant for variant, about in VARIANTS.items() if about == "the softmax"]
    fitting = _fitting(softmaxes, symptom, symptom.fully_masked_row)
    return _in_words([in_words(variant) for variant in fitting]) or "the whole output is NaN or infinite"


def _first_block(symptom: Symptom) -> list[str]:
    """NaN in exactly those rows whose first block of keys is masked whole, and nothing wrong elsewhere."""
    call, nan = symptom.call, symptom.got.isnan()
    if call.hidden is None or not bool(nan.any()):
        return []
    rest = torch.where(nan, symptom.expected, symptom.got)
    if distance(rest, symptom.expected, symptom.budget) > 1.0:
        return []
    shape = (call.x.shape[0], call.num_heads, call.x.shape[1], call.x.shape[1])
    for block in (each for each in _BLOCKS if each < shape[-1]):
        masked_whole = call.hidden.expand(shape)[..., :block].all(dim=-1).any(dim=1)  # (B, S)
        if torch.equal(masked_whole, nan.any(dim=-1)):
            return [f"online softmax: NaN exactly in rows whose first {block} keys are all masked, exp(-inf - -inf)"]
    return []


def rounding_hint(symptom: Symptom) -> str:
    """An error everywhere that is no larger than rounding to a narrower dtype makes; for where no fault fits."""
    output = symptom.call.output
    if output is None or output.shape != symptom.call.x.shape or not 1.0 < symptom.error < math.inf:
        return ""
    wide = torch.finfo(symptom.call.x.dtype).eps
    problem = symptom.call.problem(symptom.fully_masked_row)
    beyond = (symptom.got - symptom.expected).abs() > symptom.budget
    if float(beyond.double().mean()) < 0.5:
        return ""  # rounding spares no element
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        if torch.finfo(dtype).eps <= wide:
            continue
        budget = expect(problem, dtype).budgets["output"]
        if distance(symptom.got, symptom.expected, budget) <= 1.0 and bool((symptom.expected.abs() > budget).any()):
            name = str(dtype).removeprefix("torch.")
            return f"no known fault fits; the error is as small as if something inside were rounded to {name}"
    return ""


# Shapes.


def _shape(symptom: Symptom) -> str:
    """An output of another shape that holds the right numbers in another order."""
    call, expected = symptom.call, symptom.expected
    assert call.output is not None
    got = call.output.double()
    heads = (call.num_heads, call.x.shape[-1] // call.num_heads)
    split = expected.unflatten(-1, heads)  # type: ignore[no-untyped-call]
    orders = {
        "batch and sequence are exchanged in the output": expected.transpose(0, 1),
        "the output is still split into heads (B, S, H, d_k)": split,
        "the output is still split into heads (B, H, S, d_k)": split.transpose(1, 2),
    }
    tolerance = float(symptom.budget.max())
    for words, order in orders.items():
        if order.shape == got.shape and float((got - order).abs().max()) <= tolerance:
            return words
    return ""


# Gradients.


def _gradients(symptom: Symptom) -> list[str]:
    """What is wrong with gradients whose output is right."""
    call = symptom.call
    if call.missing:
        return [f"no gradient reaches {', '.join(call.missing)}: the graph is cut before it"]
    if call.cotangent is None or not call.gradients:
        return []
    infinite = [name for name, gradient in call.gradients.items() if not bool(gradient.isfinite().all())]
    if infinite:
        empty = call.hidden is not None and bool(call.hidden.all(dim=-1).any())
        origin = "rows without any key put NaN" if empty else "NaN or infinity gets"
        return [f"{origin} into the gradient of {', '.join(infinite)}, though the output is right"]
    fitting = [in_words(variant) for variant in BACKWARD_VARIANTS if _explains_gradients(symptom, variant)]
    return fitting or list(_factors(symptom))


def _explains_gradients(symptom: Symptom, variant: Variant) -> bool:
    call = symptom.call
    assert call.cotangent is not None
    with torch.enable_grad():
        formula = Formula(call, symptom.fully_masked_row, differentiable=True)
        output = variant(formula)
    if output is None:
        return False
    leaves = {"x": formula.x, **formula.w}
    found = torch.autograd.grad(output, list(leaves.values()), call.cotangent.double(), materialize_grads=True)
    candidates = dict(zip(leaves, found, strict=True))
    left = _gradient_distance(symptom, candidates)
    return _fits(left, _gradient_distance(symptom, symptom.expectation.tensors))


def _gradient_distance(symptom: Symptom, candidates: Mapping[str, Tensor]) -> float:
    budgets = symptom.expectation.budgets
    return max(
        distance(gradient.double(), candidates[name], budgets[name])
        for name, gradient in symptom.call.gradients.items()
    )


def _factors(symptom: Symptom) -> Iterator[str]:
    """One sentence, if every wrong gradient is the right one times a factor, missing or transposed."""
    names_by_relation: dict[str, list[str]] = {}
    for name, gradient in symptom.call.gradients.items():
        right, budget = symptom.expectation.tensors[name], symptom.expectation.budgets[name]
        got = gradient.double()
        error = distance(got, right, budget)
        if error > 1.0:
            relation = _relation(got, right, budget, error, symptom)
            if not relation:
                return
            names_by_relation.setdefault(relation, []).append(name)
    if names_by_relation:
        yield ", ".join(
            f"the gradient of {', '.join(names)} is {relation}" for relation, names in names_by_relation.items()
        )


def _relation(got: Tensor, right: Tensor, budget: Tensor, error: float, symptom: Symptom) -> str:
    """How a gradient relates to the right one: zero, transposed, or times a factor; empty if in no such way."""
    if not bool(got.any()):
        return "0"
    if got.dim() == 2 and _fits(distance(got, right.mT, budget.mT), error):
        return "transposed"
    factor = float((got * right).sum() / right.square().sum()) if bool(right.any()) else math.nan
    if not math.isfinite(factor) or not _fits(distance(got, factor * right, budget * max(1.0, abs(factor))), error):
        return ""
    head_dim = symptom.call.x.shape[-1] // symptom.call.num_heads
    return f"{_number(factor)} times the right one{_as_root(factor, head_dim)}"

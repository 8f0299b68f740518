"""How much error a right implementation may have in a dtype: rounding analysis by simulated rounding.

The budget is not a tolerance somebody picked. The oracle is solved again with every stored intermediate
(Q, K, V, logits, weights, heads, output, and the same in the backward pass) perturbed as a computation in that
dtype would round it, and the spread of the results is what rounding does to *this* problem, at each element.
This is Monte Carlo arithmetic (D. S. Parker, UCLA CSD-970002, 1997) with the analysis of where attention rounds:

* a stored value moves by up to 2 u of itself (u the dtype's unit roundoff) plus the smallest subnormal t;
* a sum of n terms, whose value is s, moves by up to u sqrt(n) times the root of ``sum t^2 + s^2 / 3``: adding the terms
  one after the other rounds every partial sum s_k, so the errors' squares add up to u^2 ``sum_k s_k^2`` (errors of
  either sign grow like a random walk, as in probabilistic rounding analysis, Higham and Mary, SIAM J. Sci. Comput.
  41, 2019); s_k^2 is about k t^2 for terms that cancel, and (k s / n)^2 for terms of one sign, as in P V or a bias's
  gradient. 16-bit products are summed in float32;
* terms that are all alike (keys alike, as padding or almost empty inputs are) do not round at random: within a binade
  of the partial sum each addition makes the same error. The last binade has up to half of the n additions, each off by
  up to u s, the ones before it a third as much together: 2/3 n u s at worst. P V moves by up to n u s / 6 then, which
  makes the budget just that;
* a logit moves by up to 4 u times ``sum |q||k| / sqrt(d_k)``, not times itself: its terms cancel, and the
  error of the products, of the scaling, of subtracting the row's maximum and of the exponent's argument does not;
* a weight moves by a factor of up to e^d, d being its logit's error: the perturbed logits show d, to first order, and
  what goes beyond, P (e^d - 1 - d), is added, for it hardly shows in few runs, half of which make the weight smaller.
  It matters where d nears 1: 16-bit logits in the hundreds, of which a smaller one may come out as the largest;
* a row of weights moves as a whole by 4 u times its largest logit: its normaliser is rounded once; and by the error
  of that sum of n positive terms, u sqrt(n / 3). It moves by no more than 1, but for a backward that rebuilds the
  weights from a float32 log-sum-exp: by e^d - 1, d being 4 u of float32 times the largest logit;
* a gradient of a logit moves by up to 4 u times ``P (|dP| + sum P |dP|)``, for the same reason;
* the sum ``D = sum P dP`` in a row's gradients moves as a whole by 4 u times ``sum |dO| (P |V|)``: whether it is summed
  over the keys or as ``dO O`` over the stored output, its error is one for all keys of the row and does not average
  out, however alike the keys are.

Errors propagate through softmax, merge and projections by the computation itself, correlations included, so
nothing is assumed of the weights, the mask or the shape. The spread of two such runs (see `pooled`), times
`SAFETY`, is the budget: one constant for every dtype, shape, mask and tensor. The tests hold the margin: right
implementations stay below half of it on the suite's cases.

Where the budget exceeds the answer itself, zeros would pass: such a comparison is no evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from harness.verification.oracle import Problem, Solution, solve

SAFETY = 7.0
"""Budget over the spread: the largest of a million normal deviates is about 5, and the spread is itself estimated."""
SAMPLES = 2
STORED_ULPS = 2.0
CANCELLED_ULPS = 4.0
_NOISE_LENGTH = 2_097_143
_LOG_BIAS = 0.635
"""Minus the mean logarithm of a standard normal deviate's magnitude (half of Euler's constant plus log 2)."""
_NEIGHBOURS = 4
_LARGEST_EXPONENT = 80.0
"""Keeps e^d finite; what is off by more has no right digit either way."""
_BOUNDLESS = 1e150
"""A spread that leaves no evidence, and whose square is still a number; also where a rounded run overflows."""
_LINEAR = 0.05
"""Errors of an exponent below this move the exponential by themselves, but for a fortieth."""
_ALIKE = 1e-5
"""Terms whose relative variance is less count as alike: what float32 resolves."""


class SimulatedRounding:
    """Perturb by uniformly distributed errors of the size that rounding in a dtype makes."""

    def __init__(self, dtype: torch.dtype, seed: int, device: torch.device) -> None:
        self.unit = unit_roundoff(dtype)
        self.sum_unit = min(self.unit, unit_roundoff(torch.float32))  # 16-bit products are summed in float32
        self.tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # the smallest subnormal
        self._noise_twice = _long_draw(seed, device)
        self._places = torch.Generator().manual_seed(seed)

    def store(self, value: Tensor) -> Tensor:
        """Value + (2 u |value| + t) xi, with xi uniform in [-1, 1]."""
        return self._moved(value, value.abs().mul_(STORED_ULPS * self.unit))

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """The sum s of n terms, off by u sqrt(n) times the root of their squares' sum and s^2 / 3, and then stored."""
        value = left @ right
        if value.numel() == 0:
            return value
        return self.store(self._moved(value, self._summing(value, _root_of_squares(left, right), left.shape[-1])))

    def mixed(self, weights: Tensor, values: Tensor) -> Tensor:
        """P V, as any product; but off by m u / 6 of itself where all m terms are alike."""
        value = weights @ values
        if value.numel() == 0:
            return value
        root = _root_of_squares(weights, values)
        terms = (weights > 2.0 * self.tiny).sum(-1, keepdim=True).to(value.dtype)  # a masked weight is 0 or simulated
        alike = root.square() * terms <= value.square() * (1.0 + _ALIKE)
        summing = self._summing(value, root, weights.shape[-1])
        together = value.abs() * terms * (self.sum_unit / 6.0)
        return self.store(self._moved(value, torch.where(alike, torch.maximum(summing, together), summing)))

    def normalised(self, value: Tensor, length: int, largest: Tensor) -> Tensor:
        """A row times 1 + (u sqrt(n / 3) + 4 u largest) xi, with one xi for all of it.

        The normaliser is summed and rounded once for all keys, at the size of the largest logit; that moves a softmax
        by no more than 1, however large the logits are. A backward that rebuilds P = exp(logit - lse) has rows that sum
        to 1 only up to a factor of e^d, d being the error of lse, which is kept in float32 at least.
        """
        summing = self.sum_unit * math.sqrt(length / 3)
        rounded = (largest * (CANCELLED_ULPS * self.unit)).clamp_(max=1.0)
        rebuilt = (largest * (CANCELLED_ULPS * self.sum_unit)).clamp_(max=_LARGEST_EXPONENT).expm1_()
        size = torch.maximum(rounded, rebuilt).add_(summing)
        return value * size.mul_(self._noise(size.shape)).add_(1.0)

    def cancelled(self, value: Tensor, magnitude: Callable[[], Tensor]) -> Tensor:
        """Value + (4 u magnitude + t) xi."""
        return self._moved(value, magnitude() * (CANCELLED_ULPS * self.unit))

    def exponential(self, value: Tensor, log: Callable[[], Tensor], magnitude: Callable[[], Tensor]) -> Tensor:
        """P + P (e^d - 1 - d) xi with d = 4 u magnitude, as far as a weight can grow: to 1."""
        exponent = magnitude() * (CANCELLED_ULPS * self.unit)
        if exponent.numel() == 0 or exponent.max() < _LINEAR:
            return value
        grown = (log() + exponent).clamp_(max=0.0).exp_()
        beyond = (grown - value * (1.0 + exponent)).clamp_(min=0.0)
        return torch.addcmul(value, beyond, self._noise(value.shape))

    def _summing(self, value: Tensor, root: Tensor, length: int) -> Tensor:
        """The error of summing `length` terms to `value`, from the root of their squares' sum."""
        return torch.hypot(root, value / math.sqrt(3.0)).mul_(self.sum_unit * math.sqrt(length))

    def _moved(self, value: Tensor, size: Tensor) -> Tensor:
        """Value + (size + t) xi; takes `size` over."""
        return size.add_(self.tiny).mul_(self._noise(value.shape)).add_(value)

    def _noise(self, shape: torch.Size) -> Tensor:
        """Uniform in [-1, 1]: a stretch of one long draw, begun at a random place and repeated where it is too short.

        Drawing afresh would take most of the time at S = 2048. The length is prime, so that what repeats never falls
        on the same places of two rows. What is rounded once for a whole row does not average out over it, and few
        draws that all come near 0 would say that the row is exact: there, they come from [-1, -1/2] and [1/2, 1].
        """
        size = shape.numel()
        start = int(torch.randint(_NOISE_LENGTH, (), generator=self._places))
        stretch = self._noise_twice[start : start + min(size, _NOISE_LENGTH)]
        if size > _NOISE_LENGTH:
            stretch = stretch.repeat(size // _NOISE_LENGTH + 1)[:size]
        noise = stretch.reshape(shape)
        return (noise + noise.sign()) / 2.0 if shape[-1] == 1 else noise


def _root_of_squares(left: Tensor, right: Tensor) -> Tensor:
    """The root of the sum of the squares of a product's terms.

    How large an error is need not be known to more than float32, which halves the cost of the second product.
    """
    return (left.float().square_() @ right.float().square_()).sqrt_().to(left.dtype)


@cache
def _long_draw(seed: int, device: torch.device) -> Tensor:
    """Numbers uniform in [-1, 1], twice in a row, so that a stretch may begin anywhere."""
    generator = torch.Generator(device=device).manual_seed(seed)
    drawn = torch.empty(_NOISE_LENGTH, dtype=torch.float64, device=device)
    return drawn.uniform_(-1.0, 1.0, generator=generator).repeat(2)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Largest relative error of rounding to nearest: 2^-53, 2^-24, 2^-11 (float16), 2^-8 (bfloat16)."""
    return torch.finfo(dtype).eps / 2


@dataclass(frozen=True)
class Expectation:
    """The right answer to a problem, and how far from it a right implementation may be."""

    solution: Solution
    budgets: dict[str, Tensor]
    """Allowed absolute error by ``output`` and gradient name, same shape as the tensor."""
    set_by: str
    """What sets the budget, in words."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Expected tensors by ``output`` and gradient name."""
        return _tensors(self.solution)


def expect(problem: Problem, dtype: torch.dtype, *, seed: int = 0, samples: int = SAMPLES) -> Expectation:
    """Solve a problem and derive the error budget of a computation in `dtype`.

    Args:
        problem: with tensors of the dtype under test.
        dtype: whose rounding is allowed; float64 allows twice its own, for the oracle's error.
        seed: of the simulated rounding.
        samples: how many rounded runs the spread is taken from.
    """
    exact = solve(problem)
    rounding = SimulatedRounding(dtype, seed, problem.x.device)
    spread = {name: torch.zeros_like(tensor) for name, tensor in _tensors(exact).items()}
    exact_is_nan = {name: tensor.isnan() for name, tensor in _tensors(exact).items()}
    for _ in range(samples):
        for name, rounded in _tensors(solve(problem, rounding)).items():
            # Not a sum of squares: gradients of tokens that hardly count are 1e-160, and squares of that are 0.
            off = (rounded - _tensors(exact)[name]) / math.sqrt(samples)
            spread[name].hypot_(
                torch.where(exact_is_nan[name], 0.0, off.nan_to_num(_BOUNDLESS).abs().clamp_(max=_BOUNDLESS))
            )
    oracle_error = 2.0 if dtype == torch.float64 else 1.0
    budgets = {
        name: SAFETY
        * oracle_error
        * (_spread(spread[name], tensor) + rounding.unit * _magnitude(name, tensor) + rounding.tiny)
        for name, tensor in _tensors(exact).items()
    }
    words = f"{str(dtype).removeprefix('torch.')} rounding (u = {rounding.unit:.1e})"
    return Expectation(exact, budgets, f"{words} with logits of up to {exact.largest_logit:.3g} in magnitude")


def _magnitude(name: str, exact: Tensor) -> Tensor:
    """What each element is rounded at: itself; in the gradient of x, a token that nothing uses at the size of others.

    Its gradient is 0, but as a sum of terms that cancel where keys are centred, say.
    """
    magnitude = exact.abs()
    if name != "x":
        return magnitude
    unused = (magnitude == 0).all(-1)
    if bool(unused.all()) or not bool(unused.any()):
        return magnitude
    typical = exact.square().mean(-1).sqrt()[~unused].median()
    return torch.where(unused[..., None], typical, magnitude)


def _spread(of_samples: Tensor, exact: Tensor) -> Tensor:
    """Pooled; what float64 itself rounds away shows as 0, and would pass for an answer without any error."""
    return pooled(of_samples.maximum(exact.abs() * unit_roundoff(torch.float64)))


def pooled(spread: Tensor) -> Tensor:
    """The spread at each element, from that of few samples (its root mean square): (..., n) to (..., n).

    Two samples say little of a single element, but rows share a spread, and so do columns (a trained model's x has
    channels a hundred times as large as the others). So it is the largest of three estimates: the element's own, its
    row's root mean square, and the product of a factor for its row and one for its column, each a geometric mean, so
    that a large column does not decide what the rows are, nor a large row what the columns are. One rounding (of a
    row's normaliser, say) may make up most of a row's error, so that two samples say little of a whole row either: its
    factor is no less than the median of its neighbours'. NaN (of rows expected to be NaN) and exact zeros are left out.
    """
    if spread.numel() == 0:
        return spread
    known = spread.nan_to_num(0.0)
    row = known.square().mean(dim=-1, keepdim=True).sqrt()
    table = known.reshape(-1, known.shape[-1])
    present = table > 0
    logs = torch.where(present, table, 1.0).log()
    row_log = logs.sum(1, keepdim=True) / present.sum(1, keepdim=True)
    row_log = row_log.nan_to_num(nan=-math.inf)  # of a row without any: it says nothing of its neighbours
    row_log = torch.maximum(row_log, _median_of_neighbours(row_log.reshape(known.shape[:-1])).reshape(row_log.shape))
    column_log = logs.sum(0) / present.sum(0).clamp(min=1)
    whole_log = logs.sum() / present.sum().clamp(min=1)
    product = torch.where(present, (row_log + column_log - whole_log + _LOG_BIAS).exp(), 0.0)
    return torch.maximum(torch.maximum(known, row), product.reshape(known.shape))


def _median_of_neighbours(rows: Tensor) -> Tensor:
    """The median over each row and those up to `_NEIGHBOURS` away on either side: (..., n) to (..., n).

    At either end the window is moved inwards, not filled up with the last row, which would then decide alone.
    """
    if rows.dim() == 0:
        return rows
    count = rows.shape[-1]
    width = min(2 * _NEIGHBOURS + 1, count)
    start = torch.arange(count, device=rows.device).sub_(_NEIGHBOURS).clamp_(0, count - width)
    window = start[:, None] + torch.arange(width, device=rows.device)
    return rows[..., window].median(dim=-1).values


def _tensors(solution: Solution) -> dict[str, Tensor]:
    return {"output": solution.output, **solution.gradients}


@dataclass(frozen=True)
class Comparison:
    """One tensor held against the oracle."""

    tensor: str
    """output, or the parameter whose gradient it is."""
    max_error: float
    """Largest absolute error; NaN if an unexpected NaN came."""
    budget_used: float
    """Largest error over budget; above 1 is a failure, infinite for an unexpected NaN or infinity."""
    at: tuple[int, ...]
    """Index of the element that uses most of its budget."""
    got: float
    expected: float
    budget: float
    is_evidence: bool
    """Whether an output of zeros would have failed."""

    @property
    def passed(self) -> bool:
        """Within budget everywhere."""
        return self.budget_used <= 1.0


def hold_against(name: str, got: Tensor, expected: Tensor, budget: Tensor) -> Comparison:
    """Compare one tensor element by element.

    Expected NaN (a declared hazard) must be NaN, everything else must be finite and within budget.
    """
    if got.shape != expected.shape:
        raise ValueError(f"{name}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}")
    if got.numel() == 0:
        return Comparison(name, 0.0, 0.0, (), 0.0, 0.0, 0.0, is_evidence=True)
    wide = got.detach().to(expected.dtype)
    error = (wide - expected).abs()
    used = error / budget
    nan_expected = expected.isnan()
    used = torch.where(nan_expected, torch.where(wide.isnan(), 0.0, math.inf), used)
    used = torch.where(~nan_expected & ~wide.isfinite(), math.inf, used)
    flat = int(used.argmax())
    at = tuple(int(i) for i in np.unravel_index(flat, used.shape))  # torch's own imports sympy, a second per process
    zeros_pass = bool((expected.abs() <= budget).logical_or(nan_expected).all())
    errors = error[~nan_expected]
    return Comparison(
        tensor=name,
        max_error=float(errors.max()) if errors.numel() else 0.0,
        budget_used=float(used.flatten()[flat]),
        at=at,
        got=float(wide.flatten()[flat]),
        expected=float(expected.flatten()[flat]),
        budget=float(budget.flatten()[flat]),
        is_evidence=not zeros_pass or not bool(expected.any()),
    )


def baseline_error(problem: Problem, solution: Solution) -> float:
    """Largest output error of a careful computation: float32 inside (float64 for float64), rounded once at the end."""
    dtype = problem.x.dtype
    inner = torch.float64 if dtype == torch.float64 else torch.float32
    careful = solve(problem, dtype=inner).output.to(dtype).to(solution.output.dtype)
    difference = (careful - solution.output).abs()
    finite = difference[difference.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0

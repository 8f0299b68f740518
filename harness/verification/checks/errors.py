"""Checks of refusals: a wrong argument gives a clear error instead of an answer to another question."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from harness.subject import build_module
from harness.verification.check import Check, CheckFailedError, Evidence, Trial, core


def check_wrong_mask_dtype_is_a_type_error(trial: Trial) -> Evidence:
    """A mask that is not bool raises a TypeError that names the dtype that came."""
    seq_len, device = trial.case.seq_len, trial.case.device
    for dtype in (torch.float32, torch.uint8, torch.int64):
        mask = torch.zeros(seq_len, seq_len, dtype=dtype, device=device)
        error = _refusal(partial(_call, trial, mask), f"a mask of {dtype}", TypeError)
        _require_named(error, str(dtype).removeprefix("torch."))
    return Evidence()


def check_wrong_mask_shape_is_a_value_error(trial: Trial) -> Evidence:
    """A mask that does not broadcast to (B, H, S, S) raises a ValueError that names the shape that came."""
    b, h, s = trial.case.batch_size, trial.case.num_heads, trial.case.seq_len
    shapes = ((s + 1, s + 1), (s,), (), (b + 1, 1, 1, s), (b, h + 1, s, s), (b, s, s), (1, b, h, s, s))
    for shape in shapes:
        mask = torch.zeros(shape, dtype=torch.bool, device=trial.case.device)
        error = _refusal(partial(_call, trial, mask), f"a mask of shape {shape}", ValueError)
        _require_named(error, str(shape))
    return Evidence()


def check_wrong_d_model_is_an_error(trial: Trial) -> Evidence:
    """X with another number of channels than d_model raises an error."""
    x = torch.cat([trial.inputs.x, trial.inputs.x[..., :1]], dim=-1)
    _refusal(lambda: trial.subject.call(x), f"x with {x.shape[-1]} channels", Exception)
    return Evidence()


def check_indivisible_d_model_is_an_error(trial: Trial) -> Evidence:
    """Building with d_model % num_heads != 0 raises an error that says so."""
    error = _refusal(
        lambda: build_module(trial.implementation, 10, 3),
        "d_model 10 with 3 heads",
        (AssertionError, ValueError),
    )
    _require_named(error, "divisible")
    return Evidence()


def _call(trial: Trial, mask: Tensor) -> Tensor:
    with torch.no_grad():
        return trial.subject.call(trial.inputs.x, mask)


def _refusal(
    call: Callable[[], object], what: str, expected: type[BaseException] | tuple[type[BaseException], ...]
) -> BaseException:
    """The error that a call raises.

    Raises:
        CheckFailedError: none came, or one of another type.
    """
    try:
        call()
    except expected as error:
        return error
    except Exception as error:  # noqa: BLE001 - an error of the wrong type is the finding
        raise CheckFailedError(f"{what} raised {type(error).__name__}: {str(error).splitlines()[0][:120]}") from None
    raise CheckFailedError(f"{what} was accepted in silence")


def _require_named(error: BaseException, came: str) -> None:
    if came not in str(error):
        raise CheckFailedError(f"the error does not say what came ({came}): {str(error)[:120]!r}")


CHECKS = (
    Check(check_wrong_mask_dtype_is_a_type_error, core(("padding",)), general=True, bars_timing=False),
    Check(check_wrong_mask_shape_is_a_value_error, core(("padding",)), general=True, bars_timing=False),
    Check(check_wrong_d_model_is_an_error, core(("none",)), general=True, bars_timing=False),
    Check(check_indivisible_d_model_is_an_error, core(("none",)), general=True, bars_timing=False),
)

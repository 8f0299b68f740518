"""What a reproducer consists of: functions that need torch, the implementation's file and nothing else.

`harness.verification.reproducer` copies them as text into each script, and runs them here first, so that no script is
handed out that does not show the fault. So nothing here may use a name of this project but `ProjectedAttention`, which
is copied as well.

A call is a dict: ``x``, ``mask``, ``is_causal``, ``training``, ``with_gradients``, ``cotangent`` (None where there is
no backward pass) and ``written_over`` (whether its data come in the tensors of the call before it). Shapes: B batch,
H heads, S sequence, d_k head dim, d_model = H * d_k.
"""

# What is copied carries no waivers: it prints, it knows an implementation only by its attributes, and all its steps
# take the same arguments.
# ruff: noqa: ANN401, ARG001, BLE001, T201
# mypy: disable-error-code="no-untyped-call, no-any-return"

from __future__ import annotations

import base64
import importlib
import importlib.util
import math
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's own alias
from torch import Tensor, nn

from implementations.projections import ProjectedAttention


def load_implementation(origin: str, name: str, code: str, has_causal_flag: bool) -> Any:
    """The implementation of this name, from a file or an importable module; exits with 2 if it cannot be had.

    A file that declares none is plain code: a function `attend` or a module's class, whose name is `code`.
    """
    try:
        module = load_module(origin)
    except (ImportError, OSError, SyntaxError) as error:
        print(f"{origin} cannot be loaded: {error}")
        sys.exit(2)
    declared: Any = getattr(module, "IMPLEMENTATIONS", getattr(module, "IMPLEMENTATION", ()))
    if not declared and hasattr(module, code):
        kind = "build" if isinstance(getattr(module, code), type) else "attend"
        plain = {"attend": None, "build": None, "pack": dict, "unpack": dict, "has_causal_flag": has_causal_flag}
        return SimpleNamespace(**{**plain, kind: getattr(module, code)})
    found = [each for each in (declared if isinstance(declared, (tuple, list)) else [declared]) if each.name == name]
    if not found:
        print(f"{origin} has no implementation named {name}")
        sys.exit(2)
    return found[0]


def load_module(origin: str) -> Any:
    """Import a file, which may import others beside it, or an installed module by its name."""
    if not origin.endswith(".py"):
        return importlib.import_module(origin)
    sys.path.append(str(Path(origin).parent))
    spec: Any = importlib.util.spec_from_file_location("implementation_under_test", origin)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def tensor(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, packed: str) -> Tensor:
    """A tensor with its own strides, from its memory as base64 of zlib."""
    memory = bytearray(zlib.decompress(base64.b64decode(packed)))
    flat = (
        torch.frombuffer(memory, dtype=getattr(torch, dtype)) if memory else torch.empty(0, dtype=getattr(torch, dtype))
    )
    return flat.as_strided(shape, strides, offset)


def copy_of(tensor: Tensor) -> Tensor:
    """A copy with the same strides and offset, in a copy of the same memory."""
    storage = tensor.detach().untyped_storage().clone()
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def build(implementation: Any, weights: dict[str, Tensor], num_heads: int) -> nn.Module:
    """A module with these eight parameters, W_q.weight to W_o.bias, each weight (out, in)."""
    w_o = weights["W_o.weight"]
    if implementation.build is not None:
        module = implementation.build(len(w_o), num_heads)
    else:  # an attention function: the four projections are put around it
        module = ProjectedAttention(len(w_o), num_heads, implementation.attend)
    module.load_state_dict(implementation.pack(weights))
    return module.to(device=w_o.device, dtype=w_o.dtype)


def run(implementation: Any, module: nn.Module, x: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    """One forward pass; a module without the causal flag gets the dense mask instead."""
    if not is_causal:
        return module(x, mask)
    if implementation.has_causal_flag:
        return module(x, mask, is_causal=True)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(diagonal=1)
    return module(x, future if mask is None else mask | future)


def replay(implementation: Any, module: nn.Module, calls: list[dict[str, Any]], judged: int) -> dict[str, Tensor]:
    """Make all calls in order; what the judged one gives: ``output`` and, after a backward pass, the gradients."""
    x, mask = torch.empty(0), None
    for index, call in enumerate(calls):
        module.train(call["training"])
        if call["written_over"]:
            x.copy_(call["x"])
            mask = None if mask is None else mask.copy_(call["mask"])
        else:
            x = copy_of(call["x"])
            mask = None if call["mask"] is None else copy_of(call["mask"])
        if call["cotangent"] is not None:
            module.zero_grad(set_to_none=True)
            x.requires_grad_()
        with torch.set_grad_enabled(call["with_gradients"]):
            output = run(implementation, module, x, mask, call["is_causal"])
        if index == judged:
            judged_x, judged_output = x, output
        elif call["cotangent"] is not None:
            output.backward(call["cotangent"])
    got = {"output": judged_output.detach().clone()}
    if calls[judged]["cotangent"] is not None:
        judged_output.backward(calls[judged]["cotangent"])
        given = {"x": judged_x, **dict(module.named_parameters())}
        gradients = {name: leaf.grad for name, leaf in given.items() if leaf.grad is not None}
        got |= {"x": gradients.pop("x")} if "x" in gradients else {}
        got |= implementation.unpack(gradients) if len(gradients) == len(given) - 1 else gradients
    return got


def formula(
    x: Tensor, mask: Tensor | None, is_causal: bool, weights: dict[str, Tensor], num_heads: int, empty_row: float
) -> Tensor:
    """What is right: W_o softmax(Q K^T / sqrt(d_k)) V, where True in the mask hides a key."""

    def split(letter: str) -> Tensor:
        projected = F.linear(x, weights[f"W_{letter}.weight"], weights[f"W_{letter}.bias"])
        return projected.unflatten(-1, (num_heads, -1)).transpose(1, 2)  # (B, H, S, d_k)

    q, k, v = split("q"), split("k"), split("v")
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(diagonal=1)
    hidden = future & is_causal if mask is None else mask | (future & is_causal)
    empty = hidden.all(dim=-1, keepdim=True)  # rows without any key
    logits = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden & ~empty, -math.inf)
    heads = logits.softmax(dim=-1).masked_fill(empty, empty_row) @ v
    return F.linear(heads.transpose(1, 2).flatten(2), weights["W_o.weight"], weights["W_o.bias"])


def right_answer(
    call: dict[str, Any], weights: dict[str, Tensor], num_heads: int, empty_row: float
) -> dict[str, Tensor]:
    """The formula's output in float64 and, where there is a backward pass, its gradients."""
    x = call["x"].detach().double().requires_grad_()
    w = {name: weight.detach().double().requires_grad_() for name, weight in weights.items()}
    output = formula(x, call["mask"], call["is_causal"], w, num_heads, empty_row)
    if call["cotangent"] is None:
        return {"output": output.detach()}
    gradients = torch.autograd.grad(output, [x, *w.values()], call["cotangent"].double())
    return {"output": output.detach(), **dict(zip(["x", *w], gradients, strict=True))}


def differs(got: dict[str, Tensor], expected: dict[str, Tensor], budgets: dict[str, Tensor]) -> bool:
    """Print, for each tensor, its largest error and where it is furthest beyond its budget; whether any is beyond."""
    wrong = False
    for name, budget in budgets.items():
        what, right = "output" if name == "output" else f"gradient of {name}", expected[name]
        if name not in got or got[name].shape != right.shape:
            came = tuple(got[name].shape) if name in got else "nothing"
            print(f"{what}: {came} came, expected shape {tuple(right.shape)}")
            wrong = True
            continue
        if right.numel() == 0:
            continue
        error = (got[name].double() - right).abs()
        used = error / budget.double()
        used = torch.where(right.isnan(), torch.where(got[name].isnan(), 0.0, math.inf), used.nan_to_num(math.inf))
        at = tuple(int(i) for i in torch.unravel_index(used.argmax(), used.shape))
        print(
            f"{what}: largest error {float(error.max()):.3g}; got {float(got[name][at]):.6g}, "
            f"expected {float(right[at]):.6g} at {list(at)}; "
            f"{float(used[at]):.3g} times the budget of {float(budget[at]):.2e}"
        )
        wrong = wrong or float(used[at]) > 1.0
    return wrong


def answers_wrongly(
    implementation: Any,
    weights: dict[str, Tensor],
    num_heads: int,
    calls: list[dict[str, Any]],
    judged: int,
    budgets: dict[str, Tensor],
    empty_row: float,
) -> bool:
    """Make the calls with a fresh module, and hold the judged one's answer against the formula."""
    expected = right_answer(calls[judged], weights, num_heads, empty_row)
    got = replay(implementation, build(implementation, weights, num_heads), calls, judged)
    if got["output"].dtype != calls[judged]["x"].dtype:
        print(f"the output is {got['output'].dtype}, x {calls[judged]['x'].dtype}")
        return True
    return differs(got, expected, budgets)


def refuses(
    call: Callable[..., object],
    arguments: tuple[Any, ...],
    what: str,
    expected: type[Exception] | tuple[type[Exception], ...],
    word: str,
) -> bool:
    """Print what a call that must be refused does; whether it raises the expected error with the word in it."""
    try:
        call(*arguments)
    except expected as error:
        print(f"{what}: {type(error).__name__}: {error}")
        return word in str(error)
    except Exception as error:  # an error of the wrong type is the finding
        print(f"{what}: {type(error).__name__} instead of {expected}: {error}")
        return False
    print(f"{what}: accepted in silence")
    return False


def accepts_wrong_mask_dtypes(
    implementation: Any, weights: dict[str, Tensor], num_heads: int, calls: list[dict[str, Any]]
) -> bool:
    """Masks that are not bool have to raise a TypeError that names their dtype."""
    module, x = build(implementation, weights, num_heads), calls[0]["x"]
    refused = []
    for dtype in (torch.float32, torch.uint8, torch.int64):
        mask = torch.zeros(x.shape[1], x.shape[1], dtype=dtype, device=x.device)
        word = str(dtype).removeprefix("torch.")
        refused.append(refuses(module, (x, mask), f"mask of {dtype}", TypeError, word))
    return not all(refused)


def accepts_wrong_mask_shapes(
    implementation: Any, weights: dict[str, Tensor], num_heads: int, calls: list[dict[str, Any]]
) -> bool:
    """Masks that do not broadcast to (B, H, S, S) have to raise a ValueError that names their shape."""
    module, x, h = build(implementation, weights, num_heads), calls[0]["x"], num_heads
    b, s, _ = x.shape
    refused = []
    for shape in ((s + 1, s + 1), (s,), (), (b + 1, 1, 1, s), (b, h + 1, s, s), (b, s, s), (1, b, h, s, s)):
        mask = torch.zeros(shape, dtype=torch.bool, device=x.device)
        refused.append(refuses(module, (x, mask), f"mask of shape {shape}", ValueError, str(shape)))
    return not all(refused)


def accepts_wrong_d_model(
    implementation: Any, weights: dict[str, Tensor], num_heads: int, calls: list[dict[str, Any]]
) -> bool:
    """X with one channel too many has to raise an error."""
    module = build(implementation, weights, num_heads)
    x = torch.cat([calls[0]["x"], calls[0]["x"][..., :1]], dim=-1)
    return not refuses(module, (x,), f"x with {x.shape[-1]} channels", Exception, "")


def accepts_indivisible_d_model(
    implementation: Any, weights: dict[str, Tensor], num_heads: int, calls: list[dict[str, Any]]
) -> bool:
    """d_model 10 with 3 heads has to raise an error that says so."""
    tiny = {name: torch.zeros(10, 10)[: 10 if name.endswith("weight") else 1].squeeze(0) for name in weights}
    error = (AssertionError, ValueError)
    return not refuses(build, (implementation, tiny, 3), "d_model 10 with 3 heads", error, "divisible")


def changes_its_inputs(
    implementation: Any, weights: dict[str, Tensor], num_heads: int, calls: list[dict[str, Any]]
) -> bool:
    """A call, and its backward pass, have to leave x, mask, parameters and the gradient handed in as they are."""
    module, call = build(implementation, weights, num_heads), calls[0]
    watched = {name: call[name] for name in ("x", "mask", "cotangent") if call[name] is not None}
    watched |= {f"parameter {name}": parameter for name, parameter in module.named_parameters()}
    before = {name: value.detach().clone() for name, value in watched.items()}
    module.train(call["training"])
    with torch.set_grad_enabled(call["with_gradients"]):
        x = call["x"].detach().clone().requires_grad_() if call["cotangent"] is not None else call["x"]
        output = run(implementation, module, x, call["mask"], call["is_causal"])
    if call["cotangent"] is not None:
        output.backward(call["cotangent"])
    changed = [name for name, value in watched.items() if not torch.equal(value.detach(), before[name])]
    print(f"changed by the call: {', '.join(changed) or 'nothing'}")
    return bool(changed)


def does_not_repeat(
    implementation: Any, weights: dict[str, Tensor], num_heads: int, calls: list[dict[str, Any]]
) -> bool:
    """In eval, equal calls have to give equal bits, and the global random state has to stand still."""
    module, call = build(implementation, weights, num_heads).eval(), calls[0]
    state = torch.get_rng_state()
    with torch.no_grad():
        first = run(implementation, module, call["x"], call["mask"], call["is_causal"]).clone()
        run(implementation, module, 0.5 * call["x"].flip(0) + 1.0, call["mask"], call["is_causal"])
        second = run(implementation, module, call["x"], call["mask"], call["is_causal"])
    moved = not torch.equal(torch.get_rng_state(), state)
    print(f"{int((first != second).sum())} of {first.numel()} elements differ between equal calls")
    print(f"the global random state {'moved' if moved else 'stood still'}")
    return moved or not torch.equal(first, second)


def shares_its_output(
    implementation: Any, weights: dict[str, Tensor], num_heads: int, calls: list[dict[str, Any]]
) -> bool:
    """An output has to stay as it is, and to share no memory with x, a parameter or another output."""
    module, call = build(implementation, weights, num_heads).eval(), calls[0]
    with torch.no_grad():
        first = run(implementation, module, call["x"], call["mask"], call["is_causal"])
        kept = first.clone()
        second = run(implementation, module, call["x"].flip(0), call["mask"], call["is_causal"])
    others = {"x": call["x"], "another output": second, **dict(module.named_parameters())}
    memory = first.untyped_storage().data_ptr()
    shared = [name for name, other in others.items() if other.untyped_storage().data_ptr() == memory]
    overwritten = not torch.equal(first, kept)
    print(f"the output shares memory with {', '.join(shared) or 'nothing'}")
    print(f"a second call {'overwrote' if overwritten else 'left'} the first one's output")
    return overwritten or bool(shared)


def loses_parameters(
    implementation: Any, weights: dict[str, Tensor], num_heads: int, calls: list[dict[str, Any]]
) -> bool:
    """The eight parameters, loaded and read back, have to be the same bit for bit."""
    back = implementation.unpack(dict(build(implementation, weights, num_heads).named_parameters()))
    changed = [name for name in weights if name not in back or not torch.equal(back[name].detach(), weights[name])]
    print(f"changed on the way: {', '.join(changed) or 'nothing'}")
    return bool(changed)

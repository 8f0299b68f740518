"""Every check of the shared suite, for every implementation and dtype: `pytest -k sdpa` selects as one would think.

These run in this process; `mha verify` runs the same checks in child processes.
"""

from collections.abc import Iterator

import pytest
import torch

from harness.records import BAD_CHECK_STATUSES
from harness.registry import load_registry
from harness.verification.suite import CHECK_NAMES, Selection, plan, run_item
from implementations.spec import ALL_DTYPES

REGISTRY = load_registry()
MARGIN = 0.5
"""Right implementations stay below half of their error budget: the budget has room, and no test is near its edge."""


def _parameters() -> Iterator[object]:
    for name, registered in REGISTRY.items():
        for dtype in ALL_DTYPES:
            if dtype in registered.implementation.dtypes:
                for check in CHECK_NAMES:
                    yield pytest.param(name, check, dtype, id=f"{name}-{check}-{dtype}")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Test processes run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "check", "dtype"), list(_parameters()))
def test_contract(name: str, check: str, dtype: str) -> None:
    implementation = REGISTRY[name].implementation
    selection = Selection(checks=(check,), dtypes=(dtype,))
    records = [run_item(implementation, item, selection) for item in plan(implementation, selection)]
    bad = [f"{r.case}: {r.status}: {'; '.join(r.reasons)}" for r in records if r.status in BAD_CHECK_STATUSES]
    assert not bad, "\n".join(bad)
    passed = [r for r in records if r.status == "passed"]
    if not passed:
        pytest.skip("; ".join(dict.fromkeys(reason for r in records for reason in r.reasons)) or "no case")
    used = max((r.budget_used for r in passed if r.budget_used is not None), default=0.0)
    assert used < MARGIN, f"a right implementation uses {used:.2f} of its error budget"

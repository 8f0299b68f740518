"""Every wrong implementation of the zoo is caught by the check that is meant to name it."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from harness.verification.selftest import ALL_CHECKS, CLEARLY_BEYOND, Mutant, excess_of, failures, faults_page, load_zoo
from harness.verification.suite import CHECK_NAMES

ZOO = load_zoo()
WRONG = [mutant for mutant in ZOO.mutants if not mutant.equivalent]
EQUIVALENT = [mutant for mutant in ZOO.mutants if mutant.equivalent]
PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """The cases are small: a second thread only waits, and on a busy machine it waits long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.name)
def test_a_wrong_implementation_is_caught_by_the_check_that_names_it(mutant: Mutant) -> None:
    named = (mutant.expected_check,)
    assert any(list(failures(mutant, stage, checks=named)) for stage in mutant.stages)


@pytest.mark.parametrize("mutant", [m for m in WRONG if m.numeric], ids=lambda mutant: mutant.name)
def test_a_fault_of_accuracy_is_beyond_twice_its_budget_in_some_check(mutant: Mutant) -> None:
    assert excess_of(mutant).factor > CLEARLY_BEYOND


@pytest.mark.parametrize("mutant", EQUIVALENT, ids=lambda mutant: mutant.name)
def test_a_change_that_is_no_fault_passes_every_check(mutant: Mutant) -> None:
    assert list(failures(mutant, ALL_CHECKS)) == []


def test_names_are_unique() -> None:
    assert [name for name, times in Counter(mutant.name for mutant in ZOO.mutants).items() if times > 1] == []


def test_every_mutant_says_what_is_wrong() -> None:
    assert [mutant.name for mutant in ZOO.mutants if not mutant.stands_for.endswith(".")] == []


def test_every_check_has_a_mutant_that_it_is_meant_to_name() -> None:
    assert set(CHECK_NAMES) - {mutant.expected_check for mutant in WRONG} == set()


def test_every_reported_fault_has_a_mutant_or_another_guard() -> None:
    stood_for = {fault for mutant in ZOO.mutants for fault in mutant.faults}
    assert [fault.what for fault in ZOO.faults if not fault.guard and not stood_for & set(fault.reports)] == []


def test_every_report_that_a_mutant_stands_for_is_in_the_table() -> None:
    listed = {report for fault in ZOO.faults for report in fault.reports}
    assert {fault for mutant in ZOO.mutants for fault in mutant.faults} <= listed


def test_the_page_of_faults_is_that_of_the_zoo() -> None:
    assert PAGE.read_text(encoding="utf-8") == faults_page(ZOO), "make it again: mha selftest --faults > docs/faults.md"

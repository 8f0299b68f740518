"""The self test of the verifier: what it counts, and that it owns up to survivors and false alarms."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import harness
from harness.cli import run
from harness.errors import UserError
from harness.registry import load_registry
from harness.verification import selftest
from harness.verification.selftest import Zoo, find_zoo, load_zoo, self_test

ZOO = load_zoo()

BLIND = '''
"""A zoo with one mutant that dies, one that passes, and one that is called right and is not."""
import os
from harness.verification.selftest import Mutant
from implementations.einsum import attend
from implementations.spec import Implementation

def wrong(q, k, v, mask, *, is_causal):
    return 2 * attend(q, k, v, mask, is_causal=is_causal)

def dies(q, k, v, mask, *, is_causal):
    os._exit(3)

def mutant(name, function, **more):
    implementation = Implementation(name, summary=name, source="", attend=function)
    return Mutant(implementation, group="blind", stands_for=f"{name}.", expected_check="matches_the_oracle", **more)

FAULTS = ()
MUTANTS = (
    mutant("survivor", attend), mutant("dying", dies), mutant("twice", wrong),
    mutant("accused", wrong, equivalent="so they say"),
)
IMPLEMENTATIONS = tuple(each.implementation for each in MUTANTS)
'''


@pytest.fixture
def blind_zoo(tmp_path: Path) -> Zoo:
    folder = tmp_path / "mutants"
    folder.mkdir()
    (folder / "__init__.py").write_text(BLIND)
    return load_zoo(folder / "__init__.py")


def test_survivors_deaths_and_false_alarms_are_told_apart(blind_zoo: Zoo) -> None:
    verdict = self_test(blind_zoo, right=[])
    assert [mutant.name for mutant in verdict.survivors] == ["survivor", "dying"]
    assert "status 3" in verdict.outcomes["dying"].died
    assert "matches_the_oracle" in verdict.outcomes["twice"].caught_by
    assert {record.implementation for record in verdict.false_alarms} == {"accused"}
    assert not verdict.is_good
    assert verdict.as_json()["mutants"] == 3
    assert verdict.as_json()["caught"] == 1


def test_a_false_alarm_can_be_repeated_with_the_zoo_as_plugin(blind_zoo: Zoo) -> None:
    verdict = self_test(blind_zoo.only(["accused"]), right=[])
    assert all(record.reproduce.endswith(f"--plugin {blind_zoo.file}") for record in verdict.false_alarms)
    assert load_registry([blind_zoo.file])["accused"].plugin == blind_zoo.file


def test_the_command_exits_1_when_something_survives(blind_zoo: Zoo, monkeypatch, capfd) -> None:
    monkeypatch.setattr(selftest, "load_zoo", lambda: blind_zoo)
    code = run(["selftest", "--mutant", "survivor", "--mutant", "accused", "--right", "einsum"])
    out = capfd.readouterr().out
    assert code == 1
    assert "survivor survives: survivor." in out
    assert "false alarm: matches_the_oracle failed" in out
    assert "0 of 1 wrong implementations caught" in out


def test_the_command_prints_the_matrix_and_writes_it_as_json(capfd, tmp_path: Path) -> None:
    file = tmp_path / "selftest.json"
    chosen = ["small_fill", "scale_missing", "key_bias_dropped"]
    code = run(
        [
            "selftest",
            "--json",
            str(file),
            *(word for name in chosen for word in ("--mutant", name)),
            "--right",
            "einsum",
        ]
    )
    out = capfd.readouterr().out
    content = json.loads(file.read_text())
    assert code == 0
    assert "2 of 2 wrong implementations caught, 0 false alarms" in out
    assert "masked_keys_lose_to_any_allowed_logit 1: small_fill" in out
    assert "key_bias_dropped: b_k adds the same number" in out
    assert {key: content[key] for key in ("mutants", "caught", "false_alarms", "survivors")} == {
        "mutants": 2,
        "caught": 2,
        "false_alarms": 0,
        "survivors": [],
    }
    assert content["matrix"]["small_fill"] == ["masked_keys_lose_to_any_allowed_logit"]
    assert list(content["equivalent"]) == ["key_bias_dropped"]


def test_a_mutant_caught_by_another_check_than_the_one_meant_is_named() -> None:
    (mutant,) = ZOO.only(["small_fill"]).mutants
    claimed = replace(mutant, expected_check="modes_agree")
    assert self_test(Zoo(ZOO.file, (mutant,), ()), right=[]).misnamed == ()
    assert self_test(Zoo(ZOO.file, (claimed,), ()), right=[]).misnamed == (claimed,)


def test_a_mutant_that_float32_cannot_show_is_tried_in_other_dtypes() -> None:
    verdict = self_test(ZOO.only(["fill_turns_infinite_in_half"]), right=[])
    assert verdict.outcomes["fill_turns_infinite_in_half"].dtypes == ("float16",)


def test_an_unknown_mutant_is_refused_in_one_line(capfd) -> None:
    assert run(["selftest", "--mutant", "nobody"]) == 2
    assert "no mutant named nobody" in capfd.readouterr().err


def test_an_installed_package_brings_the_zoo_along(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "harness"
    (package / "mutants").mkdir(parents=True)
    monkeypatch.setattr(harness, "__file__", str(package / "__init__.py"))
    with pytest.raises(UserError, match="no wrong implementations to test the verifier on"):
        find_zoo()
    (package / "mutants" / "__init__.py").touch()
    assert find_zoo() == package / "mutants" / "__init__.py"


def test_the_zoo_is_larger_than_sixty() -> None:
    assert sum(not mutant.equivalent for mutant in ZOO.mutants) >= 60


def test_the_page_of_faults_goes_to_standard_output(capfd) -> None:
    assert run(["selftest", "--faults"]) == 0
    assert capfd.readouterr().out.startswith("# Faults that really happened")

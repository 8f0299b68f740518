import math

import pytest

from harness.statistics import Comparison
from reports import text


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (1.2345, "1.23 s"),
        (0.9996, "1.00 s"),
        (0.0123456, "12.3 ms"),
        (0.00099951, "1.00 ms"),
        (0.00012344, "123 µs"),
        (4.56e-7, "0.456 µs"),
        (1234.0, "1,234 s"),
    ],
)
def test_latencies_have_three_digits_and_a_unit_that_fits(seconds, written):
    assert text.latency(seconds) == written


@pytest.mark.parametrize(
    ("size", "written"),
    [
        (0, "0 MiB"),
        (1024**2, "1.00 MiB"),
        (64 * 1024**2, "64.0 MiB"),
        (100, "<0.01 MiB"),
        (2**34, "16,384 MiB"),
    ],
)
def test_memory_is_in_mebibytes(size, written):
    assert text.mebibytes(size) == written


def test_rounding_up_does_not_add_a_digit():
    assert text.significant(9.996) == "10.0"
    assert text.significant(0.09996) == "0.100"
    assert text.significant(-1.5, 2) == "-1.5"


@pytest.mark.parametrize(
    ("comparison", "written"),
    [
        (Comparison(0.25, 0.23, 0.26, "faster", 80, 0.99), "4.0x faster than other [3.8, 4.3]"),
        (Comparison(4.1, 3.9, 4.3, "slower", 80, 0.99), "4.1x slower than other [3.9, 4.3]"),
        (Comparison(1.0, 0.99, 1.01, "tied", 80, 0.99), "tied with other, 1.00x its time [0.99, 1.01]"),
        (
            Comparison(1.05, 0.9, 1.2, "unresolved", 20, 0.99),
            "unresolved against other, 1.1x its time [0.9, 1.2]",
        ),
        (
            Comparison(0.5, 0.0, math.inf, "unresolved", 5, 0.99),
            "unresolved against other: 5 rounds give no interval",
        ),
        (Comparison(2.1, 1.3, 5.2, "slower", 11, 0.99), "2.1x slower than other [1.3, 5.2]"),
        (Comparison(60.0, 40.0, 90.0, "slower", 80, 0.99), "60x slower than other [40, 90]"),
    ],
)
def test_ratios_have_as_many_digits_as_their_interval_leaves(comparison, written):
    assert text.lead_over("other", comparison) == written


@pytest.mark.parametrize(
    ("names", "written"),
    [([], "none"), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")],
)
def test_names_are_listed_as_in_a_sentence(names, written):
    assert text.listed(names) == written


def test_control_characters_never_reach_a_page():
    assert text.printable("a\x1b[31m\nb\x00") == "a\ufffd[31m b\ufffd"

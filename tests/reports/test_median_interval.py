import math

import numpy as np
import pytest
from scipy.stats import quantile_test

from harness.statistics import median_interval


@pytest.mark.parametrize("count", [1, 2, 5, 7, 8, 9, 20, 33, 80, 160])
@pytest.mark.parametrize("level", [0.95, 0.99, 1 - 0.01 / 4, 1 - 0.01 / 60])
def test_the_interval_equals_that_of_scipys_quantile_test(count, level):
    data = np.random.default_rng(count).normal(0.03, 0.05, count)
    expected = quantile_test(data, q=0.0, p=0.5).confidence_interval(level)

    low, high = median_interval(sorted(data), level=level)

    assert low == (-math.inf if math.isnan(expected.low) else expected.low)
    assert high == (math.inf if math.isnan(expected.high) else expected.high)


def test_seven_rounds_give_no_finite_interval_at_99_percent_and_eight_do():
    assert median_interval(range(7), level=0.99) == (-math.inf, math.inf)
    assert median_interval(range(8), level=0.99) == (0, 7)

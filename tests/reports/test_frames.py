import math

import numpy as np
import pytest

from harness.records import RunFolder
from reports.frames import checks_frame, measurements_frame, read


def test_medians_and_quartiles_come_from_the_samples(make_run):
    run = make_run(lengths=(128,), checked=False)
    frame = read(run).measurements
    for record, row in zip(RunFolder(run).measurements(), frame.itertuples(), strict=True):
        if record.samples is None:
            assert math.isnan(row.median_s)
        else:
            quartiles = np.quantile(record.samples.wall_s, (0.25, 0.5, 0.75))
            assert [row.q1_s, row.median_s, row.q3_s] == pytest.approx(quartiles, rel=1e-14)
            assert row.flops_per_s == record.flops / row.median_s


def test_an_error_that_is_not_a_number_is_infinite_and_a_missing_one_is_not(make_run):
    frame = read(make_run(lengths=(128,))).checks
    known = frame[frame["status"] == "known_failure"]
    unsupported = frame[frame["status"] == "unsupported"]
    assert len(known) == 18
    assert np.isinf(known["max_error"]).all()
    assert unsupported["max_error"].isna().all()


def test_frames_without_records_have_all_their_columns():
    assert {"implementation", "check", "status", "budget_used"} <= set(checks_frame([]).columns)
    assert {"implementation", "key", "seq_len", "median_s"} <= set(measurements_frame([]).columns)

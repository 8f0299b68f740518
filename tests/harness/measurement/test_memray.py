"""The profiler's peak held against another tool's: memray sees every allocation of a process, torch's among them."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness.measurement.memory import footprint

memray = pytest.importorskip("memray", reason="memray tracks native allocations on Linux and macOS")

pytestmark = pytest.mark.usefixtures("capfd")

SCRIPT = """
import sys
import memray
import torch
import torch.nn.functional as F

torch.set_num_threads(2)
q, k, v = (torch.randn(1, 8, 1024, 64) for _ in range(3))
CALLS = {{
    "naive": lambda: (q @ k.transpose(-1, -2)).softmax(-1) @ v,
    "fused": lambda: F.scaled_dot_product_attention(q, k, v),
}}
call = CALLS[{name!r}]
with torch.no_grad():
    call()
    if __name__ == "__main__":
        with memray.Tracker(sys.argv[1], native_traces=False):
            call()
"""


def peak_by_memray(script: Path) -> int:
    """Peak heap of one call, in a process of its own."""
    capture = script.with_suffix(".bin")
    subprocess.run([sys.executable, script, capture], check=True, timeout=120)
    with memray.FileReader(capture) as reader:
        return sum(record.size for record in reader.get_high_watermark_allocation_records(merge_threads=True))


@pytest.mark.parametrize("name", ["naive", "fused"])
def test_the_peak_is_what_memray_sees(name, tmp_path):
    script = tmp_path / "call.py"
    script.write_text(SCRIPT.format(name=name))
    with torch.no_grad():
        ours = footprint(runpy.run_path(str(script))["call"]).peak_bytes
    theirs = peak_by_memray(script)
    # Python's own objects, threads' stacks and the like are memray's alone: a few KiB.
    assert ours <= theirs <= ours + 64 * 1024

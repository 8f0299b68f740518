import psutil
import pytest

from harness.measurement import limits
from harness.measurement.limits import free_memory_bytes, usable_cores

GIB = 2**30


def write_group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_without_control_groups_all_that_the_system_has_is_free(tmp_path):
    free = free_memory_bytes(tmp_path, tmp_path / "missing")
    assert free == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_the_tightest_limit_of_a_group_and_its_ancestors_holds(tmp_path):
    listing = tmp_path / "listing"
    listing.write_text("0::/outer/inner\n")
    write_group(tmp_path / "outer", memory__max=3 * 2**20, memory__current=2**20)
    write_group(tmp_path / "outer" / "inner", memory__max="max", memory__current=2**20)
    assert free_memory_bytes(tmp_path, listing) == 2 * 2**20


def test_cache_that_the_kernel_would_give_back_counts_as_free(tmp_path):
    listing = tmp_path / "listing"
    listing.write_text("0::/\n")
    write_group(tmp_path, memory__max=4 * 2**20, memory__current=4 * 2**20, memory__stat="anon 5\ninactive_file 1000")
    assert free_memory_bytes(tmp_path, listing) == 1000


def test_limits_of_version_one_are_read_too(tmp_path):
    listing = tmp_path / "listing"
    listing.write_text("7:cpu,cpuacct:/box\n5:memory:/box\n")
    write_group(tmp_path / "memory" / "box", memory__limit_in_bytes=2**20, memory__usage_in_bytes=2**19)
    assert free_memory_bytes(tmp_path, listing) == 2**19


def test_affinity_to_one_core_leaves_one(monkeypatch):
    monkeypatch.setattr(limits, "allowed_cpus", lambda: {0})
    assert usable_cores() == 1


def test_two_threads_of_one_core_count_as_one(monkeypatch):
    monkeypatch.setattr(limits, "allowed_cpus", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(limits, "_core_of", lambda cpu: (str(cpu // 2),))
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 4)
    monkeypatch.setattr(limits, "_cpu_quotas", lambda: iter([64]))
    assert usable_cores() == 2


def test_a_containers_quota_holds(monkeypatch):
    monkeypatch.setattr(limits, "allowed_cpus", lambda: set(range(64)))
    monkeypatch.setattr(limits, "_core_of", lambda cpu: (str(cpu),))
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 64)
    monkeypatch.setattr(limits, "_cpu_quotas", lambda: iter([4]))
    assert usable_cores() == 4

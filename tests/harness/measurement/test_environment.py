import importlib.metadata
import os
import subprocess
import sys
import time

import psutil
import pytest
import torch

from harness.measurement import environment
from harness.measurement.environment import commit_of, cores_kept_busy, describe_environment


def git(folder, *arguments):
    identity = ("-c", "user.name=A Test", "-c", "user.email=test@example.org")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, env=clean)


@pytest.fixture
def checkout(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_the_environment_names_machine_and_software():
    found = describe_environment()
    assert found.packages["torch"] == importlib.metadata.version("torch")
    assert set(found.packages) == {"torch", "xformers", "triton", "numpy", "scipy"}
    assert found.torch_config["CPU capability"] == torch.backends.cpu.get_cpu_capability()
    assert found.torch_config["BLAS"]
    assert found.cores >= 1
    assert found.memory_bytes > 2**28
    assert found.processor
    assert found.accelerator == (torch.cuda.get_device_name() if torch.cuda.is_available() else "")


def test_the_machine_id_is_short_repeats_and_depends_on_the_torch_build(monkeypatch):
    first = describe_environment().machine_id
    assert first == describe_environment().machine_id
    assert len(first) == 8
    monkeypatch.setattr(torch, "__version__", "0.0")
    assert describe_environment().machine_id != first


def test_a_missing_package_has_an_empty_version(monkeypatch):
    monkeypatch.setattr(environment, "_PACKAGES", ("torch", "no-such-package"))
    assert describe_environment().packages["no-such-package"] == ""


def test_sleep_keeps_no_core_busy_and_a_loop_one():
    idle = cores_kept_busy(0.2)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as hog:
        time.sleep(0.3)
        busy = cores_kept_busy(0.5)
        hog.kill()
    assert 0.0 <= idle <= psutil.cpu_count()
    assert 0.3 < busy <= psutil.cpu_count()


def test_a_clean_checkout_gives_its_commit(checkout):
    commit = commit_of(checkout)
    assert len(commit) == 12
    int(commit, 16)


def test_a_changed_checkout_says_so(checkout):
    (checkout / "file").write_text("two")
    assert commit_of(checkout).endswith("+changes")


def test_a_folder_that_is_no_repository_of_its_own_has_no_commit(checkout):
    inner = checkout / "site-packages"
    inner.mkdir()
    assert commit_of(inner) == ""

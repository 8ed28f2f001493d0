"""Many replays at once, in processes and on a Dask cluster; and what `import emulator` brings in."""

from __future__ import annotations

import subprocess
import sys

import pytest

import emulator
from emulator.errors import InputError
from emulator.trace import io
from tests.jobs import collective, compute, job, wait

CODE = (
    "import sys, emulator; print(sorted(m for m in ('torch', 'numpy', 'rich', 'emulator.capture') if m in sys.modules))"
)


@pytest.fixture
def jobs(tmp_path):
    trace = job({"dp": 8}, [compute(0, 1e-3), collective(1, "all_reduce", "dp", 10**6, deps=[0]), wait(2, 1)])
    io.write(trace, tmp_path / "t.json")
    return emulator.sweep(trace=[tmp_path / "t.json"], topology=["fattree", "fiber"])


def steps(results):
    return [result.step_seconds for result in results]


def test_processes_give_what_one_process_gives(jobs):
    alone = emulator.run_many(jobs, processes=1)
    assert [result.topology.name for result in alone] == ["fattree", "fiber"]
    assert steps(emulator.run_many(jobs, processes=2)) == steps(alone)


def test_a_dask_cluster_gives_the_same(jobs):
    distributed = pytest.importorskip("distributed", reason="Dask is an optional extra")
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        found = emulator.run_many(jobs, client=client)
    assert steps(found) == steps(emulator.run_many(jobs, processes=1))


def test_an_error_of_one_job_arrives_whole(jobs):
    jobs[1]["topology"] = "moebius"
    with pytest.raises(InputError, match="moebius"):
        emulator.run_many(jobs, processes=2)


def test_importing_the_package_is_light():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

"""Recorded steps executed on real tensors by the simulator's own start and end events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from emulator.api import run  # noqa: E402
from emulator.capture.command import record_command  # noqa: E402
from emulator.errors import InputError  # noqa: E402
from emulator.trace import io  # noqa: E402
from emulator.trace.schema import BlockUse  # noqa: E402
from emulator.verify.random_order import issue_order, random_order  # noqa: E402
from emulator.verify.recorded import read_recorded  # noqa: E402
from emulator.verify.simulated import schedule_of  # noqa: E402
from emulator.verify.trace import verify_result, verify_trace  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

OWN = str(Path(__file__).with_name("verify_workload.py"))
TOPOLOGIES = ("fattree", "torus", "fiber")
LLAMA = ("--model", "tiny", "--layers", "2")


def recorded(folder, script, *arguments):
    path = folder / "t.json"
    record_command(path, script, arguments, with_state=True)
    return str(path)


def assert_proved(name, **how):
    report = verify_trace(name, **how)
    assert [(c.name, c.subject, f) for c in report.checks for f in c.findings] == []
    executed = [c for c in report.checks if c.name == "execution"]
    assert all(c.compared > 20 for c in executed)
    return report


@pytest.mark.parametrize(("kind", "ranks"), [("data", 2), ("experts", 2), ("ring", 4), ("pipeline", 2)])
def test_written_by_hand(tmp_path, kind, ranks):
    """DDP, expert, context and pipeline parallelism in a few lines each, on three topologies and in random orders."""
    name = recorded(tmp_path, OWN, "--kind", kind, "--ranks", str(ranks))
    report = assert_proved(name, topologies=TOPOLOGIES, seeds=(1,))
    assert [c.subject for c in report.checks if c.name == "execution"] == [
        "issue order", "as simulated on fattree", "as simulated on torus", "as simulated on fiber",
        "random order 1, streams", "random order 1, data",
    ]  # fmt: skip


STRATEGIES = {
    "fsdp": ("--fsdp", "2"),
    "ddp": ("--dp", "2"),
    "tp-sp": ("--tp", "2"),
    "1f1b": ("--pp", "2", "--schedule", "1F1B", "--microbatches", "2"),
}
MORE = {
    "zero1": ("--dp", "2", "--zero", "1"),
    "fsdp1": ("--fsdp", "2", "--fsdp-version", "1"),
    "hsdp": ("--dp", "2", "--fsdp", "2"),
    "recompute": ("--fsdp", "2", "--recompute", "full"),
    "cp4": ("--cp", "4"),
    "interleaved": ("--pp", "2", "--schedule", "Interleaved1F1B", "--microbatches", "4", "--layers", "4"),
    "zero-bubble": ("--pp", "2", "--schedule", "InterleavedZeroBubble", "--microbatches", "4", "--layers", "4"),
    "zbv": ("--pp", "2", "--schedule", "ZBVZeroBubble", "--microbatches", "4", "--layers", "4"),
    "dualpipe": ("--pp", "2", "--schedule", "DualPipeV", "--microbatches", "4", "--layers", "4"),
    "3d": ("--pp", "2", "--fsdp", "2", "--tp", "2", "--schedule", "1F1B", "--microbatches", "2"),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_llama(tmp_path, name):
    assert_proved(
        recorded(tmp_path, "workloads/llama.py", *LLAMA, *STRATEGIES[name]), topologies=TOPOLOGIES, seeds=(1,)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_llama_more(tmp_path, name):
    assert_proved(recorded(tmp_path, "workloads/llama.py", *LLAMA, *MORE[name]), topologies=TOPOLOGIES)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [("--ep", "2"), ("--ep", "2", "--fsdp", "2")], ids=["ep", "ep-fsdp"])
def test_experts(tmp_path, parallel):
    """A learned router: who goes to which expert follows from the data."""
    assert_proved(recorded(tmp_path, "workloads/moe.py", "--model", "tiny", *parallel), topologies=TOPOLOGIES)


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("fsdp"), "workloads/llama.py", *LLAMA, "--fsdp", "2")


def test_topologies_give_different_orders(fsdp):
    """So it is not one and the same order that is executed on all of them."""
    known = read_recorded(fsdp)
    orders = {t: schedule_of(known, run(known.trace, t, lowering="eager")).events(0) for t in ("torus", "fattree")}
    assert sorted(orders["torus"]) == sorted(orders["fattree"])
    assert orders["torus"] != orders["fattree"]


def test_random_orders_are_different_and_whole(fsdp):
    known = read_recorded(fsdp)
    orders = [
        issue_order(known),
        *(random_order(known, seed, dependencies=d) for seed in (1, 2) for d in ("streams", "data")),
    ]
    assert all(sorted(o.events[0]) == sorted(orders[0].events[0]) for o in orders)
    assert len({tuple(o.events[0]) for o in orders}) == len(orders)
    again = random_order(known, 1, dependencies="data")
    assert again.events == orders[2].events  # the seed decides


def test_a_result_that_is_there_already(fsdp):
    """What `emu run --verify` does: the very result that is reported is executed."""
    result = run(fsdp, "torus")
    report = verify_result(read_recorded(fsdp), result)
    assert report.proved
    assert [c.name for c in report.checks] == ["meetings", "accesses", "execution", "execution"]
    result.world_size = 3
    with pytest.raises(InputError, match="the result has 3 ranks"):
        verify_result(read_recorded(fsdp), result)


def test_fused_kernels_are_executed_op_by_op(fsdp):
    known = read_recorded(fsdp)
    units = schedule_of(known, run(known.trace, "torus", lowering="compile")).units(0)
    assert max(len(unit.ops) for unit in units) > 2
    whole = [op for unit in units for op in unit.ops]
    assert len(whole) == len(set(whole))
    assert set(whole) == {op.id for op in known.ops(0).values() if op.kind not in ("wait", "alloc", "free")}


def test_shipped_trace():
    assert_proved("llama-tiny-fsdp4.json", topologies=("torus",), seeds=())


def test_a_trace_without_tensors_says_how_to_get_them(tmp_path):
    record_command(tmp_path / "t.json", "workloads/llama.py", LLAMA, world=1)
    with pytest.raises(InputError, match="holds no tensors") as caught:
        verify_trace(str(tmp_path / "t.json"))
    assert "--with-state" in caught.value.remedy


def test_missing_tensors_file(fsdp, tmp_path):
    (tmp_path / "alone.json").write_bytes(Path(fsdp).read_bytes())
    with pytest.raises(InputError, match=r"t\.safetensors is not beside it"):
        verify_trace(str(tmp_path / "alone.json"))


WITHOUT_VECTORS = {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}


def test_a_step_recorded_on_another_kind_of_machine(tmp_path):
    """Kernels without vector instructions add in another order: the live run is recognised, orders stay bitwise."""
    out = tmp_path / "v.json"
    command = [sys.executable, "-m", "emulator", "verify", "llama-tiny-fsdp4.json", "--topo", "torus", "--orders", "1"]
    run_it = subprocess.run(
        [*command, "--json", str(out)], env=os.environ | WITHOUT_VECTORS, check=False, timeout=120, capture_output=True
    )
    assert run_it.returncode == 0, run_it.stdout
    checks = {c["subject"]: c for c in json.loads(out.read_text())["checks"] if c["name"] == "execution"}
    issue = checks.pop("issue order")
    assert "other kernels" in issue["tolerance"]
    assert 0 < issue["largest_error"] < 1e-5
    assert {c.get("tolerance", "bitwise") for c in checks.values()} == {"bitwise"}


def test_what_another_machine_left_is_still_told_from_something_else(fsdp, tmp_path):
    """A parameter a thousandth too large is too far for a difference of kernels."""
    document = json.loads(Path(fsdp).read_text())
    for section in document["exec"]["sections"]:
        section["numerics"] = "another machine"
        (number, live) = next((n, v) for n, v in section["after"].items() if "float32" in v)
        section["after"][number] = [
            "0" * 16,
            1.001 * abs(known(live[1])),
            [known(value) for value in live[2]],
            "float32",
        ]
    (tmp_path / "t.json").write_text(json.dumps(document))
    (tmp_path / "t.safetensors").write_bytes(Path(fsdp).with_name("t.safetensors").read_bytes())
    report = verify_trace(str(tmp_path / "t.json"), seeds=())
    verdicts = {c.subject: c.proved for c in report.checks if c.name == "execution"}
    assert verdicts == {"issue order": False, "as simulated on fattree": True}


def known(value):
    """The first rank's side of a number."""
    return value["per_rank"][0] if isinstance(value, dict) else value


def test_keeping_state_adds_no_op(fsdp, tmp_path):
    record_command(tmp_path / "plain.json", "workloads/llama.py", (*LLAMA, "--fsdp", "2"))
    assert kinds_of_ops(fsdp) == kinds_of_ops(tmp_path / "plain.json")


def kinds_of_ops(path):
    """How many ops of each kind the first rank has, blocks written out."""
    trace = io.read(path)
    uses = [(trace.blocks[o.block], o.repeat) if isinstance(o, BlockUse) else ([o], 1) for o in trace.programs[0].ops]
    return Counter(op.kind for ops, repeat in uses for op in ops * repeat)

"""Bad input from the command line: exit code 2, one line with file, place and reason, no traceback, nothing written."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import pytest

from emulator.trace import io
from emulator.trace.schema import Group, Op, PerRank
from tests.jobs import collective, compute, job, recv, send, wait

GATHER = collective(1, "all_gather", "dp", 64)


def good():
    return job({"dp": 4}, [compute(0, 1e-3), GATHER, wait(2, 1)])


def document(**changes):
    """A good trace as a document with some keys replaced (a key with value ... is dropped)."""
    found = json.loads(b"".join(io.encode(good())))
    for key, value in changes.items():
        if value is ...:
            del found[key]
        else:
            found[key] = value
    return found


def op(**changes):
    """A good trace whose gather is changed."""
    found = document()
    found["programs"][0]["ops"][1].update(changes)
    return found


def compute_op(**changes):
    """A good trace whose compute op is changed."""
    found = document()
    found["programs"][0]["ops"][0].update(changes)
    return found


def to_all(**changes):
    """A good trace whose gather is an all-to-all."""
    found = op(collective="all_to_all")
    del found["programs"][0]["ops"][1]["bytes_out"]
    found["programs"][0]["ops"][1].update(changes)
    return found


ATTENTION = {"batch": 1, "heads": 8, "kv_heads": 8, "head_dim": 64, "query_length": 128, "key_length": 128}
FIRST = document()["programs"][0]["ops"][0]


def ranks_of(*programs, axes=None, **more):
    return json.loads(b"".join(io.encode(job(axes or {"dp": len(programs)}, *programs, **more))))


CASES = {
    "truncated JSON": ('{"schema": "emu-trace/1", "mesh": {', "not valid JSON"),
    "empty file": ("", "empty"),
    "a list": ("[1, 2]", "JSON object"),
    "binary file": (b"\x00\x01\x02\xff" * 40, "JSON object"),
    "binary in JSON": (b'{"schema": "emu-trace/1", "\xff\xfe": 1}', "valid"),
    "cut gzip": (gzip.compress(b"x" * 1000)[:-9], "cut"),
    "no schema": (document(schema=...), "schema"),
    "wrong version": (document(schema="emu-trace/9"), "emu-trace/9"),
    "unknown key": (document(colour="red"), "colour"),
    "unknown key of an op": (op(colour="red"), "colour"),
    "no mesh": (document(mesh=...), "mesh"),
    "text for a number": (op(bytes_out="many"), "programs[0].ops[1].bytes_out"),
    "unknown kind": (op(kind="dream"), "dream"),
    "negative bytes": (op(bytes_out=-64), "negative"),
    "half an element": (op(bytes_out=63, dtype="float32"), "float32"),
    "unknown dtype": (op(dtype="float31"), "float31"),
    "no dtype": (op(dtype=""), "dtype"),
    "no bytes": (op(bytes_out=0), "no bytes"),
    "unknown group": (op(group="xx"), "unknown group 'xx'"),
    "no collective": (op(collective=None), "collective"),
    "dependency on nothing": (op(deps=[77]), "77"),
    "dependency cycle": (op(deps=[2]), "cycle"),
    "a host_sync that waits for what comes after it": (
        ranks_of([Op(id=1, kind="host_sync", deps=[0]), compute(0, 1e-3)], axes={"dp": 1}), "op 1: a cycle",
    ),
    "an op that waits for a later host_sync": (
        ranks_of([compute(0, 1e-3, deps=[1]), Op(id=1, kind="host_sync")], axes={"dp": 1}), "depends on host_sync 1",
    ),
    "a flag in a table of numbers": (
        compute_op(duration={"axes": ["dp"], "values": [1e-3, True, 1, 1]}), "duration is not a regular table",
    ),
    "ops of no length": (compute_op(duration=0.0) | {"groups": {"dp": {"ranks": [[0], [1], [2], [3]]}}},
                         "the step takes no time: all its ops last 0 s"),
    "no ops at all": (document(programs=[{"ops": []}]), "takes no time: the trace has no op"),
    "a batch that is waited for in its middle": (
        ranks_of(
            [send(0, 1, 8, batch=1), send(1, 1, 8), send(2, 1, 8, batch=1)],
            [recv(0, 0, 8), recv(1, 0, 8), recv(2, 0, 8)], axes={"dp": 2},
        ), "programs[0] op 0: a cycle of dependencies (ops 0, 1)",
    ),
    "op id twice": (op(id=0), "twice"),
    "mesh of 0": (document(mesh={"axes": ["dp"], "shape": [0]}), "mesh.shape"),
    "too few ranks": (document(ranks=[[3, 0]]), "3 ranks"),
    "program out of range": (document(ranks=[[4, 7]]), "program 7"),
    "axis not on the mesh": (document(groups={"dp": {"axes": ["zz"]}}), "zz"),
    "rank outside the world": (document(groups={"dp": {"ranks": [[0, 9]]}}), "rank 9"),
    "both axes and ranks": (document(groups={"dp": {"axes": ["dp"], "ranks": [[0]]}}), "either axes or ranks"),
    "root outside": (op(collective="broadcast", bytes_in=64, root=4), "root 4"),
    "sides do not fit": (op(bytes_in=32), "group size"),
    "per-rank table of the wrong shape": (op(bytes_out={"axes": ["dp"], "values": [64, 64]}), "shape"),
    "per-rank sizes that differ": (op(bytes_out={"axes": ["dp"], "values": [64, 64, 64, 32]}), "rank 3"),
    "a rank is missing": (ranks_of([GATHER], [compute(0, 1.0)]), "missing"),
    "sizes differ": (ranks_of([GATHER], [collective(1, "all_gather", "dp", 32)]), "32 bytes"),
    "kinds differ": (ranks_of([GATHER], [collective(1, "all_reduce", "dp", 64)]), "all_reduce"),
    "send without receive": (ranks_of([send(0, 1, 8)], [compute(0, 1.0)]), "send without receive"),
    "receive without send": (ranks_of([compute(0, 1.0)], [recv(0, 0, 8)]), "receive without send"),
    "message sizes differ": (ranks_of([send(0, 1, 8)], [recv(0, 0, 16)]), "16 bytes"),
    "peer outside": (ranks_of([send(0, 5, 8)], [recv(0, 0, 8)]), "peer 5"),
    "not in the group": (ranks_of([GATHER], [GATHER], groups={"dp": Group(ranks=[[0]])}), "not in it"),
    "splits do not fit": (
        ranks_of(
            [collective(0, "all_to_all", "dp", 0, splits_in=[4, 4], splits_out=PerRank(["dp"], [[4, 4], [9, 4]]))],
            axes={"dp": 2},
        ),
        "rank 0 sends",
    ),
    "nothing to do": (ranks_of([wait(0)]), "no time"),
    "storage reference of one part": (compute_op(reads=[[[0], 4]]), "reads: a reference is"),
    "empty storage reference": (compute_op(writes=[[[], 4]]), "writes: a reference is"),
    "storage that is no number": (compute_op(reads=[[[0, "x"], 4]]), "reads: a reference is"),
    "storage of an unknown block": (compute_op(reads=[[[0, 1, "nope"], 4]]), "unknown block 'nope'"),
    "storage of an instance outside a block": (compute_op(reads=[[[0, 1], 4]]), "name the block"),
    "negative bytes read": (compute_op(reads=[[1, -4]]), "negative"),
    "malformed storage": (compute_op(kind="alloc", storage=[1]), "storage: a reference is"),
    "alloc without storage": (compute_op(kind="alloc", bytes=4), "without its storage"),
    "free without storage": (compute_op(kind="free"), "without its storage"),
    "attention with negative sizes": (compute_op(attention={**ATTENTION, "heads": -1}), "attention.heads"),
    "attention without heads": (compute_op(attention={**ATTENTION, "kv_heads": 0}), "attention.kv_heads"),
    "negative shape": (compute_op(shapes=[[-1, 4]]), "shapes"),
    "a huge number": (compute_op(flops=10**40), "too large"),
    "id out of range": (compute_op(id=2**63), "ops[0].id"),
    "layer out of range": (compute_op(layer=2**63), "ops[0].layer"),
    "negative layer": (compute_op(layer=-1), "ops[0].layer"),
    "negative microbatch": (compute_op(microbatch=-1), "ops[0].microbatch"),
    "tag out of range": (ranks_of([send(0, 1, 8, tag=2**63)], [recv(0, 0, 8)]), "ops[0].tag"),
    "peer out of range": (compute_op(kind="send", peer={"dp": 10**30}), "peer"),
    "text in a per-rank table": (compute_op(duration={"axes": ["dp"], "values": ["1", "1", "1", "1"]}), "table"),
    "null in a per-rank table": (compute_op(duration={"axes": ["dp"], "values": [1, None, 1, 1]}), "table"),
    "truth in a per-rank table": (compute_op(duration={"axes": ["dp"], "values": [True] * 4}), "table"),
    "ragged per-rank table": (compute_op(duration={"axes": ["dp"], "values": [1, [2], 3, 4]}), "table"),
    "huge per-rank number": (compute_op(duration={"axes": ["dp"], "values": [1, 10**40, 3, 4]}), "table"),
    "negative per-rank number": (compute_op(duration={"axes": ["dp"], "values": [1, -1, 3, 4]}), "negative"),
    "per-rank axis twice": (compute_op(duration={"axes": ["dp", "dp"], "values": [[1] * 4] * 4}), "twice"),
    "lists nested without end": (
        json.dumps(document()).replace("0.001", '{"axes": [], "values": ' + "[" * 5000 + "]" * 5000 + "}"), "nested",
    ),
    "a trillion ranks": (document(mesh={"axes": ["dp"], "shape": [10**12]}), "1,000,000,000,000 ranks"),
    "a trillion repeats": (
        document(blocks={"b": [FIRST]}, programs=[{"ops": [{"block": "b", "repeat": 10**12}]}]), "at most",
    ),
    "layers below 0": (
        document(blocks={"b": [FIRST]}, programs=[{"ops": [{"block": "b", "repeat": 3, "set": {"layer": "1-1"}}]}]),
        "range of tags",
    ),
    "block use with an unknown key": (document(programs=[{"ops": [{"block": "b", "times": 3}]}]), "times"),
    "block that is no name": (document(programs=[{"ops": [{"block": 1}]}]), "ops[0].block"),
    "block without a name": (document(blocks={"": [FIRST]}), "without a name"),
    "malformed dependency in an unused block": (document(blocks={"b": [{**FIRST, "deps": [[0]]}]}), "a reference is"),
    "group without a name": (document(groups={"": {"axes": ["dp"]}, "dp": {"axes": ["dp"]}}), "without a name"),
    "communicator without ranks": (document(groups={"dp": {"ranks": [[]]}}), "without ranks"),
    "rank listed twice": (document(groups={"dp": {"ranks": [[0, 1], [2, 3, 1]]}}), "rank 1 is listed twice"),
    "resident on an unknown axis": (
        document(meta={"resident": {"weights": {"axes": ["zz"], "values": [1]}}}), "meta.resident.weights",
    ),
    "negative resident": (document(meta={"resident": {"weights": -1}}), "meta.resident.weights"),
    "negative tokens": (document(meta={"tokens_per_step": -1}), "meta.tokens_per_step"),
    "negative parameters": (document(meta={"params": -1.5}), "meta.params"),
    "negative model FLOPs": (document(meta={"model_flops": -1}), "meta.model_flops"),
    "rank sends to itself": (ranks_of([send(0, 0, 8), recv(1, 0, 8)]), "itself"),
    "one peer named in two ways": (
        ranks_of([send(0, 1, 8), send(1, {"dp": 1}, 8)], [recv(0, 0, 8), recv(1, 0, 8)]), "in two ways",
    ),
    "per-rank message sizes differ": (
        ranks_of(
            [send(0, {"pp": 1}, PerRank(["dp"], [8, 16]))], [recv(0, {"pp": -1}, 8)],
            axes={"pp": 2, "dp": 2}, ranks=[(2, 0), (2, 1)],
        ),
        "from rank 1 to rank 3",
    ),
    "uneven all-to-all without its parts": (
        ranks_of([collective(0, "all_to_all", "dp", PerRank(["dp"], [8, 16]))], axes={"dp": 2}), "splits_in",
    ),
    "per-rank sides do not fit": (op(bytes_in={"axes": ["dp"], "values": [16, 16, 16, 8]}), "group size"),
    "programs that differ in per-rank sizes": (
        ranks_of([GATHER], [collective(1, "all_gather", "dp", PerRank(["dp"], [64, 32]))], axes={"dp": 2}), "rank 1",
    ),
    "splits of another kind": (op(splits_in=[16, 16, 16, 16]), "belongs to an all_to_all"),
    "too few splits": (to_all(splits_in=[32, 32], splits_out=[16] * 4), "2 parts for a group of 4"),
    "splits of the wrong shape": (to_all(splits_in={"axes": ["dp"], "values": [16] * 4}), "splits_in has values"),
    "split of half an element": (to_all(splits_in=[1, 2, 2, 2], dtype="float16"), "splits_in = 1 is not a whole"),
    "negative split": (to_all(splits_in=[-16, 16, 16, 16]), "part 0 is negative"),
    "splits of some ranks only": (
        ranks_of(
            [collective(0, "all_to_all", "dp", 0, splits_in=[4, 4])], [collective(0, "all_to_all", "dp", 8)],
            axes={"dp": 2},
        ),
        "uneven parts",
    ),
    "splits that do not add up": (to_all(splits_in=[16] * 4, splits_out=[16] * 4, bytes_in=32), "add up"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_traces(emu, tmp_path, case):
    content, reason = CASES[case]
    path = tmp_path / "bad.json"
    if isinstance(content, dict):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = emu("run", "--topo", "fattree", "--trace", str(path), "--json", "out.json")
    lines = err.splitlines()
    assert code == 2, err
    assert lines[0].startswith("emu: ")
    assert "bad.json" in lines[0]
    assert reason in lines[0]
    assert len(lines) <= 2
    assert out == ""
    assert [p.name for p in tmp_path.iterdir()] == ["bad.json"]


@pytest.fixture
def trace(tmp_path):
    io.write(good(), tmp_path / "good.json")
    return "good.json"


TOPOLOGIES = {
    "no bandwidth": ("levels: {node: {kind: switch, size: 8}}", "bandwidth"),
    "bandwidth 0": ("levels: {node: {kind: switch, size: 8, bandwidth: 0}}", "bandwidth"),
    "ambiguous unit": ("levels: {node: {kind: switch, size: 8, bandwidth: 400G}}", "400G"),
    "unknown kind": ("levels: {node: {kind: maze, size: 8, bandwidth: 1 GB/s}}", "maze"),
    "unknown key": ("levels: {node: {kind: switch, size: 8, bandwidth: 1 GB/s, colour: red}}", "colour"),
    "too small": ("levels: {node: {kind: switch, size: 2, bandwidth: 1 GB/s}}", "2"),
    "not YAML": ("levels: {node: [", "line 5"),
}


@pytest.mark.parametrize("case", TOPOLOGIES)
def test_bad_topologies(emu, tmp_path, trace, case):
    text, reason = TOPOLOGIES[case]
    (tmp_path / "net.yaml").write_text(f"name: net\ndescription: a test\ndevice: h100\n{text}\n")
    code, _, err = emu("run", "--topo", "net.yaml", "--trace", trace)
    assert (code, len(err.splitlines()) <= 2) == (2, True), err
    assert err.startswith("emu: net.yaml: ")
    assert reason in err.splitlines()[0]


def test_a_disconnected_graph(emu, tmp_path, trace):
    graph = {
        "nodes": [{"id": i, "kind": "accel"} for i in range(4)],
        "links": [{"source": 0, "target": 1, "bandwidth": "1 GB/s", "latency": "1 us"}],
    }
    (tmp_path / "net.json").write_text(json.dumps(graph))
    code, _, err = emu("run", "--topo", "net.json", "--trace", trace)
    assert (code, err.count("\n") <= 2, "net.json" in err) == (2, True, True), err


COMMANDS = {
    "missing file": (["run", "--trace", "nowhere.json"], "nowhere.json"),
    "a folder": (["run", "--trace", "."], "folder"),
    "unknown preset": (["run", "--topo", "moebius", "--trace", "good.json"], "moebius"),
    "unknown device": (["run", "--device", "abacus", "--trace", "good.json"], "abacus"),
    "unknown algorithm": (["run", "--algo", "magic", "--trace", "good.json"], "magic"),
    "algorithm of another collective": (["run", "--algo", "all_gather=pairwise", "--trace", "good.json"], "pairwise"),
    "unknown collective": (["run", "--algo", "all_dance=ring", "--trace", "good.json"], "all_dance"),
    "unknown lowering": (["run", "--lower", "magic", "--trace", "good.json"], "magic"),
    "unknown flag": (["run", "--colour", "red", "--trace", "good.json"], "--colour"),
    "no trace": (["run"], "trace"),
    "unknown command": (["dance"], "dance"),
    "override without value": (["run", "--trace", "good.json", "--set", "spine"], "KEY=VALUE"),
    "unknown override": (["run", "--trace", "good.json", "--set", "spine.colour=red"], "colour"),
    "output folder missing": (["run", "--trace", "good.json", "--json", "no/where/r.json"], "no/where"),
    "output is a folder": (["run", "--trace", "good.json", "--json", "."], "folder"),
    "world larger than the topology": (
        ["run", "--trace", "good.json", "--topo", "fiber", "--set", "largest=2"], "largest",
    ),
    "result that is none": (["view", "good.json", "--plain"], "good.json"),
    "no result": (["report", "nowhere.json"], "nowhere.json"),
    "not a time": (["view", "good.json", "--plain", "--from", "soon"], "soon"),
    "unknown flag of a proof": (["verify", "--collective", "all_reduce", "--bogus", "3"], "No such option: --bogus"),
    "a proof of nothing": (["verify"], "emu: verify: give a trace"),
    "a send to itself": (["verify", "--collective", "send", "--ranks", "3"], "--ranks: a send has two members"),
    "topology that is none": (["topo", "show", "moebius"], "moebius"),
}  # fmt: skip


@pytest.mark.parametrize("case", COMMANDS)
def test_bad_command_lines(emu, tmp_path, trace, case):
    arguments, reason = COMMANDS[case]
    code, out, err = emu(*arguments)
    assert code == 2, err
    assert err.startswith("emu: ")
    assert reason in err.splitlines()[0]
    assert len(err.splitlines()) <= 2
    assert out == ""
    assert [p.name for p in tmp_path.iterdir()] == [trace]


@pytest.mark.parametrize(("words", "command"), [
    (["run", "--trace"], "emu run"), (["topo", "show", "--set"], "emu topo show"), (["--colour"], "emu"),
    (["run", "--trace", "x", "--colour"], "emu run"), (["topo", "paint"], "emu topo"),
])  # fmt: skip
def test_the_help_that_is_named_is_the_command_s(emu, words, command):
    code, _, err = emu(*words)
    assert code == 2
    assert err.splitlines()[1].strip() == f"`{command} --help` shows what it takes"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_no_permission(emu, tmp_path, trace):
    (tmp_path / trace).chmod(0)
    code, _, err = emu("run", "--trace", trace)
    assert (code, "ermission" in err) == (2, True)


def test_deadlock_is_exit_code_1(emu, tmp_path):
    def program(first, second):
        return [collective(i, "all_reduce", g, 8, stream="compute") for i, g in enumerate((first, second))]

    groups = {"a": Group(ranks=[[0, 1]]), "b": Group(ranks=[[0, 1]])}
    io.write(job({"dp": 2}, program("a", "b"), program("b", "a"), groups=groups), tmp_path / "stuck.json")
    code, _, err = emu("run", "--trace", "stuck.json")
    assert code == 1
    assert err.startswith("emu: stuck.json: the replay cannot go on: rank 0 in collective on group 'a' (op 0, row 0)")
    assert "rank 1" in err
    assert len(err.splitlines()) == 1


def test_trace_check_lists_faults_and_leaves_with_1(emu, tmp_path):
    (tmp_path / "bad.json").write_text(json.dumps(op(bytes_out=-64, dtype="float31")))
    code, out, err = emu("trace", "check", "bad.json")
    assert code == 1
    assert len(out.splitlines()) == 2
    assert "2 faults" in err


LEGAL = {
    "a program that no rank runs": lambda: job(
        {"dp": 4}, [compute(0, 1e-3), GATHER, wait(2, 1)], [GATHER], ranks=[(4, 0)]
    ),
    "a group of one": lambda: job({"dp": 1}, [compute(0, 1e-3), GATHER, wait(2, 1)]),
    "an axis called block": lambda: job(
        {"block": 2}, [send(0, {"block": 1}, 8), compute(2, 1e-3)], [recv(1, {"block": -1}, 8), compute(2, 1e-3)]
    ),
    "an axis called duration": lambda: job(
        {"duration": 2}, [send(0, {"duration": 1}, 8), compute(2, 1e-3)], [recv(1, {"duration": -1}, 8)]
    ),
    "steps ahead and back that meet": lambda: job(
        {"pp": 2},
        [send(0, {"pp": 1}, 8), send(1, {"pp": -1}, 16), compute(2, 1e-3)],
        [recv(0, {"pp": -1}, 8), recv(1, {"pp": 1}, 16)],
    ),
    "sizes that differ between stages": lambda: job(
        {"pp": 2, "dp": 2},
        [collective(0, "all_gather", "dp", PerRank(["pp"], [64, 128])), wait(1, 0)],
    ),
    "uneven parts": lambda: job(
        {"dp": 2},
        [
            collective(
                0, "all_to_all", "dp", 0,
                splits_in=PerRank(["dp"], [[4, 8], [2, 6]]), splits_out=PerRank(["dp"], [[4, 2], [8, 6]]),
            ),
            wait(1, 0),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEGAL)
def test_unusual_but_legal_traces(emu, tmp_path, case):
    io.write(LEGAL[case](), tmp_path / "good.json")
    code, out, err = emu("run", "--trace", "good.json", "--json", "-")
    assert (code, err) == (0, "")
    assert json.loads(out)["step_seconds"] > 0


def test_a_good_trace_has_no_faults(emu, trace):
    code, out, _ = emu("trace", "check", trace)
    assert (code, "no faults" in out) == (0, True)


def test_json_on_stdout_is_one_document_and_nothing_else(emu, trace):
    code, out, err = emu("run", "--trace", trace, "--json", "-")
    assert (code, err) == (0, "")
    assert json.loads(out)["schema"] == "emu-result/1"


def test_a_closed_pipe_is_no_error(tmp_path, trace):
    command = (
        f"{sys.executable} -m emulator run --trace {trace} --json - | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")

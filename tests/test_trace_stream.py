"""Reading in pieces gives what reading whole gives, wherever the cuts fall; equal programs become one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator import unpack
from emulator.errors import InputError
from emulator.trace import io
from emulator.trace.check import load
from emulator.trace.mesh import per_rank, program_of_rank
from emulator.trace.schema import BlockUse, PerRank, RanksByAxis
from emulator.trace.stream import read_stream
from tests.jobs import collective, compute, job, recv, send, wait
from tests.test_trace_io import everything

AWKWARD = ['a"b', "a\\", 'x\\"', "[{,}]", '\\\\"', "\u00e9\u4e16", '"ops":[', ""]


def text_of(trace, **layout):
    return json.dumps(json.loads(b"".join(io.encode(trace))), **layout).encode()


def in_pieces(text, sizes):
    at = 0
    for size in sizes:
        yield text[at : at + size]
        at += size
    yield text[at:]


def whole(text, tmp_path):
    (tmp_path / "t.json").write_bytes(text)
    return io.read(tmp_path / "t.json")


@given(
    names=st.lists(st.sampled_from(AWKWARD), min_size=1, max_size=4),
    indent=st.sampled_from([None, 1]),
    escape=st.booleans(),
    sizes=st.lists(st.integers(1, 60), max_size=60),
)
@settings(max_examples=150, deadline=None)
def test_pieces_give_what_the_whole_gives(tmp_path_factory, names, indent, escape, sizes):
    items = [compute(i, 0.5 + i, module=name, name=name) for i, name in enumerate(names)]
    trace = job({"dp": 2}, [*items, BlockUse("b", 2)], [compute(9, 1.0)], blocks={"b": [compute(0, 1.0)]})
    text = text_of(trace, indent=indent, ensure_ascii=escape)
    found = read_stream(in_pieces(text, sizes), "t.json")
    assert found == whole(text, tmp_path_factory.mktemp("t")) == trace


@pytest.mark.parametrize("size", [1, 7, 100])
def test_one_character_at_a_time(size):
    text = b"".join(io.encode(everything()))
    assert read_stream(in_pieces(text, [size] * (len(text) // size)), "t.json") == everything()


def test_keys_in_any_order_and_programs_without_ops():
    trace = job({"dp": 2}, [], [compute(0, 1.0)])
    document = json.loads(b"".join(io.encode(trace)))
    text = json.dumps(dict(reversed(document.items()))).encode()
    assert read_stream([text], "t.json") == trace


FAULTY = {
    "cut": (lambda t: t[:-2], "ends early"),
    "more text": (lambda t: t + b" x", "more text"),
    "a second object": (lambda t: t + b"{}", "does not belong"),
    "comma at the end": (lambda t: t.replace(b'"ranks"', b', "ranks"', 1), "JSON"),
    "two commas between ops": (lambda t: t.replace(b"}, {", b"},, {", 1), "JSON"),
    "no comma between ops": (lambda t: t.replace(b"}, {", b"} {", 1), "JSON"),
    "wrong bracket": (lambda t: t.replace(b'"ops": [', b'"ops": {', 1), "JSON"),
    "another key of a program": (lambda t: t.replace(b'{"ops": [', b'{"colour": [], "ops": [', 1), "colour"),
    "a key after the ops": (lambda t: t.replace(b"]}]", b'], "colour": []}]', 1), "does not belong"),
    "programs twice": (lambda t: t[:-1] + b', "programs": []}', "twice"),
    "another document": (lambda t: b'{"traceEvents": [1, 2]}', "schema"),
    "unknown key": (lambda t: t[:-1] + b', "colour": [1]}', "colour"),
    "wrong version": (lambda t: t.replace(b"trace/1", b"trace/9"), "trace/9"),
    "an op that is none": (lambda t: t.replace(b'"kind": "compute"', b'"kind": "dream"', 1), "programs[0].ops[0].kind"),
    "text for a number": (lambda t: t.replace(b"0.25", b'"x"'), "programs[0].ops[1].duration"),
    "half a number": (lambda t: t.replace(b"0.25", b"0.2.5"), "JSON"),
    "binary": (lambda t: b"\x00\x01" * 50, "JSON"),
    "nothing": (lambda t: b"", "empty"),
}


@pytest.mark.parametrize("case", FAULTY)
def test_faults_are_told(case):
    change, reason = FAULTY[case]
    text = change(text_of(job({"dp": 1}, [compute(0, 0.5), compute(1, 0.25)])))
    with pytest.raises(InputError) as told:
        read_stream(in_pieces(text, [20] * 20), "t.json")
    assert reason in str(told.value)
    assert str(told.value).startswith("t.json: ")


def test_equal_programs_become_one(tmp_path):
    ops = [compute(0, 1.0), collective(1, "all_reduce", "dp", 64), wait(2, 1)]
    io.write(job({"dp": 4}, ops, ops, [*ops, compute(3, 1.0)], ops), tmp_path / "t.json")
    trace = load(tmp_path / "t.json")
    assert (len(trace.programs), trace.ranks) == (2, [(2, 0), (1, 1), (1, 0)])
    assert trace.programs[0].ops[0] is trace.programs[1].ops[0]


def test_programs_that_differ_in_their_seconds_become_one_with_a_table(tmp_path):
    """Durations of 2 x 2 ranks: op 0 differs between all ranks, op 1 by stage, op 2 not at all."""
    seconds = {0: [1.0, 2.0, 3.0, 4.0], 1: [5.0, 5.0, 6.0, 6.0], 2: [7.0] * 4}
    programs = [[compute(i, seconds[i][rank], host_seconds=0.5) for i in range(3)] for rank in range(4)]
    io.write(job({"pp": 2, "dp": 2}, *programs), tmp_path / "t.json")
    trace = load(tmp_path / "t.json")
    assert (len(trace.programs), trace.ranks) == (1, [(4, 0)])
    for i, op in enumerate(trace.programs[0].ops):
        assert per_rank(trace, op.duration).tolist() == seconds[i]
        assert op.host_seconds == 0.5
    assert trace.programs[0].ops[2].duration == 7.0


def test_stages_keep_their_own_tables(tmp_path):
    """Two stages with different programs, measured on every rank: two programs, tables by the data axis alone."""
    programs = [
        [compute(0, 1.0 + rank), send(1, {"pp": 1}, 8) if rank < 2 else recv(1, {"pp": -1}, 8)] for rank in range(4)
    ]
    io.write(job({"pp": 2, "dp": 2}, *programs), tmp_path / "t.json")
    trace = load(tmp_path / "t.json")
    assert trace.ranks == [(2, 0), (2, 1)]
    assert [p.ops[0].duration for p in trace.programs] == [PerRank(["dp"], [1.0, 2.0]), PerRank(["dp"], [3.0, 4.0])]


@given(st.lists(st.integers(0, 3), min_size=6, max_size=6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_a_rank_does_never_changes(tmp_path_factory, kinds, by_axis):
    """Whatever is merged: every rank still has its own op names and seconds."""
    programs = [[compute(0, 1.0, name="ab"[k % 2]), compute(1, 1.0 + k // 2)] for k in range(4)]
    if by_axis:
        ranks = RanksByAxis("pp", kinds)
        trace = job({"pp": 6, "tp": 2}, *programs, ranks=ranks)
    else:
        trace = job({"pp": 3, "dp": 2}, *programs, ranks=[(1, k) for k in kinds])
    path = tmp_path_factory.mktemp("t") / "t.json"
    io.write(trace, path)
    found = io.read(path)
    program = program_of_rank(found)
    for rank, k in enumerate(program_of_rank(trace).tolist()):
        ops = found.programs[int(program[rank])].ops
        assert [op.name for op in ops] == ["ab"[k % 2], ""]
        assert [float(per_rank(found, op.duration)[rank]) for op in ops] == [1.0, 1.0 + k // 2]


def test_places_are_those_of_the_file(tmp_path):
    """A fault is found in a program whose number has changed by merging."""
    good = [compute(0, 1.0)]
    io.write(job({"dp": 3}, good, good, [compute(0, 1.0), send(1, 0, 8)]), tmp_path / "t.json")
    with pytest.raises(InputError, match=r"programs\[2\] op 1 \(rank 2\): send without receive"):
        load(tmp_path / "t.json")


def test_verification_data_keeps_programs_apart(tmp_path):
    trace = job({"dp": 2}, [compute(0, 1.0)], [compute(0, 1.0)])
    trace.exec = {"sections": []}
    io.write(trace, tmp_path / "t.json")
    assert load(tmp_path / "t.json") == trace


def test_large_files_are_read_in_pieces_and_progress_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(io, "_WHOLE", 1)
    monkeypatch.setattr(unpack, "_PIECE", 100)
    monkeypatch.setattr(unpack, "_FRAME_PART", 100)
    told = []
    for suffix in (".json", ".json.gz", ".json.zst"):
        io.write(everything(), tmp_path / f"t{suffix}")
        assert io.read(tmp_path / f"t{suffix}", lambda done, total: told.append(done / total)) == everything()
        assert told[-1] == 1.0
    assert min(told) < 0.5

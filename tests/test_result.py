"""Results are written and read back unchanged, small ones as JSON, long ones with their columns beside it."""

from __future__ import annotations

import codecs
import gzip
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from made_results import fsdp_result, pipeline_result

from emulator.errors import InputError
from emulator.result import io
from emulator.result.schema import Result


@pytest.fixture(params=[fsdp_result, pipeline_result])
def found(request: pytest.FixtureRequest) -> Result:
    return request.param()  # type: ignore[no-any-return]


def test_written_and_read_back(found: Result, tmp_path: Path) -> None:
    io.write(found, tmp_path / "r.json")
    again = io.read(tmp_path / "r.json")
    assert io.encode(again) == io.encode(found)
    assert np.isnan(again.timeline[0].transfer_start).any() == np.isnan(found.timeline[0].transfer_start).any()
    assert again.timeline[0].op.dtype == np.int64 and again.timeline[0].end.dtype == np.float64
    assert os.listdir(tmp_path) == ["r.json"]


def test_schema_is_the_first_key_and_keys_carry_units(found: Result) -> None:
    document = json.loads(io.encode(found))
    assert next(iter(document)) == "schema"
    assert document["schema"] == "emu-result/1"
    assert {"step_seconds", "world_size", "time_sources", "ranks", "collectives", "links", "folding", "timeline",
            "warnings", "engine"} <= set(document)  # fmt: skip
    assert "NaN" not in io.encode(found).decode()


def test_two_writes_give_the_same_bytes(found: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "INLINE_LIMIT_BYTES", 10)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        io.write(found, tmp_path / name / "r.json.gz")
    for name in ("r.json.gz", "r.json.gz.spans.npz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_long_columns_go_beside_the_file(found: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inline = len(msgspec.json.encode(io._tables(found), enc_hook=io._as_list))
    for limit, files in ((inline, ["r.json"]), (inline - 1, ["r.json", "r.json.spans.npz"]), (9, None)):
        monkeypatch.setattr(io, "INLINE_LIMIT_BYTES", limit)
        io.write(found, tmp_path / "r.json")
        assert files is None or sorted(os.listdir(tmp_path)) == files
        assert io.encode(io.read(tmp_path / "r.json")) == io.encode(found)
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["timeline_file"] == "r.json.spans.npz"
    columns = np.load(tmp_path / "r.json.spans.npz")
    assert (columns[document["timeline"][0]["end"]] == found.timeline[0].end).all()


def test_stdout_gets_one_document(found: Result, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(io, "INLINE_LIMIT_BYTES", 10)
    io.write(found, "-")
    text = capsys.readouterr().out
    assert json.loads(text)["timeline_file"] is None
    assert text.endswith("}\n") and text.count("\n") == 1


def test_nothing_is_left_of_a_failed_write(found: Result, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        io.write(found, tmp_path / "missing" / "r.json")
    assert os.listdir(tmp_path) == []


def changed(**keys: Any) -> bytes:
    return json.dumps({**json.loads(io.encode(fsdp_result())), **keys}).encode()


def column(field: str, change: Any) -> bytes:
    document = json.loads(io.encode(fsdp_result()))
    document["timeline"][0][field] = change(document["timeline"][0][field])
    return json.dumps(document).encode()


def entry(part: str, **keys: Any) -> bytes:
    """The first entry of a list, or its partition, changed."""
    document = json.loads(io.encode(fsdp_result()))
    target = document["ranks"][0]["partition"] if part == "partition" else document[part][0]
    assert set(keys) <= set(target)
    target.update(keys)
    return json.dumps(document).encode()


@pytest.mark.parametrize(("data", "place", "reason"), [
    (b"", "", "empty"),
    (b"\x80\x02\x00", "", "not valid"),
    (b'{"schema": "emu-res', "", "not valid JSON"),
    (b"[]", "", "expected `object`"),
    (b"{}", "", 'there is no "schema" key'),
    (b'{"schema": "emu-trace/1"}', "", "schema is 'emu-trace/1'"),
    (b'{"schema": "emu-result/2"}', "", "schema is 'emu-result/2'"),
    (b'{"schema": "emu-result/1"}', "", "missing required field `step_seconds`"),
    (b"\x1f\x8b\x08nonsense", "", "damaged or cut"),
    (changed(step_seconds="fast"), "step_seconds", "expected `float`"),
    (changed(step_seconds=None), "step_seconds", "expected `float`"),
    (changed(step_seconds=-1.0), "step_seconds", "not a time"),
    (changed(step_seconds=1e300), "step_seconds", "but the timeline ends"),
    (changed(step_seconds=0.01), "timeline[0].end", "is later than the end of the step shown"),
    (changed(mfu=-5), "mfu", "-5 is negative"),
    (changed(world_size=7), "world_size", "7, but the rank classes have 64"),
    (changed(world_size=10**30), "world_size", "is too large"),
    (changed(omitted=[{"at_seconds": 0.01, "period_seconds": 1e9, "count": 1}]), "omitted", "longer than the step"),
    (entry("links", capacity_bytes_per_second=-1), "links[0].capacity_bytes_per_second", "-1 is negative"),
    (entry("collectives", count=-3), "collectives[0].count", "-3 is negative"),
    (entry("partition", host_seconds=1e30), "ranks[0].partition", "its parts make 1e+30 s"),
    (entry("ranks", count=63), "ranks[0].count", "'0-63' are not as many"),
    (entry("ranks", ranks="zero"), "ranks[0].ranks", "not a list of ranks"),
    (entry("ranks", ranks="64-127"), "ranks[0].ranks", "rank 127 is outside the world of 64"),
    (entry("ranks", ranks="0-62,7"), "ranks[0].ranks", "rank 7 is in two"),
    (column("ready", lambda c: [None, *c[1:]]), "timeline[0].ready", "a number is missing"),
    (column("transfer_start", lambda c: [-1, *c[1:]]), "timeline[0].transfer_start", "-1 is negative"),
    (column("held_by", lambda c: [-3, *c[1:]]), "timeline[0].held_by", "-3 is negative"),
    (changed(ranks=[]), "timeline[0].rank_class", "0 is not one of the 0"),
    (changed(programs=[]), "ranks[0].program", "0 is not one of the 0"),
    (column("end", lambda c: c[1:]), "timeline[0].end", "values where"),
    (column("end", lambda c: [None, *c[1:]]), "timeline[0].end", "missing"),
    (column("end", lambda c: [-1, *c[1:]]), "timeline[0].end", "ends before it starts"),
    (column("end", lambda c: ["x", *c[1:]]), "timeline[0].end", "value 0 is 'x', not a number"),
    (column("end", lambda c: [True, *c[1:]]), "timeline[0].end", "value 0 is True, not a number"),
    (column("end", lambda c: [*c[:-1], 10**400]), "timeline[0].end", "is too large"),
    (column("arrived_last", lambda c: [c[0], 10**30]), "timeline[0].arrived_last", "value 1, 1000"),
    (column("held_by", lambda c: [1e308, *c[1:]]), "timeline[0].held_by", "value 0 is 1e+308, not an integer"),
    (column("op", lambda c: [None, *c[1:]]), "timeline[0].op", "value 0 is null, not an integer"),
    (column("end", lambda c: [c]), "timeline[0].end", "flat list"),
    (column("end", lambda c: 7), "timeline[0].end", "list of numbers"),
    (column("op", lambda c: [99, *c[1:]]), "timeline[0].op", "99 is not one of the"),
])  # fmt: skip
def test_bad_files(tmp_path: Path, data: bytes, place: str, reason: str) -> None:
    (tmp_path / "r.json").write_bytes(data)
    with pytest.raises(InputError) as caught:
        io.read(tmp_path / "r.json")
    assert caught.value.source == str(tmp_path / "r.json")
    assert caught.value.place == place
    assert reason in caught.value.reason
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["missing", "binary", "cut", "foreign"])
def test_bad_columns_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(io, "INLINE_LIMIT_BYTES", 10)
    io.write(fsdp_result(), tmp_path / "r.json")
    beside = tmp_path / "r.json.spans.npz"
    whole = beside.read_bytes()
    beside.unlink()
    if damage == "foreign":
        np.savez(beside, a=np.arange(3))
    elif damage != "missing":
        beside.write_bytes(b"\x80junk" if damage == "binary" else whole[: len(whole) // 2])
    with pytest.raises(InputError) as caught:
        io.read(tmp_path / "r.json")
    assert "r.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("array", "reason"), [
    (np.array([0.5]), "holds float64, not int64"),
    (np.array([[1]]), "flat list"),
])  # fmt: skip
def test_an_array_of_another_kind(tmp_path: Path, array: np.ndarray[Any, Any], reason: str) -> None:
    (tmp_path / "r.json").write_bytes(column("op", lambda _: "mine"))
    np.savez(tmp_path / "r.json.spans.npz", mine=array)
    with pytest.raises(InputError, match=reason) as caught:
        io.read(tmp_path / "r.json")
    assert caught.value.place == "timeline[0].op"


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "is a folder"), (tmp_path / "no.json", "no such file")):
        with pytest.raises(InputError, match=reason):
            io.read(path)


def test_marked_and_compressed_results_are_read_and_cut_ones_named(found: Result, tmp_path: Path) -> None:
    path, data = tmp_path / "r.json", io.encode(found)
    path.write_bytes(codecs.BOM_UTF8 + data)
    assert io.encode(io.read(path)) == data
    for packed in (gzip.compress(data), zstandard.ZstdCompressor().compress(data)):
        path.write_bytes(packed)
        assert io.encode(io.read(path)) == data
        path.write_bytes(packed[: len(packed) // 2])
        with pytest.raises(InputError, match="damaged or cut compressed file"):
            io.read(path)

"""Exports: a trace that Perfetto can read, a table of spans, and the same from Python."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from made_results import fsdp_result, pipeline_result

from emulator.cli.export import export
from emulator.errors import InputError
from emulator.report import csv_table, perfetto
from emulator.report.partition import fill
from emulator.report.ranks import class_name
from emulator.result import io
from emulator.result.build import Span, result
from emulator.result.schema import Result
from emulator.result.tables import COMMUNICATION, LinkLoad, MemoryUse


def exported(made: Result) -> list[dict]:  # type: ignore[type-arg]
    return json.loads(perfetto.encode(made))["traceEvents"]


def export_to(made: Result, folder: Path, *names: str) -> None:
    """Save a result and export it under these names, as the command does."""
    io.write(made, folder / "result.json")
    for name in names:
        export(str(folder / "result.json"), str(folder / name))


def nanoseconds(micro: float) -> int:
    """As Perfetto reads a time. Those written are whole nanoseconds."""
    whole = round(micro * 1000)
    assert micro == whole / 1000
    return whole


def check_format(events: list[dict]) -> None:  # type: ignore[type-arg]
    """What the Trace Event Format asks of the events used here."""
    named = {(e["pid"], e.get("tid", 0)) for e in events if e["ph"] == "M"}
    slices = defaultdict(list)
    for event in events:
        assert event["ph"] in "MXsfC"
        assert isinstance(event["pid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["ts"] >= 0 and (event["pid"], event["tid"]) in named
            start = nanoseconds(event["ts"])
            slices[event["pid"], event["tid"]].append((start, start + nanoseconds(event["dur"])))
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    for spans in slices.values():  # slices of a thread nest
        open_until: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
            inside = slices[event["pid"], event["tid"]]
            assert any(start <= nanoseconds(event["ts"]) <= end for start, end in inside)
    assert all([e["ph"] for e in flow] == ["s", "f"] and flow[0]["ts"] <= flow[1]["ts"] for flow in flows.values())


@pytest.mark.parametrize("made", [fsdp_result, pipeline_result])
def test_the_format_is_kept(made: object) -> None:
    events = exported(made())  # type: ignore[operator]
    check_format(events)
    assert {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"} >= {
        f"{r.count} ranks: {r.ranks}"
        for r in made().ranks  # type: ignore[operator]
    }


def test_arrows_lead_from_sends_to_receives_and_from_the_last_to_the_others() -> None:
    one = [
        Span("mm", 0, 8),
        Span("send", 8, 10, "send", "pp", 8, [0], group="pp", peer="1"),
        Span("ar", 12, 20, "collective", "tp", 15, group="tp", arrived_last=1),
    ]
    two = [
        Span("recv", 0, 10, "recv", "pp", 8, group="pp", arrived_last=0, peer="0"),
        Span("mm", 10, 15, deps=[0]),
        Span("ar", 15, 20, "collective", "tp", 15, [1], group="tp"),
    ]
    events = exported(fill(result([one, two])))
    check_format(events)
    arrows = [(e["ph"], e["pid"], e["ts"]) for e in events if e["ph"] in "sf"]
    assert arrows == [("s", 0, 8e6), ("f", 1, 10e6 - 1e-3), ("s", 1, 15e6), ("f", 0, 20e6 - 1e-3)]
    waits = [(e["pid"], e["ts"], e["dur"]) for e in events if e.get("cat") == "wait"]
    assert waits == [(0, 12e6, 3e6), (1, 0, 8e6)]


def test_ops_that_touch_do_not_overlap_in_whole_nanoseconds() -> None:
    """Each starts and lasts 1.6 ns, so that both round up: the sum would reach half a nanosecond into the next."""
    spans = [Span("mm", 1.6e-9 * i, 1.6e-9 * (i + 1)) for i in range(20)]
    spans[10] = Span("ar", 16e-9, 17.6e-9, "collective", "compute", 17.4e-9)
    events = exported(fill(result([spans])))
    check_format(events)
    assert sum(e["ph"] == "X" for e in events) == 21 and sum(e["name"] == "thread_name" for e in events) == 1


def test_parts_of_a_batch_get_threads_of_their_own() -> None:
    batch = [
        Span("send", 0, 6, "send", "pp", 0),
        Span("recv", 0, 8, "recv", "pp", 0),
        Span("send", 9, 10, "send", "pp", 9),
    ]
    events = exported(fill(result([batch])))
    check_format(events)
    assert [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"] == ["pp", "pp (2)"]


def test_counters_of_links_and_memory() -> None:
    made = fsdp_result()
    made.link_loads = [LinkLoad("gpu0>leaf0", np.array([0.0, 1e-3]), np.array([5e10, 0.0]))]
    made.memory = [MemoryUse(0, "activations", np.array([0.0, 2e-3]), np.array([1e9, 2e9]))]
    counters = [(e["name"], e["ts"], e["args"]) for e in exported(made) if e["ph"] == "C"]
    assert counters == [
        ("gpu0>leaf0", 0.0, {"GB/s": 50.0}), ("gpu0>leaf0", 1e3, {"GB/s": 0.0}),
        ("memory: activations", 0.0, {"bytes": 1e9}), ("memory: activations", 2e3, {"bytes": 2e9}),
    ]  # fmt: skip


def trace_processor() -> str:
    """Perfetto's own reader: a binary, since the script of that name would download one."""
    for name in (os.environ.get("TRACE_PROCESSOR", ""), "trace_processor_shell", "trace_processor"):
        path = shutil.which(name) if name else None
        if path is not None and not Path(path).read_bytes().startswith(b"#!"):
            return path
    pytest.skip("no binary of Perfetto's trace processor (TRACE_PROCESSOR, or trace_processor_shell on the PATH)")


COUNTS = """
SELECT 'process' AS what, name AS name, COUNT(*) AS number FROM process WHERE name IS NOT NULL GROUP BY name
UNION ALL SELECT 'thread', name, COUNT(*) FROM thread WHERE name IS NOT NULL GROUP BY name
UNION ALL SELECT 'slice', category, COUNT(*) FROM slice GROUP BY category
UNION ALL SELECT 'flow', 'all', COUNT(*) FROM flow
UNION ALL SELECT 'counter', t.name, COUNT(*) FROM counter c JOIN counter_track t ON c.track_id = t.id GROUP BY t.name
UNION ALL SELECT 'error', name, value FROM stats WHERE severity = 'error' AND value > 0;
"""


def test_the_trace_processor_reads_all_of_it(tmp_path: Path) -> None:
    """Nothing is dropped: Perfetto counts as many processes, threads, slices, arrows and samples as the result has."""
    program = trace_processor()
    made = pipeline_result()
    made.link_loads = [LinkLoad("gpu0>leaf0", np.array([0.0, 1e-3]), np.array([5e10, 0.0]))]
    made.memory = [MemoryUse(0, "activations", np.array([0.0, 2e-3, 3e-3]), np.array([1e9, 2e9, 0.0]))]
    perfetto.write(made, tmp_path / "trace.json")
    (tmp_path / "counts.sql").write_text(COUNTS)
    told = subprocess.run(
        [program, "-q", tmp_path / "counts.sql", tmp_path / "trace.json"], capture_output=True, text=True, check=True
    )
    found = [(what, name, int(number)) for what, name, number in list(csv.reader(told.stdout.split("\n")))[1:] if what]
    spans = made.spans()
    streams = Counter(line.stream for line in made.timeline)
    assert sorted(found) == sorted([
        ("process", "links", 1),
        *(("process", class_name(ranks), 1) for ranks in made.ranks),
        *(("thread", stream, count) for stream, count in streams.items()),
        ("slice", "compute", int((spans["kind"] == "compute").sum())),
        ("slice", "communication", int(np.isin(spans["kind"], COMMUNICATION).sum())),
        ("slice", "wait", int((spans["transfer_start_seconds"] > spans["start_seconds"]).sum())),
        ("flow", "all", sum(event["ph"] == "s" for event in exported(made))),
        ("counter", "gpu0>leaf0 GB/s", 2),
        ("counter", "memory: activations bytes", 3),
    ])  # fmt: skip


def test_csv_holds_every_span_with_all_digits(tmp_path: Path) -> None:
    made = pipeline_result()
    csv_table.write(made, tmp_path / "spans.csv.gz")
    with gzip.open(tmp_path / "spans.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(line.op) for line in made.timeline)
    first = made.timeline[0]
    own = [row for row in rows if row["rank_class"] == "0" and row["stream"] == first.stream]
    assert [float(row["end_seconds"]) for row in own] == first.end.tolist()
    assert {row["transfer_start_seconds"] for row in own if row["kind"] == "compute"} == {""}
    assert {row["microbatch"] for row in own if row["kind"] == "compute"} == set("01234567")


def test_spans_and_path_from_python() -> None:
    made = pipeline_result()
    spans = made.spans()
    assert {len(column) for column in spans.values()} == {sum(len(line.op) for line in made.timeline)}
    computes = spans["kind"] == "compute"
    assert (spans["end_seconds"] - spans["start_seconds"])[computes].sum() == pytest.approx(4 * 8 * 30e-3)
    path = made.critical_path()
    assert (path["end_seconds"] - path["start_seconds"]).sum() == pytest.approx(made.step_seconds, rel=1e-9)
    assert path["start_seconds"][0] == 0 and path["end_seconds"][-1] == made.step_seconds
    assert set(made.partition()) == set(made.bubble()) == {"0-15", "16-31", "32-47", "48-63"}
    assert result([[]]).critical_path() == {} and len(result([[]]).spans()["name"]) == 0


def test_pandas_is_asked_for_only_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pandas is not installed"):
        fsdp_result().to_pandas()


def test_parquet_holds_the_columns_of_spans_with_their_types(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    made = pipeline_result()
    export_to(made, tmp_path, "spans.parquet")
    table = parquet.read_table(tmp_path / "spans.parquet")
    expected = made.spans()
    assert table.column_names == list(expected)
    kinds = {"O": "string", "i": "int64", "f": "double"}
    assert {field.name: str(field.type) for field in table.schema} == {
        name: kinds[column.dtype.kind] for name, column in expected.items()
    }
    for name, column in expected.items():
        read = np.array(table[name].to_pylist(), dtype=column.dtype)  # a null becomes nan
        np.testing.assert_array_equal(read, column)


def test_parquet_and_csv_say_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    made = fsdp_result()
    export_to(made, tmp_path, "spans.csv", "spans.parquet", "again.parquet")
    table = parquet.read_table(tmp_path / "spans.parquet")
    with (tmp_path / "spans.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == table.column_names
    columns = zip(*(table[name].to_pylist() for name in header), strict=True)
    assert [["" if value is None else str(value) for value in row] for row in columns] == rows
    assert table["transfer_start_seconds"].null_count == (made.spans()["kind"] == "compute").sum() > 0
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "spans.parquet").read_bytes()


def test_without_pyarrow_one_line_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="writing Parquet needs pyarrow") as caught:
        export_to(fsdp_result(), tmp_path, "spans.parquet")
    assert caught.value.exit_code == 2 and caught.value.remedy == "pip install 'emu-cluster[parquet]'"
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("name", ["x.feather", "x.parquet.gz", "parquet"])
def test_an_unknown_ending_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"has to end in \.json, .*, \.csv\.gz or \.parquet"):
        export("r.json", str(tmp_path / name))
    assert not list(tmp_path.iterdir())

"""Memory over time: what is alive when, against sums by hand."""

from __future__ import annotations

from io import StringIO

import pytest
from jobs import compute, job, star
from rich.console import Console

from emulator.api import open_job
from emulator.report.hints import hints
from emulator.report.memory import in_all
from emulator.report.partition import fill
from emulator.report.summary import render
from emulator.result import io
from emulator.result.build import Span, result
from emulator.result.schema import Omitted, Result
from emulator.trace.schema import BlockUse, Op, PerRank


def alloc(at: float, size: int, category: str) -> Span:
    return Span("alloc", at, at, "alloc", category=category, memory_bytes=size)


def free(at: float, size: int, category: str) -> Span:
    return Span("free", at, at, "free", category=category, memory_bytes=-size)


def steps(made: Result, rank_class: int = 0) -> dict[str, list[tuple[float, float]]]:
    """(time, bytes) of every category of a class."""
    return {
        use.category: list(zip(use.time.tolist(), use.bytes.tolist(), strict=True))
        for use in made.memory
        if use.rank_class == rank_class
    }


def text(made: Result, width: int = 120) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(render(made, width=width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def a_step() -> Result:
    """Activations of 30 and 20 kept until backward, gradients of 40; parameters of 100 stay."""
    spans = [
        alloc(0, 30, "activation"), Span("mm", 0, 10), alloc(10, 20, "activation"), Span("mm", 10, 20),
        alloc(20, 40, "gradient"), free(20, 20, "activation"), Span("mm", 20, 30), free(30, 30, "activation"),
        Span("mm", 30, 35), free(35, 40, "gradient"),
    ]  # fmt: skip
    made = result([spans])
    made.trace.resident = {"parameters": 100.0}
    made.device.memory_bytes, made.device.name = 160.0, "A"
    return fill(made)


def test_what_is_alive_is_what_was_allocated_and_not_freed() -> None:
    made = a_step()
    assert steps(made) == {
        "activation": [(0, 30), (10, 50), (20, 30), (30, 0)],
        "gradient": [(0, 0), (20, 40), (35, 0)],
        "parameters": [(0, 100)],
    }
    times, each = in_all(made.memory)
    assert sum(each).tolist() == [130, 150, 170, 140, 100] and times.tolist() == [0, 10, 20, 30, 35]


def test_the_report_names_the_peak_and_that_it_does_not_fit() -> None:
    found = " ".join(text(a_step()).split())
    assert "170 B" in found and "106.2 %" in found and "20 s" in found and "100 B" in found
    assert "It does not fit into the 160 B of A." in found


def test_more_freed_than_allocated_was_there_before() -> None:
    made = fill(result([[Span("mm", 0, 5), free(5, 40, "gradient"), Span("mm", 5, 8), alloc(8, 10, "gradient")]]))
    assert steps(made) == {"gradient": [(0, 40), (5, 0), (8, 10)]}


def test_periods_left_out_count_with_what_they_leave_behind() -> None:
    """The period shown, 10 to 20, keeps 3 of 5 bytes; two more like it are not shown."""
    made = result([[Span("mm", 0, 12), alloc(12, 5, "kept"), free(15, 2, "kept"), Span("mm", 15, 30)]])
    made.step_seconds, made.omitted = 50.0, [Omitted(20.0, 10.0, 2)]
    assert steps(fill(made)) == {"kept": [(0, 0), (12, 5), (15, 3), (20, 9)]}


def test_without_memory_events_the_report_says_so() -> None:
    made = fill(result([[Span("mm", 0, 5)]]))
    assert not made.memory and "Memory" not in text(made)
    made.trace.resident = {"parameters": 2e9}
    assert "No memory events in this trace. Resident before the step: 2 GB per rank (2 GB parameters)." in text(made)


def test_events_of_a_trace_reach_the_result_and_its_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Two rounds of a block that keeps 7 bytes while it computes for 2 s; sizes of the last alloc differ by rank."""
    block = [
        Op(id=0, kind="alloc", storage=9, bytes=7, category="activation"),
        compute(1, 2.0),
        Op(id=2, kind="free", storage=9, bytes=7, category="activation"),
    ]
    last = Op(id=0, kind="alloc", storage=5, bytes=PerRank(["dp"], [3, 4]), category="output")
    trace = job({"dp": 2}, [BlockUse("b", 2), last, compute(1, 1.0)], blocks={"b": block})
    trace.meta.resident = {"parameters": PerRank(["dp"], [10, 11])}
    made = open_job(trace, star(tmp_path, 2), device="h100").run()
    assert steps(made) == {
        "activation": [(0, 7), (2, 7), (4, 0)],
        "output": [(0, 0), (4, 4)],
        "parameters": [(0, 11)],
    }
    io.write(made, tmp_path / "r.json")
    read = io.read(tmp_path / "r.json")
    assert steps(read) == steps(made) and read.trace.resident == {"parameters": 11}
    assert read.programs[0].memory_bytes.tolist() == made.programs[0].memory_bytes.tolist()
    assert steps(fill(read)) == steps(made)


def test_where_space_is_short_the_smallest_categories_go() -> None:
    """At the peak there are parameters of 100, gradients of 40 and activations of 30."""
    lines = text(a_step(), 60).splitlines()
    header = next(line.split() for line in lines if "peak" in line)
    assert header[-2:] == ["parameters", "gradient"]
    assert "No room at this width for: activation." in lines


@pytest.mark.parametrize("width", [60, 100])
def test_the_table_fits(width: int) -> None:
    assert max(map(len, text(a_step(), width).splitlines())) <= width


def held(size: int, *more: Span) -> list[str]:
    """What stands out where activations of so many bytes lie beside 100 of parameters."""
    spans = [alloc(0, 100, "parameter"), alloc(1, size, "activation"), Span("mm", 1, 9), *more]
    return [hint.text for hint in hints(fill(result([spans]))) if hint.rule == "activations"]


def test_activations_that_dominate_stand_out_unless_something_is_done_about_them() -> None:
    assert held(150) == [
        "activations are 150 B of 250 B at the peak on ranks 0, without recomputation or sequence parallel: "
        "recomputing them, or sequence parallel, makes room for a larger batch"
    ]
    assert held(99) == []
    assert held(150, Span("mm", 9, 10, phase="recompute")) == []

"""The plain timeline: fits any width, says what its letters mean, shows what fills most of a cell."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_results import fsdp_result, pipeline_result

from emulator.errors import InputError
from emulator.result.build import Span, result
from emulator.view import plain, rows
from emulator.view.axis import axis

TINY = [
    Span("mm", 0.0, 4e-3, phase="forward"),
    Span("ag", 0.0, 3e-3, "collective", "fsdp", 2e-3, collective="all_gather"),
    Span("mm", 4e-3, 8e-3, phase="backward"),
    Span("rs", 8e-3, 10e-3, "collective", "fsdp", 8e-3, [2], collective="reduce_scatter"),
    Span("send", 4e-3, 5e-3, "send", "pp", 4e-3, [0]),
]


def test_a_tiny_case_in_full() -> None:
    """10 ms in 20 cells of 0.5 ms."""
    assert plain.render(result([TINY], [2]), width=37).plain.splitlines() == [
        "step 10 ms, 2 ranks",
        "           0 ms      5 ms",
        "           |---------|---------  busy",
        "class 0: 2 ranks (0-1)",
        "  compute  FFFFFFFFBBBBBBBB....  80 %",
        "  fsdp     wwwwgg..........ssss  50 %",
        "  pp       ........pp..........  10 %",
        "F forward  B backward  g all-gather",
        "s reduce-scatter  p send/recv",
        "w wait for participants  . idle",
        "A cell is 500 us and shows what ran",
        "longest in it; idle: under 5% of it.",
        "busy: share of the time shown in",
        "which the stream runs or waits for",
        "participants.",
    ]


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
@pytest.mark.parametrize("made", [fsdp_result, pipeline_result])
def test_any_width(made: object, width: int) -> None:
    found = made()  # type: ignore[operator]
    lines = plain.render(found, width=width).plain.splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith("  ") and line.endswith("%")]
    assert len(rows) == len(found.timeline)
    assert all(len(row) == width for row in rows)
    assert sum(line.startswith("class ") for line in lines) == len(found.ranks)
    ticks = lines[1].split()
    assert ticks[1] == "ms" and [float(tick) for tick in ticks[::2]] == sorted(float(tick) for tick in ticks[::2])


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_legend_lists_the_letters_used_and_no_others(width: int) -> None:
    lines = plain.render(fsdp_result(), width=width).plain.splitlines()
    used = {letter for line in lines if line.endswith("%") for letter in line.split()[1]}
    text = "\n".join(lines)
    meanings = {letter: meaning for letter, meaning, _ in [*rows.KINDS, plain.IDLE]}
    listed = set(
        re.findall(r"(?:^|  )(\S) (?=[a-z])", text[text.index("\nF forward") : text.index("\nA cell is")], re.M)
    )
    assert listed == used == set("FBOgsw.")
    assert all(f"{letter} {meanings[letter]}" in text for letter in used)


def test_a_window_of_time_and_a_class() -> None:
    lines = plain.render(pipeline_result(), width=60, start=0.1, end=0.11, classes=[2]).plain.splitlines()
    assert [line for line in lines if line.startswith("class")] == ["class 2: 16 ranks (32-47)"]
    assert lines[1].split()[:2] == ["100", "ms"]
    assert any(line.startswith("  pp") and "wwww" in line for line in lines)
    assert not any("forward" in line and line.startswith("F ") for line in lines)


def test_colours_are_there_beside_the_letters() -> None:
    text = plain.render(fsdp_result(), width=80)
    styles = {str(span.style) for span in text.spans if text.plain[span.start : span.end].startswith("F")}
    assert any("#0072b2" in style for style in styles)


def test_many_classes_are_cut_and_it_says_so() -> None:
    text = plain.render(result([TINY[:1]] * 20), width=60).plain
    assert text.count("\nclass ") == plain.CLASSES_SHOWN
    assert "4 more classes: --class N" in text


def test_many_ops_in_a_cell_show_the_kind_that_fills_most_of_it() -> None:
    spans = []
    for i in range(1000):
        spans += [Span("a", i, i + 0.3, phase="forward"), Span("b", i + 0.3, i + 0.9, phase="backward")]
    row = next(line for line in plain.render(result([spans]), width=60).plain.splitlines() if "compute" in line)
    assert set(row.split()[1]) == {"B"} and row.endswith(" 90 %")


@pytest.mark.parametrize(("options", "reason"), [
    ({"width": 20}, "too few"),
    ({"start": 2e-3, "end": 1e-3}, "no window"),
    ({"start": -1.0}, "no window"),
    ({"start": 1.0, "end": 2.0}, "the timeline ends at 10 ms"),
    ({"classes": [1]}, "no rank class 1"),
    ({"start": float("nan")}, "no window"),
    ({"end": float("nan")}, "no window"),
])  # fmt: skip
def test_bad_requests(options: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        plain.render(result([TINY]), **{"width": 80, **options})  # type: ignore[arg-type]
    assert reason in str(caught.value)


def test_a_step_of_no_time_is_refused() -> None:
    with pytest.raises(InputError, match="takes no time"):
        plain.render(result([[]]), width=80)


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1e4), st.floats(1e-8, 1e4), st.integers(10, 250))
def test_axis_fits_and_labels_do_not_touch(start: float, span: float, cells: int) -> None:
    names, ruler = axis(start, start + max(span, start * 1e-9), cells)
    assert len(ruler) == cells and len(names) <= cells
    assert set(ruler) <= {"|", "-"}
    for label in names.replace(" s", "_s").replace(" ms", "_ms").replace(" us", "_us").replace(" ns", "_ns").split():
        assert label.count("_") == 1


def test_the_plain_view_starts_without_torch_or_networkx() -> None:
    heavy = {"torch", "networkx", "matplotlib", "simpy", "textual"}
    code = f"import sys; import emulator.view.plain; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

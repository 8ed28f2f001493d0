"""The report fits any width, says of what each percentage is, and puts a unit on every figure."""

from __future__ import annotations

import io
import re

import msgspec
import numpy as np
import pytest
from made_results import fsdp_result, pipeline_result
from rich.console import Console

from emulator.report import classes, figures, summary
from emulator.report.network_use import links
from emulator.report.tables import Column, fitting
from emulator.result.schema import CollectiveUse, Result
from emulator.result.tables import LinkLoad


def printed(result: Result, width: int, **options: object) -> str:
    out = io.StringIO()
    Console(file=out, width=width, **options).print(summary.render(result, width=width))  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("made", [fsdp_result, pipeline_result])
def test_no_line_is_wider_than_the_terminal(made: object, width: int) -> None:
    text = printed(made(), width)  # type: ignore[operator]
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [60, 200])
def test_the_main_figures_are_there_at_any_width(width: int) -> None:
    text = printed(fsdp_result(), width)
    words = " ".join(text.split())
    for figure in (
        "step 69 ms", "1 M tokens/s", "MFU 42.0 % of the peak", "6NT without the input embedding",
        "8 nodes of 8 H100 on NVSwitch", "spine.oversubscription=2", "H100-SXM", "roofline, sustained",
        "lowering compile", "109 recorded kernels timed as 17", "0 measured, 9 modelled, 0 scaled",
        "64 ranks in 1 class", "63 ms 91.3 %", "5.5 ms 8.0 %", "500 us 0.7 %", "overlap 75.0 %",
        "Percentages are of the step", "95.4 GB/s", "gpu0>leaf0", "61.0 %", "fsdp, world",
        "the host is taken to be never late",
    ):  # fmt: skip
        assert figure in words, figure


def test_lines_of_the_partition_add_up_on_paper() -> None:
    """The printed seconds of the lines sum to the printed step (rounded to a microsecond here)."""
    text = printed(fsdp_result(), 80)
    lines = re.findall(r"^ (compute|exposed \w+|host|idle.*?|sum) +([\d.]+ \w+) +([\d.]+) %", text, re.M)
    factor = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    parts = {name: float(value.split()[0]) * factor[value.split()[1]] for name, value, _ in lines}
    assert sum(v for name, v in parts.items() if name != "sum") == pytest.approx(parts["sum"], abs=1e-6)
    assert sum(float(share) for name, _, share in lines if name != "sum") == pytest.approx(100, abs=0.2)


def test_columns_without_room_are_named() -> None:
    narrow, wide = printed(fsdp_result(), 60), printed(fsdp_result(), 200)
    assert "No room at this width for:" in narrow and "algbw" in narrow.split("Communication\n")[1].split("No room")[1]
    assert "No room" not in wide and "hierarchical" in wide


def test_the_least_important_column_goes_first() -> None:
    columns = [Column("a", ["1"]), Column("b", ["2"], 1), Column("c", ["3"], 2)]
    for width, names in ((12, "abc"), (11, "ab"), (7, "a"), (1, "a")):
        kept, out = fitting(columns, width)
        assert "".join(c.header for c in kept) == names
        assert "".join(c.header for c in out) == "abc"[len(names) :]


def test_no_colour_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in printed(fsdp_result(), 80)
    coloured = printed(fsdp_result(), 80, force_terminal=True, color_system="truecolor", no_color=False)
    assert "\x1b[" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = printed(fsdp_result(), 80, force_terminal=True, color_system="truecolor")
    assert not re.search(r"\x1b\[[\d;]*(3[0-8]|4[0-8])[;m]", plain)


def test_an_encoding_without_lines_gets_ascii() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=out, width=80).print(summary.render(fsdp_result(), width=80))
    out.flush()
    assert b"Rank classes" in out.buffer.getvalue()  # type: ignore[attr-defined]


def test_only_some_of_many_classes_and_collectives_are_shown_and_it_says_so() -> None:
    result = fsdp_result()
    use = result.collectives[0]
    result.collectives = [CollectiveUse(**{**msgspec.structs.asdict(use), "bytes": i}) for i in range(25)]
    first = result.ranks[0]
    result.ranks = [msgspec.structs.replace(first, rank_class=i, ranks=str(i), count=1) for i in range(10)]
    text = printed(result, 80)
    assert "2 more not shown" in text
    assert "5 more in the JSON" in text


def test_a_result_with_nothing_but_a_step() -> None:
    result = pipeline_result()
    for ranks in result.ranks:
        ranks.partition = None
    text = printed(result, 80)
    assert text.startswith("step 330 ms") and "Rank classes" not in text and "nan" not in text.lower()


@pytest.mark.parametrize("width", [1, 7, 30, 77])
def test_a_stacked_bar_is_as_long_as_asked(width: int) -> None:
    shares = {"forward": 0.333, "exposed_transfer": 0.333, "exposed_wait": 0.2, "host": 0.034, "idle": 0.1}
    bar = classes.stacked_bar(shares, width).plain
    assert len(bar) == width
    assert abs(bar.count("F") - 0.333 * width) <= 1


@pytest.mark.parametrize(("written", "text"), [
    (figures.seconds(0), "0 s"),
    (figures.seconds(0.069), "69 ms"),
    (figures.flops(3.2e15), "3.2 PFLOP"),
    (figures.count(8.03e9), "8.03 B"),
    (figures.count(65536), "65.54 k"),
    (figures.count(9999), "9999"),
    (figures.count(64), "64"),
    (figures.percent(1, 3), "33.3 %"),
    (figures.percent(1, 0), "-"),
    (figures.several(1, "class"), "1 class"),
    (figures.several(2, "class"), "2 classes"),
    (figures.several(16384, "rank"), "16,384 ranks"),
])  # fmt: skip
def test_figures(written: str, text: str) -> None:
    assert written == text


def test_hot_links_say_who_shares_them_and_when() -> None:
    """0-10 ms one transfer, 10-14 ms two, 14-20 ms one, 30-32 ms two, of a step of 70 ms: 22 ms in use, 6 shared."""
    made = fsdp_result()
    made.link_loads = [
        LinkLoad(
            "gpu0>leaf0",
            np.array([0.0, 10e-3, 14e-3, 20e-3, 30e-3, 32e-3]),
            np.zeros(6),
            np.array([1, 2, 1, 0, 2, 0]),
            {"fsdp": 3e9, "world": 1e9},
        )
    ]
    step = made.step_seconds
    (headers, first, second) = rows_of(links(made, 200))
    shown = dict(zip(headers, first, strict=True))
    assert shown["in use\n% of time"] == f"{100 * 22e-3 / step:.1f} %"
    assert shown["shared\n% of time"] == f"{100 * 6e-3 / step:.1f} %"
    assert shown["shared longest"] == "10 ms to 14 ms"
    assert shown["by"] == "fsdp 75.0 %, world 25.0 %"
    unknown = dict(zip(headers, second, strict=True))
    assert unknown["shared\n% of time"] == "-" and unknown["by"] == "fsdp"


def rows_of(renderable: object) -> list[list[str]]:
    """Headers and cells of a table of the report."""
    table = renderable.renderables[1]  # type: ignore[attr-defined]
    cells = [[cell.plain for cell in column.cells] for column in table.columns]
    return [[str(column.header) for column in table.columns], *map(list, zip(*cells, strict=True))]

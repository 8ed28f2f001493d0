"""Results side by side, and what changes are worth a run."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from made_results import fsdp_result, pipeline_result
from rich.console import Console

from emulator.report import compare, summary
from emulator.report.levers import Change, changes, describe, try_changes
from emulator.report.partition import fill
from emulator.result.build import Span, result
from emulator.result.schema import Result, WhatIf


def printed(results: list[Result], names: list[str], width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(compare.render(results, names, width=width))
    return out.getvalue()


def faster(made: Result) -> Result:
    """The FSDP job with transfers of half the length: spans by hand again, with the same compute."""
    spans = [Span("mm", 0, 0.0315 * 2, phase="forward")]
    return msgspec.structs.replace(fill(result([spans], [64])), trace=made.trace, topology=made.topology)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_side_by_side_at_any_width(width: int) -> None:
    text = printed([fsdp_result(), faster(fsdp_result()), pipeline_result()], ["base", "fast", "pipe"], width)
    assert max(map(len, text.splitlines())) <= width
    for name in ("base", "fast", "pipe"):
        assert name in text
    words = " ".join(text.split())
    assert "Differences are from base, in % of its step (69 ms)." in words


def test_differences_are_of_the_first_step() -> None:
    text = printed([fsdp_result(), faster(fsdp_result())], ["base", "fast"], 120)
    row = next(line for line in text.splitlines() if line.strip().startswith("step"))
    assert re.search(r"69 ms\s+63 ms -8.7 %", row)
    exposed = next(line for line in text.splitlines() if "exposed transfer" in line)
    assert re.search(r"5.5 ms\s+0 s\s+-8.0 %", exposed)


def test_one_result_alone_has_no_differences() -> None:
    assert "Differences" not in printed([fsdp_result()], ["one"], 80)


def test_changes_follow_what_the_path_is_made_of() -> None:
    """63 of 69 ms compute; the first gather and the last scatter are on the path, over the nic."""
    found = changes(fsdp_result())
    assert (
        Change("free", "fsdp") in found
        and Change("faster", "nic", 2.0) in found
        and Change("compute", "", 1.1) in found
    )
    assert Change("even") not in found


def test_a_straggler_is_worth_a_run() -> None:
    early = [Span("mm", 0, 10), Span("ar", 10, 31, "collective", "compute", 30, group="tp", arrived_last=1)]
    late = [Span("mm", 0, 30), Span("ar", 30, 31, "collective", "compute", 30, group="tp")]
    found = changes(fill(result([early, late], [3, 1])))
    assert Change("even") in found and Change("free", "tp") in found


def test_every_change_is_run_once_and_the_best_comes_first() -> None:
    steps = {"free": 60e-3, "faster": 65e-3, "compute": 63e-3}
    asked = []

    def rerun(change: Change) -> float:
        asked.append(change)
        return steps[change.kind]

    done: list[tuple[int, int]] = []
    made = fsdp_result()
    made.what_if = try_changes(made, rerun, progress=lambda i, n: done.append((i, n)))
    assert len(asked) == len(set(asked)) == len(made.what_if) == done[-1][0] == done[-1][1]
    assert [entry.step_seconds for entry in made.what_if] == sorted(entry.step_seconds for entry in made.what_if)
    out = io.StringIO()
    Console(file=out, width=80).print(summary.render(made, width=80))
    words = " ".join(out.getvalue().split())
    assert "FSDP communication free 60 ms -13.0 %" in words
    assert "nic links 2 times as fast 65 ms -5.8 %" in words


@pytest.mark.parametrize(("entry", "words"), [
    (WhatIf("free", "tp", 1.0, 1.0), "TP communication free"),
    (WhatIf("free", "dp_shard", 1.0, 1.0), "FSDP (dp_shard) communication free"),
    (WhatIf("faster", "spine", 2.0, 1.0), "spine links 2 times as fast"),
    (WhatIf("compute", "", 1.1, 1.0), "compute 1.1 times as fast"),
    (WhatIf("even", "", 1.0, 1.0), "no straggler: every op takes all ranks as long as the median rank"),
])  # fmt: skip
def test_changes_in_words(entry: WhatIf, words: str) -> None:
    assert describe(entry) == words


def test_nothing_is_tried_where_there_is_nothing() -> None:
    assert changes(result([[]])) == []

"""On a GPU the same hook takes streams and events from the real run. Needs one: elsewhere all of this is skipped."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from emulator.capture.session import recording  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA, and this machine or this torch has none"),
]


def test_ops_are_on_the_streams_they_run_on_and_wait_for_events() -> None:
    a = torch.ones(64, 64, device="cuda")
    side = torch.cuda.Stream()
    with recording() as session:
        b = a + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            c = b * 2
            done = side.record_event()
        torch.cuda.current_stream().wait_event(done)
        c.add_(1)
    found = [(op.kind, op.name, op.stream, op.deps) for op in session.tape.ops]
    assert found == [
        ("compute", "aten.add", "compute", []),
        ("wait", "", "stream", [0]),
        ("compute", "aten.mul", "stream", []),
        ("wait", "", "compute", [2]),
        ("compute", "aten.add_", "compute", []),
    ]


def test_the_backward_is_seen_in_its_own_thread() -> None:
    layer = torch.nn.Linear(64, 64, bias=False, device="cuda")
    with recording() as session:
        layer(torch.ones(8, 64, device="cuda")).sum().backward()
    gemms = [op.phase for op in session.tape.ops if op.op_class == "gemm"]
    assert gemms == ["forward", "backward"]


def test_the_hooks_come_out() -> None:
    torch.ones(1, device="cuda")
    before = torch.cuda.Event.record, torch.cuda.Event.wait
    with recording():
        assert torch.cuda.Event.record is not before[0]
    assert (torch.cuda.Event.record, torch.cuda.Event.wait) == before

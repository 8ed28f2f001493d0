"""A contract with torch's private corners: each accessor does what recording relies on, and says if it is gone."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from emulator.capture import accessors  # noqa: E402
from emulator.errors import InputError  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def fake_world():
    accessors.start_fake_world(3, 4)
    yield
    dist.destroy_process_group()


def test_this_torch_is_a_tested_one() -> None:
    assert torch.__version__.startswith(accessors.TESTED)


def test_another_torch_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    with pytest.warns(UserWarning, match=r"tested with 2\.13; this is torch 9\.9\.0"):
        accessors.check_version()


def test_what_is_missing_is_named_with_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "_default_cpu_stream")
    with pytest.raises(InputError, match=r"has no torch\.cpu\._default_cpu_stream") as caught:
        accessors.default_cpu_stream()
    assert "2.13" in caught.value.remedy


def test_groups_works_and_reduce_ops_come_out_of_their_boxes(fake_world: None) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415

    seen = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if func.namespace == "c10d":
                seen.append((args, out))
            return out

    with Look():
        work = dist.all_reduce(torch.ones(2), op=dist.ReduceOp.AVG, async_op=True)
    ((args, out),) = seen
    group, operation = args[1], args[2]
    assert accessors.is_boxed(group, "ProcessGroup")
    assert accessors.is_boxed(operation, "ReduceOp")
    assert accessors.group_ranks(group) == (0, 1, 2, 3)
    assert accessors.group_ranks(dist.group.WORLD.group_name) == (0, 1, 2, 3)
    assert accessors.reduce_op(operation) == "avg"
    assert accessors.work(out[-1]) is work
    assert issubclass(accessors.work_classes()[0], dist.Work)
    assert accessors.default_store() is not None


def test_autograd_numbers_nodes_as_the_forward_makes_them() -> None:
    start = accessors.sequence_number()
    first = torch.ones(1, requires_grad=True) * 2
    second = first * 3
    numbers = [accessors.node_sequence_number(t.grad_fn) for t in (first, second)]
    assert numbers == [start, start + 1]
    seen = []
    second.register_hook(
        lambda _: seen.append((accessors.in_backward(), accessors.current_autograd_node() is second.grad_fn))
    )
    second.backward()
    assert seen == [(True, True)]
    assert not accessors.in_backward()
    assert accessors.current_autograd_node() is None


def test_fsdp_holds_the_streams_we_name(fake_world: None) -> None:
    mesh = init_device_mesh("cpu", (4,))
    model = fully_shard(torch.nn.Linear(8, 8), mesh=mesh)
    model(torch.ones(1, 8))  # streams are made in the first forward
    roles = [name for key, name in accessors.fsdp_streams([]).items() if key in streams_of(model)]
    assert sorted(roles) == sorted(accessors.FSDP_STREAMS.values())
    stream, _ = accessors.cpu_stream_types()
    assert isinstance(accessors.default_cpu_stream(), stream)
    with torch.cpu.stream(other := stream()):
        assert accessors.current_cpu_stream() is other
    assert accessors.current_cpu_stream() is accessors.default_cpu_stream()


def streams_of(model: torch.nn.Module) -> set[Any]:
    context = model._get_fsdp_state()._comm_ctx
    return {getattr(context, name) for name in accessors.FSDP_STREAMS}


def test_meshes_can_be_made_among_fake_tensors_and_the_methods_come_back(fake_world: None) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

    before = dict(vars(DeviceMesh))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    with accessors.meshes_outside_fake_mode(), FakeTensorMode():
        assert mesh._flatten("ab").size() == 4
        assert accessors.root_mesh(mesh["b"]) == mesh
    assert dict(vars(DeviceMesh)) == before


def test_shape_inference_and_the_tracing_question_are_where_we_look() -> None:
    owner, name = accessors.sharding_propagator()
    assert callable(getattr(owner, name))
    module, name = accessors.tracing_question()
    assert getattr(module, name)() is False


def test_every_class_of_works_with_a_wait_of_its_own_is_found(fake_world: None) -> None:
    kinds = accessors.work_classes()
    assert kinds[0] is dist.Work
    assert type(dist.isend(torch.ones(1), 1)) in kinds
    assert all(issubclass(kind, dist.Work) and "wait" in vars(kind) for kind in kinds[1:])


def test_groups_are_found_under_another_name(fake_world: None) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    groups = accessors.groups_by_name()
    name = mesh["b"].get_group().group_name
    assert groups[name] is mesh["b"].get_group()
    accessors.name_group_also("another", groups[name])
    assert accessors.group_ranks("another") == (2, 3)


def test_pipelines_are_where_we_look() -> None:
    from torch.distributed.pipelining import schedules, stage  # noqa: PLC0415

    assert accessors.pipeline_stage() is stage._PipelineStageBase
    assert accessors.pipeline_schedule() is schedules._PipelineSchedule
    owner, name = accessors.pipeline_vote()
    assert callable(getattr(owner, name))


def test_buckets_are_filled_up_to_their_caps() -> None:
    tensors = [torch.empty(10) for _ in range(5)]  # 40 bytes each
    assert accessors.bucket_assignment(tensors, [40, 80]) == [[0], [1, 2], [3, 4]]


def test_a_function_runs_when_the_backward_has_ended() -> None:
    seen = []
    first = torch.ones(1, requires_grad=True)
    second = first * 2
    second.register_hook(lambda _: accessors.after_backward(lambda: seen.append(first.grad is not None)))
    second.backward()
    assert seen == [True]


def test_flat_parameters_ask_two_questions_about_addresses() -> None:
    module, answers = accessors.address_questions()
    whole, other, empty = torch.ones(4), torch.ones(4), torch.ones(4)
    empty.untyped_storage().resize_(0)
    for ask in (vars(module), answers):  # torch's own answers, and those without addresses
        assert ask["_same_storage"](whole, whole[2:])
        assert not ask["_same_storage"](whole, other)
        assert ask["_data_ptr_allocated"](whole)
        assert not ask["_data_ptr_allocated"](empty)

"""The private corners of torch that recording needs, each behind one guarded function.

Everything else in this package uses torch's public interface. If a new torch moves one of these, the function says so
by name and version instead of failing somewhere deep; ``tests/test_capture_accessors.py`` calls every one of them.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from emulator.errors import InputError

TESTED = ("2.13",)  # releases of torch that the recorder was tested with


def check_version() -> None:
    """Warn, once per process and place, if this torch is not one the recorder was tested with."""
    if not torch.__version__.startswith(tuple(f"{version}." for version in TESTED)):
        warnings.warn(
            f"emulator records with private interfaces of torch that were tested with {', '.join(TESTED)}; "
            f"this is torch {torch.__version__}",
            stacklevel=3,
        )


def _moved(what: str) -> InputError:
    return InputError(
        f"torch {torch.__version__} has no {what} as the recorder knows it",
        source="torch",
        remedy=f"tested with torch {', '.join(TESTED)}: pip install 'torch=={TESTED[-1]}.*'",
    )


def _get(root: Any, path: str) -> Any:
    """The attribute at a dotted path below ``root``, or a clear error."""
    found = root
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            raise _moved(f"{getattr(root, '__name__', root)}.{path}")
    return found


# ---- process groups and works


def _unbox(kind: str, boxed: Any) -> Any:
    return _get(dist, f"{kind}.unbox")(boxed)


def process_group(handle: Any) -> Any:
    """The process group that an op names: a boxed one (c10d ops), a name or the group itself (functional ops)."""
    if isinstance(handle, torch.ScriptObject):
        return _unbox("ProcessGroup", handle)
    if isinstance(handle, str):
        return _get(dist, "distributed_c10d._resolve_process_group")(handle)
    return handle


def group_ranks(handle: Any) -> tuple[int, ...]:
    """Global ranks of the group that an op names, in the group's order."""
    return tuple(dist.get_process_group_ranks(process_group(handle)))


def work(boxed: Any) -> Any:
    """The Python work object that a c10d op returned boxed; ``Work.wait`` later sees the same object."""
    return _unbox("Work", boxed)


def is_boxed(value: Any, kind: str) -> bool:
    """Whether a value is torch's box around ``kind`` (``Work``, ``ReduceOp``, ``ProcessGroup``)."""
    return isinstance(value, torch.ScriptObject) and str(value._type()).endswith(f".{kind}")


def reduce_op(value: Any) -> str:
    """Name of a reduce op, lower case: ``sum``, ``avg``, ``max``..."""
    if isinstance(value, str):
        return value.lower()
    members: dict[str, Any] = _get(dist, "ReduceOp.RedOpType").__members__
    number = value.op()
    return next((name.lower() for name, member in members.items() if int(member) == number), str(number))


def work_classes() -> list[Any]:
    """The classes whose ``wait`` every Python wait on a work calls: the base class, and those that have their own."""
    _get(dist, "Work.wait")
    found = [dist.Work]
    for kind in found:
        found += [below for below in kind.__subclasses__() if below not in found]
    return [kind for kind in found if kind is dist.Work or "wait" in vars(kind)]


def default_store() -> Any:
    """The key-value store through which the running job met."""
    return _get(dist, "distributed_c10d._get_default_store")()


def root_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The device mesh that a mesh was sliced from, itself if it was not."""
    root: DeviceMesh = _get(mesh, "_get_root_mesh")()
    return root


def start_fake_world(rank: int, world: int) -> None:
    """Make this process rank ``rank`` of a world of ``world`` whose collectives do nothing."""
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415
    except ImportError:
        raise _moved("torch.testing._internal.distributed.fake_pg.FakeStore") from None
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)


def groups_by_name() -> dict[str, Any]:
    """The process groups that this process belongs to, in the order in which they were made."""
    names = _get(dist, "distributed_c10d._world.pg_names")
    return {name: group for group, name in names.items()}


def name_group_also(name: str, group: Any) -> None:
    """Let functional collectives find ``group`` under another name too."""
    _get(torch, "_C._distributed_c10d._register_process_group")(name, group)


# ---- autograd


def current_autograd_node() -> Any:
    """The backward node that runs now, or None."""
    return _get(torch, "_C._current_autograd_node")()


def in_backward() -> bool:
    """Whether the autograd engine runs a backward pass in this thread."""
    return bool(_get(torch, "_C._current_graph_task_id")() != -1)


def node_sequence_number(node: Any) -> int:
    """When, counted in forward nodes of this thread, a backward node was made."""
    return int(_get(node, "_sequence_nr")())


def sequence_number() -> int:
    """How many backward nodes this thread has made so far."""
    return int(_get(torch, "autograd._get_sequence_nr")())


def after_backward(function: Callable[[], None]) -> None:
    """Run a function when the backward pass that runs now has ended."""
    _get(torch, "autograd.Variable._execution_engine.queue_callback")(function)


def bucket_assignment(tensors: Sequence[Any], caps: Sequence[int]) -> list[list[int]]:
    """Indices of the tensors in each of DDP's buckets; ``caps`` are the bytes of the first bucket and of the others."""
    assign = _get(dist, "_compute_bucket_assignment_by_size")
    buckets, _limits = assign(list(tensors), list(caps), [], [])
    return [list(bucket) for bucket in buckets]


# ---- streams of the CPU "device", which FSDP2 goes through


def cpu_stream_types() -> tuple[Any, Any]:
    """The stream and the event class of ``torch.cpu``: FSDP2's device handle on CPU, without effect by themselves."""
    for path in ("Stream.wait_stream", "Stream.wait_event", "Stream.record_event", "Event.record", "Event.wait"):
        _get(torch.cpu, path)
    return torch.cpu.Stream, torch.cpu.Event


def current_cpu_stream() -> Any:
    """The stream that is current on the CPU device (entered by FSDP2 with ``torch.cpu.stream``)."""
    return torch.cpu.current_stream()


def default_cpu_stream() -> Any:
    """The stream that is current where nobody entered one."""
    return _get(torch.cpu, "_default_cpu_stream")


@dataclass(frozen=True)
class Device:
    """How to ask a device for its current stream, and for the one that is current where nobody entered another."""

    is_cuda: bool
    current: Callable[[], Any]
    default: Callable[[], Any]


def stream_device() -> Device:
    """CUDA if this process has begun to use it, else the CPU."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return Device(True, torch.cuda.current_stream, torch.cuda.default_stream)
    return Device(False, current_cpu_stream, default_cpu_stream)


def cuda_event_type() -> Any:
    """The event class of CUDA, through whose ``record`` and ``wait`` all that streams wait for each other goes."""
    for path in ("Event.record", "Event.wait"):
        _get(torch.cuda, path)
    return torch.cuda.Event


FSDP_STREAMS = {
    "all_gather_copy_in_stream": "fsdp.all_gather_copy_in",
    "all_gather_stream": "fsdp.all_gather",
    "reduce_scatter_stream": "fsdp.reduce_scatter",
    "all_reduce_stream": "fsdp.all_reduce",
}


FSDP1_STREAMS = {
    "_unshard_stream": "fsdp.all_gather",
    "_post_backward_stream": "fsdp.reduce_scatter",
    "_pre_unshard_stream": "fsdp.all_gather_copy_in",
    "_all_reduce_stream": "fsdp.all_reduce",
}


def fsdp_streams(roots: Iterable[nn.Module]) -> dict[Any, str]:
    """Every stream that FSDP holds in this process, with its role. Several models have several of each.

    FSDP2 keeps them by itself; those of the first FSDP are attributes of its modules, below ``roots``.
    """
    mapping = _get(torch.distributed, "_composable_state._module_state_mapping")  # module -> weak reference to state
    names: dict[Any, str] = {}
    for reference in list(mapping.values()):
        context = getattr(reference(), "_comm_ctx", None)
        if context is not None and hasattr(context, "all_gather_stream"):
            names.update((_get(context, attribute), name) for attribute, name in FSDP_STREAMS.items())
    for root in roots:
        for module in root.modules():
            for attribute, name in FSDP1_STREAMS.items():
                if (stream := getattr(module, attribute, None)) is not None:
                    names[stream] = name
    return names


# ---- DTensor


def sharding_propagator() -> tuple[Any, str]:
    """The class and method with which DTensor finds the shape of a result, by running the op on fake tensors."""
    try:
        from torch.distributed.tensor._sharding_prop import ShardingPropagator  # noqa: PLC0415
    except ImportError:
        raise _moved("torch.distributed.tensor._sharding_prop") from None
    name = "_propagate_tensor_meta_non_cached"
    _get(ShardingPropagator, name)
    return ShardingPropagator, name


def tracing_question() -> tuple[Any, str]:
    """The module and function with which functional collectives ask whether a compiler traces them: under
    FakeTensorMode they say yes, and wait at once instead of at first use."""
    from torch.distributed import _functional_collectives as module  # noqa: PLC0415

    _get(module, "_are_we_tracing")
    return module, "_are_we_tracing"


# ---- pipelines


STAGE_METHODS = {  # of a pipeline stage, each with the microbatch as its first argument -> phase of what it does
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "backward_weight",
    "get_fwd_recv_ops": "forward",
    "get_fwd_send_ops": "forward",
    "get_bwd_recv_ops": "backward",
    "get_bwd_send_ops": "backward",
    "perform_reduce_grad": "backward",
}


def pipeline_stage() -> Any | None:
    """The base class of pipeline stages, with the ``STAGE_METHODS``; None if this process has not imported pipelining
    (which takes a while, and then it has no pipeline)."""
    module = sys.modules.get("torch.distributed.pipelining.stage")
    if module is None:
        return None
    stage = _get(module, "_PipelineStageBase")
    for name in STAGE_METHODS:
        _get(stage, name)
    return stage


def pipeline_schedule() -> Any | None:
    """The base class of pipeline schedules, which computes the loss of a microbatch in ``_maybe_compute_loss``."""
    module = sys.modules.get("torch.distributed.pipelining.schedules")
    if module is None:
        return None
    schedule = _get(module, "_PipelineSchedule")
    _get(schedule, "_maybe_compute_loss")
    return schedule


def agree_on_static_shapes(_schedule: Any, stages: list[Any], *_: Any) -> None:
    """Stands in, in a fake world, for the first exchange of a pipeline, in which stages vote whether their shapes are
    known: a vote needs data. All stages have to be made with ``input_args`` and ``output_args``."""
    from torch.distributed.pipelining import stage as module  # noqa: PLC0415

    for stage in stages:
        stage._inference_mode = _get(module, "InferenceMode.STATIC")


def pipeline_vote() -> tuple[Any, str]:
    """The class and method that :func:`agree_on_static_shapes` replaces."""
    from torch.distributed.pipelining import schedules  # noqa: PLC0415

    schedule = _get(schedules, "_PipelineSchedule")
    _get(schedule, "_warmup_p2p")
    return schedule, "_warmup_p2p"


# ---- fake tensors


def tensor_types() -> list[Any]:
    """The tensor classes whose ``tolist`` the host may call: plain ones and fake ones."""
    try:
        from torch._subclasses.fake_tensor import FakeTensor  # noqa: PLC0415
    except ImportError:
        raise _moved("torch._subclasses.fake_tensor.FakeTensor") from None
    return [torch.Tensor, FakeTensor]


def address_questions() -> tuple[Any, dict[str, Callable[..., bool]]]:
    """The module of the first FSDP's flat parameters, and the functions of it that ask for addresses, which fake
    tensors lack, each with one that answers the same without."""
    from torch.distributed.fsdp import _flat_param as module  # noqa: PLC0415

    def local(tensor: torch.Tensor) -> torch.Tensor:
        return getattr(tensor, "_local_tensor", tensor)

    def same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
        return bool(local(a).untyped_storage()._cdata == local(b).untyped_storage()._cdata)

    def allocated(tensor: torch.Tensor) -> bool:
        return bool(tensor.untyped_storage().nbytes() > 0)

    answers: dict[str, Callable[..., bool]] = {"_same_storage": same_storage, "_data_ptr_allocated": allocated}
    for name in answers:
        _get(module, name)
    return module, answers


@contextlib.contextmanager
def meshes_outside_fake_mode() -> Iterator[None]:
    """Let device meshes be made under FakeTensorMode: their bookkeeping reads tensor values, which fakes lack."""
    try:
        from torch._subclasses.fake_tensor import unset_fake_temporarily  # noqa: PLC0415
    except ImportError:
        raise _moved("torch._subclasses.fake_tensor.unset_fake_temporarily") from None

    def outside(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily():
                return method(*args, **kwargs)

        return wrapped

    names = ("__init__", "_flatten", "_concatenate")
    originals = {name: DeviceMesh.__dict__.get(name) for name in names}
    for name, original in originals.items():
        if original is None:
            raise _moved(f"DeviceMesh.{name}")
    try:
        for name, original in originals.items():
            static = isinstance(original, staticmethod)
            wrapped = outside(original.__func__ if isinstance(original, staticmethod) else original)
            setattr(DeviceMesh, name, staticmethod(wrapped) if static else wrapped)
        yield
    finally:
        for name, original in originals.items():
            setattr(DeviceMesh, name, original)

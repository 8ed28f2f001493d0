"""A fake world: one process stands for a rank of a world of any size.

Collectives do nothing (fake process group), tensors have shapes but no data (FakeTensorMode), so a model of any size
runs through the real code of torch's parallelisms. Ranks of an SPMD job all play one role, so one of them is recorded
and its program given to the world; where ranks differ along an axis (stages of a pipeline), one for each place on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from emulator.capture import accessors
from emulator.capture.patching import patched
from emulator.capture.processes import failure_of
from emulator.capture.replicas import Replicas
from emulator.capture.session import RankCapture, recording
from emulator.capture.workload import Workload
from emulator.errors import EmuError, InputError


def known_values(tensor: FakeTensor) -> Any:
    """``tolist`` of a fake tensor: what the job, which has an oracle for it, knows of the values."""
    try:
        return tensor.known_values
    except AttributeError:
        raise InputError(
            "the job reads values of a tensor, and a fake world has none",
            source="fake world",
            remedy="set `tensor.known_values` (moe.py: --routing balanced or skewed), or record real processes",
        ) from None


class _LazyWaits(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
    """Wraps results of functional collectives as real runs do, so that they are waited on at first use.

    torch's rule for fake tensors drops the wrapper, and the wait with it.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor | AsyncCollectiveTensor) for kind in types):
            return NotImplemented
        if func.namespace == "_c10d_functional" and func._overloadpacket.__name__ == "_wrap_tensor_autograd":
            return AsyncCollectiveTensor(args[0])
        return func(*args, **(kwargs or {}))


def capture_roles(
    workload: Workload, progress: Callable[[str], None] = lambda _text: None, *, memory: bool = True
) -> list[RankCapture]:
    """A capture of one rank of each role, in the order of the ranks: the one with place 0 on all other axes."""
    extents = list(workload.axes.values())
    places = [range(extent) if axis in workload.roles else range(1) for axis, extent in workload.axes.items()]
    count = math.prod(map(len, places))
    captures: list[RankCapture] = []
    names: list[str] = []
    for number, place in enumerate(itertools.product(*places)):
        rank = sum(at * math.prod(extents[i + 1 :]) for i, at in enumerate(place))
        progress(f"recording a fake world of {workload.world}: rank {rank}, {number + 1} of {count} roles")
        try:
            captures.append(capture_rank(workload, rank, names, memory=memory))
        except EmuError:
            raise
        except Exception as error:  # whatever the workload raises
            failure = failure_of(error)
            raise InputError(f"rank {rank} failed: {failure.reason}", source=str(workload.path)) from error
    return captures


def _name_as_before(names: list[str], done: set[str]) -> None:
    """Let this role's groups be found under the names that the first role's had: DTensor remembers, for as long as the
    process lives, how it redistributes, group names included. Every role makes its groups in the same order."""
    groups = accessors.groups_by_name()
    names.extend(list(groups)[len(names) :])
    for name, group in zip(names, groups.values(), strict=False):
        if name not in groups and name not in done:
            done.add(name)
            accessors.name_group_also(name, group)


def capture_rank(workload: Workload, rank: int, names: list[str] | None = None, *, memory: bool = True) -> RankCapture:
    """The second step of ``workload`` as ``rank`` of its world sees it.

    The first step fills torch's caches, with fake full-size tensors, and would count work that is not there. Raises
    InputError if this process already belongs to a process group.
    """
    if dist.is_initialized():
        raise InputError("this process already belongs to a process group", source=str(workload.path))
    module, config = workload.module, workload.config
    accessors.start_fake_world(rank, workload.world)
    try:
        mesh = init_device_mesh("cpu", tuple(workload.axes.values()), mesh_dim_names=tuple(workload.axes))
        steps = [module.batch(config, step) for step in range(2)]
        flat_parameters, answers = accessors.address_questions()
        with (
            ExitStack() as patches,
            accessors.meshes_outside_fake_mode(),
            patched(*accessors.tracing_question(), lambda: False),
            patched(*accessors.pipeline_vote(), accessors.agree_on_static_shapes),
            patched(FakeTensor, "tolist", known_values),
            patched(nn.parallel, "DistributedDataParallel", Replicas),
            FakeTensorMode(allow_non_fake_inputs=True) as fake,
            _LazyWaits(),
        ):
            for name, answer in answers.items():
                patches.enter_context(patched(flat_parameters, name, answer))
            names = [] if names is None else names  # of the groups of the first role that this process played
            aliases: set[str] = set()
            _name_as_before(names, aliases)
            job = module.build(config, mesh)
            _name_as_before(names, aliases)
            first, second = (fake.from_tensor(tokens) for tokens in steps)
            module.train_step(job, first)
            with recording(memory=memory) as session:
                loss = module.train_step(job, second)
            del loss  # as by a caller, it was held to the end of the step
            return session.captured(rank, workload.world)
    finally:
        dist.destroy_process_group()

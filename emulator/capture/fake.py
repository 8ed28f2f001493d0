"""A fake world: one process stands for a rank of a world of any size.

Collectives do nothing (fake process group), tensors have shapes but no data (FakeTensorMode), so a model of any size
runs through the real code of torch's parallelisms. Ranks of an SPMD job all play one role, so one of them is recorded
and its program given to the world.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from emulator.capture import accessors
from emulator.capture.session import RankCapture, recording
from emulator.capture.streams import patched
from emulator.capture.workload import Workload
from emulator.errors import InputError


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


def capture_rank(workload: Workload, rank: int) -> RankCapture:
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
        with (
            accessors.meshes_outside_fake_mode(),
            patched(*accessors.tracing_question(), lambda: False),
            FakeTensorMode(allow_non_fake_inputs=True) as fake,
            _LazyWaits(),
        ):
            job = module.build(config, mesh)
            first, second = (fake.from_tensor(tokens) for tokens in steps)
            module.train_step(job, first)
            with recording() as session:
                module.train_step(job, second)
            return session.captured(rank, workload.world)
    finally:
        dist.destroy_process_group()

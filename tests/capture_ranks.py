"""What the ranks of the capture tests do, each in its own process (started by emulator.capture.processes.run_ranks)."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from emulator.capture import workload
from emulator.capture.numerics import digest
from emulator.capture.session import recording
from emulator.trace import io


def meet(rank: int, nproc: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=nproc)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def train(loaded: workload.Workload, mesh: Any, steps: int, record_step: int | None = None) -> tuple[list[float], dict]:
    """Losses of this rank and all parameters after some steps, one of them perhaps recorded."""
    job = loaded.module.build(loaded.config, mesh)
    losses = []
    for step in range(steps):
        tokens = loaded.module.batch(loaded.config, step)
        if step == record_step:
            with recording():
                loss = loaded.module.train_step(job, tokens)
        else:
            loss = loaded.module.train_step(job, tokens)
        losses.append(whole(loss).item())
    return losses, {name: whole(p) for name, p in job.model.named_parameters()}


def compare_training(rank: int, nproc: int, folder: Path, path: Path, arguments: list[str]) -> None:
    """Three fp64 steps: recorded equals unrecorded bitwise, and both equal one process that has the whole batch."""
    meet(rank, nproc, folder)
    loaded = workload.load(path, arguments)
    mesh = init_device_mesh("cpu", tuple(loaded.axes.values()), mesh_dim_names=tuple(loaded.axes))
    plain, recorded = train(loaded, mesh, 3), train(loaded, mesh, 3, record_step=1)
    alone = train(loaded, None, 3)
    mean = torch.tensor(plain[0], dtype=torch.float64)
    dist.all_reduce(mean)
    result = {
        "same_losses": plain[0] == recorded[0],
        "same_parameters": all(torch.equal(plain[1][name], recorded[1][name]) for name in plain[1]),
        "loss_error": (mean / nproc - torch.tensor(alone[0], dtype=torch.float64)).abs().max().item(),
        "parameter_error": max((plain[1][name] - alone[1][name]).abs().max().item() for name in alone[1]),
    }
    (folder / f"result.{rank}").write_text(json.dumps(result))
    dist.destroy_process_group()


def replay(rank: int, nproc: int, folder: Path, trace_path: Path) -> None:
    """Execute the recorded step again from nothing but its files; what it leaves behind, byte by byte."""
    meet(rank, nproc, folder)
    exec_ = io.read(trace_path).exec
    assert exec_ is not None
    section = next(s for s in exec_["sections"] if rank in s["ranks"])
    place = section["ranks"].index(rank)
    section = {key: mine(value, place) for key, value in section.items() if key != "ranks"}
    contents = load_file(trace_path.with_name(exec_["file"]))
    storages = {
        number: contents[f"{rank}.{number}"].untyped_storage()
        if f"{rank}.{number}" in contents
        else torch.empty(size, dtype=torch.uint8).untyped_storage()
        for number, size in section["storages"].items()
    }

    def tensor(index: int) -> torch.Tensor:
        number, offset, shape, stride, dtype = section["tensors"][index]
        return torch.empty(0, dtype=getattr(torch, dtype)).set_(storages[str(number)], offset, shape, stride)

    def value(encoded: Any) -> Any:
        if isinstance(encoded, list):
            return [value(item) for item in encoded]
        if not isinstance(encoded, dict):
            return encoded
        ((kind, inner),) = encoded.items()
        if kind == "tensor":
            return tensor(inner)
        if kind == "torch":
            return getattr(torch, inner)
        return torch.device(inner) if kind == "device" else float(inner)

    with torch.no_grad():
        for call in section["calls"]:
            namespace, name, overload = call["call"].split(".")
            if namespace == "c10d":
                communicate(name, [value(argument) for argument in call["args"][:2]], call["args"])
                continue
            function = getattr(getattr(getattr(torch.ops, namespace), name), overload)
            out = function(*map(value, call["args"]), **{key: value(item) for key, item in call["kwargs"].items()})
            results = [leaf for leaf in torch.utils._pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
            for index, result in zip(call["out"], results, strict=True):
                target = tensor(index)
                if target.untyped_storage().data_ptr() != result.untyped_storage().data_ptr():
                    target.copy_(result)
    after = {n: digest(torch.empty(0, dtype=torch.uint8).set_(storages[n])) for n in section["after"]}
    fresh = load_file(trace_path.with_name(exec_["file"]))
    result = {
        "wrong": [n for n, expected in section["after"].items() if after[n] != expected[0]],
        "changed": sum(after[n] != digest(fresh[f"{rank}.{n}"]) for n in after),
    }
    (folder / f"result.{rank}").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def communicate(name: str, buffers: list[torch.Tensor], encoded: list[Any]) -> None:
    """The two collectives of FSDP2, by torch's public interface."""
    if name == "_allgather_base_":
        dist.all_gather_into_tensor(*buffers)
    else:
        assert name == "_reduce_scatter_base_"
        operation = next(a["reduce_op"] for a in encoded if isinstance(a, dict) and "reduce_op" in a)
        dist.reduce_scatter_tensor(*buffers, op=getattr(dist.ReduceOp, operation.upper()))


def mine(value: Any, place: int) -> Any:
    """This rank's side of a section in which ranks may differ."""
    if isinstance(value, dict):
        if set(value) == {"per_rank"}:
            return value["per_rank"][place]
        return {key: mine(item, place) for key, item in value.items()}
    return [mine(item, place) for item in value] if isinstance(value, list) else value


def fail(rank: int, nproc: int, folder: Path, how: str) -> None:
    """Rank 1 fails; the others wait for it for ever."""
    if rank == 1 and how == "raise":
        raise ZeroDivisionError("rank one is\nbroken")
    if rank == 1 and how == "exit":
        raise SystemExit(3)
    while True:
        torch.ones(1)


# ---- all strategies in one set of processes


def survey(rank: int, nproc: int, folder: Path, jobs: list[tuple[str, Path, list[str]]]) -> None:
    """Train every job three steps: plain, with the last step recorded, and (where exact) in one process; leave behind
    the captures, and how far the three agree."""
    meet(rank, nproc, folder)
    for name, path, arguments in jobs:
        loaded = workload.load(path, arguments)
        mesh = init_device_mesh("cpu", tuple(loaded.axes.values()), mesh_dim_names=tuple(loaded.axes))
        plain, again, alone = (
            train_fully(loaded, m, record=r) for m, r in ((mesh, False), (mesh, True), (None, False))
        )
        (folder / f"capture.{name}.{rank}").write_bytes(msgspec.msgpack.encode(again.capture))
        shares = {key: share(value, alone.parameters[key], mesh) for key, value in plain.parameters.items()}
        losses = mean_losses(plain, mesh)  # a pipeline has them on the rank of its last stage only
        apart = [(a - b).abs().item() for a, b in zip(losses, alone.losses, strict=bool(losses))]
        result = {
            "same_losses": all(map(torch.equal, plain.losses, again.losses)),
            "same_parameters": all(torch.equal(plain.parameters[key], again.parameters[key]) for key in shares),
            "loss_error": max(apart, default=0.0),
            "parameter_error": max((plain.parameters[key] - shares[key]).abs().max().item() for key in shares),
            "parameters": len(shares),
        }
        (folder / f"result.{name}.{rank}").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


@dataclass
class Run:
    losses: list[torch.Tensor]
    parameters: dict[str, torch.Tensor]
    capture: Any = None


def train_fully(loaded: workload.Workload, mesh: Any, *, record: bool) -> Run:
    job = loaded.module.build(loaded.config, mesh)
    run = Run([], {})
    for step in range(3):
        tokens = loaded.module.batch(loaded.config, step)
        with recording() if record and step == 2 else nullcontext() as session:
            loss = loaded.module.train_step(job, tokens)
        if session is not None:
            run.capture = session.captured(dist.get_rank(), dist.get_world_size())
        run.losses += [whole(loss)] if loss is not None else []
    flat = isinstance(job.model, FullyShardedDataParallel)
    with FullyShardedDataParallel.summon_full_params(job.model) if flat else nullcontext():
        run.parameters = {
            name.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", ""): whole(p).clone()
            for name, p in job.model.named_parameters()
        }
    return run


def mean_losses(run: Run, mesh: Any) -> list[torch.Tensor]:
    """Mean over the ranks that have different data."""
    means = [loss.double().clone() for loss in run.losses]
    for axis in mesh.mesh_dim_names:
        if axis not in ("pp", "tp") and mesh[axis].size() > 1:
            for loss in means:
                dist.all_reduce(loss, group=mesh[axis].get_group())
                loss.div_(mesh[axis].size())
    return means


def share(mine: torch.Tensor, all_of_it: torch.Tensor, mesh: Any) -> torch.Tensor:
    """The part of a parameter of the whole model that this rank has: experts are dealt out over ``ep``, and ``tp``."""
    if mine.shape == all_of_it.shape:
        return all_of_it
    place = mesh["ep"].get_local_rank()
    if len(all_of_it) > len(mine) * mesh["ep"].size():
        place = place * mesh["tp"].size() + mesh["tp"].get_local_rank()
    return all_of_it.chunk(len(all_of_it) // len(mine))[place]

"""Many replays at once: processes on this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from emulator.errors import InputError
from emulator.result.schema import Result

if TYPE_CHECKING:
    from distributed import Client


def run_many(
    jobs: Iterable[Mapping[str, Any]],
    *,
    processes: int | None = None,
    client: Client | None = None,
    done: Callable[[int], None] | None = None,
) -> list[Result]:
    """Replay many jobs; the results come in the order of the jobs.

    A job is a dict of the arguments of :func:`emulator.run`: ``{"trace": "llama.json", "topology": "torus"}``.
    ``processes``: how many at once on this machine (None: one per core; 1: in this process). ``client``: a Dask
    ``distributed.Client`` whose workers do it instead. ``done`` is told how many are finished. The first error of any
    job is raised, and what had not begun is left.
    """
    listed = [dict(job) for job in jobs]
    if client is not None:
        futures = client.map(_run, listed, pure=False)
        return list(client.gather(futures))
    if processes == 1 or len(listed) < 2:
        return _in_order(map(_run, listed), done)
    workers = min(processes or multiprocessing.cpu_count(), len(listed))
    context = multiprocessing.get_context("spawn")  # threads of libraries do not survive a fork everywhere
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            return _in_order(pool.map(_run, listed), done)
        except BrokenProcessPool:
            raise InputError(
                "a worker process died", source="run_many",
                remedy='a script has to call it under `if __name__ == "__main__":`, since workers import the script',
            ) from None  # fmt: skip
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _in_order(results: Iterable[Result], done: Callable[[int], None] | None) -> list[Result]:
    found: list[Result] = []
    for result in results:
        found.append(result)
        if done is not None:
            done(len(found))
    return found


def _run(job: Mapping[str, Any]) -> Result:
    from emulator.api import run  # noqa: PLC0415  (a worker imports it when it has something to do)

    return run(**job)


def sweep(**choices: Sequence[Any]) -> list[dict[str, Any]]:
    """All combinations of the choices as jobs: ``sweep(trace=["a.json"], topology=["torus", "fattree"])``."""
    jobs: list[dict[str, Any]] = [{}]
    for name, values in choices.items():
        jobs = [{**job, name: value} for job in jobs for value in values]
    return jobs

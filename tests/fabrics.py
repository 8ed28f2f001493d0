"""Small fabrics with every link in plain sight, for tests of the network model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Paths:
    ptr: np.ndarray
    link: np.ndarray
    share: np.ndarray
    latency: np.ndarray


class Explicit:
    """Links made by name; a subclass says which ones a pair uses: ``path(a, b) -> [(name, share)], latency``."""

    def __init__(self, domain, bandwidth):
        """``bandwidth(name)`` gives bytes/s of a link."""
        self.domain = np.asarray(domain)
        self.index = {}
        self._bandwidth = bandwidth
        self._capacity = []
        for src in range(len(self.domain)):  # all links exist before anyone asks for capacities
            for dst in range(len(self.domain)):
                if src != dst:
                    for name, _ in self.path(src, dst)[0]:
                        self.link(name)

    @property
    def capacity(self):
        return np.array(self._capacity)

    @property
    def link_src(self):
        """The accelerator that a link leaves (-1: a switch)."""
        return np.array([name[-1] if self._at_accelerator(name, "up") else -1 for name in self.index])

    @property
    def link_dst(self):
        """The accelerator that a link enters (-1: a switch)."""
        return np.array([name[-1] if self._at_accelerator(name, "down") else -1 for name in self.index])

    @staticmethod
    def _at_accelerator(name, direction):
        return direction in name and name[0] != "spine"

    def link(self, name):
        if name not in self.index:
            self.index[name] = len(self.index)
            self._capacity.append(self._bandwidth(name))
        return self.index[name]

    def route(self, src, dst):
        found = [self.path(a, b) for a, b in zip(src.tolist(), dst.tolist(), strict=True)]
        entries = [entry for entries, _ in found for entry in entries]
        return Paths(
            np.cumsum([0] + [len(entries) for entries, _ in found]),
            np.array([self.link(name) for name, _ in entries], dtype=np.int64),
            np.array([share for _, share in entries], dtype=float),
            np.array([latency for _, latency in found]),
        )


class Star(Explicit):
    """``n`` accelerators on one switch that never blocks. Latency per message, or one per sender."""

    def __init__(self, n, bandwidth=50e9, latency=0.0, domain=None):
        self.latency = np.broadcast_to(latency, n)
        super().__init__(np.zeros(n, dtype=int) if domain is None else domain, lambda _: bandwidth)

    def path(self, a, b):
        return [(("up", a), 1.0), (("down", b), 1.0)], float(self.latency[a])


class TwoLevelTree(Explicit):
    """``hosts`` of ``per_host`` accelerators with an NVSwitch and a network card each; leaves of ``per_leaf`` hosts.

    ``slow`` gives factors of links by name. ``hashed`` sends each pair over one spine, else all share.
    """

    def __init__(
        self, hosts, per_host=4, per_leaf=2, spines=2, over=1.0, nvlink=450e9, card=50e9, hashed=False, slow=None,
        latency=(0.0, 0.0, 0.0),
    ):  # fmt: skip
        self.per_host, self.per_leaf, self.spines, self.hashed = per_host, per_leaf, spines, hashed
        self.latency = latency  # within a host, within a leaf, between leaves
        speed = {"nvlink": nvlink, "card": card, "spine": card * per_host * per_leaf / spines / over}
        slow = slow or {}
        super().__init__(
            np.repeat(np.arange(hosts), per_host), lambda name: speed[name[0]] * slow.get(name, 1.0)
        )  # names are (kind, direction, ...)

    def path(self, a, b):
        host_a, host_b = a // self.per_host, b // self.per_host
        if host_a == host_b:
            return [(("nvlink", "up", a), 1.0), (("nvlink", "down", b), 1.0)], self.latency[0]
        leaf_a, leaf_b = host_a // self.per_leaf, host_b // self.per_leaf
        path = [(("card", "up", a), 1.0), (("card", "down", b), 1.0)]
        if leaf_a == leaf_b:
            return path, self.latency[1]
        spines = [(a * 7 + b * 13) % 31 % self.spines] if self.hashed else range(self.spines)
        for spine in spines:
            share = 1.0 if self.hashed else 1.0 / self.spines
            path += [(("spine", "up", leaf_a, spine), share), (("spine", "down", leaf_b, spine), share)]
        return path, self.latency[2]

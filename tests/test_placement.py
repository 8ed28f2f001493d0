"""Ranks on accelerators: every rank has one of its own, and the order is the one asked for."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import InputError
from emulator.topology.load import load
from emulator.topology.placement import place

FATTREE = load("fattree", ranks=64)


@given(st.sampled_from(["linear", "random", "rail", "tp,dp", "dp,tp"]), st.integers(1, 8), st.integers(1, 8))
def test_every_rank_has_an_accelerator_of_its_own(how: str, dp: int, tp: int) -> None:
    places = place(how, FATTREE, dp * tp, axes={"dp": dp, "tp": tp}, seed=7)
    assert places.dtype == np.int64 and len(set(places.tolist())) == dp * tp
    assert places.min() >= 0 and places.max() < 64


def test_linear_counts_and_rail_goes_across_nodes() -> None:
    assert place("linear", FATTREE, 16).tolist() == list(range(16))
    # 16 ranks fill two nodes: first the two first accelerators, then the second ones
    assert place("rail", FATTREE, 16).tolist() == [a + 8 * n for a in range(8) for n in range(2)]
    assert place("rail", load("torus", ranks=8), 8).tolist() == list(range(8))  # no nodes, no rails


def test_random_depends_on_the_seed_alone() -> None:
    one, again, other = (place("random", FATTREE, 32, seed=seed) for seed in (1, 1, 2))
    assert one.tolist() == again.tolist() != other.tolist()


def test_axes_in_the_order_of_the_job_are_linear() -> None:
    axes = {"pp": 2, "dp": 4, "tp": 8}
    assert place("pp,dp,tp", FATTREE, 64, axes=axes).tolist() == list(range(64))


def test_the_last_axis_named_varies_fastest() -> None:
    axes = {"pp": 2, "dp": 4, "tp": 8}
    places = place("tp, pp, dp", FATTREE, 64, axes=axes)
    for rank in range(64):
        pp, dp, tp = np.unravel_index(rank, (2, 4, 8))
        assert places[rank] == tp * 8 + pp * 4 + dp


@pytest.mark.parametrize("text", ["3 2 1 0", "[3, 2, 1, 0]", "gpu3\ngpu2\ngpu1\ngpu0\n", '["gpu3", 2, "gpu1", 0]'])
def test_a_file_lists_numbers_or_names(text: str, tmp_path: Path) -> None:
    (tmp_path / "places").write_text(text)
    assert place(str(tmp_path / "places"), FATTREE, 4).tolist() == [3, 2, 1, 0]


FAULTS = {
    "too few": ("0 1 2", "places 3 ranks, the job has 4"),
    "twice": ("0 1 2 1", "ranks 1 and 3 are both on gpu1"),
    "no accelerator": ("0 1 2 leaf0", "rank 3: 'leaf0' is no accelerator"),
    "beyond the last": ("0 1 2 64", "rank 3: '64' is no accelerator"),
    "negative": ("0 1 2 -1", "'-1' is no accelerator"),
    "not JSON": ("[0, 1", "is not a JSON list"),
    "a list of lists": (json.dumps([[0], [1], [2], [3]]), "rank 0: [0] is no accelerator"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_faulty_file_is_told_in_one_line(case: str, tmp_path: Path) -> None:
    text, reason = FAULTS[case]
    (tmp_path / "places").write_text(text)
    with pytest.raises(InputError) as caught:
        place(str(tmp_path / "places"), FATTREE, 4)
    assert reason in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("how", ["diagonal", "dp", "dp,tp,pp", "dp,dp", ""])
def test_an_unknown_placement_lists_those_there_are(how: str) -> None:
    with pytest.raises(InputError) as caught:
        place(how, FATTREE, 4, axes={"dp": 2, "tp": 2})
    assert "linear, random, rail" in caught.value.remedy and "dp,tp" in caught.value.remedy


def test_a_job_too_large_is_refused() -> None:
    with pytest.raises(InputError, match="holds 64 accelerators, the job needs 65"):
        place("linear", FATTREE, 65)

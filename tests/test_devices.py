"""Devices: figures with sources, efficiencies that say what they are."""

import pytest

from emulator.errors import InputError
from emulator.topology.devices import device_names, load_device

# reference: n, seconds of an n x n x n bf16 matmul, measured (aiconfigurator tables, commit 095f58a)
SQUARE_MATMULS = {
    "a100": [(1024, 1.79e-5), (4096, 5.39e-4), (8192, 3.74e-3)],
    "h100": [(1024, 6.1e-6), (4096, 1.74e-4), (8192, 1.4e-3)],
    "h200": [(1024, 5.78e-6), (4096, 1.75e-4), (8192, 1.36e-3)],
    "b200": [(1024, 4.56e-6), (4096, 1.12e-4), (8192, 7.37e-4)],
    "gb200": [(1024, 4.31e-6), (4096, 9.13e-5), (8192, 7.81e-4)],
    "gb300": [(1024, 4.35e-6), (4096, 7.34e-5), (8192, 5.89e-4)],
}


@pytest.mark.parametrize("name", device_names())
def test_every_device_is_complete_and_names_its_sources(name: str) -> None:
    d = load_device(name)
    assert d.memory_bytes > 2e8 and d.memory_bandwidth > 1e11
    assert all(1e12 < rate < 1e17 for rate in d.peak_flops.values())
    assert {"default", "gemm", "attention", "attention_backward"} <= set(d.efficiency)
    assert all(0 < f.e < 1 and 0 < f.h <= 1 and 0 < f.t0 < 1e-4 for f in d.efficiency.values())
    assert d.figures == "burst" and d.sources


def test_names_are_found_by_alias_in_any_case() -> None:
    assert load_device("H100").name == "h100-sxm5-80g"
    assert load_device("TPU_V4").name == "tpu-v4"
    assert load_device("ascend-910c").vendor == "Huawei"


def test_aliases_are_unique() -> None:
    for name in device_names():
        assert load_device(name).name == name


def test_an_unknown_device_lists_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        load_device("h1000")
    assert "h100-sxm5-80g" in caught.value.remedy and "tpu-v4" in caught.value.remedy


def test_published_peaks() -> None:
    h100 = load_device("h100")
    assert h100.peak_flops["bfloat16"] == pytest.approx(989.4e12)
    assert h100.peak_flops["float8_e4m3fn"] == pytest.approx(1979e12)
    assert (h100.memory_bytes, h100.memory_bandwidth) == (80e9, 3350e9)
    assert load_device("tpu-v4").memory_bytes == 32 * 2**30


@pytest.mark.parametrize("name", SQUARE_MATMULS)
def test_fitted_rooflines_give_back_measured_matmuls(name: str) -> None:
    d = load_device(name)
    fit = d.efficiency["gemm"]
    assert fit.status == "fitted"
    for n, measured in SQUARE_MATMULS[name]:
        flops, moved = 2 * n**3, 3 * 2 * n**2
        seconds = fit.t0 + max(flops / (fit.e * d.peak_flops["bfloat16"]), moved / (fit.h * d.memory_bandwidth))
        # single noisy runs around a fit whose own 90th percentile is 0.27 to 0.36
        assert seconds == pytest.approx(measured, rel=0.35)


def test_what_nobody_measured_is_named() -> None:
    assert "efficiency.gemm (assumed)" in load_device("tpu-v4").assumed
    assert "efficiency.gemm (assumed)" not in load_device("h100").assumed
    assert "memory_bandwidth (recalled)" in load_device("ironwood").assumed


def test_no_rate_is_invented_for_a_chip_without_a_published_one() -> None:
    assert "bfloat16" not in load_device("tpu-8t").peak_flops

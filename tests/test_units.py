"""Quantities as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.units import (
    format_bytes,
    format_flops,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_flops,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("400 Gbit/s", 50e9), ("400Gb/s", 50e9), ("400 Gbps", 50e9), ("450 GB/s", 450e9), ("450GB/s", 450e9),
        ("1 GiB/s", 2.0**30), ("50e9", 50e9), (50e9, 50e9), (7, 7.0), ("1_000 MB/s", 1e9), ("8 bit/s", 1.0),
    ],
)  # fmt: skip
def test_bandwidth_per_direction(text: str | float, expected: float) -> None:
    assert parse_rate(text) == expected


@pytest.mark.parametrize(
    "text",
    ["400G", "400 gb/s", "450 gB/s", "fast", "", "450 GB", "900 GB/s bidirectional", "900 GB/s bi-dir", "nan", "1e999"],
)
def test_a_bandwidth_that_could_mean_two_things_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"450 GB/s|per direction|finite"):
        parse_rate(text)


def test_a_flag_is_not_a_number() -> None:
    with pytest.raises(ValueError, match="bool"):
        parse_rate(True)


@pytest.mark.parametrize(
    ("text", "expected"), [("1.5 us", 1.5e-6), ("200ns", 2e-7), ("0.3 ms", 3e-4), ("2", 2.0), ("1 µs", 1e-6)]
)
def test_times(text: str, expected: float) -> None:
    assert parse_seconds(text) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "expected"), [("1 GiB", 2**30), ("1GB", 1e9), ("64 KiB", 65536), ("512 B", 512), ("1 kB", 1e3)]
)
def test_sizes(text: str, expected: float) -> None:
    assert parse_bytes(text) == expected


def test_a_size_of_1g_is_refused_since_it_may_be_binary() -> None:
    with pytest.raises(ValueError, match="GiB"):
        parse_bytes("1G")


def test_compute_rates() -> None:
    assert parse_flops("989.4 TFLOP/s") == pytest.approx(989.4e12, rel=1e-15)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ns"), (1.2345678, "1.235 s"), (0.0567, "56.7 ms"), (8.9e-6, "8.9 us"), (1.2e-7, "120 ns"), (90, "90.0 s")],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_sizes_and_rates_for_people() -> None:
    assert format_bytes(2**30) == "1.074 GB"
    assert format_rate(450e9) == "450 GB/s"
    assert format_rate(999.96e9) == "1 TB/s"
    assert format_flops(989.4e12) == "989.4 TFLOP/s"
    assert format_bytes(0) == "0 B"


@given(st.floats(1e-9, 59.0))
def test_a_time_for_people_reads_back(seconds: float) -> None:
    # four digits are printed, so half a unit of the fourth
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=6e-4)


@given(st.floats(1.0, 1e18))
def test_a_rate_for_people_reads_back(rate: float) -> None:
    assert parse_rate(format_rate(rate)) == pytest.approx(rate, rel=6e-4)

"""The timeline as SVG and PNG, and what both refuse."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from made_results import fsdp_result, pipeline_result

from emulator.cli.view import view
from emulator.errors import InputError
from emulator.result.build import result
from emulator.result.io import write
from emulator.view import picture


def test_svg_is_well_formed_and_asks_for_nothing_from_outside() -> None:
    text = picture.svg(pipeline_result(), width=100)
    root = ET.fromstring(text)
    assert root.tag.endswith("svg")
    words = "".join(root.itertext()).replace("\xa0", " ")
    assert "class 3: 16 ranks (48-63)" in words and "compute" in words
    assert re.findall(r"https?://\S+", text.replace('"http://www.w3.org/2000/svg"', "").split("-->")[-1]) == []
    assert picture.svg(pipeline_result(), width=100) == text


def test_png_shows_kinds_in_their_colours() -> None:
    from matplotlib.image import imread  # noqa: PLC0415

    pixels = (imread(io.BytesIO(picture.png(fsdp_result())))[..., :3] * 255).round().astype(int)
    colours = {tuple(colour) for colour in np.unique(pixels.reshape(-1, 3), axis=0).tolist()}
    for wanted in ((0x00, 0x72, 0xB2), (0x56, 0xB4, 0xE9), (0xE6, 0x9F, 0x00), (0xCC, 0x79, 0xA7)):
        assert wanted in colours
    zoomed = (imread(io.BytesIO(picture.png(fsdp_result(), end=20e-3)))[..., :3] * 255).round().astype(int)
    assert (0x56, 0xB4, 0xE9) not in {tuple(c) for c in np.unique(zoomed.reshape(-1, 3), axis=0).tolist()}


def test_a_window_outside_the_step_is_refused_by_both() -> None:
    for draw in (picture.svg, picture.png):
        with pytest.raises(InputError, match="the timeline ends at"):
            draw(fsdp_result(), start=1.0, end=2.0)
        with pytest.raises(InputError, match="takes no time"):
            draw(result([[]]))


def test_the_command_writes_files_and_asks_for_a_terminal(tmp_path: Path) -> None:
    saved = str(tmp_path / "r.json")
    write(fsdp_result(), saved)
    options = {"start": "0", "end": None, "classes": None, "width": None}
    view(saved, False, str(tmp_path / "t.svg"), str(tmp_path / "t.png"), **options)
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG") and (tmp_path / "t.svg").stat().st_size > 1000
    with pytest.raises(InputError, match="needs a terminal"):
        view(saved, False, None, None, **options)

"""Reading and writing traces: what goes in comes out, in every compression, and nothing half-written."""

from __future__ import annotations

import codecs
import gzip

import pytest
import zstandard

from emulator.errors import InputError
from emulator.trace import io
from emulator.trace.check import load
from emulator.trace.schema import BlockUse, Group, PerRank
from tests.jobs import collective, compute, job, recv, send, wait


def everything():
    """A trace that uses every corner of the format."""
    layer = [
        compute(0, None, op_class="gemm", flops=1e9, reads=[([0, 9, ""], 8)], writes=[(1, 4)], dtype="bfloat16"),
        collective(1, "all_reduce", "tp", 64, deps=[0], is_async=True),
        wait(2, 1, [1, 1]),
    ]
    return job(
        {"pp": 2, "tp": 2},
        [compute(9, {"a": 1} and 0.5), BlockUse("layer", 2, {"layer": "0+1"}), send(3, {"pp": 1}, 8, batch=1)],
        [compute(9, PerRank(["tp"], [0.25, 0.75])), BlockUse("layer", 2, {"layer": "2+1"}), recv(3, {"pp": -1}, 8)],
        ranks=[(2, 0), (2, 1)],
        groups={"tp": Group(axes=["tp"]), "odd": Group(ranks=[[0, 3], [1, 2]])},
        blocks={"layer": layer},
    )


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.zst"])
def test_round_trip(tmp_path, suffix):
    trace = everything()
    path = tmp_path / f"t{suffix}"
    io.write(trace, path)
    assert load(path) == trace


def test_compression_is_told_by_content_not_by_name(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(b"".join(io.encode(everything()))))
    assert load(path) == everything()


def test_writing_twice_gives_the_same_bytes(tmp_path):
    for name in ("a.json.gz", "b.json.gz"):
        io.write(everything(), tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_one_op_a_line(tmp_path):
    text = b"".join(io.encode(everything())).decode()
    assert sum(line.startswith('{"id":') for line in text.splitlines()) == 3 + 2 + 2


def test_an_op_called_block_is_still_an_op(tmp_path):
    trace = job({"dp": 1}, [compute(0, 1.0, module='a"block":b', name='"block":')])
    io.write(trace, tmp_path / "t.json")
    assert load(tmp_path / "t.json") == trace


def test_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(InputError):
        io.write(everything(), tmp_path / "missing" / "t.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("whole", [1, 2**25])  # read in pieces, and in one go
@pytest.mark.parametrize("suffix", [".json.gz", ".json.zst"])
def test_a_cut_compressed_file_is_named_wherever_it_is_cut(tmp_path, monkeypatch, suffix, whole):
    monkeypatch.setattr(io, "_WHOLE", whole)
    path = tmp_path / f"t{suffix}"
    io.write(everything(), path)
    data = path.read_bytes()
    for length in (1, 3, 12, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(InputError, match="damaged or cut compressed file"):
            io.read(path)


def test_several_zstd_frames_are_one_text(tmp_path):
    text = b"".join(io.encode(everything()))
    compress = zstandard.ZstdCompressor().compress
    (tmp_path / "t.json.zst").write_bytes(compress(text[:100]) + compress(b"") + compress(text[100:]))
    assert io.read(tmp_path / "t.json.zst") == everything()


def test_a_byte_order_mark_is_read_over(tmp_path, monkeypatch):
    text = b"".join(io.encode(everything()))
    (tmp_path / "t.json").write_bytes(codecs.BOM_UTF8 + text)
    assert io.read(tmp_path / "t.json") == everything()
    monkeypatch.setattr(io, "_WHOLE", 1)
    assert io.read(tmp_path / "t.json") == everything()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_refused_by_name(tmp_path, encoding):
    (tmp_path / "t.json").write_bytes(b"".join(io.encode(everything())).decode().encode(encoding))
    with pytest.raises(InputError, match="is UTF-16") as caught:
        io.read(tmp_path / "t.json")
    assert caught.value.remedy == "save it as UTF-8"

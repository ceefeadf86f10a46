"""Files, names and models that mean harm: each ends in one line, before memory, time or another file is touched."""

import gzip
import json
import os
import pickle
import socket
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch

from discoseg.checkpoint import load_slices, load_tensors, save_tensors
from discoseg.checkpoint_header import load_meta
from discoseg.cli import main
from discoseg.config import Config
from discoseg.data.arrays import read_npz
from discoseg.data.layouts import Case, Dataset, find_dataset
from discoseg.data.locks import LOCK, alone_in
from discoseg.data.meta_header import data_file
from discoseg.data.names import require_name
from discoseg.data.prepare import Grid, prepare_cases
from discoseg.data.volume import Volume, read_geometry, read_volume, write_volume
from discoseg.errors import UserError, printable
from discoseg.predict import load_model
from discoseg.presets import load_config
from discoseg.texts import parse_json, read_bytes
from discoseg.weak.atlas import load_atlas


def volume(shape: tuple[int, ...] = (2, 16, 20)) -> Volume:
    array = np.random.default_rng(0).integers(0, 200, shape).astype(np.uint8)
    return Volume(array, np.diag([-1.5, -1.5, 5.0, 1.0]), (5.0, 1.5, 1.5))


def refused(path: Path, match: str) -> None:
    for read in (read_volume, read_geometry) if "announces" not in match else (read_volume,):
        with pytest.raises(UserError, match=match) as caught:
            read(path)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sides", [(32767, 32767, 32767), (-1, 16, 2), (30000, 30000, 1)])
def test_nifti_sizes_are_compared_with_the_file(packed: bool, sides: tuple[int, ...], tmp_path: Path) -> None:
    write_volume(tmp_path / "a.nii", volume())
    content = bytearray((tmp_path / "a.nii").read_bytes())
    content[42:48] = struct.pack("<3h", *sides)
    path = tmp_path / ("b.nii.gz" if packed else "b.nii")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UserError, match=r"truncated or damaged|singular"):
        read_volume(path)


def test_a_gzip_bomb_is_unpacked_no_further_than_its_header_says(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(np.ones((4, 4, 4), np.uint8), np.eye(4))
    bomb = gzip.compress(image.to_bytes() + bytes(1 << 26), 9)
    (tmp_path / "a.nii.gz").write_bytes(bomb)
    assert len(bomb) < 2**17
    with pytest.raises(UserError, match="goes on behind the 64 bytes"):
        read_volume(tmp_path / "a.nii.gz")


def test_more_voxels_than_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_volume(tmp_path / "a.nii.gz", volume((4, 64, 64)))
    monkeypatch.setattr("discoseg.data.memory.usable_memory_bytes", lambda: 20_000.0)
    with pytest.raises(UserError, match="more than half of the memory there is"):
        read_volume(tmp_path / "a.nii.gz")


@pytest.mark.parametrize("name", ["/etc/hostname", "../secret.raw", "sub/secret.raw", "..", "C:\\secret.raw"])
def test_a_metaimage_reads_no_file_elsewhere(name: str, tmp_path: Path) -> None:
    _write_raw_mhd(tmp_path / "data" / "a.mhd", name)
    (tmp_path / "secret.raw").write_bytes(bytes(640))
    refused(tmp_path / "data" / "a.mhd", "must lie beside it")


def test_what_other_programs_write_into_a_metaimage_is_read(tmp_path: Path) -> None:
    _write_raw_mhd(tmp_path / "a.mhd", "./a.raw", "Comment = one", "Comment = two")
    assert read_volume(tmp_path / "a.mhd").shape == (2, 16, 20)


@pytest.mark.parametrize("name", ["LIST", "LIST 2", "slice%02d.raw 1 4 1"])
def test_a_metaimage_of_several_files_is_refused(name: str, tmp_path: Path) -> None:
    _write_raw_mhd(tmp_path / "data" / "a.mhd", name)
    refused(tmp_path / "data" / "a.mhd", "several files")


@pytest.mark.parametrize(
    "line", ["Comment = ElementDataFile = b.raw", "ElementDataFile = b.raw", "DimSize = 20 16", "NDims = 400"]
)
def test_a_metaimage_header_has_one_meaning(line: str, tmp_path: Path) -> None:
    _write_raw_mhd(tmp_path / "a.mhd", "a.raw", line)
    refused(tmp_path / "a.mhd", "header is truncated or damaged")
    _write_raw_mhd(tmp_path / "b.mhd", "= a.raw")
    refused(tmp_path / "b.mhd", "header is truncated or damaged")
    (tmp_path / "b.mhd").write_text((tmp_path / "b.mhd").read_text().replace("ElementDataFile", "TheElementDataFile"))
    refused(tmp_path / "b.mhd", "header is truncated or damaged")


def test_sizes_of_a_metaimage_are_compared_with_its_data(tmp_path: Path) -> None:
    _write_raw_mhd(tmp_path / "a.mhd", "a.raw")
    text = (tmp_path / "a.mhd").read_text().replace("20 16 2", "20000 16000 2000")
    (tmp_path / "a.mhd").write_text(text)
    with pytest.raises(UserError, match="announces 640000000000 bytes"):
        read_volume(tmp_path / "a.mhd")


def _write_raw_mhd(path: Path, name: str, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = ["ObjectType = Image", "NDims = 3", *lines, "DimSize = 20 16 2", "ElementType = MET_UCHAR"]
    path.write_text("\n".join([*entries, f"ElementDataFile = {name}", ""]))
    (path.parent / "a.raw").write_bytes(bytes(640))


@pytest.mark.parametrize("line", ["data file: ../secret.raw", "datafile: /etc/hostname", "a" * 5000, "sizes: 20 16 2"])
def test_nrrd_headers_are_read_strictly(line: str, tmp_path: Path) -> None:
    write_volume(tmp_path / "a.nrrd", volume())
    content = (tmp_path / "a.nrrd").read_bytes()
    (tmp_path / "a.nrrd").write_bytes(content.replace(b"\n", b"\n" + line.encode() + b"\n", 1))
    refused(tmp_path / "a.nrrd", "another file|header is truncated or damaged")


def test_what_other_programs_write_into_an_nrrd_header_is_read(tmp_path: Path) -> None:
    write_volume(tmp_path / "a.nrrd", volume())
    content = (tmp_path / "a.nrrd").read_bytes()
    lines = b"\nSegmentation_Names:=" + b"a: b (1, 2) " * 1000 + b"\nthicknesses: NaN NaN 2.5\nencoding:"
    for before, after in ((b"\nencoding:", lines), (b"\ndimension:", b"\nDimension:"), (b",", b", ")):
        assert before in content
        end = content.index(b"\n\n")
        content = content[:end].replace(before, after) + content[end:]
    (tmp_path / "b.nrrd").write_bytes(content)
    np.testing.assert_array_equal(read_volume(tmp_path / "b.nrrd").array, volume().array)
    np.testing.assert_array_equal(read_geometry(tmp_path / "b.nrrd").affine, read_geometry(tmp_path / "a.nrrd").affine)
    (tmp_path / "c.nrrd").write_bytes(content.replace(b"\n", b"\n" + b"k:=\n" * 20_000, 1))
    refused(tmp_path / "c.nrrd", "header is truncated or damaged")


def test_pages_of_a_tiff_that_go_in_circles_are_refused(tmp_path: Path) -> None:
    write_volume(tmp_path / "a.tif", volume((1, 16, 20)))
    content = bytearray((tmp_path / "a.tif").read_bytes())
    (start,) = struct.unpack_from("<I", content, 4)
    (count,) = struct.unpack_from("<H", content, start)
    struct.pack_into("<I", content, start + 2 + 12 * count, start)
    (tmp_path / "a.tif").write_bytes(content)
    refused(tmp_path / "a.tif", "go in circles")


def test_pages_of_a_tiff_share_no_more_than_it_holds(tmp_path: Path) -> None:
    """Pages that all point at the same strips, or at the same values of a tag that only Pillow reads."""
    (tmp_path / "a.tif").write_bytes(_shared_tiff(1, 500))
    assert read_volume(tmp_path / "a.tif").shape == (1, 500, 1)
    for content in (_shared_tiff(50, 500), _shared_tiff(50, 1, (65000, 1, 3000, 8))):
        (tmp_path / "a.tif").write_bytes(content)
        refused(tmp_path / "a.tif", "more entries and values than it can hold")


def _shared_tiff(pages: int, rows: int, *more: tuple[int, int, int, int]) -> bytes:
    """Pages of 1 × `rows` pixels with the same strips of one row; entries are tag, type, number, and value or place."""
    start = 8 + 8 * rows
    entries = [(256, 4, 1, 1), (257, 4, 1, rows), (258, 3, 1, 8), (273, 4, rows, 8), (278, 4, 1, 1)]
    entries += [(279, 4, rows, 8 + 4 * rows), *more]
    step = 2 + 12 * len(entries) + 4
    content = struct.pack("<2sHI", b"II", 42, start) + struct.pack("<I", 8) * rows + struct.pack("<I", 1) * rows
    if rows == 1:  # the values are their own place
        entries = [(*entry[:3], {273: 8, 279: 1}.get(entry[0], entry[3])) for entry in entries]
    for page in range(1, pages + 1):
        content += struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
        content += struct.pack("<I", start + page * step if page < pages else 0)
    return content


def test_a_png_of_more_pixels_than_it_can_hold_is_refused(tmp_path: Path) -> None:
    write_volume(tmp_path / "a.png", volume((1, 16, 20)))
    content = bytearray((tmp_path / "a.png").read_bytes())
    struct.pack_into(">II", content, 16, 900_000, 900_000)
    struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    (tmp_path / "a.png").write_bytes(content)
    refused(tmp_path / "a.png", "cannot hold 900000×900000 pixels")


@pytest.mark.parametrize("kind", ["iDOT", "caNv", "orNT", "vpAg", "acTL", "ABCD", "iDO1"])
def test_chunks_of_a_png_that_may_be_passed_over_are(kind: str, tmp_path: Path) -> None:
    write_volume(tmp_path / "a.png", volume((1, 16, 20)))
    content = (tmp_path / "a.png").read_bytes()
    chunk = kind.encode() + bytes(16)
    whole, damaged = (struct.pack(">I", 16) + chunk + struct.pack(">I", zlib.crc32(chunk) ^ wrong) for wrong in (0, 1))
    (tmp_path / "a.png").write_bytes(content[:33] + whole + content[33:])  # behind the header
    (tmp_path / "b.png").write_bytes(content[:33] + damaged + content[33:])
    if kind in ("ABCD", "iDO1"):
        refused(tmp_path / "a.png", "a chunk b")
    else:
        np.testing.assert_array_equal(read_volume(tmp_path / "a.png").array, volume((1, 16, 20)).array)
        refused(tmp_path / "b.png", "is not whole")


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "loop", "folder"])
def test_only_plain_files_are_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.nii.gz"
    with socket.socket(socket.AF_UNIX) as server:
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            server.bind(os.path.relpath(path))
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "loop":
            path.symlink_to(path)
        else:
            path.mkdir()
        with pytest.raises(UserError, match=r"is not a file|does not exist"):
            read_volume(path)
        with pytest.raises((UserError, OSError)):
            read_bytes(path)


def test_nothing_is_appended_through_a_link(tmp_path: Path) -> None:
    from discoseg.run import _append

    theirs = tmp_path / "theirs"
    theirs.write_text("kept")
    (tmp_path / "timing.csv").symlink_to(theirs)
    with pytest.raises(UserError, match="cannot write"):
        _append(tmp_path / "timing.csv", "1,2\n")
    (tmp_path / LOCK).symlink_to(theirs)
    with pytest.raises(UserError, match=r"\.lock is a symbolic link"), alone_in(tmp_path):
        pass
    assert theirs.read_text() == "kept"


def test_training_reads_no_pipe_in_the_place_of_voxels(tmp_path: Path) -> None:
    write_volume(tmp_path / "a.mhd", Volume(np.zeros((2, 4, 4), np.uint8), np.eye(4), (1.0, 1.0, 1.0)))
    data = next(path for path in tmp_path.iterdir() if path.suffix != ".mhd")
    data.unlink()
    os.mkfifo(data)
    case = Case("a", (tmp_path / "a.mhd",), None, "a")
    with pytest.raises(UserError, match="is not a file"):
        next(iter(prepare_cases([case], Grid((32, 32), (0.5, 99.5), "LPS"))))


def test_a_structure_with_a_slash_is_no_obstacle_to_others(tmp_path: Path) -> None:
    labels = {"background": 0, "liver": 1, "prostate/uterus": 2}
    dataset = Dataset(tmp_path, "nnunet", (), labels, 3)
    assert dataset.label_values("liver") == {"liver": 1}
    for chosen in ("prostate/uterus", "all"):
        with pytest.raises(UserError, match="slash"):
            dataset.label_values(chosen)


BAD_NAMES = [
    "a\nb",
    "\x1b[2Ja",
    "a/b",
    "..",
    ".a",
    "-rf",
    "=1+1",
    "+1",
    "@SUM(A1)",
    "a\\b",
    "\udc80",
    "\u202eb",
    "x" * 300,
    "",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_could_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="the name of the case") as caught:
        Dataset(Path("data"), "table", (Case(name, (Path("a.nii"),)),), {"background": 0}, ignore=2)
    assert str(caught.value).isprintable()
    with pytest.raises(UserError, match="the name of the structure"):
        require_name(name, "x", "structure")


@pytest.mark.parametrize("name", ["patient 001", "häertz", "头部", "a.b-c_d[1]", "O'Neil & sons", "100%"])
def test_names_of_people_are_fine(name: str) -> None:
    require_name(name, "x")
    assert printable(name) == name


def test_a_file_name_cannot_speak_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "a\x1b]0;owned\x07\nb"
    (root / "images").mkdir(parents=True)
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    write_volume(root / "images" / "a\x1b[2J.nii", volume())
    for folder in (root, root / "images", tmp_path / "\udcff"):
        with pytest.raises(SystemExit, match="2"):
            main(["check", str(folder)])
        said = capsys.readouterr()
        assert said.err.count("\n") == 1
        assert said.err.startswith("discoseg: error: ")
        assert "\x1b" not in said.out + said.err


def test_deep_nesting_and_large_texts_and_numbers_are_refused(tmp_path: Path) -> None:
    for text in ("[" * 200_000, '{"a":' * 100_000):
        with pytest.raises(ValueError, match=r"nested too deeply|Expecting"):
            parse_json(text)
    for text in (f'{{"a": [1{"0" * 400}]}}', f"-{'9' * 20}"):
        with pytest.raises(ValueError, match=r"a whole number of \d+ digits"):
            parse_json(text)
    assert parse_json(f'[{2**63 - 1}, {-(2**63)}, 1e999, "{"9" * 400}"]')[:2] == [2**63 - 1, -(2**63)]
    (tmp_path / "a.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(UserError, match="not valid TOML"):
        load_config(str(tmp_path / "a.toml"))
    for line in (f"epochs = {2**63}", f"[optimiser]\nlr = 1{'0' * 400}", f"[grid]\nshape = [16, -{'9' * 30}]"):
        (tmp_path / "a.toml").write_text(line)
        with pytest.raises(UserError, match=r"is a whole number of \d+ bits: expected 63 at most"):
            load_config(str(tmp_path / "a.toml"))
    with (tmp_path / "dataset.json").open("wb") as file:
        file.truncate(2**40)  # takes no room
    with pytest.raises(UserError, match="too large"):
        find_dataset(tmp_path)


class _Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was run",))


def test_no_pickle_is_ever_run(tmp_path: Path) -> None:
    """Pickles under the names of models, atlases and arrays, alone, in torch's archive, and as an array of objects."""
    plain, archive, arrays = tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "c.npz"
    plain.write_bytes(pickle.dumps(_Bomb()))
    torch.save(_Bomb(), archive)
    with zipfile.ZipFile(arrays, "w") as file, file.open("index.npy", "w") as member:
        np.lib.format.write_array(member, np.array([_Bomb()], dtype=object), allow_pickle=True)
    for path in (plain, archive, arrays):
        with pytest.raises(UserError):
            load_tensors(path)
        with pytest.raises(UserError):
            load_model(path, device="cpu")
        with pytest.raises(UserError):
            load_atlas(path)
    with pytest.raises(ValueError, match="holds object"):
        read_npz(arrays)


def test_the_source_has_no_way_to_unpickle_or_evaluate() -> None:
    import ast

    import discoseg

    for path in Path(discoseg.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert not {"pickle", "shelve", "marshal", "dill", "yaml", "joblib"} & {n.split(".")[0] for n in names}, (
                path
            )
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "torch.load", "os.system", "os.popen"), f"{path}: {called}"
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert keywords.get("shell") != "True", path
                assert called != "np.load" or keywords.get("allow_pickle") == "False", path


def _rewrite(path: Path, change: Any) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    change(header)
    if "header_crc32" in header["__metadata__"]:
        del header["__metadata__"]["header_crc32"]  # older files have none
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": [2**38]},
        {"shape": [-1]},
        {"shape": [4], "data_offsets": [0, 2**40]},
        {"shape": [2], "data_offsets": [8, 16]},
        {"shape": [4], "data_offsets": [-16, 0]},
        {"dtype": "OBJ"},
        {"shape": "4"},
        {"shape": [True]},
    ],
)
def test_tensors_lie_where_they_say(entry: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": torch.zeros(4), "b": torch.ones(2, 3)}, {"epoch": 1})
    _rewrite(path, lambda header: header["a"].update(entry))
    for read in (load_tensors, lambda p: load_slices(p, "b", 0, 1)):
        with pytest.raises(UserError, match="not a complete discoseg checkpoint"):
            read(path)


@pytest.mark.parametrize("content", [b"", b"\0", b"\0" * 8, b"\xff" * 64])
def test_what_holds_no_header_is_no_checkpoint(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    for read in (load_tensors, load_meta, lambda p: load_slices(p, "b", 0, 1)):
        with pytest.raises(UserError, match="not a complete discoseg checkpoint"):
            read(path)


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("config", {"network": {"name": "unet", "width": 4096, "depth": 6}}),
        ("config", {"network": {"name": "unet", "width": 10**9}}),
        ("config", {"grid": {"shape": [10**6, 10**6]}}),
        ("model", {"channels": 10**6}),
        ("model", {"labels": {"../../owned": 1}}),
        ("model", {"labels": {"LV": -1}}),
        ("model", {"orientation": "XYZ"}),
        ("model", []),
    ],
)
def test_a_model_gets_no_network_but_the_one_it_has(part: str, values: Any, tmp_path: Path) -> None:
    from discoseg.networks import build_network
    from discoseg.plain import to_dict

    network = build_network("unet", channels=1, classes=2, width=1, depth=1)
    weights = {f"network.{name}": weight for name, weight in network.state_dict().items()}
    config = {**to_dict(Config()), "network": {"name": "unet", "width": 1, "depth": 1}}
    model = {"labels": {"LV": 1}, "channels": 1, "orientation": "LPS"}
    meta: dict[str, Any] = {"config": config, "model": model, "epoch": 1}
    save_tensors(tmp_path / "good.safetensors", weights, meta)
    assert load_model(tmp_path / "good.safetensors", device="cpu").labels == {"LV": 1}
    meta[part] = {**meta[part], **values} if isinstance(values, dict) else values
    save_tensors(tmp_path / "bad.safetensors", weights, meta)
    with pytest.raises(UserError):
        load_model(tmp_path / "bad.safetensors", device="cpu")


def test_the_page_shows_no_image_outside_the_dataset(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra web is not installed")
    from discoseg.web.annotator import Annotator

    (tmp_path / "data").mkdir()
    write_volume(tmp_path / "secret.nii", volume())
    write_volume(tmp_path / "data" / "a.nii", volume())
    (tmp_path / "data" / "b.nii").symlink_to(tmp_path / "data" / "a.nii")
    Annotator(find_dataset(tmp_path / "data"), tmp_path / "first", structures={"foreground": 1}).store.close()
    (tmp_path / "data" / "c.nii").symlink_to("../secret.nii")
    dataset = find_dataset(tmp_path / "data")
    with pytest.raises(UserError, match=r"c\.nii lies outside of [^\n]*; allow it with --outside"):
        Annotator(dataset, tmp_path / "out", structures={"foreground": 1})
    assert not (tmp_path / "out").exists()
    Annotator(dataset, tmp_path / "out", structures={"foreground": 1}, outside=True).store.close()
    assert read_volume(tmp_path / "data" / "c.nii").shape == (2, 16, 20)  # commands follow links to plain files
    (tmp_path / "raw").mkdir()
    write_volume(tmp_path / "raw" / "d.mhd", volume())
    data = data_file(tmp_path / "raw" / "d.mhd")
    assert data is not None
    data.rename(tmp_path / "secret.raw")
    data.symlink_to(tmp_path / "secret.raw")
    with pytest.raises(UserError, match=r"d\.mhd lies outside of"):
        Annotator(find_dataset(tmp_path / "raw"), tmp_path / "more", structures={"foreground": 1})


def test_a_report_shows_hostile_names_as_text(tmp_path: Path) -> None:
    from discoseg.report.page import write_report

    run = tmp_path / "<img src=x onerror=alert(1)>"
    run.mkdir()
    script = "<script>alert(1)</script>"
    (run / "config.toml").write_text(f'method = "{script}"\nepochs = 1\nlabel = "{script}"\n')
    (run / "run.json").write_text(
        json.dumps({"training": [script], "validation": [], "command": script, "device": script})
    )
    (run / "metrics.csv").write_text(f"epoch,loss,{script}\n1,0.5,0.5\n")
    (run / "cases.csv").write_text(f'case,split,label,dice,size_ml,true_ml\n{script},training,"<b>",0.5,1,1\n')
    write_report([run], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "&lt;script&gt;alert(1)" in text

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from discoseg.data.volume import Volume
from discoseg.errors import UserError
from discoseg.weak.clicks import Click, read_clicks, write_clicks

# x to the left, y to the back, z up; voxels of 2 × 3 × 10 mm (x, y, z)
AFFINE = np.array([[-2.0, 0, 0, 50], [0, -3.0, 0, 20], [0, 0, 10.0, -40], [0, 0, 0, 1]])


def make_volume(array: NDArray) -> Volume:
    return Volume(array=array, affine=AFFINE, spacing_mm=(10.0, 3.0, 2.0))


def test_json_and_csv_say_the_same(tmp_path: Path) -> None:
    as_json, as_csv = tmp_path / "clicks.json", tmp_path / "clicks.csv"
    as_json.write_text('{"a": {"voxel": [5, 6, 2]}, "b": {"world_mm": [40.0, 2, -20]}}')
    as_csv.write_text("case,x,y,z,space\na,5,6,2,voxel\nb,40,2,-20,world\n")
    for path in (as_json, as_csv):
        clicks = read_clicks(path)
        assert list(clicks) == [("a", ""), ("b", "")]
        assert [click.to_voxel(AFFINE) for click in clicks.values()] == [(5, 6, 2)] * 2
    as_csv.write_text("case,x,y,z\na,5,6,2\n")
    assert read_clicks(as_csv)["a", ""].space == "voxel"


def test_several_structures_have_a_click_each(tmp_path: Path) -> None:
    as_json, as_csv = tmp_path / "clicks.json", tmp_path / "clicks.csv"
    as_json.write_text(
        '{"a": {"LV": {"voxel": [5, 6, 2]}, "RV": {"world_mm": [40.0, 2, -20]}}, "b": {"voxel": [1, 2, 3]}}'
    )
    as_csv.write_text("case,x,y,z,space,label\na,5,6,2,voxel,LV\na,40,2,-20,world,RV\nb,1,2,3,,LV\n")
    for path, third in ((as_json, ""), (as_csv, "LV")):
        clicks = read_clicks(path)
        assert list(clicks) == [("a", "LV"), ("a", "RV"), ("b", third)]
        assert [click.to_voxel(AFFINE) for click in clicks.values()] == [(5, 6, 2), (5, 6, 2), (1, 2, 3)]


names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1)
positions = st.tuples(*[st.floats(-1e6, 1e6)] * 3)
spaces = st.sampled_from(["voxel", "world"])


@settings(max_examples=25, deadline=None)  # every example is a file, flushed to the disk
@given(
    entries=st.dictionaries(st.tuples(names, names), st.tuples(positions, spaces), min_size=1)
    | st.dictionaries(st.tuples(names, st.just("")), st.tuples(positions, spaces), min_size=1)
)
@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_written_clicks_read_back(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, entries: dict[tuple[str, str], tuple]
) -> None:
    path = tmp_path_factory.mktemp("clicks") / f"clicks.{suffix}"
    write_clicks(
        path, [Click(case, position, space, label=label) for (case, label), (position, space) in entries.items()]
    )
    found = read_clicks(path)
    assert {key: (c.position, c.space) for key, c in found.items()} == entries


@given(voxel=st.tuples(*[st.integers(-50, 300)] * 3), off=st.tuples(*[st.floats(-0.49, 0.49)] * 3))
def test_world_click_finds_the_voxel_it_lies_in(voxel: tuple[int, int, int], off: tuple[float, float, float]) -> None:
    x, y, z = (AFFINE @ [*np.add(voxel, off), 1])[:3].tolist()
    assert Click("a", (x, y, z), "world").to_voxel(AFFINE) == voxel


def test_locate_accepts_every_voxel_and_nothing_else() -> None:
    volume = make_volume(np.zeros((4, 7, 9), np.uint8))
    assert Click("a", (8, 6, 3)).locate(volume) == (8, 6, 3)
    for outside in [(9, 6, 3), (8, 7, 3), (8, 6, 4), (-1, 0, 0)]:
        with pytest.raises(UserError, match=r"seen\.csv line 7: .* case a .*9×7×4"):
            Click("a", outside, source="seen.csv line 7").locate(volume)


@pytest.mark.parametrize("orientation", ["LPS", "RAS", "PLS", "SAR"])
@pytest.mark.parametrize("factor", [1, 3])
def test_click_on_grid_hits_the_same_voxel(orientation: str, factor: int) -> None:
    array = np.zeros((4, 7, 9), np.uint8)
    array[2, 5, 1] = 1
    volume = make_volume(array)
    turned = volume.reoriented(orientation).array
    grid = turned.repeat(factor, axis=1).repeat(factor, axis=2)
    rows, columns = grid.shape[1:]
    click = Click("a", (1, 5, 2)).on_grid(volume, shape=(rows, columns), orientation=orientation)
    assert grid[click] == 1


@given(data=st.data(), shape=st.tuples(st.integers(1, 20), st.integers(1, 20)))
def test_click_on_grid_is_the_pixel_over_the_voxel_centre(data: st.DataObject, shape: tuple[int, int]) -> None:
    volume = make_volume(np.zeros((4, 7, 9), np.uint8))
    x, y = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 6))
    z, row, column = Click("a", (x, y, 2)).on_grid(volume, shape=shape, orientation="LPS")
    assert z == 2
    assert row / shape[0] <= (y + 0.5) / 7 < (row + 1) / shape[0]
    assert column / shape[1] <= (x + 0.5) / 9 < (column + 1) / shape[1]


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("c.json", '{"a": {"voxel": [1, 2, 3]},\n oops}', "line 2: not valid JSON"),
        ("c.json", "[1]", "must hold one object"),
        ("c.json", "{}", "no click"),
        ("c.json", '{"a": {"voxel": [1, 2, 3]}, "a": {"voxel": [1, 2, 3]}}', "'a' occurs twice"),
        ("c.json", '{"a": {"pixel": [1, 2, 3]}}', "case a needs"),
        ("c.json", '{"a": {"voxel": [1, 2, 3], "world_mm": [1, 2, 3]}}', "case a needs"),
        ("c.json", '{"a": [1, 2, 3]}', "case a needs"),
        ("c.json", '{"a": {"voxel": [1, 2]}}', r"case a: voxel must be three numbers .*not \[1, 2\]"),
        ("c.json", '{"a": {"voxel": [1, 2, "3"]}}', "case a: voxel must be three numbers"),
        ("c.json", '{"a": {"voxel": [1, 2, NaN]}}', "case a: voxel must be three numbers"),
        ("c.json", '{"a": {"voxel": [1, 2, true]}}', "case a: voxel must be three numbers"),
        ("c.json", '{"a": {"LV": {"voxel": [1, 2]}}}', r"case a, LV: voxel must be three numbers .*not \[1, 2\]"),
        ("c.json", '{"a": {"LV": {"voxel": [1, 2, 3]}, "RV": {}}}', "case a, RV needs"),
        ("c.json", '{"a": {"LV": {"voxel": [1, 2, 3]}, "RV": [1, 2, 3]}}', "case a needs"),
        ("c.csv", "", "line 1: the columns must be case,x,y,z"),
        ("c.csv", "case,x,y\na,1,2\n", "line 1: the columns must be case,x,y,z, not case,x,y"),
        ("c.csv", "case;x;y;z\na;1;2;3\n", "line 1: the columns"),
        ("c.csv", "case,x,x,y,z\na,1,2,3,4\n", "line 1: the column x occurs twice; remove one"),
        ("c.csv", "case,x,y,z\n", "no click"),
        ("c.csv", "case,x,y,z\n\na,1,2,three\n", "line 3: z must be a number, not 'three'"),
        ("c.csv", "case,x,y,z\na,1,2,3\nb,1,,3\n", "line 3: y must be a number"),
        ("c.csv", "case,x,y,z\na,1,2,3\na,1,2,3\n", "line 3: case a stands in line 2"),
        ("c.csv", "case,x,y,z,label\na,1,2,3,LV\na,1,2,3,LV\n", "line 3: case a LV stands in line 2"),
        ("c.csv", "case,x,y,z,label\na,1,2,3,\n", "line 2: the label has no name"),
        ("c.csv", "case,x,y,z\na,1,2\n", "line 2: 3 cells where the header has 4"),
        ("c.csv", "case,x,y,z,space\na,1,2,3,mm\n", "line 2: space must be voxel or world, not 'mm'"),
    ],
)
def test_bad_files_name_the_place(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=complaint) as caught:
        read_clicks(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json"):
        read_clicks(tmp_path / "none.json")
    binary = tmp_path / "clicks.csv"
    binary.write_bytes(b"\xff\xfe\x00case")
    with pytest.raises(UserError, match=r"clicks\.csv is not UTF-8"):
        read_clicks(binary)

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from discoseg.errors import UserError
from discoseg.weak.atlas import Atlas, build_atlas, centroid, load_atlas, merge_seeds, save_atlas, seed_statistics

Mask = NDArray[np.bool_]
masks = hnp.arrays(bool, hnp.array_shapes(min_dims=3, max_dims=3, max_side=6)).filter(lambda mask: mask.any())


def padded(mask: Mask, radius: int) -> Mask:
    """The mask with its centroid in the middle of a cube: the paper's common coordinates, spelled out."""
    cube = np.zeros((2 * radius + 1,) * 3, bool)
    cube[tuple((np.argwhere(mask) - centroid(mask) + radius).T)] = True
    return cube


@given(st.lists(masks, min_size=1, max_size=4))
def test_seeds_are_unanimity_in_common_coordinates(group: list[Mask]) -> None:
    radius = 8
    cubes = np.stack([padded(mask, radius) for mask in group])
    expected = np.where(cubes.all(axis=0), 1, np.where(cubes.any(axis=0), -1, 0))
    atlas = build_atlas([("", mask) for mask in group])
    assert np.array_equal(atlas.seeds("", cubes.shape[1:], (radius, radius, radius)), expected)


@given(st.lists(masks, min_size=1, max_size=4))
def test_seeds_never_contradict_their_own_masks(group: list[Mask]) -> None:
    atlas = build_atlas([("", mask) for mask in group])
    for mask in group:
        seeds = atlas.seeds("", mask.shape, centroid(mask))
        assert mask[seeds == 1].all()
        assert not mask[seeds == 0].any()
        statistics = seed_statistics(seeds, mask)
        assert (statistics.wrong_foreground_vox, statistics.wrong_background_vox) == (0, 0)


@settings(max_examples=150, deadline=None)
@given(mask=masks, shape=hnp.array_shapes(min_dims=3, max_dims=3, max_side=7), data=st.data())
def test_seeds_are_a_window_of_the_template(mask: Mask, shape: tuple[int, int, int], data: st.DataObject) -> None:
    """A click at the border, or outside, leaves the part of the template that is inside."""
    click = data.draw(st.tuples(*[st.integers(-9, n + 9) for n in shape]))
    wide = 20
    atlas = build_atlas([("", mask)])
    depth, rows, columns = (n + 2 * wide for n in shape)
    z, y, x = (c + wide for c in click)
    large = atlas.seeds("", (depth, rows, columns), (z, y, x))
    window = large[tuple(slice(wide, wide + n) for n in shape)]
    assert np.array_equal(atlas.seeds("", shape, click), window)


TRUE = np.ones((2, 3, 4), bool)


def two_groups() -> Atlas:
    small, large = np.zeros((2, 9, 9), bool), np.zeros((5, 9, 9), bool)
    small[1, 4, 4] = True
    large[1:4, 2:7, 2:7] = True
    return build_atlas([("ED", large), ("ES", small), ("ED", large[1:])])


def test_groups_do_not_mix() -> None:
    atlas = two_groups()
    assert {group: template.masks for group, template in atlas.templates.items()} == {"ED": 2, "ES": 1}
    assert (atlas.seeds("ES", (5, 9, 9), (2, 4, 4)) == 1).sum() == 1
    assert (atlas.seeds("ED", (5, 9, 9), (2, 4, 4)) == 1).sum() == 75
    with pytest.raises(UserError, match="no group 'XX': it was built for 'ED', 'ES'"):
        atlas.seeds("XX", (5, 9, 9), (2, 4, 4))


def test_empty_masks_are_named() -> None:
    full, empty = np.ones((1, 2, 2), bool), np.zeros((1, 2, 2), bool)
    with pytest.raises(UserError, match="patient7 has no foreground"):
        build_atlas([("", full), ("", empty)], names=["patient3", "patient7"])
    with pytest.raises(UserError, match="at least one mask"):
        build_atlas([])


@pytest.mark.parametrize("labels", [[3], [3, 1]])
def test_saved_atlas_comes_back(tmp_path: Path, labels: list[int]) -> None:
    path, atlases = tmp_path / "atlas.npz", dict(zip(labels, [two_groups(), build_atlas([("ED", TRUE)])], strict=False))
    save_atlas(path, atlases, meta={"grid": [256, 256]})
    found, meta = load_atlas(path)
    assert meta == {"grid": [256, 256]}
    assert list(found) == labels
    for label, atlas in atlases.items():
        assert list(found[label].templates) == list(atlas.templates)
        for group in atlas.templates:
            expected = atlas.seeds(group, (6, 9, 9), (1, 3, 5))
            assert np.array_equal(found[label].seeds(group, (6, 9, 9), (1, 3, 5)), expected)
    assert [file.name for file in tmp_path.iterdir()] == ["atlas.npz"]


@pytest.mark.parametrize("content", [b"", b"text", b"cut"])
def test_damaged_atlas_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "atlas.npz"
    save_atlas(path, {1: two_groups()}, meta={})
    path.write_bytes(path.read_bytes()[:-40] if content == b"cut" else content)
    with pytest.raises(UserError, match=r"atlas\.npz is not a whole atlas"):
        load_atlas(path)


def test_missing_or_foreign_atlas_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.npz: no such file"):
        load_atlas(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", array=np.zeros(3))
    np.save(tmp_path / "plain.npy", np.zeros(3))
    for name in ("other.npz", "plain.npy"):
        with pytest.raises(UserError, match=f"{name} is not a whole atlas"):
            load_atlas(tmp_path / name)


ownership = hnp.arrays(np.int8, (1, 2, 5), elements=st.integers(-1, 1))


@given(st.lists(ownership, min_size=1, max_size=4))
def test_merged_seeds_are_of_one_structure_at_most(alone: list[NDArray[np.int8]]) -> None:
    merged = merge_seeds(alone)
    assert np.array_equal(merged == 0, np.all([seeds == 0 for seeds in alone], axis=0))
    for number, seeds in enumerate(alone, start=1):
        others = [other == 1 for other in alone if other is not seeds]
        assert np.array_equal(merged == number, (seeds == 1) & ~np.any([np.zeros(seeds.shape, bool), *others], axis=0))
    if len(alone) == 1:
        assert np.array_equal(merged, alone[0])


def test_seed_statistics_count() -> None:
    seeds = np.array([[[1, 1, 1, -1, -1, 0, 0, 0, 0, 0]]], np.int8)
    mask = np.array([[[1, 1, 0, 1, 0, 1, 0, 0, 0, 0]]], bool)
    statistics = seed_statistics(seeds, mask)
    assert (statistics.foreground_vox, statistics.background_vox) == (3, 5)
    assert statistics.foreground_percent_of_volume == 30
    assert statistics.background_percent_of_volume == 50
    assert statistics.foreground_percent == 50
    assert (statistics.wrong_foreground_vox, statistics.wrong_background_vox) == (1, 1)
    assert seed_statistics(seeds).foreground_percent is None
    assert seed_statistics(seeds, np.zeros_like(mask)).foreground_percent is None


def resized(label: NDArray, size: int) -> NDArray:
    rows, columns = (((np.arange(size) + 0.5) * n / size).astype(int) for n in label.shape[1:])
    return label[:, rows[:, None], columns]


@pytest.mark.skipif("DISCOSEG_DATA" not in os.environ, reason="DISCOSEG_DATA names no folder with ACDC")
def test_acdc_seeds_cover_what_the_method_says() -> None:
    """About 15.8 % of the LV and 4.1 % of the RV, and none is wrong."""
    import nibabel

    root = Path(os.environ["DISCOSEG_DATA"])
    held_out = json.loads((root / "splits.json").read_text())["acdc"]["validation_patients"]
    labels: list[tuple[str, NDArray]] = []
    for folder in sorted((root / "acdc" / "training").glob("patient*")):
        if folder.name in held_out:
            continue
        info = dict(line.split(": ") for line in (folder / "Info.cfg").read_text().splitlines() if line)
        for phase in ("ED", "ES"):
            path = folder / f"{folder.name}_frame{int(info[phase]):02d}_gt.nii.gz"
            image = nibabel.load(path)
            labels.append((phase, resized(np.asarray(image.dataobj).T.astype(np.uint8), 256)))  # type: ignore
    assert len(labels) == 160
    for value, percent in ((3, 15.8), (1, 4.1)):
        atlas = build_atlas((phase, label == value) for phase, label in labels)
        found = []
        for phase, label in labels:
            mask = label == value
            found.append(seed_statistics(atlas.seeds(phase, mask.shape, centroid(mask)), mask))
        assert np.mean([s.foreground_percent for s in found]) == pytest.approx(percent, abs=0.05)
        assert all(s.wrong_foreground_vox == s.wrong_background_vox == 0 for s in found)

"""Synthetic hearts: seeded short-axis volumes that look and fail like cine MRI, with ACDC's label values.

    write_phantom_dataset(Path("phantom"), cases=24, test_cases=8, seed=0)

Every structure is a soft disc, in millimetres, painted over the ones behind it on sub-slices; these are then
averaged into thick slices. Partial volume at the apex and along every border, blood above the valves that is
no ventricle, and papillary muscles that count as cavity: there a network loses its last per cents. Slices run
from above the valves to below the apex, as in ACDC.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from discoseg.data.canvas import Canvas, Floats, draw_wobble
from discoseg.data.files import require_new_folder, write_atomically
from discoseg.data.volume import Volume, write_volume
from discoseg.errors import UserError

LABELS = {"background": 0, "RV": 1, "MYO": 2, "LV": 3}


@dataclass(frozen=True)
class Phantom:
    """One synthetic heart: an int16 image and its uint8 label map (values of `LABELS`), of equal geometry."""

    image: Volume
    label: Volume


def make_phantom(seed: int, *, in_plane: tuple[int, int] = (96, 96)) -> Phantom:
    """Draw the heart that belongs to `seed`: always the same one, unrelated to any other seed's.

    in_plane: rows and columns (y, x). The columns cover 135 to 170 mm whatever their number, so that 96 of
    them are 1.4 to 1.8 mm wide. 7 to 10 slices of 8 to 10 mm.
    """
    rng = np.random.default_rng(seed)
    slices = int(rng.integers(7, 11))
    pixel_mm = round(float(rng.uniform(135, 170)) / in_plane[1], 4)
    thick_mm = round(float(rng.uniform(8, 10)), 2)
    canvas = Canvas((slices, *in_plane), labels=len(LABELS), pixel_mm=pixel_mm, thick_mm=thick_mm, rng=rng)
    heart = _draw_heart(rng, slices * thick_mm)
    _paint_chest(canvas, rng)
    _paint_vessels(canvas, heart, rng)
    _paint_right_heart(canvas, heart, rng)
    _paint_left_heart(canvas, heart, rng)
    image = _scan(canvas.thick(canvas.image), rng, pixel_mm)

    affine = np.diag([-pixel_mm, -pixel_mm, thick_mm, 1.0])  # x to the patient's left, y to the back: LPS
    affine[:2, 3] = [pixel_mm * (in_plane[1] - 1) / 2, pixel_mm * (in_plane[0] - 1) / 2]
    label = np.stack([canvas.thick(share) for share in canvas.shares]).argmax(axis=0).astype(np.uint8)
    volume = Volume(array=image, affine=affine, spacing_mm=(thick_mm, pixel_mm, pixel_mm))
    return Phantom(image=volume, label=volume.like(label))


def write_phantom_dataset(
    folder: Path,
    *,
    cases: int,
    test_cases: int,
    seed: int,
    in_plane: tuple[int, int] = (96, 96),
    jitter_vox: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write phantoms in nnU-Net's layout, and `clicks.json`: the centroid of each training volume's LV.

    cases, test_cases: numbers of volumes in imagesTr/labelsTr and in imagesTs/labelsTs.
    jitter_vox: each click's in-plane coordinates are off by up to this many voxels.
    progress: called with the number of finished and of all volumes.
    """
    if cases < 1 or test_cases < 0 or seed < 0:
        raise UserError(f"{cases} training and {test_cases} test phantoms of seed {seed}: 1, 0 and 0 are the least")
    require_new_folder(folder, hint="choose another one or remove it")
    clicks: dict[str, dict[str, list[int]]] = {}
    for number in range(cases + test_cases):
        part = "Tr" if number < cases else "Ts"
        states = np.random.SeedSequence([seed, number]).generate_state(2)
        phantom = make_phantom(int(states[0]), in_plane=in_plane)
        name = f"phantom_{number + 1:03d}"
        for kind, ending, volume in (("images", "_0000", phantom.image), ("labels", "", phantom.label)):
            (folder / f"{kind}{part}").mkdir(parents=True, exist_ok=True)
            write_volume(folder / f"{kind}{part}" / f"{name}{ending}.nii.gz", volume)
        if part == "Tr":
            z, y, x = np.rint(np.argwhere(phantom.label.array == LABELS["LV"]).mean(axis=0)).astype(int)
            off_y, off_x = np.random.default_rng(states[1]).integers(-jitter_vox, jitter_vox + 1, size=2)
            clicks[name] = {"voxel": [int(x + off_x), int(y + off_y), int(z)]}
        progress(number + 1, cases + test_cases)
    summary = {
        "channel_names": {"0": "MRI"},
        "labels": LABELS,
        "numTraining": cases,
        "file_ending": ".nii.gz",
    }
    for file, content in (("clicks.json", clicks), ("dataset.json", summary)):
        with write_atomically(folder / file) as path:
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class _Heart:
    """One heart's shape in millimetres and brightness; y points to the back, x to the patient's left."""

    base_mm: float  # z of the valves
    length_mm: float  # of the cavity, valves to apex
    radius_mm: float  # of the cavity at the valves
    wall_mm: float
    y_mm: float  # the cavity's centre at the valves
    x_mm: float
    lean: tuple[float, float]  # how the centre drifts (y, x) per mm of z
    rv_angle: float  # direction from LV to RV, radians
    rv_reach: float  # RV width relative to the LV's outer radius
    blood: float
    muscle: float

    def profile(self, z: Floats, extra_mm: float = 0.0) -> Floats:
        """Return the radius relative to the one at the valves: 0 above them and beyond the apex."""
        u = (z - self.base_mm) / (self.length_mm + extra_mm)
        return np.where(u < 0, 0, np.sqrt(np.clip(1 - np.abs(u) ** 2.3, 0, None))).astype(np.float32)

    def centre(self, z: Floats) -> tuple[Floats, Floats]:
        depth = z - self.base_mm
        return self.y_mm + self.lean[0] * depth, self.x_mm + self.lean[1] * depth


def _draw_heart(rng: Generator, extent_mm: float) -> _Heart:
    radius = rng.uniform(15, 29)
    muscle = rng.uniform(0.2, 0.34)
    return _Heart(
        base_mm=extent_mm * rng.uniform(0.14, 0.22),
        length_mm=extent_mm * rng.uniform(0.5, 0.68),
        radius_mm=radius,
        wall_mm=rng.uniform(5.5, 8.5) + 0.25 * (30 - radius),  # a contracted wall is thick
        y_mm=rng.uniform(-10, 8),
        x_mm=rng.uniform(-2, 18),
        lean=(rng.uniform(-0.08, 0.12), rng.uniform(-0.05, 0.15)),
        rv_angle=math.pi + rng.uniform(-0.5, 0.35),
        rv_reach=rng.uniform(0.75, 1.1),
        blood=muscle + rng.uniform(0.28, 0.5),
        muscle=muscle,
    )


def _paint_chest(canvas: Canvas, rng: Generator) -> None:
    """Lung with its vessels, liver below, stomach, and the chest wall with its bright fat."""
    canvas.shade(1, rng.uniform(0.04, 0.1) + 0.5 * np.clip(canvas.marble - 2, 0, 1))
    rise = rng.uniform(0.45, 0.75)  # the diaphragm comes up towards the apex
    dome = (122 - rise * canvas.z + rng.uniform(-8, 8), rng.uniform(-35, -5))
    liver = canvas.disc(dome, (rng.uniform(64, 74), rng.uniform(80, 100)), wobble=draw_wobble(rng, 0.02))
    canvas.shade(liver, rng.uniform(0.22, 0.45) + 0.3 * np.clip(canvas.marble - 1.3, -0.3, 1))
    stomach = (dome[0] - rng.uniform(44, 54), rng.uniform(28, 55))
    content = float(rng.choice([0.12, 0.45, 0.8])) + 0.1 * canvas.cloud
    size = (rng.uniform(12, 20), rng.uniform(14, 24))
    canvas.shade(canvas.disc(stomach, size, wobble=draw_wobble(rng, 0.05)), content)

    narrow = 1 - rng.uniform(0.0015, 0.003) * canvas.z
    centre = (rng.uniform(6, 16), rng.uniform(4, 18))
    height, width, wall_mm = rng.uniform(68, 80) * narrow, rng.uniform(86, 98) * narrow, rng.uniform(5, 10)
    outline = draw_wobble(rng, 0.015)
    muscle = 1 - canvas.disc(centre, (height, width), wobble=outline)
    fat = 1 - canvas.disc(centre, (height + wall_mm, width + wall_mm), wobble=outline)
    canvas.shade(muscle, rng.uniform(0.18, 0.3) + 0.05 * canvas.cloud)
    canvas.shade(fat, np.clip(rng.uniform(0.6, 0.9) + 0.15 * canvas.cloud, 0.2, 1))


def _paint_vessels(canvas: Canvas, heart: _Heart, rng: Generator) -> None:
    """Blood that is no ventricle: the descending aorta, and atrium and outflow tract above the valves."""
    aorta = (heart.y_mm + rng.uniform(48, 60), heart.x_mm + rng.uniform(5, 30))
    radius = rng.uniform(8, 12)
    canvas.shade(canvas.disc(aorta, (radius + 1.5, radius + 1.5)), heart.muscle)
    canvas.shade(canvas.disc(aorta, (radius, radius)), heart.blood * rng.uniform(0.9, 1.1))

    above = (canvas.z < heart.base_mm).astype(np.float32)
    y, x = heart.y_mm, heart.x_mm
    rooms = [
        ((y + rng.uniform(6, 14), x + rng.uniform(-2, 6)), (rng.uniform(16, 22), rng.uniform(22, 30))),
        ((y + rng.uniform(0, 10), x - rng.uniform(36, 44)), (rng.uniform(18, 24), rng.uniform(16, 22))),
        ((y - rng.uniform(18, 24), x - rng.uniform(12, 22)), (rng.uniform(12, 16), rng.uniform(13, 19))),
    ]
    for centre, (height, width) in rooms:
        outline = draw_wobble(rng, 0.03)
        wall = canvas.disc(centre, ((height + 2.5) * above, (width + 2.5) * above), wobble=outline)
        room = canvas.disc(centre, (height * above, width * above), wobble=outline)
        canvas.shade(wall, heart.muscle * 0.9)
        canvas.shade(room, heart.blood * rng.uniform(0.85, 1.1) + 0.05 * canvas.cloud)


def _paint_right_heart(canvas: Canvas, heart: _Heart, rng: Generator) -> None:
    """A disc that the left ventricle will cover up to a crescent, with a thin wall and patches of fat."""
    outer = heart.radius_mm + heart.wall_mm
    shape = heart.profile(canvas.z, extra_mm=-rng.uniform(0.02, 0.2) * heart.length_mm)
    y, x = heart.centre(canvas.z)
    shift = outer * heart.rv_reach * (0.35 + 0.65 * shape)
    centre = (y + shift * math.sin(heart.rv_angle), x + shift * math.cos(heart.rv_angle))
    width = outer * (0.45 + 0.4 * heart.rv_reach) * shape
    height = outer * rng.uniform(1.05, 1.3) * shape
    turn, outline = heart.rv_angle - math.pi + rng.uniform(-0.2, 0.2), draw_wobble(rng, 0.04)

    def layer(extra_mm: float) -> Floats:
        extra = extra_mm * (shape > 0)
        return canvas.disc(centre, (height + extra, width + extra), turn=turn, wobble=outline)

    canvas.shade(layer(5) * np.clip(canvas.cloud + 0.7, 0, 1), rng.uniform(0.6, 0.9))
    canvas.shade(layer(2), heart.muscle)
    cavity = layer(0)
    canvas.paint(cavity, heart.blood * rng.uniform(0.85, 1.08) + 0.05 * canvas.cloud, LABELS["RV"])
    canvas.shade(cavity * np.clip(canvas.marble - 1.2, 0, 0.7), heart.muscle)  # trabeculae


def _paint_left_heart(canvas: Canvas, heart: _Heart, rng: Generator) -> None:
    """The dark ring and the cavity in it, with two papillary muscles and trabeculae that count as cavity."""
    inner = heart.radius_mm * heart.profile(canvas.z)
    outer = (heart.radius_mm + heart.wall_mm) * heart.profile(canvas.z, extra_mm=heart.wall_mm)
    outer = np.maximum(outer, np.where(inner > 0, inner + 0.8 * heart.wall_mm, 0))
    centre = heart.centre(canvas.z)
    turn, squeeze = rng.uniform(0, math.pi), rng.uniform(0.88, 1.0)
    outline = draw_wobble(rng, 0.02)
    fat = canvas.disc(centre, (outer + 3 * (outer > 0), outer + 3 * (outer > 0)), turn=turn, wobble=outline)
    canvas.shade(fat * np.clip(canvas.cloud - 0.3, 0, 1) * canvas.shares[0], rng.uniform(0.6, 0.9))
    ring = canvas.disc(centre, (outer * squeeze, outer), turn=turn, wobble=outline)
    canvas.paint(ring, heart.muscle + 0.02 * canvas.marble, LABELS["MYO"])
    cavity = canvas.disc(centre, (inner * squeeze, inner), turn=turn, wobble=outline + draw_wobble(rng, 0.02))
    canvas.paint(cavity, heart.blood + 0.05 * canvas.cloud + 0.02 * canvas.marble, LABELS["LV"])

    core = canvas.disc(centre, (inner * squeeze * 0.78, inner * 0.78), turn=turn)
    canvas.shade(cavity * (1 - core) * np.clip(canvas.marble - 0.3, 0, 0.8), heart.muscle)
    depth = (canvas.z - heart.base_mm) / heart.length_mm
    for side in (-1, 1):
        angle = heart.rv_angle + math.pi + side * rng.uniform(0.8, 1.5)
        reach = inner * rng.uniform(0.55, 0.72)
        spot = (centre[0] + reach * math.sin(angle), centre[1] + reach * math.cos(angle))
        present = ((depth > rng.uniform(0.15, 0.35)) & (depth < rng.uniform(0.7, 0.9))).astype(np.float32)
        size = inner * present
        muscle = canvas.disc(spot, (size * rng.uniform(0.12, 0.2), size * rng.uniform(0.15, 0.3)), turn=angle)
        canvas.shade(cavity * muscle * 0.9, heart.muscle)


def _scan(image: Floats, rng: Generator, pixel_mm: float) -> NDArray[np.int16]:
    """Do to (z, y, x) what a scanner does: blur, coil shading, uneven slices, Rician noise, gain."""
    from scipy.ndimage import gaussian_filter

    blurred = gaussian_filter(image, (0, rng.uniform(0.8, 1.2) / pixel_mm, rng.uniform(0.8, 1.2) / pixel_mm))
    rows, columns = np.meshgrid(*(np.linspace(-1, 1, n) for n in image.shape[1:]), indexing="ij")
    slope = rng.normal([-0.25, 0.0], 0.15)  # the coil lies on the chest
    bend = rng.normal(0, 0.1, size=3)
    bends = np.tensordot(bend, [rows**2, columns**2, rows * columns], axes=1)
    bias = np.exp(slope[0] * rows + slope[1] * columns + bends)
    flicker = rng.normal(1, 0.04, size=(len(image), 1, 1))  # slices differ a little in gain
    noise = rng.uniform(0.02, 0.05) * rng.standard_normal((2, *image.shape))
    magnitude = np.hypot(blurred * bias * flicker + noise[0], noise[1])
    return np.rint(magnitude * rng.uniform(250, 600)).clip(0, 32767).astype(np.int16)

"""What the paper reports: mean 3D Dice on validation volumes, best epoch, by task and setting (its two tables)."""

from discoseg.config import Method

EPS = (0.0, 0.1, 0.2, 0.4)
"""Size bounds of the first table, as a fraction of the true size."""
MUS = (0.01, 0.1, 1.0, 10.0)
"""μ̂ = μ̃ of the second table."""

Setting = tuple[str, Method, float | None]
"""A task, a method, and its ε (first table, None where it has no bounds) or its μ (second table)."""


def _rows(method: Method, values: tuple[float | None, ...], **tasks: tuple[float, ...]) -> dict[Setting, float]:
    return {(task, method, value): dice for task, row in tasks.items() for value, dice in zip(values, row, strict=True)}


TABLE1: dict[Setting, float] = {
    **_rows("full", (None,), lv=(0.927,), rv=(0.870,), prostate=(0.873,)),
    **_rows("crf", (None,), lv=(0.862,), rv=(0.677,), prostate=(0.769,)),
    **_rows(
        "penalty",
        EPS,
        lv=(0.813, 0.840, 0.833, 0.826),
        rv=(0.529, 0.570, 0.498, 0.582),
        prostate=(0.588, 0.621, 0.583, 0.515),
    ),
    **_rows(
        "size",
        EPS,
        lv=(0.871, 0.844, 0.845, 0.827),
        rv=(0.598, 0.617, 0.600, 0.570),
        prostate=(0.760, 0.766, 0.760, 0.758),
    ),
    **_rows(
        "crf+size",
        EPS,
        lv=(0.901, 0.884, 0.872, 0.879),
        rv=(0.730, 0.719, 0.734, 0.691),
        prostate=(0.807, 0.795, 0.809, 0.771),
    ),
}
"""By task, method and ε."""

TABLE2: dict[Setting, float] = {
    **_rows(
        "crf",
        MUS,
        lv=(0.798, 0.825, 0.862, 0.828),
        rv=(0.541, 0.594, 0.677, 0.675),
        prostate=(0.703, 0.744, 0.769, 0.768),
    ),
    **_rows(
        "size",
        MUS,
        lv=(0.797, 0.814, 0.871, 0.724),
        rv=(0.548, 0.598, 0.576, 0.341),
        prostate=(0.695, 0.741, 0.760, 0.645),
    ),
    **_rows(
        "crf+size",
        MUS,
        lv=(0.783, 0.835, 0.878, 0.901),
        rv=(0.549, 0.604, 0.722, 0.730),
        prostate=(0.744, 0.740, 0.756, 0.807),
    ),
}
"""By task, method and μ; size bounds with ε = 0."""

from pathlib import Path

import numpy as np
import pytest
import torch

from discoseg import contours
from discoseg.contours import Scored, contour_slices, write_contours
from discoseg.scores import case_rows
from discoseg.snapshots import middle_slice
from discoseg.weak.examples import Example


def test_best_worst_and_one_between_are_kept(
    hearts: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contours, "CASES", 3)
    truth = np.concatenate([heart.truth for heart in hearts if heart.truth is not None])
    probability = torch.from_numpy(np.stack([truth == k for k in (1, 2, 3)]).astype(np.float32))
    scores = [{"dice": value} for value in (0.5, 0.9, 0.1, 0.6)]
    later: list[dict[str, float]] = [{}]  # without a truth there is no Dice
    rows = [*case_rows("training", hearts, scores), *case_rows("validation", hearts[:1], later)]
    splits = {
        "training": Scored(hearts, range(4), probability),
        "validation": Scored(hearts[:1], range(1), 0 * probability),
    }
    write_contours(tmp_path / "c.npz", *contour_slices(rows, splits))
    with np.load(tmp_path / "c.npz") as file:
        names, parts = file["names"].tolist(), file["splits"].tolist()
        assert parts == ["training"] * 3 + ["validation"]
        assert (names[0], names[2], names[3]) == ("heart1", "heart2", "heart0")
        assert names[1] in ("heart0", "heart3")
        by_name = {heart.name: heart for heart in hearts}
        for k, name in enumerate(names):
            heart = by_name[name]
            assert heart.truth is not None
            shown = heart.truth[middle_slice(heart)]
            assert np.array_equal(file[f"{k}.truth"], shown)
            assert np.array_equal(file[f"{k}.mask"], shown if parts[k] == "training" else 0 * shown)
            assert file[f"{k}.image"].dtype == np.uint8

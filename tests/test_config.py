"""Configurations survive TOML, refuse nonsense, and say where it stands."""

from dataclasses import replace
from pathlib import Path

import pytest

from discoseg.config import AugmentConfig, Config, GridConfig, NetworkConfig
from discoseg.errors import UserError
from discoseg.plain import from_dict, to_dict, to_toml
from discoseg.presets import PRESETS, load_config, load_run_config


@pytest.mark.parametrize("name", PRESETS)
def test_toml_round_trip_of_every_preset(name: str, tmp_path: Path) -> None:
    config = replace(PRESETS[name], size_csv=Path('odd "name".csv'), seed=7)
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert load_config(str(path)) == config


def test_a_run_made_before_a_setting_has_its_default(tmp_path: Path) -> None:
    """Not the preset's of today."""
    old = replace(PRESETS["default"], network=NetworkConfig(name="enet", width=8), augment=AugmentConfig(crop_min=0.9))
    path = tmp_path / "config.toml"
    lines = to_toml(old).splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(("depth", "crop_max", "foreground_weight"))))
    assert load_run_config(path) == old
    assert load_config(str(path)) != old


def test_a_setting_that_is_gone_must_not_have_been_in_use(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(Config()).replace("[admm]\n", "[admm]\nlimit = 0.0\n"))
    assert load_run_config(path) == Config()
    path.write_text(to_toml(Config()).replace("[admm]\n", "[admm]\nlimit = 0.3\n"))
    with pytest.raises(UserError, match="admm: unknown setting 'limit'"):
        load_run_config(path)


def test_a_preset_takes_another_network(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[network]\nname = "enet"\n')
    assert load_config(str(path)).network.name == "enet"


def test_file_overrides_its_preset_only_where_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('preset = "paper-acdc-rv"\nepochs = 3\n[crf]\nsigma = 1\n')
    config = load_config(str(path))
    expected = PRESETS["paper-acdc-rv"]
    assert config == replace(expected, epochs=3, crf=replace(expected.crf, sigma=1.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "unknown setting 'epoch'"),
        ('epochs = "many"', "epochs = 'many': expected int"),
        ("epochs = true", "expected int"),
        ("epochs = 0", "--epochs 0 must be at least 1"),
        ('method = "magic"', "expected one of"),
        ("[crf]\nsigma = -1", "must be positive"),
        ("crf = 3", "must be a table"),
        ("[grid]\nshape = [64]", "grid: shape"),
        ('preset = "mine"', "preset 'mine' is unknown"),
        ("epochs = = 3", "not valid TOML"),
        ('size_eps = 0.1\nsize_ml = "3:4"', "not several"),
    ],
)
def test_bad_file_is_named_with_the_setting(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        load_config(str(path))
    assert message in str(error.value)
    assert "bad.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="paper-acdc-lv"):
        load_config("paper-liver")


def test_paper_presets_carry_the_decided_parameters() -> None:
    lv, rv, prostate = (PRESETS[f"paper-{task}"] for task in ("acdc-lv", "acdc-rv", "promise12"))
    assert (lv.crf.sigma, rv.crf.sigma, prostate.crf.sigma) == (0.0071, 0.0022, 0.0007)
    assert (lv.crf.strength, rv.crf.strength, prostate.crf.strength) == (100, 100, 1000)
    assert {c.epochs for c in (lv, rv, prostate)} == {250}
    assert {c.grid for c in (lv, rv, prostate)} == {GridConfig(shape=(256, 256), clip_percent=(0, 100))}
    assert (lv.network.name, prostate.network.name) == ("enet", "unet")
    assert (lv.optimiser.batch, prostate.optimiser.batch) == (8, 4)


def test_dict_round_trip_needs_no_file() -> None:
    config = Config(size_ml="60:180", label="LV")
    assert from_dict(to_dict(config), base=Config(), where="here") == config

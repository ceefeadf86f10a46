"""Compare float32 and bfloat16 networks: is the validation Dice the same within the noise of seeds?

    DISCOSEG_DATA=DIR python bench/precision.py --networks enet unet --epochs 15

The left ventricle of ACDC, trained from full masks (--method) with each network and precision and three seeds, as many
at a time as there are seeds. Printed are the best and the mean of the last five validation Dice, mean ± standard
deviation over seeds. bfloat16 is used on CUDA only: elsewhere both are float32.
"""

import argparse
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from discoseg.config import Config, Method
from discoseg.devices import choose_device
from discoseg.material import Material
from discoseg.train import train_on
from discoseg.workflow import Inputs
from epoch import configuration, gather


def dice_of(material: Material, inputs: Inputs, config: Config, run: Path) -> tuple[float, float]:
    """Train, and return the best and the mean of the last five validation Dice."""
    state = train_on(material, config, run, model=inputs.model)
    dice = [row["val_dice"] for row in state.history]
    return max(dice), statistics.mean(dice[-5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=("enet", "unet"), default=["enet", "unet"])
    parser.add_argument("--method", choices=("full", "crf+size"), default="full")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3, help="seeds")
    parser.add_argument("--side", type=int, default=256, help="rows and columns of a slice")
    parser.add_argument("--seeds", type=Path, help="weak label maps by `discoseg seeds`; made anew if not given")
    parser.add_argument("--phantoms", action="store_true", help="phantoms instead of ACDC")
    arguments = parser.parse_args()
    method: Method = arguments.method
    device = choose_device("auto")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        print(f"{'network':9}{'precision':11}{'best':>16}{'last five':>16}")
        for network in arguments.networks:
            settings = argparse.Namespace(**{**vars(arguments), "network": network, "precision": "float32"})
            config = replace(configuration(settings), epochs=arguments.epochs)
            weak, full = gather(config, folder / network, phantoms=arguments.phantoms, seeds=arguments.seeds)
            inputs = full if method == "full" else weak
            with Material(inputs.training, inputs.validation, device, idle_cores=False) as material:
                for precision in ("float32", "bfloat16"):
                    configs = [
                        replace(config, method=method, seed=seed, network=replace(config.network, precision=precision))
                        for seed in range(arguments.repeats)
                    ]
                    runs = [folder / f"{network}-{precision}-{seed}" for seed in range(arguments.repeats)]
                    with ThreadPoolExecutor(arguments.repeats if device.type == "cuda" else 1) as pool:
                        both = list(pool.map(dice_of, [material] * len(runs), [inputs] * len(runs), configs, runs))
                    print(
                        f"{network:9}{precision:11}" + "".join(_spread(v) for v in zip(*both, strict=True)), flush=True
                    )


def _spread(values: tuple[float, ...]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):8.4f} ±{spread:6.4f}"


if __name__ == "__main__":
    main()

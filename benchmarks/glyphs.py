"""Two data sets that no setting was chosen on: grey letters of 26 classes, and house numbers in colour.

    apt-get install --no-install-recommends fonts-...    # as PACKAGES names them
    python benchmarks/glyphs.py path/to/glyphs

Characters of all Latin fonts of the machine, turned, moved and scaled at random. A house number has any two colours,
so that no colour tells its class, and parts of other numbers beside it. 39,000 letters (5,200 to test on) of 28 by 28
pixels lie in `letters`, 40,000 numbers (5,000) of 32 by 32 in `numbers`.
"""

import argparse
import hashlib
import random
import string
from collections.abc import Callable
from functools import cache
from pathlib import Path

import datasets
import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from tqdm.auto import tqdm


FONTS = Path("/usr/share/fonts")
PACKAGES = (  # `fonts-` before each; other fonts give other images
    "beteckna breip cabin cantarell comic-neue crosextra-caladea crosextra-carlito dancingscript dejavu ebgaramond "
    "ecolier-court fantasque-sans femkeklaver firacode freefont-ttf gfs-neohellenic goudybookletter hack hermit "
    "humor-sans inconsolata isabella junicode jura kristi lato league-spartan liberation linuxlibertine lobster "
    "monofur mononoki mplus noto-core open-sans play prociono quicksand roboto-unhinted rufscript sil-andika "
    "sil-gentium texgyre tomsontalks urw-base35 vollkorn yanone-kaffeesatz"
).split()
SEED, CANVAS, POINTS = 5, 96, 60
LETTERS, NUMBERS = {"train": 39_000, "test": 5_200}, {"train": 40_000, "test": 5_000}


def latin_fonts(folder: Path) -> list[str]:
    """Fonts with letters and digits of their own, in the order of their names."""
    found = []
    for path in sorted(map(str, [*folder.rglob("*.ttf"), *folder.rglob("*.otf")])):
        try:
            font = ImageFont.truetype(path, 40)
            masks = [bytes(font.getmask(character)) for character in "AB3"]
        except (OSError, ValueError):
            continue
        drawn = len(set(masks)) == 3 and min(map(len, masks)) > 60
        if drawn and not any(word in path.lower() for word in ("symbol", "dingbat")):
            found.append(path)
    return found


class Glyphs:
    """Draws characters.

    Args:
        fonts (`list[str]`): Files to choose from.
    """

    def __init__(self, fonts: list[str]):
        self.fonts, self.random, self.font = fonts, random.Random(SEED), cache(ImageFont.truetype)

    def character(self, text: str, side: int, scale: tuple[float, float], turn: float) -> np.ndarray:
        """One in white on black, `[side, side]` uint8."""
        font, drawn = self.font(self.random.choice(self.fonts), POINTS), Image.new("L", (CANVAS, CANVAS))
        ImageDraw.Draw(drawn).text((CANVAS // 2, CANVAS // 2), text, 255, font=font, anchor="mm")
        drawn = drawn.crop(drawn.getbbox()) if drawn.getbbox() else drawn
        factor = self.random.uniform(*scale) * CANVAS / max(drawn.size)
        drawn = drawn.resize((max(4, int(drawn.size[0] * factor)), max(4, int(drawn.size[1] * factor))))
        drawn = drawn.rotate(self.random.uniform(-turn, turn), expand=True, resample=Image.Resampling.BILINEAR)
        shifts = [self.random.uniform(-0.04, 0.04) * CANVAS for _ in range(2)]
        place = [int((CANVAS - size) / 2 + shift) for size, shift in zip(drawn.size, shifts, strict=True)]
        canvas = Image.new("L", (CANVAS, CANVAS))
        canvas.paste(drawn, (place[0], place[1]))
        return np.asarray(canvas.resize((side, side), Image.Resampling.BOX))

    def letter(self, index: int) -> Image.Image:
        alphabet = string.ascii_uppercase if self.random.random() < 0.6 else string.ascii_lowercase
        return Image.fromarray(self.character(alphabet[index % 26], 28, (0.6, 0.8), 15))

    def number(self, index: int) -> Image.Image:
        side = 32
        while True:
            ground, ink = (np.array([self.random.uniform(0, 255) for _ in range(3)]) for _ in range(2))
            if abs((ground - ink) @ [0.3, 0.59, 0.11]) > 40:
                break
        mask = self.character(str(index % 10), side, (0.7, 0.95), 10) / 255
        middle = np.arange(side) - (side - 1) / 2
        for beside in (-1, 1):
            if self.random.random() < 0.6:
                other = self.character(str(self.random.randrange(10)), side, (0.7, 0.95), 10) / 255
                moved = np.roll(other, beside * self.random.randrange(16, 22), 1)
                mask = np.maximum(mask, moved * (middle * beside > 8))
        down, across = np.array([[self.random.uniform(-25, 25) for _ in range(3)] for _ in range(2)])
        along = np.linspace(-1, 1, side)
        ramp = along[:, None, None] * down + along[None, :, None] * across
        pixels = ground * (1 - mask[..., None]) + ink * mask[..., None] + ramp
        drawn = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        drawn = drawn.filter(ImageFilter.GaussianBlur(self.random.uniform(0.3, 1.1)))
        # Both splits have the same noise, which drawn images cannot hold.
        noise = np.random.default_rng(index).normal(0, 4, (side, side, 3))
        return Image.fromarray(np.clip(np.asarray(drawn) + noise, 0, 255).astype(np.uint8))


def write(folder: Path, draw: Callable[[int], Image.Image], sizes: dict[str, int], names: str) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))})
    for split, size in sizes.items():
        images = [draw(index) for index in tqdm(range(size), desc=f"{folder.name}, {split}", unit="image")]
        labels = [index % len(names) for index in range(size)]
        table = datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)
        table.to_parquet(folder / f"{split}-00000-of-00001.parquet")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="New folder.")
    args = parser.parse_args()
    if args.output.exists():
        parser.error(f"{args.output} is there already; name a new folder.")
    fonts = latin_fonts(FONTS)
    if not fonts:
        parser.error(
            f"{FONTS} has no Latin font; install packages: {', '.join(f'fonts-{each}' for each in PACKAGES)}."
        )
    names = hashlib.sha256("\n".join(fonts).encode()).hexdigest()[:12]
    print(f"{len(fonts)} fonts, hash of their names {names}")
    glyphs = Glyphs(fonts)
    for name in ("letters", "numbers"):
        (args.output / name).mkdir(parents=True)
    write(args.output / "letters", glyphs.letter, LETTERS, string.ascii_uppercase)
    write(args.output / "numbers", glyphs.number, NUMBERS, string.digits)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

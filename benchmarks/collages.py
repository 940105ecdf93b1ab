"""Public images of objects where nothing else is public: cut-outs on crops of photographs, from packages of Debian.

    apt-get download gcompris-qt-data gnome-backgrounds lomiri-wallpapers-16.04 lomiri-wallpapers-20.04 \\
        mate-backgrounds plasma-workspace-wallpapers tuxpaint-stamps-default ukui-wallpapers
    for package in *.deb; do dpkg-deb -x $package packages; done
    python benchmarks/collages.py packages collages --resolution 32
    python benchmarks/collages.py packages objects --resolution 28 --black

A picture with transparent parts is a cut-out, another one a photograph; drawings have too few colours. A collage has
no class. The packages state the licences of their pictures.
"""

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import datasets
import numpy as np
from PIL import Image, UnidentifiedImageError
from tqdm.auto import tqdm


SKIPPED = ("cartoon", "symbols", "flags", "roadsigns", "share/doc/", "lang.rcc", "paintings.rcc", "leftright.rcc")
SMALLEST, PHOTOGRAPH, CUT_OUT = 60, 512, 256  # sides in pixels: at least, and that pictures are shrunk to
COLOURS = 800, 150  # of 32,768 that a photograph and a cut-out have at least
ALIKE = 6  # mean difference of two pictures in 8 by 8 pixels, below which they are one
FLAT = 12  # mean standard deviation of the channels of a photograph's crop, below which it shows nothing
MOST_FLAT = 1000  # of them in a row, after which it gives up
SHARE, CANVAS = 0.7, 4  # of collages with a cut-out; times the side of a collage, for pasting


CARD = """---
license: other
---
Collages of pictures of packages of Debian. `share/doc/*/copyright` of each package states their licences.
"""


def pictures(folder: Path) -> Iterator[Image.Image]:
    """All in files of the folder: JPEG, PNG, and WebP within Qt's resource files."""
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if not any(word in str(path.relative_to(folder)) for word in SKIPPED)
    ]
    for path in tqdm(files, desc="Looking for pictures", unit="file"):
        found = []
        if path.suffix.lower() in (".jpg", ".jpeg", ".png"):
            found = [path.read_bytes()]
        elif path.suffix == ".rcc":
            parts = [part for part in path.read_bytes().split(b"RIFF")[1:] if part[4:8] == b"WEBP"]
            found = [b"RIFF" + part[: 4 + int.from_bytes(part[:4], "little")] for part in parts]
        for each in found:
            try:
                picture = Image.open(io.BytesIO(each), formats=("JPEG", "PNG", "WEBP"))
                picture.draft("RGB", (2 * PHOTOGRAPH, 2 * PHOTOGRAPH))
                yield picture.convert("RGBA")
            except (UnidentifiedImageError, OSError):
                continue


def sorted_pictures(folder: Path) -> tuple[list[Image.Image], list[Image.Image]]:
    """Photographs, and cut-outs without what is transparent around them."""
    found: tuple[list[Image.Image], list[Image.Image]] = [], []
    known: list[np.ndarray] = []
    for picture in pictures(folder):
        box = picture.getchannel("A").getbbox()
        if box is None:
            continue
        picture = picture.crop(box)
        is_cut_out = picture.getchannel("A").getextrema()[0] < 128
        picture.thumbnail(((PHOTOGRAPH, CUT_OUT)[is_cut_out],) * 2, Image.Resampling.BOX)
        pixels = np.asarray(picture)
        seen = pixels[pixels[..., 3] > 128][:, :3].astype(int) // 8 @ [1, 32, 1024]
        small = np.asarray(picture.resize((8, 8)), dtype=float)
        if min(picture.size) < SMALLEST or len(np.unique(seen)) < COLOURS[is_cut_out]:
            continue
        if all(np.abs(small - other).mean() >= ALIKE for other in known):
            known.append(small)
            found[is_cut_out].append(picture)
    return found


def collages(folder: Path, number: int, side: int, black: bool, seed: int) -> Iterator[Image.Image]:
    """Cut-outs of half to 1.4 times the side near the middle of crops, some of which are mirrored."""
    rng, canvas, made, turn = np.random.default_rng(seed), CANVAS * side, 0, 0
    photographs, cut_outs = sorted_pictures(folder)
    flat = 0
    if not cut_outs or not (black or photographs):
        raise SystemExit(f"{folder} holds {len(photographs)} photographs and {len(cut_outs)} cut-outs: add packages.")
    print(f"{len(photographs)} photographs, {len(cut_outs)} cut-outs")
    while made < number:
        if black:
            collage = Image.new("RGB", (canvas, canvas))
        else:
            picture = photographs[turn % len(photographs)]
            turn += 1
            size = int(np.exp(rng.uniform(np.log(min(40, *picture.size)), np.log(min(picture.size)))))
            left, top = (int(rng.integers(whole - size + 1)) for whole in picture.size)
            box = (left, top, left + size, top + size)
            collage = picture.convert("RGB").resize((canvas, canvas), Image.Resampling.BICUBIC, box=box)
        if black or rng.random() < SHARE:
            cut_out = cut_outs[int(rng.integers(len(cut_outs)))]
            low, high, spread = (0.75, 1.05, 0.02) if black else (0.5, 1.4, 0.125)
            longest = canvas * np.exp(rng.uniform(np.log(low), np.log(high)))
            shape = [max(1, int(length * longest / max(cut_out.size))) for length in cut_out.size]
            place = [int(canvas * (0.5 + spread * rng.normal()) - length / 2) for length in shape]
            pasted = cut_out.resize((shape[0], shape[1]), Image.Resampling.BICUBIC)
            collage.paste(pasted, (place[0], place[1]), pasted)
        collage = collage.resize((side, side), Image.Resampling.BOX)
        if np.asarray(collage, dtype=float).std((0, 1)).mean() >= FLAT:
            made, flat = made + 1, 0
            yield collage.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else collage
        else:
            flat += 1
            if flat == MOST_FLAT:
                raise SystemExit(f"{flat:,} collages in a row show nothing: add packages with brighter pictures.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, help="Folder of the unpacked packages, or of any pictures.")
    parser.add_argument("output", type=Path, help="New folder.")
    parser.add_argument("--number", type=int, default=20_000, help="Collages.")
    parser.add_argument("--resolution", type=int, default=32, help="Their side in pixels.")
    parser.add_argument("--black", action="store_true", help="Cut-outs on black, as products are shown.")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.output.exists():
        parser.error(f"{args.output} is there already: name a new folder.")
    made = collages(args.pictures, args.number, args.resolution, args.black, args.seed)
    images = list(tqdm(made, total=args.number, desc="Collages", unit="image"))
    found = datasets.Dataset.from_dict({"image": images}, datasets.Features({"image": datasets.Image()}))
    (args.output / "data").mkdir(parents=True)
    (args.output / "README.md").write_text(CARD)
    found.to_parquet(args.output / "data" / "train-00000-of-00001.parquet")


if __name__ == "__main__":
    main()

# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""DICOM and NIfTI files as pictures in a declared window. What a file says of a window of its own is not used: it
differs from scan to scan. Other processes import this, so nothing here loads torch."""

from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..errors import UsageError, install


#: The package that reads files of a suffix; `diffusers_dp[medical]` has both.
PACKAGES = {".dcm": "pydicom", ".dicom": "pydicom", ".ima": "pydicom", ".nii": "nibabel", ".nii.gz": "nibabel"}


def check_medical(suffixes: tuple[str, ...], has_range: bool) -> None:
    """Raises `UsageError` where files of these suffixes cannot be read here: each would be taken for a damaged one."""
    for suffix in suffixes:
        if suffix in PACKAGES and find_spec(PACKAGES[suffix]) is None:
            raise UsageError(
                f"{suffix} needs {PACKAGES[suffix]}, which is not installed: {install('medical')}.",
                field="image_suffixes",
            )
        if suffix in PACKAGES and not has_range:
            raise UsageError(
                f"{suffix} needs a declared black and white; add --value_range, such as --value_range=-160,240 for a "
                "scanner's window of 40,400.",
                field="image_suffixes",
            )


def is_medical(source: bytes | Path) -> bool:
    """Whether it is a DICOM file, by its name or its mark, or a NIfTI file, by its name. What cannot be opened is
    none."""
    if isinstance(source, Path):
        if source.name.lower().endswith(tuple(PACKAGES)):
            return True
        try:
            with source.open("rb") as file:
                source = file.read(132)
        except OSError:
            return False
    return source[128:132] == b"DICM"


def open_medical(source: bytes | Path, max_pixels: int, window: tuple[float, float] | None) -> Image.Image:
    """
    One plane, of floating-point values as the scanner means them (Hounsfield units of a CT), or a colour picture.

    Args:
        source (`bytes` or `Path`): The file.
        max_pixels (`int`): Planes whose header tells of more are not decoded.
        window (`tuple[float, float]`, *optional*): What is black and what is white; `None`: no value is inverted.

    Raises:
        `Exception`: Of any kind, where the file is damaged or holds no such plane.
    """
    if isinstance(source, Path) and source.name.lower().endswith((".nii", ".nii.gz")):
        return Image.fromarray(_plane_of_nifti(source, max_pixels))
    return _first_frame(source, max_pixels, window)


def _first_frame(source: bytes | Path, max_pixels: int, window: tuple[float, float] | None) -> Image.Image:
    from pydicom import dcmread
    from pydicom.pixels import apply_modality_lut, pixel_array

    header = dcmread(_again(source), stop_before_pixels=True)
    _check(int(header.Rows) * int(header.Columns), max_pixels)
    kind = str(header.PhotometricInterpretation)
    values = pixel_array(_again(source), index=0)
    if kind not in ("MONOCHROME1", "MONOCHROME2"):
        if values.dtype != np.uint8 or values.ndim != 3:
            raise ValueError("Colours of a palette, or of more than 8 bits.")
        return Image.fromarray(values)  # pydicom makes RGB of what it can
    values = apply_modality_lut(values, header).astype(np.float32)
    if kind == "MONOCHROME1" and window is not None:  # its low values are bright
        values = np.float32(sum(window)) - values
    return Image.fromarray(values)


def _again(source: bytes | Path) -> Any:
    return BytesIO(source) if isinstance(source, bytes) else source


def _plane_of_nifti(path: Path, max_pixels: int) -> np.ndarray:
    """The middle plane across the body's long axis, of the first volume: its front above, its right side left."""
    import nibabel

    volume: Any = nibabel.load(path)
    shape = volume.shape
    _check(int(np.prod(sorted(shape[:3])[-2:])), max_pixels)
    axes = nibabel.io_orientation(volume.affine)  # of each axis: 0 to the right, 1 forward, 2 upward; and its sign
    upward = int(np.flatnonzero(axes[:, 0] == 2)[0])
    place: list[Any] = [slice(None)] * len(shape[:3]) + [0] * (len(shape) - 3)
    if len(shape) > 2:
        place[upward] = shape[upward] // 2
    plane = np.asarray(volume.dataobj[tuple(place)], dtype=np.float32)
    kept = [axis for axis in range(3) if axis != upward]
    for number, axis in enumerate(kept):
        if axes[axis, 1] > 0:  # rows go backward and columns go left, of the one who lies there
            plane = np.flip(plane, number)
    return np.ascontiguousarray(plane.T if axes[kept[0], 0] == 0 else plane)  # its first axis goes to the right


def _check(pixels: int, max_pixels: int) -> None:
    if not 0 < pixels <= max_pixels:
        raise ValueError("The image has no pixels, or too many.")

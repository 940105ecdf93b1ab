# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The public folder: an allow-list of files, built aside and put in place at once."""

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from diffusers import DDIMScheduler, EDMDPMSolverMultistepScheduler, EDMEulerScheduler, UNet2DModel
from huggingface_hub import ModelCard, ModelCardData
from PIL import Image

from ..accounting.ledger import PrivacyLedger
from ..errors import UsageError
from ..files.canonical import canonical_json
from ..files.file_modes import public_files
from ..files.journal import put_in_place, remove_leftovers, replace_file
from ..methods.registry import Method
from ..pipelines import DPImagePipeline, pipeline_dp_image
from ..randomness.private_generator import RNG_FACTS
from ..verify import guarantee
from .allow_list import COMPONENT_FILES
from .allow_list import RELEASE_FILES as RELEASE_FILES
from .hub import intact_receipt
from .plain_words import plain_guarantee, questions
from .receipt import RECEIPT_NAME, build_receipt, hash_release


UNFINISHED = ".release-"  # what a release is called until it is whole
TILE_SIZE = 56  # pixels that a tile of the sample grid has at least
TILE_GAP = 2


@public_files()
def build_release(
    output_dir: str | Path,
    *,
    unet: UNet2DModel,
    scheduler: EDMDPMSolverMultistepScheduler | EDMEulerScheduler | DDIMScheduler,
    ledger: PrivacyLedger,
    id2label: dict[int, str] | None,
    patch_size: int,
    method: Method,
    curriculum: dict[str, Any] | None,
    samples: Image.Image,
    resumes: Sequence[int] = (),
    leaky_outputs: Sequence[str] = (),
    evaluation: Sequence[dict[str, Any]] = (),
    public_inputs: Sequence[dict[str, Any]] = (),
    processes: Sequence[int] = (1,),
) -> Path:
    """Writes `output_dir/release/` with exactly `RELEASE_FILES`.

    The folder is built in a temporary sibling and renamed, so that a release is there whole or not at all; an earlier
    one is replaced. Nothing is read from `output_dir`.

    Args:
        output_dir (`str` or `Path`): The run's folder.
        unet (`UNet2DModel`): The model to publish, with its final (averaged) weights.
        scheduler (`EDMDPMSolverMultistepScheduler`, `EDMEulerScheduler` or `DDIMScheduler`): See `DPImagePipeline`.
        ledger (`PrivacyLedger`): The ledger of the run, complete.
        id2label (`dict` or `None`): The declared label set, by class id; `None` for an unconditional model.
        patch_size (`int`): Pixels that were folded into channels, per side; 1 for none.
        method (`Method`): From the registry.
        curriculum (`dict` or `None`): Config of the warm-up scheduler, public values only.
        samples (`PIL.Image.Image`): Images drawn from the model, see `sample_grid`.
        resumes (sequence of `int`): The step at which the run went on, each time that it was interrupted.
        leaky_outputs (sequence of `str`): What was written that no guarantee covers.
        evaluation (sequence of `dict`): Numbers that were paid for, see `charged_evaluation`.
        public_inputs (sequence of `dict`): Weights and images from elsewhere that training began with.
        processes (sequence of `int`): How many processes trained, at each start of the run.

    Returns:
        `Path`: `output_dir/release`.
    """
    output_dir = Path(output_dir)
    remove_leftovers(output_dir, UNFINISHED, "release")
    with tempfile.TemporaryDirectory(dir=output_dir, prefix=UNFINISHED) as temporary:
        saved, release = Path(temporary, "saved"), Path(temporary, "release")
        DPImagePipeline(unet, scheduler, id2label=id2label, patch_size=patch_size).save_pretrained(saved)
        for name in COMPONENT_FILES:
            (release / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(saved / name, release / name)
        shutil.copyfile(pipeline_dp_image.__file__, release / "pipeline.py")
        samples.save(release / "samples.png")
        _strip_path(release / "unet" / "config.json")
        model_index = json.loads((saved / "model_index.json").read_text())
        _write(release / "model_index.json", canonical_json(model_index))

        receipt = build_receipt(
            ledger, files=hash_release(release), method=method, curriculum=curriculum, rng=RNG_FACTS, resumes=resumes,
            leaky_outputs=leaky_outputs, evaluation=evaluation, public_inputs=public_inputs, processes=processes,
        )  # fmt: skip
        content = canonical_json(receipt)
        _write(release / RECEIPT_NAME, content)
        model_index["privacy"] = privacy_statement(receipt, hashlib.sha256(content.encode()).hexdigest())
        _write(release / "model_index.json", canonical_json(model_index))
        _write(release / "README.md", f"{model_card(receipt, id2label)}\n")

        put_in_place(release, output_dir / "release")
    return output_dir / "release"


def privacy_statement(receipt: dict[str, Any], receipt_sha256: str) -> dict[str, Any]:
    """What `model_index.json` says about privacy: the claim by the run's accountant, and the hash of the receipt."""
    accountant = receipt["accountant"]
    return {
        "epsilon": receipt["claimed_epsilon"][accountant]["epsilon"],
        "delta": receipt["delta"],
        "accountant": accountant,
        "adjacency": receipt["adjacency"],
        "unit_of_privacy": receipt["unit_of_privacy"],
        "status": receipt["status"],
        "receipt_sha256": receipt_sha256,
    }


def attach_audit(release: str | Path, summary: dict[str, Any]) -> None:
    """Puts an audit's summary into the receipt of a release, in its field `audit`.

    The field lies outside the hashes, so that it can be added later: neither the receipt's own hash nor the guarantee changes.

    Args:
        release (`str` or `Path`): The folder.
        summary (`dict`): Public: from an audit that read no private data.

    Raises:
        UsageError: The folder holds no release, or cannot be written.
        IntegrityError: The release is not what its receipt says.
        ValueError: The audit read private data.
    """
    if summary["read_private_data"]:
        raise ValueError("An audit that read private data stays in the house.")
    folder = Path(release)
    receipt = intact_receipt(folder, "--attach")
    try:
        with public_files():
            replace_file(folder / RECEIPT_NAME, canonical_json({**receipt, "audit": summary}).encode())
    except OSError as error:
        raise UsageError(f"--attach {folder} cannot be written ({error.strerror}).") from None


def model_card(receipt: dict[str, Any], id2label: dict[int, str] | None) -> ModelCard:
    """The card of a release, filled from its receipt. The guarantee is in the verifier's words, which looks for them."""
    tags = ["differential-privacy", "dp-sgd", "image-generation", "synthetic"]
    if id2label is not None:
        tags.append("class-conditional")
    return ModelCard.from_template(
        ModelCardData(library_name="diffusers", pipeline_tag="unconditional-image-generation", tags=tags),
        template_str=files("diffusers_dp").joinpath("templates", "model_card.md").read_text(encoding="utf-8"),
        title="Differentially private image generator",
        receipt=receipt,
        questions=questions(receipt["events"]),
        unit=receipt["unit_of_privacy"],
        guarantee=guarantee(receipt),
        plain=plain_guarantee(receipt),
        labels=id2label,
        arguments="batch_size=8" if id2label is None else f"class_labels={list(range(len(id2label)))}",
    )


def sample_grid(
    pipeline: DPImagePipeline, num_per_class: int, seed: int, num_inference_steps: int = 20
) -> Image.Image:
    """Images drawn from a model, one row per class; 8 rows of 8 if it is unconditional.

    Each image is magnified by a whole number to at least 56 pixels, without smoothing. The rows are drawn one after
    the other; silence the pipeline's progress bar beforehand if need be.

    Args:
        pipeline (`DPImagePipeline`): The model, in evaluation mode.
        num_per_class (`int`): Columns; without effect on an unconditional model.
        seed (`int`): Public: drawing images is post-processing.
        num_inference_steps (`int`, defaults to 20): Solver steps.

    Returns:
        `PIL.Image.Image`: Mode L for one channel, else RGB.
    """
    generator = torch.Generator().manual_seed(seed)
    arguments = {"generator": generator, "num_inference_steps": num_inference_steps}
    if pipeline.num_classes is None:
        rows = [pipeline(batch_size=8, **arguments).images for _ in range(8)]
    else:
        rows = [
            pipeline(batch_size=num_per_class, class_labels=label, **arguments).images
            for label in range(pipeline.num_classes)
        ]
    first = rows[0][0]
    zoom = math.ceil(TILE_SIZE / min(first.size))
    width, height = first.width * zoom, first.height * zoom
    size = (len(rows[0]) * (width + TILE_GAP) - TILE_GAP, len(rows) * (height + TILE_GAP) - TILE_GAP)
    grid = Image.new(first.mode, size, "white")
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            tile = image.resize((width, height), Image.Resampling.NEAREST)
            grid.paste(tile, (column * (width + TILE_GAP), row * (height + TILE_GAP)))
    return grid


def _strip_path(config_file: Path) -> None:
    """Diffusers notes from which folder a model was loaded: that path stays in the house."""
    config = json.loads(config_file.read_text())
    config.pop("_name_or_path", None)
    _write(config_file, canonical_json(config))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")

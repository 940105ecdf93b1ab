# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""Private prompts: one noisy vote of the sensitive images for public captions, through the real loaders."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPVisionConfig, CLIPVisionModel

from diffusers_dp import SensitiveImages, cli, load_verified, verify
from diffusers_dp.errors import BudgetExceeded, UsageError
from diffusers_dp.files.sealed_folder import open_sealed
from diffusers_dp.methods.captions import MOST_LINES, noun_captions
from diffusers_dp.methods.config import load_config
from diffusers_dp.methods.registry import METHODS
from diffusers_dp.queries.pooled import PooledFeatures
from diffusers_dp.queries.votes import CaptionVotes, hash_tensor
from diffusers_dp.randomness.private_generator import PrivateGenerator
from support.feature_networks import save_clip_with_tokenizer, save_siglip, save_vit
from support.few import few
from support.flags import RESUME
from support.latents import stable_diffusion
from support.power_cut import Disk, write_state
from support.processes import launch
from support.public_models import save as save_pipeline
from support.runs import BITS_OF_A_CPU, read_ledger


METHOD = "pe"
CLASSES, NUMBER = ("left", "empty", "right"), 30
CAPTIONS = ("a dog", "a cat", "a house", "water", "2 men", "a {class}")
TINY = (
    "--candidates_per_class 5 --variation_strengths 0.8,0.4 --images_per_class 3 --skip_preflight --resolution 16 "
    f"--class_names left,empty,right --num_channels 3 --num_train_images {NUMBER} --accountant rdp "
    "--target_epsilon 50 --expert generator_inference_steps=3 --expert generator_batch_size=4 --embedding network "
    "--budget captions=0.3"
).split()


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    folder = tmp_path_factory.mktemp("public")
    return stable_diffusion(folder / "pipeline", 3), save_clip_with_tokenizer(folder / "clip")


def write(folder, number=NUMBER, grey=False):
    """In two of three classes."""
    rng = np.random.default_rng(0)
    for each in range(number):
        path = folder / CLASSES[each % 2 * 2] / f"{each}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (20, 20) if grey else (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels // (1 + each % 3)).save(path)
    (folder / "empty").mkdir()
    return folder


@pytest.fixture
def flags(tmp_path, public):
    (tmp_path / "captions.txt").write_text("\n".join(CAPTIONS))
    pipeline, clip = public
    return [
        *TINY, "--train_data_dir", str(write(tmp_path / "images")), "--output_dir", str(tmp_path / "run"),
        "--generator", str(pipeline), "--embedding_network", clip, "--captions", str(tmp_path / "captions.txt"),
    ]  # fmt: skip


def kept(run, name):
    return open_sealed(run / "private" / name)[1]["kept"]["kept"]


def votes_of(run, name="captions"):
    return open_sealed(run / "private" / "answers" / name)[1]["answer"]["answer"]


def said_of(run):
    """Stages of the ledger's lines, of which the first has none."""
    lines = path.read_text().splitlines() if (path := run / "private" / "ledger.jsonl").exists() else []
    return [json.loads(line).get("stage") for line in lines]


def prompts_of(run):
    """Of the first candidates, by class."""
    folders = sorted((run / "private" / "candidates_1").iterdir())
    rows = torch.cat([open_sealed(folder)[1]["kept"]["kept"] for folder in folders])
    return rows[:, :2].contiguous().view(torch.int16).view(-1, len(CLASSES)).T


def test_captions_that_won_are_the_prompts_of_a_release(script, flags, tmp_path, capsys):
    """One row of the ledger, in plan, receipt and card; epsilon recomputed; candidates of captions with votes. A
    receipt of other captions is refused."""
    script.main(flags)
    run, rows = tmp_path / "run", read_ledger(tmp_path / "run")[1]
    assert [row["stage"] for row in rows] == ["captions", "votes_1", "votes_2"] and rows[0]["partition"] == "label"
    assert rows[0]["query"]["sensitivity"] == 1 and rows[0]["query"]["num_captions"] == len(CAPTIONS)
    receipt, problems = verify.verify(run / "release")
    assert problems == [] and load_verified(run / "release").num_rows == 9
    votes, prompts, told = votes_of(run), prompts_of(run), receipt["curriculum"]
    assert votes.shape == (3, len(CAPTIONS)) and prompts.shape == (3, 5)
    for own, drawn in zip(votes, prompts, strict=True):
        assert set(drawn.tolist()) <= set(own.nonzero().flatten().tolist()) or not own.any()
    assert told["num_captions"] == len(CAPTIONS) and len(told["captions_sha256"]) == 64 and "prompts" not in told
    best = int(votes.argmax())
    name, caption = CLASSES[best // len(CAPTIONS)], CAPTIONS[best % len(CAPTIONS)]
    assert told["winning_captions"][0] == f"{name}: {caption.replace('{class}', name)} ({votes.max():,.0f} votes)"
    assert len(told["winning_captions"]) == int((votes > 0).sum()) and str(tmp_path) not in json.dumps(receipt)
    card = (run / "release" / "README.md").read_text()
    assert f"- {told['winning_captions'][0]}\n" in card and "Captions with the most noisy votes, of 6." in card
    assert "Nothing here tells how frequent" not in card and "Only the noisy votes above tell how frequent" in card
    said = capsys.readouterr().out
    assert "captions: one of 6 is seen, 19 times in 20, if it is the nearest to " in said and "of a class" in said

    def found(edit):
        copy = json.loads(json.dumps(receipt))
        edit(copy)
        return " ".join(verify.check_method(copy))

    assert found(lambda copy: None) == ""
    assert "num_captions" in found(lambda copy: copy["curriculum"].update(num_captions=7))
    assert "asks shared_captions" in found(lambda copy: copy["curriculum"].update(captions_for_all=True))
    assert "nothing called 'captions'" in found(lambda copy: copy["curriculum"].pop("num_captions"))
    assert "asks captions" in found(lambda copy: copy["events"].pop(0))
    assert "each class apart" in found(lambda copy: copy["events"][0].update(partition=None))


def test_the_card_shows_twenty_of_the_shipped_captions(script, flags, tmp_path):
    script.main([*flags, "--captions", "nouns", "--target_epsilon", "1000", "--captions_for_all"])
    receipt, problems = verify.verify(tmp_path / "run" / "release")
    rows, told = read_ledger(tmp_path / "run")[1], receipt["curriculum"]
    assert problems == [] and rows[0]["stage"] == "shared_captions" and rows[0]["partition"] is None
    votes = votes_of(tmp_path / "run", "shared_captions")
    assert votes.shape == (1, told["num_captions"]) and told["num_captions"] == len(noun_captions()) > 3000
    assert told["winning_captions"] and len(told["winning_captions"]) <= 20
    assert all(caption.startswith("a") for caption in told["winning_captions"]), "without a class"
    captions = noun_captions()
    assert len(set(captions)) == len(captions) and "a photo of an umbrella" in captions and "a" not in captions


@pytest.mark.parametrize("units", few([False, True]))
def test_each_unit_moves_the_votes_by_one_at_most(units, script, flags, tmp_path, monkeypatch):
    """Missing and broken images, and those without an id, move nobody else's votes, whatever is made at once; captions
    follow from no image at all."""
    silent = lambda source, shape, std, device="cpu": torch.zeros(shape, dtype=torch.float64, device=device)  # noqa: E731
    monkeypatch.setattr(PrivateGenerator, "normal", silent)
    monkeypatch.setattr(CaptionVotes, "least_votes", lambda *_: -1.0)
    given = [*flags, "--noise", "float"]
    if units:
        lines = [
            {"file_name": f"{path.parent.name}/{path.name}", "label": path.parent.name, "who": int(path.stem) // 3}
            for path in sorted((tmp_path / "images").rglob("*.png"))
        ]
        (tmp_path / "images" / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        given = ["--dataset_name" if each == "--train_data_dir" else each for each in given]
        given += "--unit_column who --num_train_units 10 --max_images_per_unit 8".split()
    script.main([*given, "--output_dir", str(tmp_path / "all")])
    (tmp_path / "images" / "right" / "3.png").unlink()
    if units:
        (tmp_path / "images" / "left" / "4.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
        lines = [{**line, "who": None} if line["file_name"] == "right/5.png" else line for line in lines]
        (tmp_path / "images" / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    script.main([*given, "--expert", "generator_batch_size=1", "--output_dir", str(tmp_path / "less")])
    whole, less = (votes_of(tmp_path / name).double() for name in ("all", "less"))
    assert 0.5 < (whole - less).norm() <= 1 + 1e-6 and whole.sum() == pytest.approx(10 if units else NUMBER, abs=1e-4)
    if not units:
        assert (whole - less)[2].sum() == 1 and (whole - less).abs().sum() == 1, "its own class, and one caption"
    assert torch.equal(kept(tmp_path / "all", "embedded_captions"), kept(tmp_path / "less", "embedded_captions"))
    assert len(read_ledger(tmp_path / "less")[1]) == 3


@BITS_OF_A_CPU
def test_prompts_follow_noisy_votes_alone(script, flags, tmp_path, monkeypatch):
    """With other images and the same noisy votes, captions, prompts and release are the same to the bit."""
    asked, compared, ask = [], [], SensitiveImages.noisy_sum

    def replayed(door, *others, **options):
        compared.append(hash_tensor(others[0].candidates))
        asked.append(ask(door, *others, **options).shape)
        return 20 * torch.randn(asked[-1], generator=torch.Generator().manual_seed(len(asked)))

    monkeypatch.setattr(SensitiveImages, "noisy_sum", replayed)
    seen = []
    for name in ("as they are", "inverted"):
        asked.clear()
        compared.clear()
        for path in sorted((tmp_path / "images").rglob("*.png")) if name == "inverted" else ():
            Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
        script.main([*flags, "--output_dir", str(run := tmp_path / name)])
        drawn = [image.tobytes() for image in load_verified(run / "release")["image"]]
        seen.append((hash_tensor(kept(run, "embedded_captions")), [*compared], prompts_of(run).tolist(), drawn))
        assert len(asked) == 3
    assert seen[0] == seen[1]


@pytest.mark.parametrize("stop", few(["captions", "votes_1"]))
def test_a_stopped_run_goes_on_from_its_answers(stop, script, flags, tmp_path, monkeypatch):
    """The vote is asked once, its captions are embedded once, and others are refused."""
    ask, asked, read, embedded = SensitiveImages.noisy_sum, [], PooledFeatures.of_texts, []

    def stops(door, *others, **options):
        asked.append(options["name"])
        if options["name"] == stop:
            raise KeyboardInterrupt
        return ask(door, *others, **options)

    monkeypatch.setattr(PooledFeatures, "of_texts", lambda *given: (embedded.append(given[1]), read(*given))[1])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SensitiveImages, "noisy_sum", stops)
        script.main(flags)
    before = votes_of(tmp_path / "run") if stop == "votes_1" else None
    again = []
    monkeypatch.setattr(SensitiveImages, "noisy_sum", lambda *o, **k: (again.append(k["name"]), ask(*o, **k))[1])
    resume = ["--resume_from_checkpoint", "latest"] if stop == "votes_1" else RESUME
    for other, said in (
        (["--captions", "nouns"], "embedded_captions was made with other flags"),
        (["--captions_for_all"], "" if stop == "votes_1" else "embedded_captions was made with other flags"),
    ):
        with pytest.raises(UsageError, match=said):
            script.main([*flags, *resume, *other])
    script.main([*flags, *resume])
    assert again == (["votes_1", "votes_2"] if stop == "votes_1" else ["captions", "votes_1", "votes_2"])
    assert len(embedded) == 1 and verify.report(tmp_path / "run" / "release") == 0
    assert before is None or torch.equal(votes_of(tmp_path / "run"), before)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--captions_for_all"]])
def test_a_power_cut_before_every_sync(more, script, flags, tmp_path):
    """Stored votes are read again, and the prompts are the same; nothing is asked in the place of a lost answer."""
    first, run, cuts = "shared_captions" if more else "captions", tmp_path / "run", {}
    flags += [*more, *"--candidates_per_class 2 --variation_strengths 0.4 --images_per_class 1".split()]
    run.mkdir()
    disk = Disk(run, lambda: cuts.update({disk.state(): None}))
    with disk.watched():
        script.main(flags)
    votes, prompts, seen = votes_of(run, first), prompts_of(run), set()
    for number, state in enumerate(cuts):
        write_state(state, cut := tmp_path / str(number))
        again, answers = [*flags, "--output_dir", str(cut), *RESUME], cut / "private" / "answers"
        asked = rows[1:] if (rows := said_of(cut)) else []
        seen.add((*asked, lost := bool(asked) and not (answers / asked[-1]).exists()))
        if lost:
            with pytest.raises(BudgetExceeded, match=f"lost the answer of {asked[-1]}"):
                script.main(again)
            assert said_of(cut)[1:] == asked
            continue
        script.main(again)
        assert said_of(cut)[1:] == [first, "votes_1"] and verify.verify(cut / "release")[1] == []
        assert not asked or torch.equal(votes_of(cut, first), votes) and torch.equal(prompts_of(cut), prompts)
    assert seen == {(False,), *((*asked, lost) for asked in ((first,), (first, "votes_1")) for lost in (True, False))}


@pytest.mark.slow
def test_two_processes(flags, tmp_path):
    """Both vote for captions, and the prompts that the first draws are those of all."""
    done = launch(2, "training/train_private_evolution.py", *flags, "--noise", "float", patience=500)
    assert done.returncode == 0, done.stderr[-4000:]
    run, (receipt, problems) = tmp_path / "run", verify.verify(tmp_path / "run" / "release")
    assert problems == [] and receipt["processes"] == [2] and load_verified(run / "release").num_rows == 9
    votes = votes_of(run)
    assert votes.shape == (3, len(CAPTIONS)) and 0 < votes.sum() <= 2 * NUMBER
    assert [row["stage"] for row in read_ledger(run)[1]] == ["captions", "votes_1", "votes_2"]


def test_grey_images_without_classes(script, flags, tmp_path):
    folder = tmp_path / "grey"
    folder.mkdir()
    for number, path in enumerate(sorted(write(tmp_path / "more", grey=True).rglob("*.png"))):
        shutil.copy(path, folder / f"{number}.png")
    place, images = flags.index("--class_names"), flags.index("--train_data_dir")
    given = [*flags[:place], *flags[place + 2 : images], *flags[images + 2 :], "--dataset_name", str(folder)]
    script.main([*given, "--num_channels", "1"])
    assert verify.report(tmp_path / "run" / "release") == 0 and votes_of(tmp_path / "run").shape == (1, len(CAPTIONS))


def test_captions_of_each_class_are_its_own(public):
    """{class} is the name of an image's class, in every caption."""
    features = PooledFeatures(public[1], (3, 16, 16), flag="embedding_network")
    rows = features.of_texts(["a left", "a right", "a dog", "A  dog", "a dog"], torch.device("cpu"))
    assert rows.shape == (5, 6) and rows.norm(dim=1).tolist() == pytest.approx([1] * 5, abs=1e-5)
    assert torch.equal(rows[2], rows[4]) and torch.equal(rows[2], rows[3]), "the same tokens"
    assert len(rows[:3].unique(dim=0)) == 3
    alone = torch.cat([features.of_texts([text], torch.device("cpu")) for text in ("a left", "2")])
    torch.testing.assert_close(alone[0], rows[0])
    network = features.loaded[0]
    with torch.no_grad():
        wanted = network.get_text_features(torch.tensor([[72, 36, 3, 14, 42, 73]])).pooler_output
    torch.testing.assert_close(rows[2:3], wanted / wanted.norm())


def test_a_caption_counts_once(flags, tmp_path):
    """Of two that CLIP reads as one the first stays, and prompts have it as it is written."""
    (tmp_path / "captions.txt").write_text("\ufeffA  Dog\na cat\n\na dog\n  a CAT \na house\n")
    config = load_config(flags, METHODS[METHOD])
    assert config.read_prompts(CLASSES) == ["A  Dog", "a cat", "a house"]
    assert config.queries[0].num_candidates == 3 and [query.name for query in config.queries][1:] == [
        "votes_1", "votes_2",
    ]  # fmt: skip


def without_tokenizer(folder, clip):
    shutil.copytree(clip, folder)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    return str(folder)


def of_another_model(folder, clip):
    shutil.copytree(clip, folder)
    path = folder / "tokenizer.json"
    said = json.loads(path.read_text())
    said["model"]["vocab"] = {word: number for word, number in said["model"]["vocab"].items() if word != "a"}
    path.write_text(json.dumps(said))
    return str(folder)


def one_tower(folder, kind, config):
    kind(config(hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(
        folder
    )
    return str(folder)


def with_texts_of(number, edited):
    """Sets rows of weights, or all (`...`), whose names begin with these."""

    def save(folder, clip):
        shutil.copytree(clip, folder)
        weights = load_file(path := folder / "model.safetensors")
        for name, rows in weights.items():
            for begins in [begins for begins in edited if name.startswith(begins)]:
                rows[edited[begins]] = number
        save_file(weights, path, {"format": "pt"})
        return str(folder)

    return save


ONE_ENDS_AT_ZERO = {
    "text_model.embeddings.token_embedding": -1, "text_model.embeddings.position_embedding": 6,
    "text_model.encoder.layers.0.self_attn.out_proj": ..., "text_model.encoder.layers.0.mlp.fc2": ...,
    "text_model.final_layer_norm.bias": ...,
}  # fmt: skip
NETWORKS = {
    "texts that are no numbers": (with_texts_of(torch.nan, {"text_projection": ...}), "tells no text from another"),
    "a text of zeros": (with_texts_of(0, ONE_ENDS_AT_ZERO), "tells no text from another"),
    "no text": (lambda folder, clip: save_vit(folder), "is no CLIP model .* give another, such as openai/clip"),
    "SigLIP": (lambda folder, clip: save_siglip(folder), "is no CLIP model"),
    "images alone": (lambda folder, clip: one_tower(folder, CLIPVisionModel, CLIPVisionConfig), "is no CLIP model"),
    "texts alone": (lambda folder, clip: one_tower(folder, CLIPTextModel, CLIPTextConfig), "does not accept images"),
    "no tokenizer": (without_tokenizer, "has no tokenizer for the 74 tokens that it reads: .* tokenizer.json"),
    "another tokenizer": (of_another_model, "has no tokenizer"),
    "efficientnet": (lambda folder, clip: "efficientnet_lite0", "--captions needs a CLIP model"),
}  # fmt: skip


@pytest.mark.parametrize("case", NETWORKS)
def test_networks_that_read_no_captions(case, script, flags, public, tmp_path, monkeypatch):
    for use in ("map", "noisy_sum"):  # to embed all images takes hours
        monkeypatch.setattr(SensitiveImages, use, lambda *_, **__: pytest.fail("the images were asked"))
    make, said = NETWORKS[case]
    with pytest.raises(UsageError, match=said) as refusal:
        script.main([*flags, "--embedding_network", make(tmp_path / "network", public[1])])
    assert "\n" not in str(refusal.value) and not (tmp_path / "run").exists()


def test_captions_that_cannot_be(script, flags, tmp_path, monkeypatch):
    """One sentence with the flag and the remedy; nothing was asked or written."""
    monkeypatch.setattr(SensitiveImages, "noisy_sum", lambda *_, **__: pytest.fail("the images were asked"))
    (tmp_path / "many").write_text("".join(f"{number}\n" for number in range(MOST_LINES + 1)))
    (tmp_path / "classes").write_text("".join(f"{{class}} {number}\n" for number in range(MOST_LINES // 3 + 1)))
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "long").write_text("a dog\n" + "a" * 76)
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    (tmp_path / "binary").write_bytes(bytes(range(1, 9)) * 100)
    unet = save_pipeline(tmp_path / "unet", sample_size=16)
    pixels = flags[: flags.index("--embedding")] + flags[flags.index("--budget") :]
    pixels = pixels[: pixels.index("--embedding_network")] + pixels[pixels.index("--captions") :]
    for given, said in (
        (["--captions", str(tmp_path / "many")], "--captions .* holds 10,001 lines; give 1 to 10,000"),
        (["--captions", str(tmp_path / "classes")], "makes 10,002 captions.* 10,000 at most"),
        (["--captions", str(tmp_path / "empty")], "holds 0 lines"),
        (["--captions", str(tmp_path / "long")], "--captions has 'aaa.* of 78 tokens, and .* reads 77: shorten it"),
        (["--captions", str(tmp_path / "latin")], "is not taken .*; give UTF-8 text"),
        (["--captions", str(tmp_path / "binary")], "holds control characters.*; give UTF-8 text"),
        (["--captions", str(tmp_path / "none")], "No such file"),
        (["--captions", str(tmp_path)], "Is a directory"),
        (["--prompts", "a dog"], "--captions and --prompts exclude each other|--prompts and --captions exclude"),
        (["--generator", unet], "--captions has no effect with"),
        (["--budget", "captions=1"], "--budget"),
        (["--budget", "caption=0.1"], "pe asks captions, votes"),
    ):
        with pytest.raises(UsageError, match=said) as refusal:
            script.main([*flags, *given])
        assert "\n" not in str(refusal.value) and not (tmp_path / "run").exists(), given
    with pytest.raises(UsageError, match="--captions needs --embedding_network"):
        script.main(pixels)
    for alone in (["--budget", "captions=0.2"], ["--captions_for_all"]):
        with pytest.raises(UsageError, match="captions .*has no effect|--captions_for_all needs --captions"):
            script.main([*flags[: flags.index("--captions")], *alone])
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", "--no_timing", "--method", "pe", *flags, "--captions", str(tmp_path / "empty")])
    assert ended.value.code == 2

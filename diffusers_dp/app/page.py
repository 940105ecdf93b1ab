# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The layout of the page: a release, its guarantee, its images."""

from functools import partial
from typing import Any

import gradio as gr

from ..files.templates import render
from . import answers, views
from .answers import Answers
from .drawing import SOLVERS
from .limits import OPENED_AT_ONCE, QUEUE_LENGTH, SECONDS_KEPT
from .planning import COLOURS
from .shelf import Shelf


# The server makes the link; the browser saves the file.
SAVE = """(html) => { const page = new DOMParser().parseFromString(html, "text/html");
  const link = page.querySelector("a"); if (link) { document.body.append(link); link.click(); link.remove(); } }"""
STOPPED = """(shown) => shown.includes("<progress") ? "<p>Stopped.</p>" : shown"""
GO = "(name) => { location.search = '?model=' + encodeURIComponent(name.trim()); }"
#: Of listeners that are no part of the page's API.
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
OPEN: dict[str, Any] = {**QUIET, "concurrency_id": "open", "concurrency_limit": OPENED_AT_ONCE}


def build_page(shelf: Shelf) -> gr.Blocks:
    """Builds the page for these models. Drawing, verifying and planning run one at a time, in request order."""
    answer = Answers(shelf)
    with gr.Blocks(title="Images under differential privacy", analytics_enabled=False) as page:
        gr.Markdown(render("app_intro.md", escape=False))
        model = gr.Textbox(visible=False)
        with gr.Tabs():
            with gr.Tab("Releases"):
                gallery = gr.HTML(elem_id="gallery", padding=False, visible=len(shelf.names) > 1)
                with gr.Row():
                    with gr.Column(scale=3, min_width=300):
                        guarantee = gr.HTML(views.note("Reading the receipt ..."), elem_id="guarantee", padding=False)
                    with gr.Column(scale=1, min_width=300):
                        where = "Hub id or folder" if shelf.folders_by_visitors else "Hub id"
                        typed = gr.Textbox(
                            label="Another release", placeholder=where, submit_btn="Open", elem_id="typed"
                        )
                shown = _images(answer, model)
            with gr.Tab("How private?"):
                gr.Markdown(render("app_how_private.md", escape=False))
            with gr.Tab("Plan a run"):
                _plan()
        page.load(answer.open, None, [model, guarantee, *shown], **OPEN)
        if len(shelf.names) > 1:
            page.load(answer.gallery, None, [gallery], **OPEN)
        typed.submit(answer.fetch, [typed], None, **OPEN).success(None, [typed], None, js=GO)
    page.queue(max_size=QUEUE_LENGTH, default_concurrency_limit=1)
    return page


def theme() -> gr.themes.Base:
    """Returns Gradio's theme with the visitor's system fonts (none is fetched) and a text contrast of at least 4.5 to
    1."""
    own = gr.themes.Default(
        primary_hue="blue", secondary_hue="blue", font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )  # fmt: skip
    quiet, quiet_dark = "*neutral_600", "*neutral_300"
    button, pressed = "*primary_700", "*primary_800"
    return own.set(
        body_text_color_subdued=quiet, body_text_color_subdued_dark=quiet_dark,
        block_info_text_color=quiet, block_info_text_color_dark=quiet_dark,
        block_title_text_color=quiet, block_label_text_color=quiet, block_label_text_color_dark=quiet_dark,
        input_placeholder_color=quiet, input_placeholder_color_dark=quiet_dark,
        button_primary_background_fill=button, button_primary_background_fill_dark=button,
        button_primary_background_fill_hover=pressed, button_primary_background_fill_hover_dark=pressed,
        link_text_color="*primary_700", link_text_color_dark="*primary_300",
    )  # fmt: skip


def _images(answer: Answers, model: gr.Textbox) -> list[Any]:
    """Returns what `Answers.open` updates, in its order."""
    most = answer.shelf.limits
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            classes = gr.Dropdown(
                [], value=[], multiselect=True, allow_custom_value=True, label="Classes", elem_id="classes",
                info="They take turns. None chosen: all.",
            )  # fmt: skip
            count = gr.Number(16, label="Images", info=f"From 1 to {most.max_images}.", elem_id="count")
            with gr.Accordion("Seed, steps and solver", open=False) as more:
                seed = gr.Number(0, label="Seed", info="The same seed gives the same images.", elem_id="seed")
                steps = gr.Number(20, label="Steps", info=f"From 1 to {most.max_steps}.", elem_id="steps")
                solver = _radio(
                    [(text, name) for name, text in SOLVERS.items()], "dpm", "Solver", "Heun works twice per step."
                )
        with gr.Column(scale=3, min_width=300):
            with gr.Row():
                draw = gr.Button("Draw", variant="primary", interactive=False, scale=4, elem_id="draw")
                stop = gr.Button("Stop", scale=0, min_width=80, elem_id="stop")
            result = gr.HTML(views.note("Nothing is drawn yet."), elem_id="result", padding=False)
            with gr.Row():
                saves = {
                    "images": gr.Button("Save these as a zip", size="sm", interactive=False, elem_id="save-zip"),
                    "dataset": gr.Button("Save these as a data set", size="sm", interactive=False, elem_id="save-set"),
                }
            link = gr.HTML(elem_id="saved", padding=False)
    kept = gr.State(None, time_to_live=SECONDS_KEPT)
    drawing = draw.click(
        answer.draw, [model, classes, count, seed, steps, solver], [result, kept, link], api_name="draw",
        concurrency_id="work", show_progress_on=result,
    )  # fmt: skip
    drawing.success(lambda: [gr.update(interactive=True)] * len(saves), None, list(saves.values()), **QUIET)
    drawing.then(None, [result], [result], js=STOPPED, **QUIET)  # after the last step, however it ended
    stop.click(None, cancels=[drawing])
    for kind, button in saves.items():
        saving = button.click(partial(answers.save, kind), [kept], [link], **QUIET)
        saving.success(None, [link], None, js=SAVE)
    return [result, classes, more, steps, solver, draw, saves["dataset"]]


def _radio(choices: list[Any], value: str, label: str, info: str | None = None) -> gr.Radio:
    """Returns a choice that we check: Gradio would log a traceback for each wrong value."""
    radio = gr.Radio(choices, value=value, label=label, info=info)
    radio.preprocess = lambda payload: payload  # type: ignore[method-assign]
    return radio


def _plan() -> None:
    gr.Markdown(render("app_plan.md", escape=False))
    with gr.Row(elem_id="facts"):
        number = partial(gr.Number, min_width=140)
        facts = [
            number(10000, label="Images"), number(28, label="Side in pixels"), _radio(list(COLOURS), "grey", "Colour"),
            number(10, label="Classes (1: none)"), number(10, label="Epsilon"), number(0, label="Minutes (0: any)"),
        ]  # fmt: skip
    plan = gr.Button("Plan", variant="primary", elem_id="plan")
    planned = gr.HTML(elem_id="planned", padding=False)
    gr.Markdown(render("app_plan_words.md", escape=False))
    plan.click(answers.plan, facts, [planned], api_name="plan", concurrency_id="plan")

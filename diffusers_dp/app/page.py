# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The page: choice of a model, its guarantee, its images. Other modules compute everything that it shows."""

from collections.abc import Callable, Iterator
from functools import wraps
from importlib.resources import files
from typing import Any

import gradio as gr

from ..errors import DiffusersDPError, UsageError
from ..methods.leaderboard import read_pictures, refuted_table
from ..release.loading import AnyRelease
from . import budget, views
from .choice import measured_picture, measured_tables, recommended
from .downloads import archive_name, dataset_zip, images_zip
from .drawing import SOLVERS, Drawn, Preview, read_order
from .limits import OPENED_AT_ONCE, QUEUE_LENGTH, SECONDS_KEPT
from .shelf import Shelf


INTRO = """# Images under differential privacy
Read what a release promises, then draw from it: that costs no more privacy."""
# Python makes the link in memory; the browser saves the file unless another model was chosen meanwhile.
SAVE = """(html, name) => {
  const link = new DOMParser().parseFromString(html || "", "text/html").querySelector("a.dp-saved");
  if (link && link.dataset.model !== (name || "")) return "";
  if (link) { document.body.append(link); link.click(); link.remove(); }
  return html; }"""
# A card of the gallery names its model. The value of the list decides.
CARDS = """const mark = () => { for (const card of element.querySelectorAll("[data-name]"))
    card.setAttribute("aria-pressed", card.dataset.name === document.querySelector("#model input")?.value); };
  element.addEventListener("click", (event) => { const card = event.target.closest("[data-name]");
    if (card) { window.dpChosen = card.dataset.name; trigger("click"); } });
  window.dpMark = mark; watch("value", mark);"""
CHOSEN = "() => window.dpChosen"
MARKED = "() => { setTimeout(() => window.dpMark?.(), 50); }"
#: Of listeners that are no part of the page's API, or that work one at a time.
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
WORK: dict[str, Any] = {"concurrency_id": "work", "show_progress": "hidden"}
PLAN: dict[str, Any] = {"concurrency_id": "plan", "show_progress": "hidden"}
LAST: dict[str, Any] = {**PLAN, **QUIET, "trigger_mode": "always_last"}
NOTHING_YET = "Nothing is drawn yet."
NOTHING_COMPARED = "Nothing is compared yet."
NOTHING_DRAWN = "Draw images first: then they can be saved."
# Runs in the browser at once, so that texts about another model disappear while this one is checked.
CHECKING = f"() => [{views.note('Checking ...')!r}, {views.note('The picture comes with the model.')!r}, ...BUTTONS]"
# An answer is shown only if no other model was chosen meanwhile.
ANSWERED = """(found, name) => { if (!found || found.name !== (name || "")) return [];
  const classes = {__type__: "update", choices: found.classes.map((text) => [text, text]), value: [],
    visible: found.visible};
  const steps = { __type__: "update", visible: found.drawn };
  return [found.guarantee, found.samples, classes, steps, steps, ...BUTTONS]; }"""


def build_page(shelf: Shelf) -> gr.Blocks:
    """Builds the page for these models. Drawing, verifying and planning run one at a time, in request order."""
    with gr.Blocks(title="Images under differential privacy", analytics_enabled=False) as page:
        hint = "From the list, or type a Hub id" + (" or a folder." if shelf.folders_by_visitors else ".")
        names = list(shelf.names)
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=300):
                gr.Markdown(INTRO, elem_id="intro")
            with gr.Column(scale=2, min_width=300):
                model = gr.Dropdown(
                    names, value=names[0] if names else None, label="Model", info=hint, allow_custom_value=True,
                    elem_id="model",
                )  # fmt: skip
        gallery = gr.HTML("", elem_id="gallery", padding=False, visible=len(names) > 1, js_on_load=CARDS)
        facts = gr.HTML(views.note("Reading the receipt ..."), elem_id="guarantee", padding=False)
        with gr.Tabs():
            with gr.Tab("Draw", id="draw"):
                controls, buttons, drawn, drawing = _draw_tab(shelf, model)
            with gr.Tab("Compare", id="compare"):
                compare, compared, comparing = _compare_tab(shelf, model, controls)
            with gr.Tab("How private?", id="private") as private:
                picture = _private_tab()
            with gr.Tab("Leaderboard", id="leaderboard") as measured:
                board = _leaderboard_tab()
        buttons = [*buttons, compare]
        found = gr.JSON(visible=False)
        gallery.click(None, None, [model], js=CHOSEN)
        if len(names) > 1:
            page.load(_cards(shelf), None, [gallery], **QUIET)

        # The browser runs the listeners of one event in this order, each after the one before.
        model.change(
            None, None, [facts, picture, *buttons], js=_for_all(buttons, CHECKING, "false"),
            cancels=[*drawing, comparing],
        )  # fmt: skip
        model.change(None, None, None, js=MARKED)
        # Images and files of one model never appear below the guarantee of another.
        nothing = (views.note(NOTHING_YET), None, "", views.note(NOTHING_COMPARED))
        model.change(lambda: nothing, None, [*drawn, compared], api_visibility="private", queue=False)
        for event in (page.load, model.change):
            opening = event(
                _open(shelf), [model], [found], api_name="open" if event is model.change else None,
                api_visibility="public" if event is model.change else "private", concurrency_id="open",
                concurrency_limit=OPENED_AT_ONCE, show_progress="hidden",
                trigger_mode="always_last" if event is model.change else None,
            )  # fmt: skip
            opening.then(
                None, [found, model], [facts, drawn[0], controls[0], *controls[3:], *buttons],
                js=_for_all(buttons, ANSWERED, "found.ready"),
            )  # fmt: skip
        for event in (private.select, model.change):
            event(_budget_of(shelf), [model], [picture], **LAST)
        measured.select(_leaderboard, None, [board], **LAST)
    page.queue(max_size=QUEUE_LENGTH, default_concurrency_limit=1)
    return page


def _for_all(buttons: list[Any], script: str, interactive: str) -> str:
    """Adds an update for each button to the script; `interactive` is a JavaScript expression."""
    return script.replace(
        "...BUTTONS", f"...Array({len(buttons)}).fill({{__type__: 'update', interactive: {interactive}}})"
    )


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


def _prose(name: str) -> str:
    return files("diffusers_dp").joinpath("templates", name).read_text(encoding="utf-8").rstrip("\n")


def _draw_tab(shelf: Shelf, model: gr.Dropdown) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Returns the inputs, the buttons that need a model, the outputs, and the events to cancel for another model."""
    most = shelf.limits
    with gr.Row(elem_id="draw-tab"):
        with gr.Column(scale=1, min_width=280):
            classes = gr.Dropdown(
                [], value=[], multiselect=True, allow_custom_value=True, label="Classes", elem_id="classes",
                info="They take turns. None chosen: all.",
            )  # fmt: skip
            # A slider clamps a number to its range; the text states the range.
            count = gr.Slider(
                1, most.max_images, value=16, step=1, label="Images", info=f"From 1 to {most.max_images}.",
                elem_id="count",
            )  # fmt: skip
            seed = gr.Number(0, label="Seed", info="The same seed gives the same images.", elem_id="seed")
            steps = gr.Slider(
                1, most.max_steps, value=20, step=1, label="Steps",
                info=f"From 1 to {most.max_steps}; more are slower.", elem_id="steps",
            )  # fmt: skip
            solver = gr.Radio(
                [(text, name) for name, text in SOLVERS.items()], value="dpm", label="Solver", elem_id="solver"
            )
        with gr.Column(scale=3, min_width=300, elem_id="drawing"):
            with gr.Row():
                draw = gr.Button("Draw", variant="primary", interactive=False, elem_id="draw", min_width=100)
                stop = gr.Button("Stop", elem_id="stop", min_width=100)
            result = gr.HTML(views.note(NOTHING_YET), elem_id="result", padding=False)
            kept = gr.State(None, time_to_live=SECONDS_KEPT)
            with gr.Row():
                as_zip = gr.Button("Save all as a zip", size="sm", elem_id="save-zip")
                as_dataset = gr.Button("Download as dataset", size="sm", elem_id="save-dataset")
            link = gr.HTML("", elem_id="saved", padding=False)
    controls = [classes, count, seed, steps, solver]
    drawing = draw.click(_draw(shelf), [model, *controls], [result, kept, link], api_name="draw", **WORK)
    stop.click(None, cancels=[drawing])
    ended = [drawing]
    for button, pack, name in ((as_zip, images_zip, "images"), (as_dataset, dataset_zip, "dataset")):
        saving = button.click(_save(pack, name), [kept, model], [link], **QUIET)
        saving.then(None, [link, model], [link], js=SAVE)
        ended.append(saving)
    return controls, [draw, as_zip, as_dataset], [result, kept, link], ended


def _compare_tab(shelf: Shelf, model: gr.Dropdown, controls: list[Any]) -> tuple[gr.Button, gr.HTML, Any]:
    """Returns the button, its output, and the event of the comparison."""
    gr.Markdown("Both models draw the same classes from the same seeds, with the settings of the tab *Draw*.")
    names = list(shelf.names)
    other = gr.Dropdown(
        names, value=names[-1] if names else None, label="Second model", allow_custom_value=True, elem_id="other",
        info="The first is the one above.",
    )  # fmt: skip
    compare = gr.Button("Compare", variant="primary", interactive=False, elem_id="compare")
    result = gr.HTML(views.note(NOTHING_COMPARED), elem_id="comparison", padding=False)
    comparing = compare.click(_compare(shelf), [model, other, *controls], [result], api_name="compare", **WORK)
    return compare, result, comparing


def _private_tab() -> gr.HTML:
    """Returns the component for the model's budget picture."""
    gr.Markdown(_prose("app_how_private.md"))
    gr.Markdown("### Where the budget of this model went")
    picture = gr.HTML(views.note("The picture comes with the model."), elem_id="budget", padding=False)
    gr.Markdown(_prose("app_picture.md"))
    gr.Markdown(
        "### A run of your own\nThe noise that a budget asks for, before an image is read: what `diffusers-dp plan` "
        "computes for FETA-Pro."
    )
    with gr.Row():
        values = [
            gr.Number(10000, label="Images in training", precision=0, elem_id="plan-images"),
            gr.Number(1, label="Epsilon", elem_id="plan-epsilon"),
            gr.Number(500, label="Expected batch", info="Images in a step, on average.", precision=0,
                      elem_id="plan-batch"),
            gr.Number(300, label="Steps of DP-SGD", precision=0, elem_id="plan-steps"),
        ]  # fmt: skip
    plan = gr.Button("Plan", elem_id="plan")
    planned = gr.HTML("", elem_id="planned", padding=False)
    plan.click(_plan, values, [planned], api_name="plan", **PLAN)
    _which_method()
    return picture


def _which_method() -> None:
    gr.Markdown(
        "### Which method?\nWhat suits images of your own, judged by measured runs: what `diffusers-dp recommend` "
        "says. It goes by these numbers alone. No image is read, and nothing is kept."
    )
    with gr.Row():
        facts = [
            gr.Number(10000, label="Images in training", precision=0, elem_id="which-images"),
            gr.Number(28, label="Side in pixels", precision=0, elem_id="which-side"),
            gr.Radio(["grey", "colour"], value="grey", label="Colour", elem_id="which-colour"),
            gr.Number(10, label="Classes", info="1: none.", precision=0, elem_id="which-classes"),
            gr.Number(10, label="Epsilon", elem_id="which-epsilon"),
            gr.Number(0, label="Minutes", info="Of one core; 0: any.", elem_id="which-minutes"),
        ]
    which = gr.Button("Recommend", elem_id="which")
    said = gr.HTML("", elem_id="recommended", padding=False)
    which.click(_which, facts, [said], api_name="recommend", **PLAN)


def _leaderboard_tab() -> gr.HTML:
    """Returns the component for the picture."""
    gr.Markdown(_prose("app_leaderboard.md"))
    picture = gr.HTML(views.note("The picture comes in a moment."), elem_id="leaderboard", padding=False)
    for title, table in measured_tables():
        gr.Markdown(f"#### {title}\n{table}", elem_classes="dp-measured")
    gr.Markdown(
        "#### Published epsilons that do not hold\nThe tables leave out published figures of these methods. A command "
        f"computes a counterexample, or the count that holds.\n\n{refuted_table()}"
    )
    return picture


def _said(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a view to show its errors on the page, in one sentence."""

    @wraps(answer)
    def guarded(*values: Any) -> Any:
        try:
            return answer(*values)
        except DiffusersDPError as error:
            return views.error(str(error))

    return guarded


def _open(shelf: Shelf) -> Callable[[str], dict[str, Any]]:
    def answer(name: str) -> dict[str, Any]:
        said = {"name": name or "", "classes": [], "visible": True, "drawn": True, "ready": False,
                "samples": views.note(NOTHING_YET)}  # fmt: skip
        if not name:
            return {**said, "guarantee": views.note("No model is chosen.")}
        try:
            released = shelf.open(name)
        except DiffusersDPError as error:
            return {**said, "guarantee": views.error(str(error))}
        names = list(released.class_names or ())
        return {
            **said, "guarantee": views.guarantee(released), "samples": views.samples(released), "classes": names,
            "visible": bool(names), "drawn": not released.holds_images, "ready": True,
        }  # fmt: skip

    return answer


def _cards(shelf: Shelf) -> Callable[[], Iterator[str]]:
    """Returns a view that yields cards one by one, because some may need a request to the Hub."""

    def answer() -> Iterator[str]:
        cards: list[AnyRelease | str] = []
        for name in shelf.names:
            try:
                cards.append(shelf.open(name))
            except DiffusersDPError:  # the page shows the message when the model is chosen
                cards.append(name)
            yield views.gallery(cards)

    return answer


def _draw(shelf: Shelf) -> Callable[..., Iterator[tuple[Any, Any, Any]]]:
    def answer(name: str, *values: Any) -> Iterator[tuple[Any, Any, Any]]:
        try:
            order = read_order(values, shelf.limits)
            released = shelf.open(name)
            yield views.note("Loading the model ..."), None, ""
            for found in shelf.painter(released).watch(order):
                if isinstance(found, Preview):
                    yield views.preview(found), gr.skip(), gr.skip()
                else:
                    yield views.images(found), found, gr.skip()
        except DiffusersDPError as error:
            yield views.error(str(error)), None, ""

    return answer


def _compare(shelf: Shelf) -> Callable[..., Iterator[str]]:
    def answer(first: str, second: str, *values: Any) -> Iterator[str]:
        columns: list[str] = []
        try:
            order = read_order(values, shelf.limits)
            both = [shelf.open(first), shelf.open(second)]
            for released in both:
                for found in shelf.painter(released).watch(order):
                    shown = views.preview(found) if isinstance(found, Preview) else _column(found)
                    yield views.side_by_side([*columns, shown])
                columns.append(shown)
        except DiffusersDPError as error:
            yield views.error(str(error))

    return answer


def _column(drawn: Drawn) -> str:
    return views.images(drawn, title=drawn.released.name, facts=views.short_guarantee(drawn.released))


def _save(pack: Callable[[Drawn], bytes], name: str) -> Callable[[Drawn | None, str], str]:
    @_said
    def answer(drawn: Drawn | None, model: str) -> str:
        if drawn is None:
            raise UsageError(NOTHING_DRAWN)
        return views.saved(pack(drawn), archive_name(drawn, name), "application/zip", model or "")

    return answer


def _budget_of(shelf: Shelf) -> Callable[[str], str]:
    @_said
    def answer(name: str) -> str:
        released = shelf.open(name)
        if not released.receipt or released.problems:
            raise UsageError("This model's receipt does not match, so there is no picture of its budget.")
        picture, words, table = shelf.budget(released)
        return views.picture(picture, words, table, title=released.name)

    return answer


@_said
def _plan(*values: Any) -> str:
    plan, table = budget.think_of(*values)
    return views.picture(budget.draw(plan), f"Total epsilon {plan.epsilon:.4g}; the table has the numbers.", table)


@_said
def _which(*values: Any) -> str:
    return views.text(recommended(*values))


def _leaderboard() -> str:
    words = "Accuracy against minutes of training, a panel for each data set and epsilon; the tables have the numbers."
    picture = measured_picture()
    if picture is None:
        return views.note("Nothing is measured yet.")
    shown = views.picture(picture, words, label="Leaderboard")
    for title, content in read_pictures().items():
        words = f"{title}: real images, and images of each method."
        shown += views.picture(content, words, title=title, label=title, kind="webp")
    return shown

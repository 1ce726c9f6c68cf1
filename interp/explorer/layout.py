"""The page before anything is on it: its parts in reading order, its controls with their labels. What fills them is in `callbacks.py`."""

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from analyses.ledger import SPLITS

from .view import HOW

ZOOM = {
    "component": "component",
    "head": "head",
    "source": "source token",
    "head+source": "head × source",
    "lag": "lag",
    "neuron": "neuron",
}


def aria(**told: str) -> dict[str, Any]:
    """Attributes for those who do not see the page: `aria(label="..")`."""
    return {f"aria-{name}": value for name, value in told.items()}


def page(names: Sequence[str], depends: Mapping[str, Sequence[str]]) -> Any:
    """The whole page, for the models of these names; `depends` says which fields of a view each panel shows."""
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="view"),
            dcc.Store(id="narrow", data=False),
            dcc.Store(id="again", data=0),
            dcc.Store(id="job"),
            dcc.Store(id="depends", data={name: list(fields) for name, fields in depends.items()}),
            dcc.Store(id="png"),
            dcc.Download(id="download"),
            html.Div(id="offline", role="alert", hidden=True),
            html.Button("Skip to the ledger", className="skip", **dict[str, Any]({"data-goto": "who"})),
            _header(names),
            html.Div(id="link-notes", role="status"),
            html.Main([_prompt_page(), _model_page()]),
        ],
        id="explorer",
    )


def panel(name: str, *, live: bool = False) -> Any:
    """A place that a callback fills, with the key of what it shows."""
    told = aria(live="polite") if live else {}
    return html.Div([html.Div(id=name, className="panel", **told), dcc.Store(id=f"{name}-key")])


def _header(names: Sequence[str]) -> Any:
    options = [{"label": name, "value": name} for name in names]
    return html.Header(
        [
            html.Div(
                [
                    html.H1("Explorer"),
                    html.Div(
                        [html.Label("Model", htmlFor="model"), dcc.Dropdown(options, id="model", clearable=False, searchable=False)],
                        className="model",
                    ),
                    _choice("page-choice", "Page", {"prompt": "One prompt", "model": "Claims and variance"}, "page"),
                ],
                className="bar-row",
            ),
            panel("about", live=True),
            html.Div([panel("standing", live=True), panel("without", live=True)], className="stand"),
        ],
        className="top",
    )


def _prompt_page() -> Any:
    return html.Div(
        [
            _section(
                "1. Prompt",
                [
                    html.Label("What the model reads", htmlFor="text"),
                    dcc.Textarea(id="text", rows=3, spellCheck=False, className="text"),
                    html.Div(
                        [
                            html.Button("Read", id="read", className="main"),
                            html.Span("or Ctrl+Enter in the box", className="note"),
                            panel("options"),
                        ],
                        className="controls",
                    ),
                    panel("tokens", live=True),
                ],
                "Press a token to make it the destination: everything below is about what the model expects after it.",
            ),
            _section(
                "2. What comes next",
                [
                    panel("predictions"),
                    html.Div(
                        [
                            html.Div(
                                [
                                    html.Label("Answer", htmlFor="answer"),
                                    dcc.Input(id="answer", debounce=True, placeholder="the top token", autoComplete="off"),
                                ]
                            ),
                            html.Div(
                                [
                                    html.Label("against", htmlFor="against"),
                                    dcc.Input(id="against", debounce=True, placeholder="nothing", autoComplete="off"),
                                ]
                            ),
                            html.Button("swap", id="swap", className="small"),
                            html.Button("top token, against nothing", id="reset", className="small"),
                        ],
                        className="controls",
                    ),
                    panel("answers", live=True),
                ],
                "Choose the token whose logit is explained, and one to compare it with. "
                "A space in front counts: most words begin with one. #123 means the token of that id.",
            ),
            _section(
                "3. Who wrote it",
                [
                    _choice("by-choice", "Split by", {by: ZOOM[by] for by in SPLITS}, "by"),
                    html.Div([panel("picture"), panel("rows")], className="beside", id="ledger"),
                ],
                "Every row is what one part of the model adds to the number above. Press a cell of the picture, or “look” at a row.",
                anchor="who",
            ),
            _section(
                "4. One part, closely",
                [
                    html.Div(
                        [
                            html.Div(
                                [
                                    html.Label("Part", htmlFor="look"),
                                    dcc.Input(id="look", debounce=True, placeholder="L1H2, L0N7, <-3, L2 lag 1", autoComplete="off"),
                                ]
                            )
                        ],
                        className="controls",
                    ),
                    html.Div(id="look-note"),
                    panel("part", live=True),
                ],
                None,
                anchor="part-section",
            ),
            _section(
                "5. Take it out",
                [
                    _choice("how-choice", "Replaced by", dict(zip(HOW, ("zero", "its mean over the prompt"), strict=True)), "how"),
                    panel("out", live=True),
                ],
                "Remove parts and see whether the number moves as the ledger predicts. "
                "One kind of part at a time: heads, lags, sources or neurons.",
                anchor="out-section",
            ),
            _section(
                "6. Take it with you",
                [
                    html.Div(
                        [
                            html.Button("Copy as Python", id="copy", className="main"),
                            html.Button("JSON", id="json", className="small"),
                            html.Button("HTML", id="html", className="small"),
                            html.Button("PNG", id="image", className="small"),
                            html.Span(id="copied", role="status"),
                        ],
                        className="controls",
                    ),
                    panel("snippet"),
                ],
                "The address of this page holds the whole view: as a link it shows the same again.",
            ),
        ],
        id="prompt-page",
    )


def _model_page() -> Any:
    return html.Div(
        [
            _section(
                "Claims and variance",
                [
                    html.Div(
                        [
                            html.Button("Claims", id="start-claims", className="main"),
                            html.Button("Variance", id="start-variance", className="main"),
                            html.Button("Variance at initialisation", id="start-init", className="main"),
                            html.Button("Cancel", id="cancel", className="small", disabled=True),
                        ],
                        className="controls",
                    ),
                    html.Div(id="job-note", role="alert"),
                    html.Div(id="job-panel"),
                    dcc.Interval(id="tick", interval=700, disabled=True),
                    panel("model-snippet"),
                ],
                "Measured on the text that ships with the package, in a process of its own that loads the model again: "
                "seconds for a shipped model, minutes for a large one.",
            )
        ],
        id="model-page",
        hidden=True,
    )


def _section(title: str, parts: Sequence[Any], intro: str | None, anchor: str | None = None) -> Any:
    words = [] if intro is None else [html.P(intro, className="intro")]
    return html.Section([html.H2(title), *words, *parts], **dict[str, Any]({"id": anchor} if anchor else {}))


def _choice(name: str, legend: str, options: dict[str, str], control: str) -> Any:
    return html.Fieldset(
        [
            html.Legend(legend),
            dcc.RadioItems(
                [{"label": text, "value": value} for value, text in options.items()], id=control, inline=True, className="choice"
            ),
        ],
        id=name,
    )

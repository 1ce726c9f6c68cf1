"""Figures: what they say, what they refuse, and that nothing a user typed is ever markup."""

import dataclasses
import html
import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

import interp
from analyses.certificate import check
from analyses.drive import Drive
from analyses.ledger import Entry, Ledger
from interp import figures
from interp.figures import _text
from models.config import DecoderConfig
from models.decoder import HookedDecoder

NASTY = ("<b>bold</b>", " $x^2$", "\n", " ", "&lt;", "<script>alert(1)</script>", "%{z}", "\u202eevil", "'\"")


def decoder(mixer="mha", n_layers=2, n_heads=4, d_model=16):
    torch.manual_seed(0)
    config = DecoderConfig(
        n_layers=n_layers,
        d_model=d_model,
        n_ctx=16,
        d_vocab=23,
        mixer=mixer,
        layout="serial",
        n_heads=n_heads,
        mixer_bias=True,
        unembed_bias=True,
    )
    model = HookedDecoder(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5]])


@pytest.fixture(scope="module")
def attention_model():
    return decoder()


@pytest.fixture(scope="module")
def extractor_model():
    return decoder(("ishe", "he"))


@pytest.fixture(scope="module")
def by_head(attention_model):
    return renamed(interp.ledger(attention_model, IDS, by="head"))


@pytest.fixture(scope="module")
def by_source(attention_model):
    return renamed(interp.ledger(attention_model, IDS, by="source"))


@pytest.fixture(scope="module")
def by_head_and_source(attention_model):
    return renamed(interp.ledger(attention_model, IDS, by="head+source"))


def renamed(ledger):
    """A ledger of real numbers whose tokens and answer are hostile text."""
    return dataclasses.replace(ledger, tokens=NASTY, answer=" <i>yes</i>", against="$no$")


def texts(fig):
    """Every string of a figure that plotly would draw as text."""
    found = []

    def walk(value, key=""):
        if isinstance(value, dict):
            for k, v in value.items():
                walk(v, k)
        elif isinstance(value, list):
            for v in value:
                walk(v, key)
        elif isinstance(value, str):
            found.append(value)

    document = json.loads(fig.to_json())
    document["layout"].pop("template", None)
    document["layout"].pop("meta", None)  # plain text for the report, never drawn
    walk(document)
    return found


def assert_harmless(fig):
    drawn = "\n".join(texts(fig))
    for markup in ("<script", "<i>", "<b>bold", "$x", "$no", "\u202e", "alert(1)</"):
        assert markup not in drawn
    # a template is a small language of its own, and nothing a user typed may be in one
    for trace in fig.data:
        for template in (getattr(trace, "hovertemplate", None), getattr(trace, "texttemplate", None)):
            assert not any(_text.cut(_text.safe(t), 12) in (template or "") for t in NASTY if len(t) > 4), template


def cells(fig):
    return [t for t in fig.data if t.type == "heatmap"]


def grids(size, *, layers=1, heads=1, nan=()):
    """A by-head ledger of any size, without a model."""
    rng = np.random.default_rng(0)
    entries = [Entry(label=f"L{i}H{h}", kind="head", layer=i, head=h) for i in range(layers) for h in range(heads)]
    entries += [Entry(label=f"L{i} mlp", kind="mlp", layer=i) for i in range(layers)] + [Entry(label="rounding", kind="rounding")]
    values = rng.normal(size=(len(entries), 1))
    for at, value in nan:
        values[at] = value
    real = interp.ledger(decoder(), IDS, by="head")
    return Ledger(
        by="head",
        model="toy",
        at="blocks.0.hook_resid_post",
        tokens=tuple(f" w{i}" for i in range(size)),
        token_ids=tuple(range(size)),
        positions=(size - 1,),
        answer=" a",
        against=None,
        entries=tuple(entries),
        values=values,
        total=values.sum(0),
        certificates=real.certificates,
    )


def failing(ledger):
    broken = dataclasses.replace(
        ledger.certificates[0], checks=(*ledger.certificates[0].checks, check("algebra", 0.03, 8e-14, kind="practical", where="L3 attn"))
    )
    return dataclasses.replace(ledger, certificates=(broken,))


# ---- what every figure keeps to


@pytest.fixture
def every_figure(by_head, by_source, by_head_and_source, attention_model, extractor_model):
    _, cache = interp.run_with_cache(attention_model, IDS)
    cache.str_tokens = (NASTY,)
    equivalence = dataclasses.replace(interp.equivalence(attention_model, IDS), tokens=NASTY)
    batch = torch.randint(0, 23, (24, 16), generator=torch.Generator().manual_seed(0))
    profile = dataclasses.replace(interp.variance_profile(extractor_model, batch), model=NASTY[0])
    claims = [{"id": "additive", "claim": NASTY[5], "state": "init", "verdict": "holds", "measured": 1e-9, "bound": 1e-8, "note": NASTY[0]}]
    return {
        "heads": figures.heads(by_head),
        "ledger": figures.ledger(by_head_and_source),
        "sources": figures.sources(by_head_and_source),
        "bars": figures.sources(by_source),
        "lags": figures.sources(renamed(interp.ledger(extractor_model, IDS, by="lag"))),
        "tokens": figures.tokens(by_source),
        "attention": figures.attention(cache),
        "equivalence": figures.equivalence(equivalence),
        "variance": figures.variance(profile),
        "kernels": figures.kernels(extractor_model),
        "drive": figures.drive(dataclasses.replace(interp.drive(attention_model, IDS), tokens=NASTY)),
        "claims": figures.claims(claims, model=NASTY[0]),
    }


def test_every_figure_has_a_title_a_subtitle_and_harmless_text(every_figure):
    for name, fig in every_figure.items():
        assert isinstance(fig, go.Figure), name
        assert fig.layout.title.text, name
        assert fig.layout.title.subtitle.text, name
        assert_harmless(fig)
        assert "9 tokens as fed" in fig.layout.title.subtitle.text or name in ("variance", "kernels", "claims"), name


def test_every_axis_that_is_drawn_says_what_it_shows(every_figure):
    for name, fig in every_figure.items():
        for axis in [*fig.select_xaxes(), *fig.select_yaxes()]:
            if axis.visible is False or name == "claims" or (name == "variance" and axis.plotly_name in ("yaxis2", "yaxis3")):
                continue  # not drawn; a table; a panel beside one that has the title
            names = [t for t in (axis.ticktext or axis.tickvals or ()) if isinstance(t, str) and not t[:1].isdigit()]
            assert axis.title.text or names or axis.plotly_name == "xaxis2", (name, axis.plotly_name)


def test_titles_wrap_within_the_figure(every_figure):
    for fig in every_figure.values():
        for line in fig.layout.title.text.split("<br>"):
            assert len(html.unescape(line.removeprefix("<b>").removesuffix("</b>"))) <= 98
        assert fig.layout.margin.t >= 22 * fig.layout.title.text.count("<br>") + 16 * fig.layout.title.subtitle.text.count("<br>")


def test_figures_refuse_what_is_no_result_and_name_it():
    for draw in (figures.heads, figures.ledger, figures.sources, figures.tokens, figures.equivalence, figures.variance, figures.kernels):
        with pytest.raises(TypeError, match="got dict"):
            draw({})
    with pytest.raises(TypeError, match="got int"):
        figures.attention(3)
    with pytest.raises(TypeError, match="got int"):
        figures.claims(3)


def test_figures_take_one_positional_argument(by_head):
    with pytest.raises(TypeError):
        figures.heads(by_head, -1)  # type: ignore[misc]


# ---- heads


def test_heads_draws_the_ledgers_numbers_on_a_symmetric_range(by_head):
    fig = figures.heads(by_head)
    drawn = np.full((2, 4), np.nan)
    for trace in cells(fig):
        if trace.xaxis in (None, "x"):
            z = np.asarray(trace.z, dtype=float)
            drawn = np.where(np.isnan(z), drawn, z)
        assert trace.zmin == -trace.zmax
    for value, entry in zip(by_head.values[:, 0], by_head.entries, strict=True):
        if entry.kind == "head":
            assert drawn[entry.layer, entry.head] == value


def test_heads_title_names_the_strongest_head(by_head):
    heads = [(abs(v), e.label) for v, e in zip(by_head.values[:, 0], by_head.entries, strict=True) if e.kind == "head"]
    assert max(heads)[1] in figures.heads(by_head).layout.title.text


def test_heads_refuses_a_ledger_without_heads_and_says_what_to_use(extractor_model):
    with pytest.raises(ValueError, match='by="source"'):
        figures.heads(interp.ledger(extractor_model, IDS, by="head"))


def test_special_cells_are_seen_and_explained():
    ledger = grids(4, layers=2, heads=4, nan=[(0, math.nan), (1, math.inf), (2, -50.0)])
    fig = figures.heads(ledger, limit=2.0)
    written = [str(t) for trace in cells(fig) for row in trace.text for t in row]
    assert "NaN" in written
    assert "+∞" in written
    assert any(t.startswith("▸") for t in written)
    notes = fig.layout.title.subtitle.text
    assert "1 grey cell: not a number" in notes
    assert "infinite" in notes
    assert "beyond ±2" in notes


@pytest.mark.parametrize(("layers", "heads", "size"), [(1, 1, 2), (64, 32, 512)])
def test_sizes_grow_and_labels_thin_out(layers, heads, size):
    fig = figures.heads(grids(size, layers=layers, heads=heads))
    room = fig.layout.height - fig.layout.margin.t - fig.layout.margin.b
    assert room / max(len(fig.layout.yaxis.tickvals), 1) >= 12
    assert room >= 12 * layers


def test_the_sign_is_told_without_colour(by_head):
    bars = figures.ledger(by_head).data[0]
    for x, pattern in zip(bars.x[:-1], bars.marker.pattern.shape[:-1], strict=True):
        assert (pattern == "/") == (x < 0)


def test_limit_and_position_are_checked(by_head):
    with pytest.raises(ValueError, match="limit"):
        figures.heads(by_head, limit=-1)
    with pytest.raises(ValueError, match="position: 3 is not in this ledger; it holds 8"):
        figures.heads(by_head, position=3)


# ---- ledger


def test_ledger_bars_add_up_to_the_total(by_head_and_source):
    fig = figures.ledger(by_head_and_source, top=5)
    sizes = np.asarray(fig.data[0].x)
    assert len(sizes) == 5 + 1 + 1 + 1  # top, others, rounding, total
    assert sizes[:-1].sum() == pytest.approx(by_head_and_source.total[0], abs=1e-12)
    assert sizes[-1] == by_head_and_source.total[0]
    labels = fig.layout.yaxis.ticktext
    assert f"{len(by_head_and_source.entries) - 6} others (sum)" in labels[5]
    assert labels[6] == "rounding"
    running = fig.data[1]
    assert running.base[-2] + running.x[-2] == pytest.approx(by_head_and_source.total[0], abs=1e-12)


def test_ledger_refuses_a_top_that_is_no_count(by_head):
    for top in (0, True):
        with pytest.raises(ValueError, match="top"):
            figures.ledger(by_head, top=top)


# ---- a failed certificate


def test_a_failed_certificate_is_a_red_banner_with_check_gap_and_bound(by_head, by_source, by_head_and_source):
    for draw, ledger in (
        (figures.heads, by_head),
        (figures.ledger, by_head),
        (figures.sources, by_head_and_source),
        (figures.tokens, by_source),
    ):
        assert not [a for a in draw(ledger).layout.annotations if a.name == "alarm"]
        (banner,) = [a for a in draw(failing(ledger)).layout.annotations if a.name == "alarm"]
        assert banner.bgcolor == "#b00020"
        for part in ("FAILED", "algebra", "0.03", "8e−14", "L3 attn"):
            assert part in banner.text


def test_a_failed_equivalence_is_loud(attention_model):
    result = interp.equivalence(attention_model, IDS)
    row = dataclasses.replace(result.rows[1], gap=1.0, ratio=1e12)
    fig = figures.equivalence(dataclasses.replace(result, rows=(result.rows[0], row)))
    assert "NOT" in fig.layout.title.text
    assert "L1" in next(a.text for a in fig.layout.annotations if a.name == "alarm")
    assert "x" in [s for t in fig.data for s in (t.marker.symbol if isinstance(t.marker.symbol, tuple) else ())]


def test_exact_zeros_have_a_marked_floor(attention_model):
    result = interp.equivalence(attention_model, IDS)
    row = dataclasses.replace(result.rows[0], gap=0.0, ratio=0.0)
    fig = figures.equivalence(dataclasses.replace(result, rows=(row, *result.rows[1:])))
    assert "exactly 0" in [a.text for a in fig.layout.annotations]
    assert "1 gap exactly 0" in fig.layout.title.subtitle.text
    drawn = [y for t in fig.data for y in (t.y if t.y is not None else ()) if y is not None]
    assert all(y > 0 or math.isnan(y) for y in drawn)


# ---- sources, tokens


def test_sources_puts_each_value_in_its_cell(by_head_and_source):
    fig = figures.sources(by_head_and_source)
    drawn = np.nansum([np.asarray(t.z, dtype=float) for t in cells(fig)], axis=0)
    rows = {name: i for i, name in enumerate(cells(fig)[0].y)}
    for value, entry in zip(by_head_and_source.values[:, 0], by_head_and_source.entries, strict=True):
        if entry.source is not None:
            assert drawn[rows[f"L{entry.layer}H{entry.head}"], entry.source] == value


def test_sources_keeps_the_rest_in_one_honest_row(by_head_and_source):
    fig = figures.sources(by_head_and_source, top=2)
    assert list(cells(fig)[0].y)[-1] == "6 others (sum)"
    shown = np.nansum([np.asarray(t.z, dtype=float) for t in cells(fig)], axis=0)[:-1]
    assert cells(fig)[0].zmax == pytest.approx(np.abs(shown).max())  # a sum of many does not pale the others
    drawn = np.nansum([np.asarray(t.z, dtype=float) for t in cells(fig)], axis=0)
    every = sum(v for v, e in zip(by_head_and_source.values[:, 0], by_head_and_source.entries, strict=True) if e.source is not None)
    assert drawn.sum() == pytest.approx(every)


def test_sources_title_tells_the_largest_sum_and_the_largest_cell(by_head_and_source, by_source):
    """One head may take what others add: the token's sum comes first, or the map contradicts the coloured tokens."""
    values = np.zeros_like(by_head_and_source.values)
    entries = by_head_and_source.entries
    for i, e in enumerate(entries):
        if e.source == 2:
            values[i] = -3.0 if (e.layer, e.head) == (1, 0) else 2.0
    title = figures.sources(dataclasses.replace(by_head_and_source, values=values)).layout.meta["title"]
    assert "(token 2) adds most" in title
    assert ": +11 of" in title
    assert title.endswith("the largest single cell is token 2 through L1H0, −3")
    assert "single cell" not in figures.sources(by_source).layout.meta["title"]


def test_tokens_and_sources_refuse_a_ledger_without_sources(by_head):
    for draw in (figures.tokens, figures.sources):
        with pytest.raises(ValueError, match="names no source tokens"):
            draw(by_head)


def test_tokens_hover_tells_each_tokens_sum(by_source):
    bar = figures.tokens(by_source).data[0]
    sums = [v for v, e in zip(by_source.values[:, 0], by_source.entries, strict=True) if e.source is not None]
    for i, (hover, value) in enumerate(zip(bar.hovertext, sums, strict=True)):
        assert f"token {i} " in hover
        assert _text.number(value, 4, signed=True) in hover


# ---- attention, kernels


def test_attention_shows_every_head_small_and_one_large(attention_model):
    _, cache = interp.run_with_cache(attention_model, IDS)
    fig = figures.attention(cache)
    assert [f.name for f in fig.frames] == [f"L{i}H{h}" for i in range(2) for h in range(4)]
    assert [s.label for s in fig.layout.sliders[0].steps] == [f.name for f in fig.frames]
    pattern = cache["blocks.1.attn.hook_pattern"][0, 2].numpy()
    drawn = np.asarray(fig.frames[6].data[0].z, dtype=float)
    assert np.array_equal(np.nan_to_num(drawn), pattern)
    assert np.isnan(drawn[0, 1])
    assert "Thumbnails" not in fig.layout.title.subtitle.text


def test_attention_of_one_head_and_two_tokens():
    fig = figures.attention((np.array([[[1.0, 0.0], [0.5, 0.5]]]), ("a", "b")))
    assert len(fig.data) == 1
    assert not fig.layout.sliders


def test_attention_of_a_long_prompt_stays_small_and_says_so():
    pattern = np.tril(np.ones((6, 4, 512, 512), dtype=np.float32))
    pattern /= pattern.sum(-1, keepdims=True)
    fig = figures.attention((pattern, [f" t{i}" for i in range(512)]))
    assert len(fig.to_json()) < 8e6
    assert "offers the 3 heads" in fig.layout.title.subtitle.text


def test_attention_refuses_what_does_not_fit(extractor_model):
    _, cache = interp.run_with_cache(extractor_model, IDS)
    with pytest.raises(ValueError, match=r"figures\.kernels"):
        figures.attention(cache)
    with pytest.raises(ValueError, match="3 tokens for patterns of"):
        figures.attention((np.ones((1, 2, 2)), ("a", "b", "c")))
    with pytest.raises(ValueError, match=r"layers: \[7\]"):
        figures.attention((np.ones((1, 2, 2)), ("a", "b")), layers=[7])


def test_kernels_gain_is_the_norm_of_the_matrix_that_a_lag_applies(extractor_model):
    ishe, he = (block.attn for block in extractor_model.blocks)
    fig = figures.kernels(extractor_model)
    expected = torch.linalg.matrix_norm(ishe.W_ext.detach()) / 4
    assert np.allclose(fig.data[0].y, expected.numpy(), rtol=1e-5)
    matrices = he.W_in.detach()[None] * he.w_lag.detach()[:, None, :]
    assert np.allclose(fig.data[2].y, (torch.linalg.matrix_norm(matrices) / 4).numpy(), rtol=1e-5)
    with pytest.raises(ValueError, match="no Extractor"):
        figures.kernels(decoder())


def test_lens_says_since_when_the_last_token_leads(attention_model):
    found = interp.lens(attention_model, IDS, top_k=3)
    hostile = tuple(tuple(tuple(f"<b>{i}</b>" for i in ids) for ids in row) for row in found.top)
    result = dataclasses.replace(found, tokens=NASTY, words=hostile)
    fig = figures.lens(result)
    assert_harmless(fig)
    assert f"&lt;b&gt;{result.top[-1][0][0]}&lt;/b&gt;" in fig.layout.title.text
    assert list(fig.data[0].cells.values[0]) == ["before L0", "after L0", "after L1"]
    assert fig.data[0].cells.values[1][-1] == _text.number(result.values[-1, 0], 4, signed=True)
    assert "do not add up" in fig.layout.title.subtitle.text.replace("<br>", " ")
    with pytest.raises(TypeError, match="got dict"):
        figures.lens({})


# ---- drive


def drives(streams, rows, *, nan=False):
    """A drive of any size: straight lines, and a null that goes slower."""
    way = np.linspace(1, 0, streams)[:, None].repeat(rows, 1)
    if nan:
        way[1, 0] = math.nan
    null = np.sqrt(np.linspace(1, 0, streams))[None].repeat(4, 0)
    return Drive(
        model="toy",
        tokens=tuple(f" w{i}" for i in range(rows)),
        streams=("start", *(f"L{(i - 1) // 2} {'attn' if i % 2 else 'mlp'}" for i in range(1, streams))),
        layers=(-1, *((i - 1) // 2 for i in range(1, streams))),
        distance=way,
        cosine=1 - way,
        null_distance=null,
        null_cosine=1 - null,
    )


def test_drive_draws_the_means_beside_the_null_and_says_by_how_much_they_differ():
    result = drives(9, 5)
    fig = figures.drive(result)
    lines = {t.name: t for t in fig.data if t.showlegend is not False and t.name and t.mode == "lines" and t.line.width}
    assert np.allclose(lines["mean over rows"].y, result.distance.mean(1))
    assert np.allclose(lines["null"].y, result.null_distance.mean(0))
    assert np.allclose(lines["last row"].y, result.distance[:, -1])
    assert f"{result.gain.distance:.0%} of their way nearer" in fig.layout.title.text
    assert "nearer than 4 of its 4 draws" in fig.layout.meta["title"]
    assert list(fig.layout.xaxis.ticktext) == ["start", "L0", "L1", "L2", "L3"]
    assert list(fig.layout.xaxis.tickvals) == [0, 2, 4, 6, 8]


def test_drive_says_farther_where_it_is_and_counts_what_is_no_number():
    result = drives(9, 5)
    swapped = dataclasses.replace(result, null_distance=result.distance.T[:4], distance=result.null_distance.T)
    title = figures.drive(swapped).layout.meta["title"]
    assert "farther from the final row than the null; nearer than 0 of its 4 draws" in title
    same = dataclasses.replace(result, null_distance=result.distance.T[:4])
    assert "as near to the final row as the null; nearer than 0 of its 4 draws" in figures.drive(same).layout.meta["title"]
    broken = figures.drive(drives(9, 5, nan=True))
    assert "is not a number" in broken.layout.title.text
    assert "2 values NaN or infinite" in broken.layout.title.subtitle.text
    assert len(figures.drive(drives(129, 512)).layout.xaxis.tickvals) <= 16
    with pytest.raises(TypeError, match="got dict"):
        figures.drive({})


def test_a_map_of_dark_cells_alone_keeps_its_colour_bar():
    """One head alone fills the colour range: its cell is dark, and no pale one exists to carry the bar."""
    fig = figures.heads(grids(2, layers=1, heads=1))
    assert [t.showscale for t in cells(fig) if t.xaxis in (None, "x")] == [True]
    assert np.isfinite(np.asarray(cells(fig)[0].z, dtype=float)).any()


# ---- variance, claims


def test_variance_draws_long_profiles_as_block_means():
    positions = np.arange(1, 513)
    row = SimpleNamespace(
        site="attn.hook_extraction",
        layer=0,
        positions=positions,
        variance=np.ones(512),
        predicted=None,
        predicted_diagonal=None,
        theory=None,
        slope=0.0,
        interval=(-0.1, 0.1),
        power_law=True,
        identity=None,
        native=None,
        note="",
    )
    fig = figures.variance(SimpleNamespace(model="m", init=False, sequences=8, seeds=0, rows=(row,)))
    assert len(fig.data[0].x) <= 64
    assert np.allclose(fig.data[0].y, 1)
    assert "0.00 at the extraction" in fig.layout.title.text


def test_claims_tell_failures_loudly():
    rows = [
        {"id": "additive", "claim": "adds", "state": "trained", "verdict": "holds", "measured": 1e-9, "bound": "1e-8", "note": ""},
        {"id": "variance", "claim": "grows", "state": "init", "verdict": "fails", "measured": None, "bound": None, "note": ""},
    ]
    fig = figures.claims(rows)
    assert "1 hold, 1 fail" in fig.layout.title.text
    assert "variance" in next(a.text for a in fig.layout.annotations if a.name == "alarm")


# ---- text


def test_whitespace_and_control_characters_are_visible():
    assert [_text.visible(t) for t in ("", " a", "\n", "\t", "\x00", "\u200b")] == ["∅", "·a", "⏎", "⇥", "⟨0000⟩", "⟨200B⟩"]


def test_long_prompts_are_cut_and_counted():
    line = _text.token_line([" word"] * 200)
    assert len(line) < 120
    shown = line.count("·word")
    assert f"{200 - shown} more" in line


# ---- files


def test_write_html_is_one_offline_file(by_head, tmp_path):
    path = figures.write_html(figures.heads(by_head), tmp_path / "f.html")
    page = path.read_text()
    assert 'src="http' not in page
    assert "plotly.js v" in page
    assert [p.name for p in tmp_path.iterdir()] == ["f.html"]


def test_a_failed_write_leaves_nothing_behind(by_head, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", refuse)
    with pytest.raises(ValueError, match="No space left"):
        figures.write_html(figures.heads(by_head), tmp_path / "f.html")
    assert list(tmp_path.iterdir()) == []


def test_writing_refuses_bad_places_and_things(by_head, tmp_path):
    fig = figures.heads(by_head)
    with pytest.raises(ValueError, match="does not exist"):
        figures.write_html(fig, tmp_path / "no" / "f.html")
    with pytest.raises(ValueError, match="is a folder"):
        figures.write_html(fig, tmp_path)
    with pytest.raises(ValueError, match=r"use write_html"):
        figures.write_image(fig, tmp_path / "f.html")
    with pytest.raises(TypeError, match=r"dict|Figure"):
        figures.write_html({}, tmp_path / "f.html")  # type: ignore[arg-type]


def test_write_image_without_kaleido_names_the_extra(by_head, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(ImportError, match=r"addition-machine\[images\]"):
        figures.write_image(figures.heads(by_head), tmp_path / "f.png")


def test_write_image_without_a_browser_says_so(by_head, tmp_path, monkeypatch):
    kaleido = pytest.importorskip("kaleido")

    def nobody(*_, **__):
        raise kaleido.errors.ChromeNotFoundError

    monkeypatch.setattr(kaleido, "calc_fig_sync", nobody)
    with pytest.raises(RuntimeError, match="BROWSER_PATH"):
        figures.write_image(figures.heads(by_head), tmp_path / "f.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the browser driver's own unclosed pipes
def test_write_image_draws_a_png(by_head, tmp_path):
    pytest.importorskip("kaleido")
    path = figures.write_image(figures.heads(by_head), tmp_path / "f.png")
    assert path.read_bytes()[:4] == b"\x89PNG"

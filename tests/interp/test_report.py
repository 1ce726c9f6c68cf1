"""The report: complete, offline, harmless, and loud about what failed. Looked at in a real browser where one is installed."""

import asyncio
import base64
import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from analyses.certificate import check
from interp import report as module
from interp.report import Report, report
from models.config import DecoderConfig
from models.decoder import HookedDecoder

HOSTILE = "<script>alert(1)</script> </script><img src=x onerror=alert(2)> & 'q' \"d\" $x$"


def byte_decoder(mixer="mha", n_layers=2, n_heads=2):
    """A decoder that reads every byte as a token, so that any text can be fed to it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    torch.manual_seed(0)
    config = DecoderConfig(
        n_layers=n_layers, d_model=16, n_ctx=128, d_vocab=len(alphabet), mixer=mixer, layout="serial", n_heads=n_heads, mixer_bias=True
    )
    model = HookedDecoder(config, tokenizer=tokenizer).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.loaded_as = "<b>bytes</b>"
    return model


@pytest.fixture(scope="module")
def quick():
    """The slow measurements left out: they have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_profiles", lambda model, step: [])
        patch.setattr(module, "_claims", lambda model, step: ())
        yield


@pytest.fixture(scope="module")
def hostile(quick, tmp_path_factory):
    return report(byte_decoder(("mha", "ishe")), HOSTILE, against="<", output=tmp_path_factory.mktemp("report") / "r.html")


class Outline(HTMLParser):
    """Tags, ids, links and the text of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.links, self.labels, self.text = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes["href"]] if tag == "a" else []

    def handle_data(self, data):
        self.text.append(data)


def outline(path):
    parser = Outline()
    parser.feed(path.read_text())
    return parser


def without_plotly(path):
    return re.sub(r"<script>/\*\*\n\* plotly\.js.*?</script>", "", path.read_text(), flags=re.DOTALL)


def test_the_report_opens_with_question_tokens_and_verdicts(hostile):
    assert isinstance(hostile, Report)
    page = outline(hostile.path)
    words = " ".join(page.text)
    order = [
        words.index(part)
        for part in ("Why does", "tokens as fed", "what was checked", "Ledger #" if "Ledger #" in words else "The logit of")
    ]
    assert order == sorted(order)
    assert {v.id for v in hostile.verdicts} >= {"continuity", "algebra", "rows", "native", "scale", "equivalence", "equivalence-native"}
    assert all(v.holds for v in hostile.verdicts)
    assert all(v.gap is not None and v.bound is not None and v.ratio is not None for v in hostile.verdicts)


def test_the_reports_numbers_are_the_models_own(quick, tmp_path):
    model = byte_decoder()
    text = "a cat sat"
    made = report(model, text, answer="z", output=tmp_path / "r.html")
    with torch.no_grad(), model.explicit():
        logits = model(model.to_tokens(text), return_type="logits")
    printed = float(logits[0, -1, model.to_single_token("z")])
    assert f"<b>{printed:+.7g}</b>".replace("-", "−") in made.path.read_text()


def test_every_link_of_the_contents_leads_somewhere_and_ids_are_unique(hostile):
    page = outline(hostile.path)
    assert len(set(page.ids)) == len(page.ids)
    assert all(link[0] == "#" and link[1:] in page.ids for link in page.links)
    wanted = {"#verdicts", "#ledger", "#sources", "#mixing", "#lens", "#drive", "#equivalence", "#environment"}
    assert wanted <= set(page.links)


def test_the_page_is_accessible_in_its_bones(hostile):
    page = outline(hostile.path)
    assert ("html", {"lang": "en"}) in page.tags
    assert sum(tag == "h1" for tag, _ in page.tags) == 1
    plots = [a for _, a in page.tags if a.get("class") == "canvas"]
    assert len(plots) >= 5
    assert all(a["role"] == "img" and len(a["aria-label"]) > 20 for a in plots)
    assert next(tag for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)) == "h1"


def test_nothing_is_fetched_and_plotly_comes_once(hostile):
    page = hostile.path.read_text()
    assert page.count("* plotly.js v") == 1
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", without_plotly(hostile.path))
    assert hostile.path.stat().st_size < 7e6


def test_hostile_text_is_text_everywhere(hostile):
    page = without_plotly(hostile.path)
    # tokens stand apart, byte by byte; the command in the environment has the prompt whole
    assert page.count("alert(1)") == page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 1
    assert "<img" not in page
    assert page.count("<script") == page.count("</script") == 1 + len(re.findall('type="application/json"', page))
    assert "&lt;b&gt;bytes&lt;/b&gt;" in page
    for data in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, flags=re.DOTALL):
        assert json.loads(data)["data"]


def test_a_failed_check_is_the_first_thing_one_sees(quick, tmp_path, monkeypatch):
    true_ledger = module.ledger

    def broken(*arguments, **keywords):
        made = true_ledger(*arguments, **keywords)
        bad = check("algebra", 0.03, 8e-14, kind="practical", where="L1 attn")
        return dataclasses.replace(made, certificates=(dataclasses.replace(made.certificates[0], checks=(bad,)),))

    monkeypatch.setattr(module, "ledger", broken)
    made = report(byte_decoder(), "abc", output=tmp_path / "r.html")
    assert not made.holds
    assert made.to_dict()["holds"] is False
    page = made.path.read_text()
    assert page.index('role="alert"') < page.index("every sublayer" if "every sublayer" in page else "the entries sum")
    assert "✘ FAILS" in page
    assert page.count("CERTIFICATE FAILED") >= 3


@pytest.mark.parametrize("mixer", ["ishe", "he", "mha"])
def test_every_mixer_gets_a_report_without_empty_sections(quick, tmp_path, mixer):
    made = report(byte_decoder(mixer), "ab", output=tmp_path / "r.html")
    page = outline(made.path)
    figures = {a["id"] for tag, a in page.tags if tag == "figure"}
    assert figures >= {"figure-ledger", "figure-sources", "figure-equivalence"}
    assert ("figure-attention" in figures) == ("figure-heads" in figures) == (mixer == "mha")
    assert ("figure-kernels" in figures) == ("figure-lags" in figures) == (mixer != "mha")


@pytest.mark.slow
def test_the_whole_report_of_a_small_model(tmp_path):
    made = report(byte_decoder("ishe", n_layers=1), output=tmp_path / "r.html")
    figures = {a["id"] for tag, a in outline(made.path).tags if tag == "figure"}
    assert {"figure-variance-trained", "figure-variance-init"} <= figures
    assert {"variance-identity-trained", "variance-identity-fresh", "variance-slope", "claims"} <= {v.id for v in made.verdicts}


def test_the_command_gives_the_page_again(quick, tmp_path):
    made = report(byte_decoder(), "it's a $HOME", answer="z", output=tmp_path / "r.html")
    words = " ".join(outline(made.path).text)
    assert """--text 'it'"'"'s a $HOME' --answer z -o report.html""" in words
    assert byte_decoder().fingerprint() in words
    made = report(byte_decoder().double(), "it", spelled="./my model", output=tmp_path / "r.html")
    assert "interp report './my model' --text it --dtype float64 -o report.html" in " ".join(outline(made.path).text)


def test_bad_input_is_refused_before_any_work_and_leaves_nothing(tmp_path):
    def never(*_):
        raise AssertionError("work was begun")

    model = byte_decoder()
    with pytest.raises(ValueError, match="does not exist"):
        report(model, "ab", output=tmp_path / "no" / "r.html", on_step=never)
    with pytest.raises(ValueError, match="is a folder"):
        report(model, "ab", output=tmp_path, on_step=never)
    with pytest.raises(ValueError, match="one prompt"):
        report(model, ["ab", "cd"], output=tmp_path / "r.html", on_step=never)
    with pytest.raises(ValueError, match="answer"):
        report(model, "ab", answer="two", output=tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


# ---- in a real browser


def browser():
    choreographer = pytest.importorskip("choreographer")
    if choreographer.browsers.chromium.get_browser_path(("chromium", "chromium-browser", "google-chrome", "chrome")) is None:
        pytest.skip("no Chromium is installed")
    return choreographer


async def look(path, *, width, dark=False, scripts=()):
    """Opens a page; returns what it tried to say in dialogs, its console errors, what `scripts` gave, and a picture."""
    choreographer = browser()
    dialogs, errors = [], []

    async def on_dialog(event):
        dialogs.append(event["params"]["message"])

    async def on_error(event):
        errors.append(json.dumps(event["params"])[:300])

    async with choreographer.Browser(headless=True) as chromium:
        tab = await chromium.create_tab("about:blank")
        tab.subscribe("Page.javascriptDialogOpening", on_dialog)
        tab.subscribe("Runtime.exceptionThrown", on_error)
        tab.subscribe("Log.entryAdded", on_error)
        for domain in ("Page", "Runtime", "Log"):
            await tab.send_command(f"{domain}.enable")
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        await tab.send_command("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await tab.send_command("Emulation.setEmulatedMedia", {"features": [scheme]})
        await tab.send_command("Page.navigate", {"url": path.as_uri()})

        async def run(expression):
            wrapped = f"(async () => JSON.stringify((await ({expression})) ?? null))()"
            answer = await tab.send_command("Runtime.evaluate", {"expression": wrapped, "returnByValue": True, "awaitPromise": True})
            value = answer.get("result", {}).get("result", {}).get("value")
            return json.loads(value) if isinstance(value, str) else None  # the page may be on its way

        for _ in range(600):
            if dialogs or await run("document.documentElement.dataset.drawn") == "yes":
                break
            await asyncio.sleep(0.1)
        results = [await run(script) for script in scripts]
        picture = await tab.send_command("Page.captureScreenshot", {})
    return dialogs, errors, results, base64.b64decode(picture["result"]["data"])


def looked_at(*arguments, **keywords):
    return asyncio.run(look(*arguments, **keywords))


OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
EMPTY = "[...document.querySelectorAll('.canvas')].filter(d => !d.querySelector('.main-svg')).map(d => d.id)"
CUT = """[...document.querySelectorAll('.canvas')].filter(d => d.querySelector('.main-svg').getBoundingClientRect().width
          > d.getBoundingClientRect().width + 1).map(d => d.id)"""


@pytest.mark.filterwarnings("ignore")  # the browser driver's own unclosed pipes
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)])
def test_in_a_browser_nothing_runs_overflows_or_stays_empty(hostile, width, dark):
    dialogs, errors, (overflow, empty, cut), picture = looked_at(hostile.path, width=width, dark=dark, scripts=(OVERFLOW, EMPTY, CUT))
    assert dialogs == []
    assert errors == []
    assert overflow <= 0
    assert empty == []
    assert cut == []
    assert picture[:4] == b"\x89PNG"


@pytest.mark.filterwarnings("ignore")
def test_choosing_a_head_shows_its_pattern(hostile):
    choose = """(async () => {
      const select = document.querySelector("select[data-for=attention]"), plot = document.getElementById("plot-attention");
      const before = plot._fullData[0].z[5][5];
      select.value = select.options[1 - select.selectedIndex].value;
      select.dispatchEvent(new Event("change"));
      await new Promise((done) => setTimeout(done, 500));
      return [before, plot._fullData[0].z[5][5]];
    })()"""
    _, _, ((before, after),), _ = looked_at(hostile.path, width=1280, scripts=(choose,))
    assert before is not None
    assert before != after


@pytest.mark.filterwarnings("ignore")
def test_the_dialog_listener_would_hear_an_alert(tmp_path):
    page = tmp_path / "loud.html"
    page.write_text("<script>document.documentElement.dataset.drawn='yes';setTimeout(() => alert('heard'), 50)</script>")

    async def listen():
        choreographer = browser()
        heard = []

        async with choreographer.Browser(headless=True) as chromium:
            tab = await chromium.create_tab("about:blank")

            async def on_dialog(event):
                heard.append(event["params"]["message"])

            tab.subscribe("Page.javascriptDialogOpening", on_dialog)
            await tab.send_command("Page.enable")
            await tab.send_command("Page.navigate", {"url": page.as_uri()})
            for _ in range(50):
                if heard:
                    break
                await asyncio.sleep(0.1)
            await tab.send_command("Page.handleJavaScriptDialog", {"accept": True})
        return heard

    assert asyncio.run(listen()) == ["heard"]

"""The explorer in a real browser: what a user types, presses and reads, against the Python API. Skipped where no Chromium is installed."""

import contextlib
import http.server
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

import interp
from interp.explorer import explore
from interp.explorer.panels import signed
from interp.explorer.view import Cell, View

MODEL = "mha-induction"
TEXT = "c1 h4 a0 p7 e5 k2 b3 d6 c1"
PROSE = "It is a truth universally acknowledged"
PATIENCE = 120_000
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def model():
    return interp.load_model(MODEL)


@pytest.fixture(scope="module")
def austen():
    return interp.load_model("mha-austen")


@pytest.fixture(scope="module")
def running():
    with contextlib.closing(explore(MODEL)) as explorer:
        yield explorer


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Screen:
    """A page and what went wrong on it; moves by links, so that the app is loaded once."""

    def __init__(self, browser, url, *, width=1280, **context):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **context)
        self.page, self.url, self.wrong = self.context.new_page(), url, []
        self.page.set_default_timeout(PATIENCE)
        self.page.on("dialog", lambda d: (self.wrong.append(f"dialog {d.message}"), d.dismiss()))
        self.page.on("pageerror", lambda e: self.wrong.append(f"error {e}"))
        self.page.on("console", lambda m: self.wrong.append(f"console {m.text}") if m.type == "error" else None)

    def show(self, **view):
        """Go to a view, as a link does."""
        link = View(**{"model": MODEL} | view).link()
        if self.page.url.startswith(self.url):
            self.page.evaluate("link => { window.location.hash = link; }", link)
        else:
            self.page.goto(self.url + link)
        self.settle()
        return self

    def settle(self):
        """Wait until nothing is computed any more."""
        quiet, end = 0, time.monotonic() + PATIENCE / 1000
        while quiet < 6:  # a third of a second: on a busy machine a change takes that long to be noticed by the page
            assert time.monotonic() < end, "the page never came to rest"
            self.page.wait_for_timeout(60)
            busy = self.page.evaluate("document.querySelectorAll('[data-dash-is-loading=true]').length")
            quiet = 0 if busy or not self.page.locator("#about p, #about div").count() else quiet + 1

    def press(self, selector, text=None):
        found = self.page.locator(selector) if text is None else self.page.locator(selector, has_text=text)
        found.first.click()
        self.settle()

    def fill(self, selector, text):
        self.page.fill(selector, text)
        self.page.locator(selector).blur()
        self.settle()

    def text(self, selector):
        return self.page.locator(selector).first.inner_text()

    def table(self, selector):
        """The rows of a table as text, cell by cell."""
        return self.page.eval_on_selector_all(f"{selector} tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.innerText.trim()))")

    @property
    def view(self):
        return View.parse(self.page.url.partition("#")[2])[0]

    @property
    def problems(self):
        return self.page.locator(".problem:visible").all_inner_texts()


@pytest.fixture(scope="module")
def opened(chromium, running):
    screen = Screen(chromium, running.url, permissions=["clipboard-read", "clipboard-write"])
    yield screen.show()
    screen.context.close()


@pytest.fixture
def screen(opened):
    opened.wrong.clear()
    yield opened.show()
    assert opened.wrong == []


@pytest.fixture(scope="module")
def neighbour(chromium, running):
    """Another browser with the app open."""
    screen = Screen(chromium, running.url)
    yield screen.show()
    screen.context.close()


# ---- the numbers


def test_typing_a_prompt_and_pressing_a_token_explains_the_number_that_python_gives(screen, model):
    prompt = "p7 e5 k2 b3 p7 e5"
    screen.page.fill("#text", prompt)
    screen.press("#read")
    assert screen.view == View(model=MODEL, text=prompt)
    screen.press(".token >> nth=4")
    assert screen.view.at == 4
    expected = interp.ledger(model, prompt, position=4)
    assert screen.text("#total") == signed(expected.total[0])
    assert "certificate holds" in screen.text("#certificate") and screen.problems == []
    logits = interp.run_with_cache(model, prompt)[0][0, 4].double()
    shown = screen.table("#predictions")[0]
    top = int(logits.argmax())
    assert shown[1].startswith(expected.answer) and shown[2] == f"{float(logits.softmax(0)[top]):.2%}"
    assert shown[3] == f"{float(logits[top]):.3f}"


@pytest.mark.parametrize("by", ["component", "head", "source", "head+source", "lag", "neuron"])
def test_every_zoom_lists_the_rows_that_python_gives(screen, austen, by):
    screen.show(model="mha-austen", text=PROSE)
    screen.press(f'#by input[value="{by}"]')
    expected = interp.ledger(austen, PROSE, by=by)
    assert screen.text("#total") == signed(expected.total[0])
    rows = [row for row in screen.table("#ledger") if row[0] and "together" not in row[0]]
    assert [row[1] for row in rows[:5]] == [signed(value) for _, value in expected.top(5)]
    assert rows[-1][1] == signed(expected.total[0])
    assert screen.page.locator("#ledger-figure .main-svg").count() > 0


def test_a_click_on_the_map_of_heads_shows_that_head(screen, model):
    area = screen.page.locator("#ledger-figure .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    # two layers down, four heads across: the second head of the last layer
    screen.page.mouse.click(box["x"] + box["width"] * 1.5 / 4, box["y"] + box["height"] * 0.75)
    screen.settle()
    assert screen.view.look == Cell(layer=1, head=1)
    expected = dict(interp.ledger(model, TEXT, by="head").top(100))["L1H1"]
    assert screen.text("#part h3").startswith(f"L1H1 adds {signed(expected)}")
    pattern = interp.run_with_cache(model, TEXT, "blocks.1.attn.hook_pattern")[1]["blocks.1.attn.hook_pattern"][0, 1, -1]
    first = screen.table("#part")[0]
    assert first[1] == f"{float(pattern[int(first[0].split()[0])]):.1%}"
    assert screen.page.locator("#pattern-figure .main-svg").count() > 0


def test_answer_against_and_swap(screen, model):
    screen.fill("#answer", "h4")
    screen.fill("#against", "a0")
    forth = interp.ledger(model, TEXT, "h4", "a0").total[0]
    assert screen.text("#total") == signed(forth)
    screen.press("#swap")
    assert screen.text("#total") == signed(-forth)
    screen.press('#predictions button[aria-label="take h4 as the answer"]')
    assert (screen.view.answer, screen.view.against) == ("h4", None), "a token is never compared with itself"


@pytest.mark.parametrize(
    ("out", "removed"),
    [
        ("L1H1,L1H2", {"heads": [(1, 1), (1, 2)]}),
        ("<-1", {"sources": [1]}),
        ("L1 lag 7", {"lags": [(1, 7)]}),
    ],
)
def test_removing_shows_prediction_beside_measurement(screen, model, out, removed):
    for cell in out.split(","):
        screen.fill("#look", cell)
        screen.press("#part button", "remove")
    gone = interp.ablate(model, TEXT, **removed)
    rows = screen.table("#out")
    assert [row[1] for row in rows[:3]] == [signed(-gone.predicted), signed(-gone.direct), signed(-gone.total)]
    after = interp.ledger_without(model, TEXT, **removed)
    assert screen.text("#total-without") == signed(after.total[0])
    assert "certificate holds" in screen.text("#certificate-after")
    of = {row[0]: row for row in rows}
    probabilities = gone.logits.double().softmax(-1)[:, interp.resolve_answer(model, gone.answer)]
    assert of[f"probability of “{gone.answer}”"][1:3] == [f"{float(p):.2%}" for p in probabilities]
    before = interp.ledger(model, TEXT)
    label = before.top(1)[0][0]
    assert of[label][1:3] == [signed(dict(x.top(100))[label]) for x in (before, after)]
    screen.press("#out .chips button", "put all back")
    assert screen.view.out == () and "Nothing is removed" in screen.text("#out")


def test_a_neuron_set_to_its_mean(screen, austen):
    screen.show(model="mha-austen", text=PROSE, by="neuron", look=Cell(layer=1, neuron=5), out=(Cell(layer=1, neuron=5),), how="mean")
    gone = interp.ablate(austen, PROSE, neurons=[(1, 5)], how="mean")
    assert screen.table("#out")[0][1] == signed(-gone.predicted)
    post = interp.run_with_cache(austen, PROSE, "blocks.1.mlp.hook_post")[1]["blocks.1.mlp.hook_post"][0, :, 5]
    assert screen.table("#part")[0][0].startswith(f"{int(post.abs().argmax())} “")


def test_a_lag_of_an_extractor_shows_its_gain(screen):
    from interp.figures.kernels import lag_gain

    screen.show(model="ishe-austen", by="lag")
    area = screen.page.locator("#ledger-figure .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    screen.page.mouse.click(box["x"] + 3, box["y"] + 3)
    screen.settle()
    assert screen.view.look == Cell(layer=0, lag=0)
    gain = lag_gain(interp.load_model("ishe-austen").blocks[0].attn)[0]
    assert f"kernel gain {gain:.3g}" in screen.text("#part figcaption")


def test_what_is_being_typed_survives_other_actions_and_quick_ones_all_count(screen):
    screen.page.fill("#text", "not read yet")
    screen.page.evaluate(
        "names => names.forEach(n => document.querySelector(`#rows button[aria-label='remove ${n}']`).click())", ["L1H1", "L1H2", "L1H3"]
    )
    screen.settle()
    screen.press('#by input[value="component"]')
    assert screen.page.input_value("#text") == "not read yet" and screen.view.text is None
    assert {str(cell) for cell in screen.view.out} == {"L1H1", "L1H2", "L1H3"}
    screen.page.go_back()
    screen.settle()
    assert screen.view.by == "head", "the back button undoes"


# ---- taking it away


def ran(code):
    """What a snippet prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    return out.getvalue().replace("-", "−")


def test_the_copied_snippet_runs_and_prints_the_numbers_shown(screen):
    screen.show(answer="h4", against="a0", by="head", look=Cell(layer=1, head=3), out=(Cell(layer=1, head=1),))
    screen.press("#copy")
    screen.page.wait_for_function("() => document.getElementById('copied').textContent === 'Copied.'", polling=100)
    code = screen.page.evaluate("navigator.clipboard.readText()")
    assert code == screen.text("#python") + "\n" or code.strip() == screen.text("#python").strip()
    printed = ran(code)
    assert f"{screen.text('#total')}  total\n" in printed
    assert f"{screen.text('#total-without')}  total without them" in printed
    assert f"{screen.text('#part h3').split()[-1]}  L1H3" in printed
    for row, words in zip(screen.table("#out"), ("predicts", "taken out", "runs again"), strict=False):
        assert re.search(f"{re.escape(row[1])}  change .*{words}", printed)


def test_files_hold_what_is_shown(screen, chromium, tmp_path, model):
    screen.show(by="source", out=(Cell(source=1),))
    saved = {}
    for kind in ("json", "html", "image"):
        with screen.page.expect_download() as download:
            screen.page.click(f"#{kind}")
        saved[kind] = tmp_path / download.value.suggested_filename
        download.value.save_as(saved[kind])
    told = json.loads(saved["json"].read_text())
    expected = interp.ledger(model, TEXT, by="source")
    assert sum(row["value"] for row in told["ledger"]["rows"]) == pytest.approx(expected.total[0], abs=1e-9)
    assert told["removed"]["after"] == pytest.approx(told["ledger_without"]["total"], abs=1e-4)
    assert View.parse(told["link"])[0] == screen.view
    assert saved["image"].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and saved["image"].stat().st_size > 20_000
    page = chromium.new_context(offline=True).new_page()
    asked = []
    page.on("request", lambda r: asked.append(r.url))
    page.goto(saved["html"].as_uri())
    page.wait_for_selector(".js-plotly-plot .main-svg")
    assert "certificate holds" in page.inner_text("body") and len(asked) == 1, "nothing is fetched"
    page.context.close()


def test_a_link_shows_the_same_in_another_browser(screen, neighbour):
    screen.show(text="p7 e5 k2 p7", at=2, by="head+source", look=Cell(layer=1, head=0, source=1), out=(Cell(layer=1, head=0),))
    neighbour.page.goto(screen.page.url)
    neighbour.settle()
    for part in ("#standing", "#ledger table", "#part", "#out", "#python", "#text"):
        assert neighbour.text(part) == screen.text(part), part
    assert neighbour.wrong == []


def test_two_browsers_do_not_disturb_each_other(screen, neighbour, model):
    neighbour.show(model="mha-austen")
    screen.page.click('#by input[value="lag"]')
    neighbour.page.click('#by input[value="source"]')
    screen.settle()
    neighbour.settle()
    assert screen.text("#total") == signed(interp.ledger(model, TEXT).total[0])
    assert (screen.view.model, screen.view.by) == (MODEL, "lag")
    assert (neighbour.view.model, neighbour.view.by) == ("mha-austen", "source")
    assert "lag" in screen.table("#ledger")[0][0] and "surprised" not in screen.text("#tokens")


# ---- what cannot be


def test_an_empty_box_a_long_prompt_and_an_answer_of_two_tokens_are_told_in_place(screen):
    screen.page.fill("#text", "")
    screen.press("#read")
    assert screen.text("#tokens .problem").startswith("The box is empty.")
    assert "see the message there" in screen.text("#ledger")
    screen.page.fill("#text", "c1 " * 4000)
    screen.press("#read")
    assert re.match(r"Text has 4000 tokens, more than the \d+ that", screen.text("#tokens .problem"))
    screen.page.fill("#text", TEXT)
    screen.press("#read")
    assert screen.problems == []
    screen.show(model="mha-austen")
    screen.fill("#answer", " herself again")
    assert "tokens" in screen.text("#answers .problem") and "not one" in screen.text("#answers .problem")
    assert screen.page.locator("#predictions tbody tr").count() == 10, "the rest of the page works"
    screen.fill("#answer", "much")
    screen.press("#answers button", "·much")
    assert screen.view.answer == " much" and screen.problems == []


@pytest.mark.parametrize(
    "prompt",
    [
        "<script>alert(1)</script><img src=x onerror=alert(2)>",
        "'\"`${alert(3)}{{7*7}}</textarea><svg onload=alert(4)>",
        "\u202eevil\u202c שלום مرحبا \u200f\u2066x",
        "nul \x00 and \x1b[31m and \r\n\t",
        "😀" * 3 + "e\u0301" * 20,
    ],
)
def test_hostile_prompts_are_text(screen, austen, prompt):
    screen.show(model="mha-austen", text=prompt, by="head+source", look=Cell(layer=0, head=0))
    assert screen.page.evaluate("document.querySelectorAll('#explorer script, #explorer img, #explorer svg[onload]').length") == 0
    assert screen.view.text == prompt
    expected = interp.ledger(austen, prompt, by="head+source")
    assert screen.text("#total") == signed(expected.total[0])
    printed = ran(screen.page.locator("#python").evaluate("e => e.textContent"))
    assert f"{screen.text('#total')}  total" in printed


def test_ten_thousand_characters(screen):
    screen.page.fill("#text", "It is a truth. " * 700)
    screen.press("#read")
    assert len(screen.view.text) == 10_500 and len(screen.problems) == 1
    screen.page.reload()
    screen.settle()
    assert len(screen.view.text) == 10_500 and len(screen.problems) == 1, "the address is too long for no server: it is never sent"


def test_a_link_that_means_nothing_is_told_and_opens_no_path(screen):
    screen.page.evaluate("window.location.hash = '#model=/etc/passwd&by=nonsense&look=L9H9&at=3'")
    screen.settle()
    assert any("by='nonsense' is left out" in line for line in screen.problems)
    assert any("No model '/etc/passwd' here" in line for line in screen.problems)
    screen.show(look=Cell(layer=9, head=9), at=77)
    assert screen.text("#tokens .problem").startswith("Position 77 is outside the prompt of 9 tokens")
    screen.press("#tokens button", "read at the end")
    assert "There is no layer 9" in screen.text("#part .problem")
    screen.fill("#look", "nonsense")
    assert "names no part of a model" in screen.text("#look-note")


def got(url):
    """Status and text of an address."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE / 1000) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_the_address_is_the_key(running):
    base, token = running.url.rstrip("/").rsplit("/", 1)
    assert base.startswith("http://127.0.0.1:") and len(token) >= 20
    for path in ("", "/", "/_dash-layout", "/assets/explorer.js", f"/{token[:-1]}/"):
        assert got(base + path)[0] == 404
    for path in ("assets/..%2fserver.py", "assets/%2e%2e/server.py", "assets//etc/passwd", "../../etc/passwd"):
        status, body = got(running.url + path)
        assert status == 404 or "_dash-config" in body, "at most the page itself, never a file"
    with urllib.request.urlopen(running.url, timeout=10) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert "unsafe-eval" not in policy and "script-src 'self' 'sha256-" in policy
        assert answer.headers["Referrer-Policy"] == "no-referrer"


# ---- for everyone


def test_keyboard_alone(screen):
    page = screen.page
    page.locator("#text").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("p7 e5 p7")
    page.keyboard.press("Control+Enter")
    page.wait_for_timeout(200)
    screen.settle()
    assert screen.view.text == "p7 e5 p7"
    page.locator(".token >> nth=1").focus()
    page.keyboard.press("Enter")
    screen.settle()
    assert screen.view.at == 1
    assert page.evaluate("document.activeElement.className").startswith("token"), "the focus stays where it was"
    page.locator('#by input[value="head"]').focus()
    page.keyboard.press("ArrowRight")
    screen.settle()
    assert screen.view.by == "source"
    page.locator("#ledger td button >> nth=0").focus()
    page.keyboard.press("Space")
    screen.settle()
    assert screen.view.look is not None


def test_every_control_has_a_name_and_every_text_contrast(screen):
    screen.show(look=Cell(layer=1, head=1), out=(Cell(layer=1, head=1),))
    nameless = screen.page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, textarea')].filter(e => {
            if (e.closest('[hidden]') || e.getAttribute('aria-hidden') === 'true') return false;
            const named = e.getAttribute('aria-labelledby');
            return !(e.getAttribute('aria-label') || e.innerText || e.title || (e.labels && e.labels.length)
                || (named && named.split(' ').some(id => document.getElementById(id))));
        }).map(e => e.outerHTML.slice(0, 160))"""
    )
    assert nameless == []
    pale = screen.page.evaluate(
        """() => {
        const rgb = c => (c.match(/[\\d.]+/g) || []).map(Number);
        const light = c => { const [r, g, b] = c.slice(0, 3).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                             return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const under = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
                             if (c.length && (c[3] === undefined || c[3] > 0.99)) return c; } return [255, 255, 255]; };
        const out = [];
        for (const e of document.querySelectorAll('#explorer *')) {
            if (e.closest('svg, [hidden], button:disabled') || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
            const [a, b] = [light(rgb(getComputedStyle(e).color)), light(under(e))].sort((x, y) => y - x);
            if ((a + 0.05) / (b + 0.05) < 4.5) out.push(e.outerHTML.slice(0, 120) + ' ' + ((a + 0.05) / (b + 0.05)).toFixed(2));
        }
        return out;
    }"""
    )
    assert pale == []


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_page(screen, width):
    screen.page.set_viewport_size({"width": width, "height": 900})
    screen.show(by="head+source", look=Cell(layer=1, head=1), out=(Cell(layer=1, head=1),))
    assert screen.page.evaluate("document.documentElement.scrollWidth") <= width
    screen.page.wait_for_function("document.querySelectorAll('.plot').length >= 3")
    plots = screen.page.evaluate("[...document.querySelectorAll('.plot')].map(e => [e.scrollWidth, e.clientWidth])")
    assert len(plots) >= 3 and all(inside <= outside for inside, outside in plots)
    screen.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    stays = screen.page.locator("#certificate summary").bounding_box()
    assert 0 <= stays["y"] < 200, "the certificate stays in view and leaves room for the rest"


def test_a_notebook_on_this_machine_may_hold_it_and_a_stranger_may_not(chromium, running):
    class Notebook(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f"<!doctype html>{running._repr_html_()}".encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Notebook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = chromium.new_context().new_page()
        wrong = []
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
        page.goto(f"http://localhost:{server.server_port}/notebook.html")
        page.frame_locator("iframe").locator("#total").wait_for(timeout=PATIENCE)
        assert wrong == [], "nothing that a page inside another may not do"
        page.context.close()
        server.shutdown()
    policy = urllib.request.urlopen(running.url, timeout=PATIENCE / 1000)
    with policy:
        (ancestors,) = [p for p in policy.headers["Content-Security-Policy"].split("; ") if p.startswith("frame-ancestors ")]
    assert ancestors.split()[1:] == ["'self'", "http://127.0.0.1:*", "http://localhost:*", "vscode-webview:"]


# ---- what takes long, and what dies


def test_claims_are_computed_and_a_computation_can_be_cancelled_and_may_die(screen, running, model):
    screen.press('#page input[value="model"]')
    screen.page.click("#start-claims")
    screen.page.wait_for_selector("#job-progress")
    screen.page.wait_for_selector("#job-done")
    expected = interp.verify(model)
    assert [row[0] for row in screen.table("#job-panel")] == [row.id for row in expected.rows]
    fails = sum(row.verdict == "fails" for row in expected.rows)
    assert screen.text("#job-done").startswith(f"Claims of {MODEL}: {fails} fail, ")

    with screen.page.expect_download() as download:
        screen.press("#job-panel button", "JSON")
    told = json.loads(download.value.path().read_text())
    assert [(row["id"], row["verdict"]) for row in told["rows"]] == [(row.id, row.verdict) for row in expected.rows]

    screen.page.click("#start-init")
    screen.page.wait_for_selector("#job-progress")
    screen.page.click("#cancel")
    screen.page.wait_for_selector("#job-panel .waiting")
    assert "cancelled after" in screen.text("#job-panel")

    screen.page.click("#start-variance")
    screen.page.wait_for_selector("#job-progress")
    (job,) = [job for job in running.jobs._jobs.values() if job.status.state == "running"]
    os.kill(job.process.pid, signal.SIGKILL)
    screen.page.wait_for_selector("#job-panel .problem")
    assert "died (signal 9)" in screen.text("#job-panel")
    assert all(job.process.poll() is not None for job in running.jobs._jobs.values()), "a cancelled worker is gone"
    screen.press('#page input[value="prompt"]')
    assert screen.text("#total") == signed(interp.ledger(model, TEXT).total[0])


def test_an_open_page_outlives_its_server(chromium):
    # A shell's background job ignores SIGINT and hands that down; a person's terminal does not.
    run = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from interp.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", run, "explore", MODEL, "--port", "0", "--token", "restarted-token", "--json"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = json.loads(first.stdout.readline())["url"]
        screen = Screen(chromium, url).show()
        before = screen.text("#total")
        first.kill()
        first.wait()
        screen.page.click('#by input[value="source"]')
        screen.page.wait_for_selector("#offline:not([hidden])")
        assert "does not answer" in screen.text("#offline")
        port = url.split(":")[2].split("/")[0]
        again = subprocess.Popen([*command[:5], "--port", port, *command[7:]], stdout=subprocess.PIPE, text=True)
        try:
            again.stdout.readline()
            screen.page.wait_for_selector("#offline", state="hidden")
            screen.press('#by input[value="lag"]')
            assert screen.text("#total") == before and screen.view.by == "lag"
            assert "lag" in screen.table("#ledger")[0][0]
        finally:
            again.send_signal(signal.SIGINT)
            try:
                assert again.wait(timeout=30) == 0
            finally:
                again.kill()
                again.stdout.close()
        screen.context.close()
    finally:
        first.kill()
        first.wait()
        first.stdout.close()


@pytest.mark.slow
@pytest.mark.smollm2
def test_smollm2_with_its_chat_template(chromium, smollm2_folder, smollm2):
    with contextlib.closing(explore(smollm2_folder)) as explorer:
        name = explorer.engine.names[0]
        screen = Screen(chromium, explorer.url).show(model=name)
        expected = interp.ledger(smollm2, screen.view.text or explorer.engine.example(name))
        assert screen.text("#total") == signed(expected.total[0])
        screen.press("#options label", "apply the chat template")
        fed = screen.text("#templated")
        assert fed.startswith("<|im_start|>system") and "When Mary and John" in fed and fed.rstrip().endswith("assistant")
        printed = ran(screen.page.locator("#python").evaluate("e => e.textContent"))
        assert f"{screen.text('#total')}  total" in printed
        heads = Cell(layer=23, head=3)
        screen.show(model=name, answer=" Mary", against=" John", look=heads, out=(heads,))
        gone = interp.ablate(smollm2, explorer.engine.example(name), " Mary", " John", heads=[(23, 3)])
        rows = screen.table("#out")
        assert [float(row[1].replace("−", "-")) for row in rows[:3]] == pytest.approx(
            [-gone.predicted, -gone.direct, -gone.total], abs=2e-4
        )
        assert np.isfinite(float(screen.text("#total-without").replace("−", "-"))) and screen.wrong == []
        screen.context.close()

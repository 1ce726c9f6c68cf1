"""Take the pictures of docs/explore.md from the explorer itself: `python docs/make_explorer_images.py SMOLLM2_FOLDER`.

Needs the packages of the `test` extra and a Chromium. The folder is what `interp convert` makes of SmolLM2-135M.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from interp.explorer import explore
from interp.explorer.view import Cell, View

IMAGES = Path(__file__).resolve().parent / "images"
LARGEST = 300_000
MOVERS = tuple(Cell.parse(head) for head in ("L23H3", "L23H0", "L29H1"))


def main(folder: str) -> None:
    """Take every picture."""
    chromium = next(path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name)))
    explorer = explore(folder)
    name = explorer.engine.names[0]
    asked: dict[str, Any] = {"model": name, "answer": " Mary", "against": " John"}
    IMAGES.mkdir(exist_ok=True)
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_context(viewport={"width": 1280, "height": 940}).new_page()
            page.set_default_timeout(600_000)
            page.goto(explorer.url + View(model=name).link())
            take(page, "explore-prompt")
            show(page, View(**asked))
            take(page, "explore-heads", "who")
            show(page, View(**asked, look=MOVERS[0]))
            take(page, "explore-part", "part-section")
            show(page, View(**asked, out=MOVERS))
            take(page, "explore-removed", "out-section")
            show(page, View(page="model", model="mha-austen"))
            page.click("#start-claims")
            page.wait_for_selector("#job-done")
            take(page, "explore-claims")
            phone = browser.new_context(viewport={"width": 390, "height": 844}).new_page()
            phone.set_default_timeout(600_000)
            phone.goto(explorer.url + View(**asked).link())
            take(phone, "explore-phone", "who")
            browser.close()
    finally:
        explorer.close()


def show(page: Page, view: View) -> None:
    """Go to a view as a link does."""
    page.evaluate("link => { window.location.hash = link; }", view.link())


def take(page: Page, name: str, anchor: str | None = None) -> None:
    """Wait until nothing is computed, scroll to a section, and write the picture."""
    quiet = 0
    while quiet < 10:
        page.wait_for_timeout(200)
        quiet = 0 if page.evaluate("document.querySelectorAll('[data-dash-is-loading=true]').length") else quiet + 1
    page.evaluate("id => id ? document.getElementById(id).scrollIntoView() : window.scrollTo(0, 0)", anchor)
    page.wait_for_timeout(300)
    target = IMAGES / f"{name}.png"
    page.screenshot(path=target.with_suffix(".part.png"))
    target.with_suffix(".part.png").replace(target)
    if target.stat().st_size > LARGEST:
        raise SystemExit(f"{target.name} has {target.stat().st_size} bytes, more than {LARGEST}: show less on it")


if __name__ == "__main__":
    main(sys.argv[1])

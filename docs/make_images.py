"""Draws the picture of README.md: `python docs/make_images.py` writes docs/images/sources.png. Needs kaleido and a Chrome or Chromium.

The picture is that of README's own example, so whoever runs the example gets it.
"""

from pathlib import Path

import interp

IMAGES = Path(__file__).resolve().parent / "images"


def readme_figure() -> object:
    """Which token, through which head, writes the answer of README's example."""
    model = interp.load_model("mha-induction")
    return interp.figures.sources(interp.ledger(model, "c1 h4 a0 p7 e5 k2 b3 d6 c1", by="head+source"))


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    print(interp.figures.write_image(readme_figure(), IMAGES / "sources.png"))

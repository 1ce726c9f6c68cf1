"""Pictures of results: one result in, one plotly Figure out; nothing is shown and nothing is written.

    interp.figures.heads(interp.ledger(model, text, by="head")).show()

Every figure has a title that says what was found, a subtitle with model, tokens as fed and certificate (gap and bound), units on its
axes, and notes that explain whatever is special about some cells (NaN, infinite, clipped, thinned labels). A failed certificate is a red
banner. Whatever came from a user (tokens, answers, names) is escaped, and whitespace is made visible: `·` is a space, `⏎` a newline.
"""

from interp.figures.attention import attention as attention
from interp.figures.claims import claims as claims
from interp.figures.comparison import comparison as comparison
from interp.figures.drive import drive as drive
from interp.figures.equivalence import equivalence as equivalence
from interp.figures.heads import heads as heads
from interp.figures.kernels import kernels as kernels
from interp.figures.ledger import ledger as ledger
from interp.figures.lens import lens as lens
from interp.figures.showing import of as of
from interp.figures.sources import sources as sources
from interp.figures.tokens import tokens as tokens
from interp.figures.variance import variance as variance
from interp.figures.writing import write_html as write_html
from interp.figures.writing import write_image as write_image

__all__ = [
    "attention",
    "claims",
    "comparison",
    "drive",
    "equivalence",
    "heads",
    "kernels",
    "ledger",
    "lens",
    "of",
    "sources",
    "tokens",
    "variance",
    "write_html",
    "write_image",
]

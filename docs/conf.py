"""Build the documentation as a web site, with search and without the network: ``make docs``."""

from typing import Any

from pygments.lexers.special import TextLexer

project = html_title = "CIS490 training fleet"
extensions = ["myst_parser"]
include_patterns = ["*.md", "bench/README.md", "examples/telemetry-sample/README.md", "docs/**.md"]
root_doc = "docs/index"
html_theme = "furo"
myst_heading_anchors = 4


def setup(app: Any) -> None:
    """Show the blocks that Pygments cannot colour as they are."""
    for name in ("jsonc", "mermaid"):
        app.add_lexer(name, TextLexer)

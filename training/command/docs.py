"""``cis490 docs``: list the pages of the documentation, or show one."""

import pydoc
import sys
from collections.abc import Sequence

from training.checkout import shipped
from training.command_line import parser_of
from training.streams import complain, replace_unprintable


def main(argv: Sequence[str] | None = None) -> int:
    """Show the page that is named, through the usual pager on a terminal; without a name, list the pages."""
    replace_unprintable()
    pages = {path.stem: path.read_text(encoding="utf-8") for path in sorted(shipped("docs").glob("*.md"))}
    parser = parser_of("training.command.docs", description="List the pages of the documentation, or show one.")
    parser.add_argument("page", nargs="?", metavar="PAGE", choices=pages, help="its name, such as tutorial")
    page = parser.parse_args(argv).page
    if page:
        pydoc.pager(pages[page])
    else:
        print(*(f"{name:22}{text.partition(chr(10))[0].removeprefix('# ')}" for name, text in pages.items()), sep="\n")
        complain(f"The files are in {shipped('docs')}", sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Links in the pages lead somewhere: to a file that is there, and to a heading that it has.

usage: page_rules.py ROOT    prints each violation and exits with 1 when there is one
"""
import pathlib
import re
import sys

FOLDERS = [".", "docs", "docs/benchmarks", "examples/data", "packaging"]
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def pages(root):
    return [path for folder in FOLDERS for path in sorted((root / folder).glob("*.md"))]


def prose(page):
    return CODE.sub("", page.read_text(encoding="utf-8"))


def anchors(page):
    """The names that headings have for links: lower case, blanks as dashes, no punctuation."""
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(prose(page))]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def violations(root):
    for page in pages(root):
        for link in LINK.findall(prose(page)):
            if re.match(r"\w+:", link):
                continue  # of another place
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            where = f"{page.relative_to(root)}: {link}"
            if not target.exists():
                yield f"{where}: no such file"
            elif anchor and anchor not in anchors(target):
                yield f"{where}: no such heading"


def main():
    root = pathlib.Path(sys.argv[1])
    found = list(violations(root))
    print(*found, f"{len(pages(root))} pages", sep="\n")
    return 1 if found or len(pages(root)) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())

"""On the site, links to source files are plain names: they lead somewhere in a clone, where the files are."""

import re


def on_page_markdown(markdown: str, **_: object) -> str:
    return re.sub(r"\[(`[^`]+`)\]\((?:\.\./)+(?:engine|client|contracts|conformance|tests)/[^)]*\)", r"\1", markdown)

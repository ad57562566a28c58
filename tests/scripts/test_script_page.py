"""The page of scripts is what the scripts say, and every heading of it can be linked to."""

import re

import make_script_docs


def test_the_page_of_scripts_is_fresh() -> None:
    assert make_script_docs.PAGE.read_text() == make_script_docs.page(), "run python scripts/make_script_docs.py"


def test_links_within_the_page_lead_to_one_heading_each() -> None:
    page = make_script_docs.page()
    anchors = [make_script_docs.anchor(head) for head in re.findall(r"^##+ (.*)$", page, re.MULTILINE)]
    assert len(anchors) == len(set(anchors))
    linked = set(re.findall(r"\]\(#([^)]*)\)", page))
    assert linked and linked <= set(anchors)

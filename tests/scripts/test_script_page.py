"""The page of scripts is what the scripts say."""

import make_script_docs


def test_the_page_of_scripts_is_fresh() -> None:
    assert make_script_docs.PAGE.read_text() == make_script_docs.page(), "run python scripts/make_script_docs.py"

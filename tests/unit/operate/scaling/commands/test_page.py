"""docs/autoscaling.md: its numbers are those that its commands print."""

import pytest
from tools.autoscaling_page import PAGE, page


@pytest.mark.slow
def test_the_page_shows_what_its_commands_print() -> None:
    """Where this fails, `make docs` rewrites the outputs."""
    text = PAGE.read_text()
    assert page(text) == text

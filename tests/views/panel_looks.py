"""What can be seen in a panel: whether texts can be read, and whether anything is cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.views.panel_page import up_to_date
from tests.waiting import until


def look(page: Any, name: str, *values: Any) -> Any:
    """What a function of looks.js finds in the page."""
    page.add_script_tag(path=str(Path(__file__).with_name("looks.js")))
    return page.evaluate(f"(values) => __look.{name}(...values)", list(values))


def nothing_overflows(page: Any) -> None:
    """Nothing is cut off, or hangs out of the panel."""
    up_to_date(page)
    until(lambda: look(page, "overflows"), lambda cut: cut == [])


def every_text_can_be_read(page: Any) -> None:
    """No text is smaller than 11 px, or has less contrast than 4.5."""
    up_to_date(page)
    until(lambda: [one for one in look(page, "texts") if one[1] < 11 or one[2] < 4.5], lambda faint: faint == [])

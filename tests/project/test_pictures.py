"""The images of the documentation: drawings are current, and SVGs load nothing from elsewhere."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from drawings import DRAWINGS

PROJECT = Path(__file__).resolve().parents[2]
PICTURES = PROJECT / "docs" / "pictures"


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_current(name: str) -> None:
    assert (PICTURES / name).read_text("utf-8") == DRAWINGS[name]()


@pytest.mark.parametrize("picture", sorted(PICTURES.glob("*.svg")), ids=lambda picture: picture.name)
def test_an_svg_is_well_formed_and_complete_in_itself(picture: Path) -> None:
    text = picture.read_text("utf-8")
    ElementTree.fromstring(text)

    assert re.findall(r"(?:href|src|url)\s*[=(]\s*[\"']?(?!#)(\S+)", text) == []
    assert "@font-face" not in text and "@import" not in text


def test_every_picture_is_on_a_page() -> None:
    pages = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text("utf-8") for page in pages)

    assert [picture.name for picture in sorted(PICTURES.iterdir()) if f"pictures/{picture.name}" not in text] == []

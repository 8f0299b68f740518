"""Makes a figure's SVG fit to stand inside a page: unique ids, a name for screen readers, nothing to load."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
_LOADS = ("metadata", "style")
"""Elements that a page does without: they name foreign addresses, or style the whole page."""


def inline(svg: str, slug: str, title: str, description: str) -> str:
    """The `<svg>` element for a page.

    Args:
        svg: a whole SVG file.
        slug: unique within the page: ids get it as a prefix, for figures share ids such as ``axes_1``.
        title: what the figure is, for screen readers.
        description: what it shows.
    """
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    root = ET.fromstring(svg)  # noqa: S314 - matplotlib's own output
    for parent in root.iter():
        for child in list(parent):
            if child.tag in {f"{{{SVG}}}{name}" for name in _LOADS}:
                parent.remove(child)
    for element in root.iter():
        _prefix_ids(element, f"{slug}-")
    _name(root, slug, title, description)
    return ET.tostring(root, encoding="unicode")


def _prefix_ids(element: ET.Element, prefix: str) -> None:
    mark = re.fullmatch(r"(i\d+)-\d+", element.get("id", ""))
    if mark:  # what is drawn for one implementation (`plots.marked`), so that a page can hide it
        element.set("class", mark[1])
    for key, value in list(element.attrib.items()):
        if key == "id":
            element.set(key, prefix + value)
        elif key == f"{{{XLINK}}}href":
            element.set(key, re.sub(r"^#", f"#{prefix}", value))
        elif "url(#" in value:
            element.set(key, value.replace("url(#", f"url(#{prefix}"))


def _name(root: ET.Element, slug: str, title: str, description: str) -> None:
    for attribute in ("width", "height"):
        root.attrib.pop(attribute, None)  # the page decides; viewBox keeps the proportions
    root.set("role", "img")
    root.set("aria-labelledby", f"{slug}-title {slug}-description")
    for place, (tag, content) in enumerate((("title", title), ("desc", description))):
        child = ET.Element(f"{{{SVG}}}{tag}", {"id": f"{slug}-{'title' if place == 0 else 'description'}"})
        child.text = content
        root.insert(place, child)

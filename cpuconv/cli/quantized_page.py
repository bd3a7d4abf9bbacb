"""HTML page of a quantisation: summary and layers."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement

from autotune.report.page.document import document, facts, let_break, of_column, sortable, text
from cpuconv.quantizing.report import COLUMNS, Quantized


def page(name: str, made: Quantized) -> str:
    """Return the HTML document for a network of this name."""
    title = f"Quantising of {name}"
    main = Element("main")
    text(main, "h1", title)
    facts(main, list(made.facts().items()))
    text(
        main,
        "p",
        "The error of a layer is that of its own output: the root of the mean square of what is wrong, over that of the"
        " output; alone: of the network's outputs, that layer alone being of bytes. Times are of the layer alone.",
    )
    _, body = sortable(main, "Layers", [(column.title, column.is_number) for column in COLUMNS])
    for layer in made.layers:
        line = SubElement(body, "tr")
        for at, content in enumerate(layer.cells()):
            cell = text(line, "td", content, **of_column(COLUMNS[at].is_number))
            cell.set("data-value", content)
            if not at:
                let_break(cell)
    return document(title, main)

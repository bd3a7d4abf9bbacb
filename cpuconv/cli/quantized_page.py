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
        "Error: relative RMS error of the layer's own output. Error alone: relative RMS error of the network's outputs"
        " if only this layer is int8. Times are those of the layer, measured separately.",
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

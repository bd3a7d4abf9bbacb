// Buttons widen the timeline in its box; what the mouse or the keyboard is on is told above it.
for (const button of document.querySelectorAll("[data-zoom]")) {
  button.addEventListener("click", () => {
    const runs = document.querySelector(".runs"), box = runs.parentElement;
    const middle = (box.scrollLeft + box.clientWidth / 2) / box.scrollWidth;
    const wide = parseFloat(runs.getAttribute("width")) * (button.dataset.zoom === "in" ? 2 : 0.5);
    runs.setAttribute("width", `${Math.min(6400, Math.max(100, wide))}%`);
    box.scrollLeft = middle * box.scrollWidth - box.clientWidth / 2;
  });
}
for (const event of ["mouseover", "focusin"]) {
  document.querySelector(".runs")?.addEventListener(event, ({ target }) => {
    const title = target.closest("a, rect")?.querySelector("title");
    if (title) document.querySelector("#told").textContent = title.textContent;
  });
}

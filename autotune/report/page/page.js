"use strict";
// A click on a header sorts by its column, another click the other way; what is unknown stays last.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const number = head.classList.contains("number");
      const value = (row) => row.cells[column].dataset.value;
      const compare = (a, b) => (number ? a - b : a.localeCompare(b, undefined, { numeric: true }));
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [left, right] = [value(a), value(b)];
        if (left === "" || right === "") return (left === "") - (right === "");
        return up ? compare(left, right) : compare(right, left);
      });
      table.tBodies[0].append(...rows);
    });
  });
}

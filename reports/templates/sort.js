// Makes every table sortable by its headings. Without this script the page is complete, only not sortable.
(() => {
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.sort ?? cell.textContent.trim();
    return { text, number: text === "" ? NaN : Number(text), empty: cell.textContent.trim() === "" };
  };
  const compare = (a, b) =>
    Number.isNaN(a.number) || Number.isNaN(b.number)
      ? a.text.localeCompare(b.text, "en", { numeric: true })
      : a.number - b.number || 0;
  const sort = (heading) => {
    const body = heading.closest("table").tBodies[0];
    const column = heading.cellIndex;
    const descending = heading.getAttribute("aria-sort") === "ascending";
    const keyed = [...body.rows].map((row) => ({ row, key: value(row, column) }));
    // Cells without a value stay last in either direction.
    keyed.sort((a, b) => a.key.empty - b.key.empty || (descending ? -1 : 1) * compare(a.key, b.key));
    body.append(...keyed.map((entry) => entry.row));
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  };
  for (const heading of document.querySelectorAll("thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(heading));
    heading.append(button);
  }
})();

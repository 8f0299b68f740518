// Makes every table sortable by its headings, and tables and figures filterable. Without this script the page is
// complete, only not sortable and not filterable.
(() => {
  const main = document.querySelector("main");
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

  // A facet is something that tables have a column for and figures an attribute, such as the mask.
  const marks = JSON.parse(main.dataset.marks);
  const chosen = {};
  const facets = {};
  const rows = [];
  for (const heading of document.querySelectorAll("thead th[data-facet]")) {
    const values = (facets[heading.dataset.facet] ??= new Set());
    for (const row of heading.closest("table").tBodies[0].rows) {
      const { text } = value(row, heading.cellIndex);
      rows.push({ row, facet: heading.dataset.facet, text });
      if (text) values.add(text);
    }
  }
  const figures = [...document.querySelectorAll(".plot")];
  const apply = () => {
    const hidden = new Set(
      rows.filter(({ facet, text }) => chosen[facet] && text && text !== chosen[facet]).map(({ row }) => row),
    );
    for (const { row } of rows) row.hidden = hidden.has(row);
    for (const figure of figures)
      figure.hidden = Object.entries(chosen).some(
        ([facet, text]) => text && figure.dataset[facet] && figure.dataset[facet] !== text,
      );
    const shown = marks[chosen.implementation];
    for (const drawn of main.querySelectorAll(".plot [class^='i']"))
      drawn.style.display = shown && !drawn.classList.contains(shown) ? "none" : "";
    const total = new Set(rows.map(({ row }) => row)).size;
    output.value = hidden.size ? `${total - hidden.size} of ${total} rows` : "";
  };
  const form = document.createElement("form");
  form.className = "filters";
  form.setAttribute("aria-label", "Filter tables and figures");
  const output = document.createElement("output");
  for (const [facet, values] of Object.entries(facets)) {
    if (values.size < 2) continue;
    const label = document.createElement("label");
    const select = document.createElement("select");
    select.name = facet;
    select.append(new Option("all", ""), ...[...values].sort().map((text) => new Option(text, text)));
    select.addEventListener("change", () => {
      chosen[facet] = select.value;
      apply();
    });
    label.append(facet, select);
    form.append(label);
  }
  if (!form.children.length) return;
  const reset = document.createElement("button");
  reset.type = "reset";
  reset.textContent = "show all";
  form.addEventListener("reset", () => {
    for (const facet of Object.keys(chosen)) delete chosen[facet];
    apply();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.append(reset, output);
  main.before(form);
})();

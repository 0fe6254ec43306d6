"use strict";
// What works without it: every table and picture, and the boxes that switch curves on and off.
const root = document.documentElement;
root.classList.add("script");

// Colors: those of the system, or what the reader chose, remembered where the browser allows it.
const MODE = "bgn-report-mode";
function remembered() { try { return localStorage.getItem(MODE); } catch { return null; } }
function remember(mode) { try { localStorage.setItem(MODE, mode); } catch { /* files may not */ } }
function paint(mode) {
  if (mode === "auto") delete root.dataset.mode; else root.dataset.mode = mode;
}
const modes = [...document.querySelectorAll('input[name="mode"]')];
for (const input of modes) {
  input.addEventListener("change", () => { paint(input.value); remember(input.value); });
  if (input.value === remembered()) { input.checked = true; paint(input.value); }
}

// A phone has room for the key only when it is asked for.
if (matchMedia("(max-width: 40rem)").matches)
  for (const terms of document.querySelectorAll(".terms")) terms.open = false;

// All curves of a comparison on or off.
for (const button of document.querySelectorAll("[data-show]")) {
  button.addEventListener("click", () => {
    for (const box of button.closest("fieldset").querySelectorAll("input"))
      box.checked = button.dataset.show === "all";
  });
}

// A table that is wider than the screen can have the focus, so that arrow keys scroll it.
function reach() {
  for (const wide of document.querySelectorAll(".wide"))
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
}

// Tables sort by a column: from the largest (texts: from A), the other way round, as they were.
function value(row, column) {
  const text = row.cells[column].firstChild?.textContent.trim() ?? "";
  const number = parseFloat(text.replace(/,/g, ""));
  return Number.isNaN(number) ? text : number;
}
function compare(one, other) {
  const [a, b] = [typeof one === "number", typeof other === "number"];
  if (a !== b) return a ? -1 : 1; // what has no number comes last
  return a ? other - one : one.localeCompare(other);
}
for (const table of document.querySelectorAll("table:not(.long)")) {
  const body = table.tBodies[0], order = [...body.rows];
  if (order.length < 2) continue;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (!head.textContent.trim()) return; // names of normalizers need no header
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const texts = order.every(row => typeof value(row, column) === "string");
      const ways = texts ? ["ascending", "descending"] : ["descending", "ascending"];
      const next = ways[ways.indexOf(head.getAttribute("aria-sort")) + 1];
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      const rows = [...order];
      if (next) {
        head.setAttribute("aria-sort", next);
        const sign = next === ways[0] ? 1 : -1;
        rows.sort((r, s) => {
          const [a, b] = [value(r, column), value(s, column)];
          return typeof a === typeof b ? sign * compare(a, b) : compare(a, b);
        });
      }
      body.append(...rows);
    });
  });
}

reach();
addEventListener("resize", reach);
document.addEventListener("toggle", reach, true); // what was folded has its width now

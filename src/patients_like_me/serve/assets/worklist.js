// The worklist narrows and orders itself while one types; where not all patients are in the page, the server does it.
"use strict";

const table = document.getElementById("people");
const form = document.getElementById("narrow");
if (table?.dataset.whole) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const found = document.getElementById("found");
  const supports = ["well supported", "weakly supported", "no comparable patients", ""];
  const risk = row => Number(row.dataset.risk);
  const name = (a, b) => a.dataset.name.localeCompare(b.dataset.name, "en", { numeric: true });
  const orders = {
    "risk-high": (a, b) => risk(b) - risk(a),
    "risk-low": (a, b) => risk(a) - risk(b),
    support: (a, b) => supports.indexOf(a.dataset.support) - supports.indexOf(b.dataset.support),
    name,
  };
  const show = () => {
    const words = form.elements.search.value.trim().toLowerCase();
    const flag = form.elements.flag.value;
    let number = 0;
    for (const row of rows) {
      const { name: pseudonym, id } = row.dataset;
      const meant = pseudonym.toLowerCase().startsWith(words) || (words !== "" && id.toLowerCase().includes(words));
      const kept = meant && (!flag || row.dataset.flags.split("|").includes(flag));
      row.hidden = !kept;
      number += kept ? 1 : 0;
    }
    const order = orders[form.elements.order.value];
    body.append(...[...rows].sort((a, b) => order(a, b) || name(a, b)));
    found.textContent = number === rows.length
      ? `${number} patient${number === 1 ? "" : "s"}.`
      : `${number} of ${rows.length} patients.`;
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", event => { event.preventDefault(); show(); });
  form.querySelector("button").hidden = true;
  // A browser that comes back has kept what was typed.
  show();
}

// The patient's page: what-if, the ego graph, links to folded references, and printing.
"use strict";

import { liveGraph, open } from "/assets/ego_graph.js";
import { whatIf } from "/assets/what_if.js";

const panel = document.getElementById("what-if");
if (panel) whatIf(panel);
document.querySelectorAll("figure.figure").forEach(liveGraph);
document.querySelectorAll('a[href^="#R"]').forEach(link => {
  link.addEventListener("click", event => { event.preventDefault(); open(link.hash.slice(1)); });
});
document.getElementById("print")?.addEventListener("click", () => window.print());

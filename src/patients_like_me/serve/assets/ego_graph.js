// The ego graph answers a pointer and the keyboard: one reference is lit, said in words, and opened with Enter.
"use strict";

export function liveGraph(figure) {
  const said = document.createElement("p");
  said.className = "picked no-print";
  said.setAttribute("aria-live", "polite");
  figure.querySelector("figcaption").before(said);
  figure.querySelectorAll("svg").forEach(picture => {
    const discs = [...picture.querySelectorAll("g.disc")];
    if (!discs.length) return;
    // What has parts that can be reached is a group, not one image.
    picture.setAttribute("role", "group");
    const light = name => {
      picture.classList.toggle("lit", name !== null);
      picture.querySelectorAll("g[data-node]").forEach(part => part.classList.toggle("lit", part.dataset.node === name));
      said.textContent = name === null ? "" : wordsOf(name);
    };
    discs.forEach((disc, at) => {
      const name = disc.dataset.node;
      disc.setAttribute("tabindex", at === 0 ? "0" : "-1");
      disc.setAttribute("role", "button");
      disc.setAttribute("aria-label", `${wordsOf(name)} Show side by side.`);
      disc.addEventListener("mouseenter", () => light(name));
      disc.addEventListener("mouseleave", () => light(null));
      disc.addEventListener("focus", () => light(name));
      disc.addEventListener("blur", () => light(null));
      disc.addEventListener("click", () => open(name));
      disc.addEventListener("keydown", event => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(name); return; }
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const next = discs[(at + step + discs.length) % discs.length];
        disc.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
      });
    });
  });
}

/** What the table says about a reference. */
function wordsOf(name) {
  const row = document.querySelector(`tr[data-reference="${CSS.escape(name)}"]`);
  if (!row) return `${name}.`;
  const cells = [...row.querySelectorAll("td")].map(cell => {
    const words = cell.textContent.trim();
    return cell.classList.contains("n") ? `${words} ${cell.dataset.label}` : words;
  });
  return `${name}: ${cells.join("; ")}.`;
}

/** Unfold a reference among those side by side and go there. */
export function open(name) {
  const place = document.getElementById(name);
  if (!place) return;
  for (let part = place.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
  place.setAttribute("tabindex", "-1");
  place.focus({ preventScroll: true });
  place.scrollIntoView({ block: "start" });
}

// A box that finds codes by name, synonym or code: an ARIA combobox with a list, for pointer and keyboard.
"use strict";

const WAIT = 150;
let number = 0;

/** Turn the input of a `.code-search` element into a combobox; `choose(found)` gets the code that was picked. */
export function searchBox(holder, choose, { knownOnly = false } = {}) {
  const input = holder.querySelector("input");
  const list = document.createElement("ul");
  const hint = document.createElement("p");
  const id = `codes-${++number}`;
  let found = [];
  let active = -1;
  let asked = 0;
  let timer = null;

  list.id = id;
  list.hidden = true;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Codes found");
  hint.className = "hint";
  hint.setAttribute("role", "status");
  holder.append(list, hint);
  for (const [name, value] of Object.entries({
    role: "combobox", "aria-expanded": "false", "aria-controls": id, "aria-autocomplete": "list",
  })) input.setAttribute(name, value);

  const close = () => {
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const mark = place => {
    active = place;
    [...list.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === place)));
    if (place < 0) { input.removeAttribute("aria-activedescendant"); return; }
    input.setAttribute("aria-activedescendant", list.children[place].id);
    list.children[place].scrollIntoView({ block: "nearest" });
  };
  const pick = place => {
    const code = found[place];
    if (!code) return;
    input.value = "";
    hint.textContent = "";
    close();
    choose(code);
    input.focus();
  };
  const option = (code, at) => {
    const line = document.createElement("li");
    const about = document.createElement("small");
    line.id = `${id}-${at}`;
    line.setAttribute("role", "option");
    line.setAttribute("aria-selected", "false");
    line.textContent = code.name;
    const matched = code.matched && ![code.name, code.code].includes(code.matched) ? `, found as ${code.matched}` : "";
    about.textContent = `${code.given || code.code}${matched}${code.known ? "" : ", not seen in training"}`;
    line.append(about);
    line.addEventListener("mousedown", event => event.preventDefault());
    line.addEventListener("click", () => pick(at));
    return line;
  };
  const ask = async () => {
    const words = input.value.trim();
    const turn = ++asked;
    if (words.length < 2) { close(); hint.textContent = ""; return; }
    const query = new URLSearchParams({ q: words, kind: holder.dataset.searchKind, limit: "12" });
    let codes;
    try {
      const answer = await fetch(`/api/v1/codes?${query}`, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error((await answer.json()).detail);
      codes = (await answer.json()).codes;
    } catch (error) {
      if (turn === asked) { close(); hint.textContent = `The search failed: ${error.message}`; }
      return;
    }
    if (turn !== asked) return;
    found = knownOnly ? codes.filter(code => code.known) : codes;
    list.replaceChildren(...found.map(option));
    list.hidden = found.length === 0;
    input.setAttribute("aria-expanded", String(found.length > 0));
    mark(-1);
    const unknown = codes.length - found.length;
    hint.textContent = found.length
      ? `${found.length} found; choose with the arrow keys and Enter`
      : unknown ? "Found, but no patient of the training had it." : "Nothing is found.";
  };

  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, WAIT); });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", event => {
    const last = found.length - 1;
    if (event.key === "Escape") { close(); return; }
    if (event.key === "Enter") {
      // Enter chooses; it never sends a form that is not finished.
      event.preventDefault();
      if (!list.hidden) pick(active < 0 ? 0 : active);
      return;
    }
    if (list.hidden || !["ArrowDown", "ArrowUp"].includes(event.key)) return;
    event.preventDefault();
    mark(event.key === "ArrowDown" ? (active >= last ? 0 : active + 1) : (active <= 0 ? last : active - 1));
  });
}

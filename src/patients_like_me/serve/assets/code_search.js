// A box that finds codes by name, synonym or code: an ARIA combobox with a list, for pointer and keyboard.
"use strict";

const WAIT = 150;
let number = 0;

/**
 * Turn the input of a `.code-search` element into a combobox; `choose(found)` gets the code that was picked.
 * `refuse(found)` says why a code cannot be picked, or nothing: such a code is shown with the reason.
 */
export function searchBox(holder, choose, refuse = () => "") {
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
    if (!code || refuse(code)) return;
    input.value = "";
    hint.textContent = "";
    close();
    choose(code);
    input.focus();
  };
  /** The next code that can be picked, round and round; -1 where there is none. */
  const next = (from, step) => {
    for (let place = from + step, tries = 0; tries < found.length; place += step, tries += 1) {
      const at = (place + found.length) % found.length;
      if (!refuse(found[at])) return at;
    }
    return -1;
  };
  const option = (code, at) => {
    const line = document.createElement("li");
    const about = document.createElement("small");
    line.id = `${id}-${at}`;
    line.setAttribute("role", "option");
    line.setAttribute("aria-selected", "false");
    line.textContent = code.name;
    const matched = code.matched && ![code.name, code.code].includes(code.matched) ? `, found as ${code.matched}` : "";
    const reason = refuse(code);
    const noted = reason || (code.known ? "" : "not seen in training");
    about.textContent = `${code.given || code.code}${matched}${noted ? `, ${noted}` : ""}`;
    if (reason) line.setAttribute("aria-disabled", "true");
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
    found = codes;
    list.replaceChildren(...found.map(option));
    list.hidden = found.length === 0;
    input.setAttribute("aria-expanded", String(found.length > 0));
    mark(-1);
    hint.textContent = found.length
      ? `${found.length} found; choose with the arrow keys and Enter`
      : "Nothing is found.";
  };

  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, WAIT); });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", event => {
    if (event.key === "Escape") { close(); return; }
    if (event.key === "Enter") {
      // Enter chooses; it never sends a form that is not finished.
      event.preventDefault();
      if (!list.hidden) pick(active < 0 ? next(-1, 1) : active);
      return;
    }
    if (list.hidden || !["ArrowDown", "ArrowUp"].includes(event.key)) return;
    event.preventDefault();
    mark(event.key === "ArrowDown" ? next(active, 1) : next(active < 0 ? found.length : active, -1));
  });
}

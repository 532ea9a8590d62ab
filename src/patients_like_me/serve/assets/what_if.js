// What if: every change is a step that can be undone; the server answers with words, which appear in place.
"use strict";

import { searchBox } from "/assets/code_search.js";

const NOTHING = Object.freeze({ drop: [], tau: null, add: [], remove: [], add_drugs: [], remove_drugs: [] });
const FIELDS = { diagnosis: ["add", "remove"], medication: ["add_drugs", "remove_drugs"] };

export function whatIf(panel) {
  const reply = panel.querySelector(".reply");
  const refused = panel.querySelector(".refused");
  const asked = panel.querySelector(".asked");
  const changes = panel.querySelector(".changes");
  const undo = panel.querySelector(".undo");
  const again = panel.querySelector(".again");
  const drop = panel.querySelector("#drop");
  const tau = panel.querySelector("#tau");
  const save = document.getElementById("save");
  // Each step keeps its answer, so undoing needs no request.
  const steps = [{ change: NOTHING, words: "", html: "" }];
  let turn = 0;

  const last = () => steps[steps.length - 1];

  const draw = () => {
    const step = last();
    reply.innerHTML = step.html;
    reply.setAttribute("aria-busy", "false");
    panel.classList.toggle("has-answer", step.html !== "");
    asked.hidden = steps.length === 1;
    changes.replaceChildren(...steps.slice(1).map(each => {
      const line = document.createElement("li");
      line.textContent = `${each.words} `;
      return line;
    }));
    if (save) {
      // What is saved is what is shown, and says so.
      save.elements.change.value = steps.length === 1 ? "" : JSON.stringify(step.change);
      save.querySelector("[type=submit]").textContent = steps.length === 1 ? "Save as a file" : "Save this what-if as a file";
    }
    const left = new Set((reply.firstElementChild?.dataset.left ?? "").split(" ").filter(Boolean));
    const removed = new Set([...step.change.remove, ...step.change.remove_drugs]);
    document.querySelectorAll("tr[data-reference]").forEach(row => row.classList.toggle("gone", left.has(row.dataset.reference)));
    document.querySelectorAll("g[data-node]").forEach(part => part.classList.toggle("left", left.has(part.dataset.node)));
    document.querySelectorAll("li[data-code]").forEach(line => {
      line.classList.toggle("gone", removed.has(line.dataset.code));
      const button = line.querySelector("button");
      if (button) button.disabled = removed.has(line.dataset.code);
    });
    document.querySelectorAll("tr[data-reference] button").forEach(button => {
      button.disabled = step.change.drop.includes(button.closest("tr").dataset.reference);
    });
    if (drop) [...drop.options].forEach(choice => { choice.disabled = step.change.drop.includes(choice.value); });
    if (tau) {
      tau.value = String(step.change.tau ?? tau.dataset.trained);
      panel.querySelector("#tau-shown").textContent = tau.value;
    }
  };

  const ask = async (difference, words) => {
    const change = { ...last().change, ...difference };
    const mine = ++turn;
    reply.setAttribute("aria-busy", "true");
    refused.hidden = true;
    try {
      const answer = await fetch(panel.dataset.address, {
        method: "POST",
        headers: { "Content-Type": "application/json", Accept: "application/problem+json, */*" },
        body: JSON.stringify(change),
      });
      if (mine !== turn) return;
      if (!answer.ok) throw new Error(await sentenceOf(answer));
      const html = await answer.text();
      if (mine !== turn) return;
      steps.push({ change, words, html });
    } catch (error) {
      if (mine !== turn) return;
      refused.textContent = `Not possible: ${error.message}`;
      refused.hidden = false;
    }
    draw();
  };

  const step = (field, value, words) => {
    const before = last().change[field];
    if (before.includes(value)) return;
    ask({ [field]: [...before, value] }, words);
  };

  const back = number => {
    turn += 1;
    refused.hidden = true;
    steps.splice(number);
    draw();
    // The button that was pressed may be hidden now: the keyboard goes on at the panel.
    if (asked.hidden) (panel.querySelector("input") ?? panel).focus();
  };

  panel.querySelectorAll(".code-search").forEach(holder => {
    const kind = holder.dataset.searchKind;
    const [add, remove] = FIELDS[kind];
    const record = new Set([...document.querySelectorAll(`li[data-kind=${kind}]`)].map(line => line.dataset.code));
    const refuse = found => {
      const { [add]: added, [remove]: removed } = last().change;
      if (added.includes(found.code)) return "added already";
      if (record.has(found.code) && !removed.includes(found.code)) return "in the record already";
      return found.known ? "" : "no patient of the training had it";
    };
    searchBox(holder, found => {
      if (last().change[remove].includes(found.code)) {
        ask({ [remove]: last().change[remove].filter(code => code !== found.code) }, `${found.name} again`);
      } else step(add, found.code, `with ${found.name}`);
    }, refuse);
  });
  document.querySelectorAll("li[data-code]").forEach(line => {
    const fields = FIELDS[line.dataset.kind];
    if (!fields) return;
    const name = line.textContent.replace("◆", "").trim();
    line.append(smallButton("×", `What if without ${name}`, () =>
      step(fields[1], line.dataset.code, `without ${name}`)));
  });
  document.querySelectorAll("tr[data-reference]").forEach(row => {
    const name = row.dataset.reference;
    row.querySelector("th").append(" ", smallButton("leave out", `What if we leave out ${name}`, () =>
      step("drop", name, `without ${name}`)));
  });
  drop?.addEventListener("change", () => {
    if (drop.value) step("drop", drop.value, `without ${drop.value}`);
    drop.value = "";
  });
  tau?.addEventListener("input", () => { panel.querySelector("#tau-shown").textContent = tau.value; });
  tau?.addEventListener("change", () => ask({ tau: Number(tau.value) }, `at least ${tau.value} shared diagnoses`));
  undo.addEventListener("click", () => back(Math.max(steps.length - 1, 1)));
  again.addEventListener("click", () => back(1));
}

function smallButton(words, label, press) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  button.textContent = words;
  button.setAttribute("aria-label", label);
  button.addEventListener("click", press);
  return button;
}

/** The sentence of a refusal, whichever form it has. */
export async function sentenceOf(answer) {
  try {
    return (await answer.json()).detail;
  } catch {
    return answer.status === 401 ? "you are no longer signed in" : `the server answered ${answer.status}`;
  }
}

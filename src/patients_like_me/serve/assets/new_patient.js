// The form of a new patient: visits are added, codes are found by name, and every error is shown next to its field.
"use strict";

import { searchBox } from "/assets/code_search.js";
import { sentenceOf } from "/assets/what_if.js";

const form = document.getElementById("new-patient");
const visits = document.getElementById("visits");
const problems = document.getElementById("typed-problems");
let fields = 0;

function addVisit() {
  const visit = document.getElementById("visit").content.firstElementChild.cloneNode(true);
  visit.querySelectorAll(".code-search").forEach(holder => {
    const chosen = holder.querySelector(".chosen");
    searchBox(holder, found => {
      if ([...chosen.children].some(line => line.dataset.entry === found.entry)) return;
      const line = document.createElement("li");
      const remove = document.createElement("button");
      line.dataset.entry = found.entry;
      line.textContent = found.name;
      remove.type = "button";
      remove.className = "small";
      remove.textContent = "×";
      remove.setAttribute("aria-label", `Remove ${found.name}`);
      remove.addEventListener("click", () => { line.remove(); holder.querySelector("input").focus(); });
      line.append(remove);
      chosen.append(line);
    });
  });
  visit.querySelector(".remove-visit").addEventListener("click", () => {
    visit.remove();
    numberVisits();
    document.getElementById("add-visit").focus();
  });
  visits.append(visit);
  numberVisits();
  return visit;
}

function numberVisits() {
  const all = [...visits.children];
  all.forEach((visit, at) => {
    const current = at === all.length - 1 ? " (the visit that is predicted)" : "";
    visit.querySelector("legend").textContent = `Visit ${at + 1}${current}`;
    visit.querySelector(".remove-visit").hidden = all.length === 1;
    visit.querySelector(".remove-visit").setAttribute("aria-label", `Remove visit ${at + 1}`);
  });
}

/** The patient as docs/own-tables.md writes one; what is empty is left out. */
function patient() {
  const age = form.querySelector("#age");
  const found = { visits: [] };
  // What is not a number is sent as it is, so that the server says so next to the field.
  if (age.validity.badInput) found.age = "not a number";
  else if (age.value !== "") found.age = Number(age.value);
  if (form.querySelector("#sex").value) found.sex = form.querySelector("#sex").value;
  for (const visit of visits.children) {
    const one = {};
    visit.querySelectorAll("input[data-field]").forEach(input => { if (input.value) one[input.dataset.field] = input.value; });
    visit.querySelectorAll(".code-search").forEach(holder => {
      const codes = [...holder.querySelectorAll("li[data-entry]")].map(line => line.dataset.entry);
      if (codes.length) one[holder.dataset.field] = codes;
    });
    found.visits.push(one);
  }
  return found;
}

/** The input that a path such as visits.0.diagnoses.2 is about; null where it is about the whole. */
function inputOf(path) {
  // What is said of all visits is that they hold nothing: the first thing to give is a diagnosis of the last.
  const parts = path === "visits" ? ["visits", String(visits.children.length - 1), "diagnoses"] : path.split(".");
  if (parts[0] !== "visits") return form.querySelector(`:scope > .controls [data-field="${CSS.escape(parts[0])}"]`);
  const field = visits.children[Number(parts[1])]?.querySelector(`[data-field="${CSS.escape(parts[2] ?? "")}"]`);
  return field?.matches(".code-search") ? field.querySelector("input") : field ?? null;
}

function labelOf(input) {
  const label = input.labels[0].firstChild.textContent.trim();
  const visit = input.closest("fieldset");
  return visit ? `${visit.querySelector("legend").textContent.split(" (")[0]}, ${label.toLowerCase()}` : label;
}

function clearErrors() {
  form.querySelectorAll("p.field-error").forEach(line => line.remove());
  form.querySelectorAll("[aria-invalid]").forEach(input => {
    input.removeAttribute("aria-invalid");
    input.removeAttribute("aria-describedby");
  });
  problems.hidden = true;
  problems.replaceChildren();
}

function showErrors(detail, errors) {
  const list = document.createElement("ul");
  for (const { field, message } of errors) {
    const line = document.createElement("li");
    const input = inputOf(field);
    if (input) {
      const words = document.createElement("p");
      const link = document.createElement("a");
      input.id ||= `field-${++fields}`;
      words.id = `${input.id}-error`;
      words.className = "error field-error";
      words.textContent = message;
      (input.closest("label") ?? input).after(words);
      input.setAttribute("aria-invalid", "true");
      input.setAttribute("aria-describedby", words.id);
      link.href = `#${input.id}`;
      link.textContent = labelOf(input);
      link.addEventListener("click", event => { event.preventDefault(); input.focus(); });
      line.append(link, `: ${message}`);
    } else line.textContent = field ? `${field}: ${message}` : message;
    list.append(line);
  }
  const heading = document.createElement("p");
  heading.textContent = errors.length ? "The patient cannot be predicted yet:" : detail;
  problems.replaceChildren(heading, ...(errors.length ? [list] : []));
  problems.hidden = false;
  problems.focus();
}

form.addEventListener("submit", async event => {
  event.preventDefault();
  clearErrors();
  const button = form.querySelector("button.main");
  button.disabled = true;
  try {
    const answer = await fetch("/api/v1/patients", {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "application/json" },
      body: JSON.stringify(patient()),
    });
    if (answer.status === 422) {
      const problem = await answer.json();
      showErrors(problem.detail, problem.errors ?? []);
    } else if (!answer.ok) showErrors(await sentenceOf(answer), []);
    else window.location.assign(`/patients/${(await answer.json()).pseudonyms[0]}`);
  } catch (error) {
    showErrors(`The server cannot be reached: ${error.message}`, []);
  } finally {
    button.disabled = false;
  }
});
document.getElementById("add-visit").addEventListener("click", () => addVisit().querySelector("input").focus());
addVisit();
document.querySelector("div.error[role=alert]:not([hidden])")?.focus();

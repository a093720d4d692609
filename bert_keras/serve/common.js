"use strict";
// What all pages have in common. Everything that a model, a file or a user wrote enters
// a page as text, never as HTML.

const $ = (id) => document.getElementById(id);

function element(tag, { text, kind, children = [] } = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  made.append(...children);
  return made;
}

// A model whose weights are not finite answers NaN, which is no JSON.
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { error: "The numbers of the answer are not finite." };
  }
}

function show(message) {
  $("error").textContent = message;
  $("error").hidden = !message;
  $("answer").hidden = Boolean(message);
}

// The command that sends a request from a shell.
function curl(path, body) {
  const data = body ? ` -d '${body.replaceAll("'", "'\\''")}'` : "";
  return `curl ${new URL(path, location.href)}${data}`;
}

let asked, timer;

// Sends a request, in place of one that is under way, and draws its answer.
async function send(path, body, draw) {
  clearTimeout(timer);
  if (asked) asked.abort();
  const mine = (asked = new AbortController());
  $("status").textContent = "…";
  try {
    const response = await fetch(path, { method: "POST", body, signal: mine.signal });
    const text = await response.text();
    const answer = parsed(text);
    if (answer.error) throw new Error(answer.error);
    $("answer").replaceChildren(...draw(answer));
    $("request").textContent = curl(path, body);
    $("response").textContent = text.length > 5000 ? `${text.slice(0, 5000)}…` : text;
    $("json").hidden = false;
    show("");
  } catch (error) {
    if (error.name !== "AbortError") show(error instanceof TypeError ? "The server does not answer." : error.message);
  }
  if (asked === mine) $("status").textContent = "";
}

// Asks when someone pauses, presses the button, or Enter with Ctrl.
function listen(ask) {
  $("form").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  $("form").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, 300); });
  $("form").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask(); });
}

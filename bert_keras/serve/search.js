"use strict";

// A word has letters, digits and their accents; each ideograph is a word by itself.
const WORD = /\p{Script=Han}|(?:(?!\p{Script=Han})[\p{L}\p{N}\p{M}])+/gu;
const plain = (word) => word.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
const number = new Intl.NumberFormat("en");

let facts;

function highlighted(text, question) {
  const asked = new Set(Array.from(question.matchAll(WORD), ([word]) => plain(word)));
  const parts = [];
  let place = 0;
  for (const { 0: word, index } of text.matchAll(WORD)) {
    if (!asked.has(plain(word))) continue;
    // Articles and such stand everywhere, and are marked less.
    const kind = /^[a-z]{1,3}$/i.test(word) ? "short" : "";
    parts.push(text.slice(place, index), element("mark", { text: word, kind }));
    place = index + word.length;
  }
  return element("p", { kind: "text", children: [...parts, text.slice(place)] });
}

function drawHits(hits, question, milliseconds) {
  if (!hits.length) return [element("p", { kind: "hint", text: "No piece has a word of the question." })];
  const count = hits.length === 1 ? "1 hit" : `${hits.length} hits`;
  const items = hits.map(({ text, document: source, start, end, score }) => {
    // A line of a file, or the title of a document.
    const isLine = /:\d+$/.test(source);
    const name = element("b", { text: isLine ? source.split("/").pop() : source });
    name.title = source;
    const places = ` · characters ${number.format(start)} to ${number.format(end)} · score ${score.toPrecision(3)}`;
    const note = element("span", { kind: "note", children: [name, places] });
    return element("li", { children: [note, highlighted(text, question)] });
  });
  const summary = `${count} in ${number.format(facts.num_pieces)} pieces, ${milliseconds.toFixed(0)} ms`;
  return [element("p", { kind: "hint", text: summary }), element("ol", { kind: "passages", children: items })];
}

function ask() {
  const { question, by, top } = Object.fromEntries(new FormData($("form")));
  if (!question.trim()) return;
  // A search can be kept as a link.
  history.replaceState(null, "", `?${new URLSearchParams({ question, by, top })}`);
  const begin = performance.now();
  const body = JSON.stringify({ question, by, top: Number(top) });
  send("v1/search", body, ({ hits }) => drawHits(hits, question, performance.now() - begin));
}

async function start() {
  facts = await (await fetch("page.json")).json();
  $("name").textContent = document.title = facts.name;
  const order = facts.reranker ? ` · the first are ordered by ${facts.reranker}` : "";
  $("size").textContent = `${number.format(facts.num_pieces)} pieces${order}`;
  for (const [name, value] of new URLSearchParams(location.search)) {
    const field = $("form").elements.namedItem(name);
    if (field) field.value = value;
  }
  listen(ask);
  ask();
}

start().catch((error) => show(`The page does not work: ${error.message}`));

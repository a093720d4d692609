"use strict";

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const heading = (text) => element("h2", { text });

function bar(name, share, { isBest = false, value = percent(share) } = {}) {
  const fill = element("div", { kind: "fill" });
  fill.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  const words = element("div", { children: [element("span", { text: name }), element("span", { text: value, kind: "value" })] });
  const track = element("div", { kind: "track", children: [fill] });
  return element("div", { kind: isBest ? "bar best" : "bar", children: [words, track] });
}

// Cuts a text at places that count characters as Python does: an emoji is one.
function marked(text, spans) {
  const characters = Array.from(text);
  const cut = (start, end) => characters.slice(start, end).join("");
  const parts = [];
  let place = 0;
  for (const { start, end, kind, note } of spans) {
    const mark = element("mark", { text: cut(start, end), kind });
    if (note) mark.append(element("small", { text: note }));
    parts.push(cut(place, start), mark);
    place = end;
  }
  return element("p", { kind: "text", children: [...parts, cut(place)] });
}

const UNSURE = "Not sure enough to answer";

function labels({ probabilities, label, holds }) {
  const rows = probabilities.map((share, i) => ({ name: facts.labels[i], share, holds: holds && holds[i] }));
  rows.sort((a, b) => b.share - a.share);
  const bars = rows.slice(0, 20).map(({ name, share, holds }) => {
    const isBest = holds === undefined ? name === label : holds === 1;
    const value = `${holds ? "✓ " : ""}${percent(share)}`;
    return bar(name, share, { isBest, value });
  });
  if (label === "") bars.unshift(element("p", { kind: "big", text: UNSURE }));
  if (rows.length > 20) bars.push(element("p", { kind: "hint", text: `and ${rows.length - 20} less probable labels` }));
  return bars;
}

function number({ score, low, high }) {
  const answer = [element("p", { kind: "big", text: score.toFixed(3) })];
  if (low !== undefined) answer.push(element("p", { kind: "hint", text: `from ${low.toFixed(3)} to ${high.toFixed(3)}` }));
  return answer;
}

function entities(answer, { text }) {
  const hues = new Map();
  const spans = [];
  for (let i = 0; i < answer.num_entities; i++) {
    const type = answer.type[i];
    if (!hues.has(type)) hues.set(type, `hue-${hues.size % 6}`);
    spans.push({ start: answer.start[i], end: answer.end[i], kind: hues.get(type), note: type });
  }
  const found = spans.map((span, i) => bar(`${answer.entity[i]} · ${span.note}`, answer.probability[i]));
  const title = found.length ? heading("Entities") : element("p", { kind: "hint", text: "No entities." });
  return [marked(text, spans), title, ...found];
}

function span(answer, { context }) {
  const isThere = answer.end > answer.start;
  const [nothing, name] = facts.is_calibrated ? [UNSURE, "The best answer"] : ["No answer in this text", "No answer"];
  const best = element("p", { kind: "big", text: isThere ? answer.answer : nothing });
  const bars = [bar(isThere ? "This answer" : name, answer.probability, { isBest: true })];
  if (isThere && answer.no_answer_probability !== undefined) bars.push(bar("No answer", answer.no_answer_probability));
  return [best, ...bars, marked(context, isThere ? [answer] : [])];
}

function choice({ best, probabilities }, { endings }) {
  return endings.map((ending, i) => bar(ending, probabilities[i], { isBest: i === best }));
}

function order({ scores, ranking, is_sure }, { passages }) {
  const unsure = is_sure === 0 ? [element("p", { kind: "big", text: "None of these, as far as it can tell" })] : [];
  const items = ranking.map((number, place) => {
    const note = `${place + 1}. of ${ranking.length} · score ${scores[number].toFixed(2)} · was line ${number + 1}`;
    const children = [element("span", { kind: "note", text: note }), element("span", { text: passages[number] })];
    return element("li", { kind: place || is_sure === 0 ? "" : "best", children });
  });
  return [...unsure, element("ol", { kind: "passages", children: items })];
}

function words({ num_masks, tokens, probabilities }) {
  if (!num_masks) return [element("p", { kind: "hint", text: "Write [MASK] where a word is to be guessed." })];
  return Array.from({ length: num_masks }).flatMap((_, i) => [
    heading(num_masks > 1 ? `[MASK] ${i + 1}` : "[MASK]"),
    ...tokens[i].map((token, k) => bar(token, probabilities[i][k], { isBest: k === 0 })),
  ]);
}

function similarity({ embedding }, _, [, other]) {
  const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
  const size = element("p", { kind: "hint", text: `A vector has ${embedding.length} numbers.` });
  if (!other) return [size];
  const [a, b] = [embedding, other.embedding];
  const cosine = dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
  return [heading("Cosine of both texts"), bar("alike", cosine, { isBest: true, value: cosine.toFixed(3) }), size];
}

// What is drawn for a signature's outputs.
const VIEWS = [
  [["probabilities", "label"], labels],
  [["probabilities", "holds", "labels"], labels],
  [["score"], number],
  [["score", "low", "high"], number],
  [["num_entities", "entity", "type", "start", "end", "probability"], entities],
  [["answer", "start", "end", "score", "probability"], span],
  [["answer", "start", "end", "score", "probability", "no_answer_probability"], span],
  [["best", "probabilities"], choice],
  [["scores", "ranking"], order],
  [["scores", "ranking", "probability", "is_sure"], order],
  [["num_masks", "masked_lm_positions", "tokens", "probabilities"], words],
  [["embedding"], similarity],
];
const EXAMPLES = {
  text: "Type a text",
  text_pair: "A second text, or nothing",
  other: "Another text, to compare both",
  question: "Who wrote it?",
  context: "The text that has the answer",
  sentence: "She opens a book.",
  beginning: "The first words of each ending, or nothing",
  endings: "She reads.\nShe sings.",
  passages: "It rained all day.\nAda wrote the first program.",
};
const MASKED = "The old man lit his [MASK].";

let facts, draw;

function buildForm() {
  $("name").textContent = document.title = facts.name;
  const count = facts.labels ? ` · ${facts.labels.length} labels` : "";
  $("kind").textContent = `${facts.kind.replace("_", " ")}${count}`;
  const fields = Object.entries(facts.inputs);
  if (draw === similarity) fields.push(["other", 1]);
  for (const [name, rank] of fields) {
    const area = element("textarea");
    area.name = name;
    area.rows = rank > 1 || name === "context" ? 7 : ["question", "beginning"].includes(name) ? 2 : 4;
    area.placeholder = draw === words ? MASKED : EXAMPLES[name];
    const title = name === "other" ? "other text" : name.replace("_", " ");
    const label = element("label", { text: title[0].toUpperCase() + title.slice(1) });
    if (rank > 1) label.append(" ", element("small", { text: "one on each line" }));
    label.append(area);
    $("fields").append(label);
  }
}

function readForm() {
  const values = {};
  for (const area of $("fields").querySelectorAll("textarea")) {
    const lines = area.value.split("\n").filter((line) => line.trim());
    values[area.name] = facts.inputs[area.name] === 2 ? lines : area.value;
  }
  return values;
}

function ask() {
  const { other, ...row } = readForm();
  // Only a second text may be empty.
  if (Object.entries(row).some(([name, value]) => !value.length && !["text_pair", "beginning"].includes(name))) return;
  const body = JSON.stringify({ instances: other ? [row, { text: other }] : [row] });
  send(`v1/models/${encodeURIComponent(facts.name)}:predict`, body, ({ predictions }) => {
    const names = facts.outputs;
    const rows = predictions.map((value) => (names.length > 1 ? value : { [names[0]]: value }));
    return draw(rows[0], row, rows);
  });
}

async function start() {
  facts = await (await fetch("page.json")).json();
  const isOf = ([outputs]) => String([...outputs].sort()) === String([...facts.outputs].sort());
  draw = VIEWS.find(isOf)[1];
  buildForm();
  listen(ask);
}

start().catch((error) => show(`The page does not work: ${error.message}`));

// Answers inputs, a JSON list a line, from an exported directory:
// node answers.mjs LIBRARY DIRECTORY DTYPE INPUTS ANSWERS
import { readFileSync, writeFileSync } from "node:fs";

const [path, directory, dtype, inputs, answers] = process.argv.slice(2);
const library = await import(path);
library.env.allowRemoteModels = false;
library.env.localModelPath = "";
const { load } = await import(`${directory}/answers.js`);
const model = await load(library, directory, { dtype });
const lines = [];
for (const line of readFileSync(inputs, "utf8").trimEnd().split("\n")) {
  const answer = await model.answer(...JSON.parse(line));
  lines.push(JSON.stringify({ answer, wasCut: model.wasCut }));
}
writeFileSync(answers, lines.join("\n") + "\n");

// Reads texts, a JSON string a line, and writes the ids that the library's tokenizer and
// `answers.js` give them: node ids.mjs LIBRARY DIRECTORY ANSWERS_JS TEXTS IDS
import { createReadStream, createWriteStream } from "node:fs";
import { createInterface } from "node:readline";

const [path, directory, script, texts, ids] = process.argv.slice(2);
const library = await import(path);
library.env.allowRemoteModels = false;
library.env.localModelPath = "";
const tokenizer = await library.AutoTokenizer.from_pretrained(directory);
const { load } = await import(script);
// Ids need no network.
const config = { bert_keras: { characters: { dropped: "x", marks: "x", alone: "x" } } };
const AutoModel = { from_pretrained: () => ({ config }) };
const model = await load({ ...library, AutoModel }, directory);
const output = createWriteStream(ids);
for await (const line of createInterface({ input: createReadStream(texts) })) {
  const text = JSON.parse(line);
  const theirs = tokenizer.encode(text, { add_special_tokens: false });
  output.write(JSON.stringify([theirs, model.encode(text)]) + "\n");
}
output.end();

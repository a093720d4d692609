// Reads texts, a JSON string a line, and writes the ids that a directory's tokenizer
// gives them: node ids.mjs LIBRARY DIRECTORY TEXTS IDS
import { createReadStream, createWriteStream } from "node:fs";
import { createInterface } from "node:readline";

const [library, directory, texts, ids] = process.argv.slice(2);
const { AutoTokenizer, env } = await import(library);
env.allowRemoteModels = false;
env.localModelPath = "";
const tokenizer = await AutoTokenizer.from_pretrained(directory);
const output = createWriteStream(ids);
for await (const line of createInterface({ input: createReadStream(texts) })) {
  const found = tokenizer.encode(JSON.parse(line), { add_special_tokens: false });
  output.write(JSON.stringify(found) + "\n");
}
output.end();

// The answers of `bert-keras predict`, computed by transformers.js from the files of
// this folder. The library is an argument, so that pages and Node use the same script:
//
//   import * as library from "@huggingface/transformers";
//   const model = await load(library, "folder");
//   await model.answer("A text.");
//
// The library's own pipelines know less of the run: see docs/serving.md of bert-keras.

const SPECIAL = /\[(PAD|UNK|CLS|SEP|MASK)\]/g;

/** Loads a folder; `options` are those of `AutoModel.from_pretrained`: `dtype` is "q8"
 * (8 bits, the default) or "fp32". */
export async function load(library, folder, options = {}) {
  const { AutoModel, AutoTokenizer, Tensor } = library;
  const tokenizer = await AutoTokenizer.from_pretrained(folder);
  const network = await AutoModel.from_pretrained(folder, { dtype: "q8", ...options });
  const facts = network.config.bert_keras;
  const labels = Object.values(network.config.id2label ?? {});
  const longest = facts.max_seq_length;
  const [cls, sep, mask, unk] = tokenizer.convert_tokens_to_ids(
    ["[CLS]", "[SEP]", "[MASK]", "[UNK]"],
  );
  const pieces = [];
  for (const [piece, id] of tokenizer.get_vocab()) pieces[id] = piece;
  const { dropped, marks, alone } = facts.characters;
  const [isDropped, isMark, isAlone] = [dropped, marks, alone].map((set) => {
    const pattern = new RegExp(set, "u");
    return (char) => pattern.test(char);
  });
  let wasCut = false;

  // ---- from text to ids -------------------------------------------------------------

  // To the run a special token in a text is plain text; split, it is so here too.
  function encode(text) {
    const plain = text.replace(SPECIAL, "[ $1 ]");
    return tokenizer.encode(plain, { add_special_tokens: false });
  }

  function shorten(ids, length) {
    wasCut ||= ids.length > length;
    if (facts.long_texts !== "head_tail" || ids.length <= length) return ids.slice(0, length);
    const head = Math.floor((length * 128) / 510);
    return [...ids.slice(0, head), ...ids.slice(ids.length - (length - head))];
  }

  function pack(first, second = []) {
    if (!second.length) return wrap(shorten(first, longest - 2));
    // The longer of two texts is cut until both fit.
    const room = longest - 3;
    const half = Math.floor(room / 2);
    const start = shorten(first, Math.max(room - half, room - second.length));
    return wrap(start, shorten(second, Math.max(half, room - first.length)));
  }

  function wrap(first, second = null) {
    const row = [cls, ...first, sep];
    const ids = second ? [...row, ...second, sep] : row;
    return { ids, segments: ids.map((_, place) => Number(place >= row.length)) };
  }

  /** The first token of each window over a text, and the one after its last. */
  function windows(count, length, stride) {
    const spans = [[0, Math.min(count, length)]];
    while (spans.at(-1)[1] < count) {
      const start = spans.at(-1)[0] + Math.min(length, stride);
      spans.push([start, Math.min(count, start + length)]);
    }
    return spans;
  }

  // ---- from ids to numbers ----------------------------------------------------------

  async function run({ ids, segments }) {
    const tensor = (values) =>
      new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
    return network({
      input_ids: tensor(ids),
      attention_mask: tensor(ids.map(() => 1)),
      token_type_ids: tensor(segments),
    });
  }

  function rows({ data, dims }, places = [...Array(dims.at(-2)).keys()]) {
    const size = dims.at(-1);
    return places.map((row) => Array.from(data.subarray(row * size, (row + 1) * size)));
  }

  async function numbers(input) {
    const outputs = await run(input);
    if (outputs.logits) return rows(outputs.logits)[0];
    const vectors = rows(outputs.last_hidden_state);
    const pooled = facts.pooling === "cls" ? vectors[0] : mean(vectors);
    if (!facts.normalize) return pooled;
    const length = Math.hypot(...pooled) || 1;
    return pooled.map((x) => x / length);
  }

  const mean = (vectors) =>
    vectors[0].map((_, i) => vectors.reduce((sum, v) => sum + v[i], 0) / vectors.length);

  async function numbersOf(text, pair) {
    const ids = encode(text);
    if (!facts.long_texts.startsWith("windows") || pair !== undefined) {
      return numbers(pack(ids, pair === undefined ? [] : encode(pair)));
    }
    const parts = [];
    for (const span of windows(ids.length, longest - 2, facts.window_stride)) {
      parts.push(await numbers(wrap(ids.slice(...span))));
    }
    if (facts.long_texts === "windows_mean") return mean(parts);
    return parts[0].map((_, i) => Math.max(...parts.map((part) => part[i])));
  }

  function softmax(logits) {
    const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
    const powers = logits.map((x) => Math.exp(x - most));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((x) => x / sum);
  }

  const order = (scores) => [...scores.keys()].sort((a, b) => scores[b] - scores[a] || a - b);
  const named = (values) => Object.fromEntries(labels.map((name, i) => [name, values[i]]));

  // ---- answers of each kind ---------------------------------------------------------

  async function classification(text, pair) {
    const { temperature = 1, threshold = null, thresholds = null } = facts;
    const logits = await numbersOf(text, pair);
    const probabilities = softmax(logits.map((x) => x / temperature));
    const best = order(probabilities)[0];
    // A label without a threshold is never given: nothing reaches `undefined`.
    const least = thresholds === null ? threshold : thresholds[labels[best]];
    const isSure = least === null || probabilities[best] >= least;
    return { label: isSure ? labels[best] : "", probabilities: named(probabilities) };
  }

  async function multi_label(text, pair) {
    const { temperature = 1 } = facts;
    const logits = await numbersOf(text, pair);
    const values = logits.map((x) => 1 / (1 + Math.exp(-x / temperature)));
    const holds = order(values).filter((i) => values[i] >= facts.thresholds[labels[i]]);
    return { labels: holds.map((i) => labels[i]), probabilities: named(values) };
  }

  async function regression(text, pair) {
    const [score] = await numbersOf(text, pair);
    const { half_width: width = null } = facts;
    return width === null ? { score } : { score, low: score - width, high: score + width };
  }

  async function embedding(text) {
    return { embedding: await numbersOf(text) };
  }

  /** Scores passages for a question; `ranking` are their numbers, the best first. */
  async function ranking(question, passages) {
    const scores = [];
    for (const passage of passages) scores.push((await numbersOf(question, passage))[0]);
    const { temperature = 1, threshold = null } = facts;
    if (threshold === null) return { scores, ranking: order(scores) };
    const probability = Math.max(...softmax(scores.map((x) => x / temperature)));
    return { scores, ranking: order(scores), probability, is_sure: probability >= threshold };
  }

  /** The likeliest pieces for each `[MASK]` of a text. */
  async function pretraining(text, top = 5) {
    const ids = text.split("[MASK]").flatMap((part, i) => [...(i ? [mask] : []), ...encode(part)]);
    const input = pack(ids);
    const masks = input.ids.flatMap((id, place) => (id === mask ? [place] : []));
    return rows((await run(input)).logits, masks).map((logits) => {
      const probabilities = softmax(logits);
      // The table may have more rows than the vocabulary has pieces.
      const best = order(probabilities.slice(0, pieces.length)).slice(0, top);
      return best.map((id) => ({ token: pieces[id], probability: probabilities[id] }));
    });
  }

  /** The entities of a text, `text.slice(start, end)`, and the tags of its words. */
  async function tagging(text) {
    // 1. Words, each cut into pieces by itself.
    const inWord = `(?!${alone}|${dropped}|\\s)[^]`;
    const pattern = new RegExp(`${alone}|${inWord}(?:${dropped}*${inWord})*`, "gu");
    const words = [...text.matchAll(pattern)];
    const most = longest - 2;
    const spelled = words.map(([word]) => encode(word).slice(0, most));
    const starts = [0];
    for (const ids of spelled) {
      if (!ids.length) ids.push(unk);
      starts.push(starts.at(-1) + ids.length);
    }
    const before = (place) => starts.filter((start) => start < place).length;
    // 2. Windows around a long text's own words, as in the training.
    const own = starts.at(-1) > most ? Math.floor(most / 2) : most;
    const logits = [];
    for (let begin = 0; begin < words.length; ) {
      const fitting = before(starts[begin] + own + 1) - 1;
      const end = Math.min(words.length, Math.max(begin + 1, fitting));
      const room = most - (starts[end] - starts[begin]);
      let first = before(starts[begin] - Math.floor(room / 2));
      const last = before(starts[first] + most + 1) - 1;
      first = before(starts[last] - most);
      const scores = rows((await run(wrap(spelled.slice(first, last).flat()))).logits);
      for (; begin < end; begin++) logits.push(scores[1 + starts[begin] - starts[first]]);
    }
    // 3. The most probable tags. An entity begins with B-, S-, U-, or where no entity of
    // its type continues; a plain tag but O is inside of one.
    const found = [];
    const tags = [];
    let previous = "O";
    for (const [i, { 0: word, index: start }] of words.entries()) {
      const probabilities = softmax(logits[i]);
      const best = order(probabilities)[0];
      const label = labels[best];
      const tag = label === "O" || /^[BIESLU]-./.test(label) ? label : `I-${label}`;
      const isOver = previous.slice(2) !== tag.slice(2) || /^[ESLU]-/.test(previous);
      const begins = tag !== "O" && (/^[BSU]-/.test(tag) || isOver);
      tags.push(begins && label.startsWith("I-") ? `B-${label.slice(2)}` : label);
      previous = tag;
      if (begins) found.push({ label: tag.slice(2), start, first: i, shares: [] });
      if (tag === "O") continue;
      Object.assign(found.at(-1), { end: start + word.length, last: i });
      found.at(-1).shares.push(probabilities[best]);
    }
    // 4. The entities that are sure enough.
    const { temperature = 1, threshold = 0 } = facts;
    const entities = [];
    for (const { label, start, end, first, last, shares } of found) {
      const share = shares.reduce((a, b) => a + b, 0) / shares.length;
      const probability = 1 / (1 + (1 / share - 1) ** (1 / temperature));
      if (probability >= threshold) {
        entities.push({ label, start, end, text: text.slice(start, end), probability });
      } else tags.fill("O", first, last + 1);
    }
    return { entities, words: words.map(([word]) => word), tags };
  }

  /** What a character becomes: `.` is a word of its own, `w` part of a word, `m` a mark
   * that is stripped; nothing, if the character is dropped. */
  function kinds(char) {
    if (isDropped(char)) return "";
    if (isAlone(char)) return ".";
    const parts = facts.do_lower_case ? char.toLowerCase().normalize("NFD") : char;
    const found = Array.from(parts, (part) => {
      if (facts.do_lower_case && isMark(part)) return "m";
      return isAlone(part) ? "." : /\s/.test(part) ? " " : "w";
    }).join("");
    return found.replace(/^m+/, "") || found;
  }

  /** The pieces of a text with their places: `text.slice(start, end)`. */
  function locate(text) {
    const located = [];
    for (const { 0: chunk, index } of text.matchAll(/[\S\v\f\ufeff]+/g)) {
      const ids = encode(chunk)[Symbol.iterator]();
      const characters = [];
      let place = index;
      for (const char of chunk) {
        const start = place;
        place += char.length;
        for (const kind of kinds(char)) {
          if (kind !== "m") characters.push({ kind, start, end: place });
          else if (characters.length) characters.at(-1).end = place;
        }
      }
      const shape = characters.map(({ kind }) => kind).join("");
      for (const { 0: word, index: first } of shape.matchAll(/[.]|w+/g)) {
        for (let begin = 0; begin < word.length; ) {
          const id = ids.next().value;
          const size = [...pieces[id].replace(/^##(?=.)/su, "")].length;
          const end = id === unk ? word.length : begin + size;
          const { start } = characters[first + begin];
          located.push({ id, start, end: characters[first + end - 1].end });
          begin = end;
        }
      }
    }
    return located;
  }

  /** The answer to a question, `context.slice(start, end)`; "" if there is none. */
  async function span(question, context) {
    const { doc_stride, max_query_length, n_best_size, max_answer_length } = facts;
    const asked = encode(question).slice(0, max_query_length);
    const tokens = locate(context);
    const spans = windows(tokens.length, longest - 3 - asked.length, doc_stride);
    // 1. The window in which each token has most of the text around it.
    const best = tokens.map(() => -1);
    const owners = tokens.map(() => 0);
    for (const [number, [start, end]] of spans.entries()) {
      for (let token = start; token < end; token++) {
        const score = Math.min(token - start, end - 1 - token) + 0.01 * (end - start);
        if (score > best[token]) [best[token], owners[token]] = [score, number];
      }
    }
    // 2. Pairs of the best first and last tokens of each window.
    const pairs = [];
    let none = Infinity;
    for (const [number, [start, end]] of spans.entries()) {
      const ids = tokens.slice(start, end).map(({ id }) => id);
      const outputs = await run(wrap(asked, ids));
      const [begins, ends] = [outputs.start_logits.data, outputs.end_logits.data];
      none = Math.min(none, begins[0] + ends[0]);
      const shift = asked.length + 2 - start;
      const all = Array.from(ids, (_, i) => start + i);
      const top = (logits, places) =>
        places.sort((a, b) => logits[b + shift] - logits[a + shift]).slice(0, n_best_size);
      const lasts = top(ends, [...all]);
      for (const first of top(begins, all.filter((i) => owners[i] === number))) {
        for (const last of lasts) {
          if (last < first || last - first >= max_answer_length) continue;
          const score = begins[first + shift] + ends[last + shift];
          pairs.push({ score, start: tokens[first].start, end: tokens[last].end });
        }
      }
    }
    // 3. The best of each text, and "no answer" among them.
    pairs.sort((a, b) => b.score - a.score);
    const texts = new Set();
    const candidates = [];
    for (const pair of pairs) {
      const text = context.slice(pair.start, pair.end);
      if (candidates.length === n_best_size) break;
      if (!texts.has(text)) candidates.push({ text, ...pair });
      texts.add(text);
    }
    const [found] = candidates;
    const nothing = { text: "", score: none, start: 0, end: 0 };
    const { temperature = 1, threshold = null } = facts;
    const mayLack = "no_answer_threshold" in facts;
    if (mayLack || !found) {
      const place = candidates.filter(({ score }) => score >= none).length;
      candidates.splice(place, 0, nothing);
      if (place < n_best_size) candidates.length = Math.min(candidates.length, n_best_size);
    }
    const shares = softmax(candidates.map(({ score }) => score / temperature));
    // An answer beyond the best ones has no share.
    const share = (answer) => shares[candidates.indexOf(answer)] ?? 0;
    let lacks = !found || (mayLack && none - found.score > facts.no_answer_threshold);
    if (found && threshold !== null) lacks = !(share(found) >= threshold);
    const answer = lacks ? nothing : found;
    return {
      answer: answer.text,
      start: answer.start,
      end: answer.end,
      // A calibrated probability is that of the best text, given or not.
      probability: share(threshold === null ? answer : (found ?? nothing)),
      ...(threshold === null ? {} : { isUnsure: lacks }),
    };
  }

  const answers = { classification, multi_label, regression, embedding, ranking };
  Object.assign(answers, { pretraining, tagging, span });
  return {
    facts,
    encode,
    /** Answers; `wasCut` tells whether the model read the whole input. */
    async answer(...inputs) {
      wasCut = false;
      return answers[facts.kind](...inputs);
    },
    get wasCut() {
      return wasCut;
    },
  };
}

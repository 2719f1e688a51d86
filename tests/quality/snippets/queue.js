import { EventEmitter } from "node:events";

const DEFAULTS = { limit: 10, retry: { times: 3, delay: 250 }, tags: ["a", 'b', `c${1 + 1}`] };

/* A queue that runs
   its jobs in turn. */
export class Queue extends EventEmitter {
  #jobs = [];
  static count = 0;

  constructor(options = {}) {
    super();
    this.options = { ...DEFAULTS, ...options };
    Queue.count += 1;
  }

  get size() {
    return this.#jobs.length;
  }

  push(job, ...rest) {
    if (typeof job !== "function") {
      throw new TypeError(`expected a function but got ${typeof job}`);
    }
    this.#jobs.push(job, ...rest);
    return this;
  }

  async *run() {
    while (this.#jobs.length > 0) {
      const job = this.#jobs.shift();
      try {
        yield await job();
      } catch (error) {
        this.emit("error", error?.message ?? "unknown");
      } finally {
        // nothing is left open
      }
    }
  }
}

export function words(text) {
  const found = text.match(/[a-z]+(?:'[a-z]+)*/gi) || [];
  return found.map((word) => word.toLowerCase()).filter((word, i, all) => all.indexOf(word) === i);
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

for (const [key, value] of Object.entries(DEFAULTS)) {
  switch (typeof value) {
    case "number":
      console.log(key, value / 2, sum([1, 2, 3]));
      break;
    default:
      console.log(key, JSON.stringify(value));
  }
}

export default async function main({ limit = 1, verbose } = {}) {
  const queue = new Queue({ limit });
  queue.push(() => 1).push(async () => 2);
  for await (const result of queue.run()) {
    if (verbose && !(result % 2)) console.log(result);
    else continue;
  }
  return queue.size === 0 ? null : undefined;
}

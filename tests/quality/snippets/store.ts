import type { Reader } from "./reader";

export type Key = string | number;

export interface Entry<T> {
  readonly key: Key;
  value: T;
  tags?: readonly string[];
  render(this: Entry<T>, indent?: number): string;
}

enum Mode {
  Read = "read",
  Write = "write",
}

type Optional<T> = { [K in keyof T]?: T[K] };
type First<T> = T extends [infer Head, ...unknown[]] ? Head : never;

abstract class Store<T extends object> {
  private entries = new Map<Key, Entry<T>>();
  protected constructor(public readonly mode: Mode = Mode.Read) {}

  abstract open(path: string): Promise<void>;

  get(key: Key): T | undefined {
    return this.entries.get(key)?.value;
  }

  set<K extends Key>(key: K, value: T): this {
    if (this.mode !== Mode.Write) {
      throw new Error(`cannot write ${String(key)}`);
    }
    this.entries.set(key, { key, value, render: () => JSON.stringify(value as unknown) });
    return this;
  }
}

export class FileStore extends Store<{ name: string }> {
  static async create(reader: Reader, options: Optional<{ mode: Mode }> = {}): Promise<FileStore> {
    const made = new FileStore(options.mode ?? Mode.Write);
    await made.open(reader.path!);
    return made;
  }

  async open(path: string): Promise<void> {
    const parts = path.split("/") as [string, ...string[]];
    const head: First<typeof parts> = parts[0];
    for (let i = 0; i < parts.length; i++) {
      this.set(i, { name: head + parts[i] });
    }
  }
}

export function isEntry<T>(value: unknown): value is Entry<T> {
  return typeof value === "object" && value !== null && "key" in value;
}

declare const VERSION: `v${number}`;
export const table: Record<string, (x: number) => number> = { twice: (x) => x * 2, version: (x) => x + VERSION.length };

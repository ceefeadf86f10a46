// Everything a user does becomes an operation in a queue; one at a time it reaches the server, or is tried again.
import { Conflict, Offline } from "./api.js";

const RETRY_MS = 1000;
const wait = (ms) => new Promise((done) => setTimeout(done, ms));

export class Saver {
  /**
   * @param {(status: "saved"|"saving"|"offline", message: string) => void} onStatus
   * @param {(operation: object, error: Error) => Promise<void>} onTrouble what to do where the server refused one
   */
  constructor(onStatus, onTrouble) {
    this.onStatus = onStatus;
    this.onTrouble = onTrouble;
    this.queue = [];
    this.running = false;
  }

  get busy() {
    return this.running || this.queue.length > 0;
  }

  /**
   * Add an operation: {key, delay (ms, optional), send: async () => …}. One that waits with the same key is replaced,
   * as it would be overwritten at once.
   */
  add(operation) {
    const last = this.queue.at(-1);
    const waits = last && last.key === operation.key && !(this.running && this.queue.length === 1);
    if (waits) this.queue[this.queue.length - 1] = operation;
    else this.queue.push(operation);
    if (!this.running) this.run();
  }

  async run() {
    this.running = true;
    this.onStatus("saving", "Saving…");
    while (this.queue.length) {
      const operation = this.queue[0];
      if (operation.delay) await wait(operation.delay);
      try {
        await operation.send();
        this.queue.shift();
        if (this.queue.length) this.onStatus("saving", "Saving…");
      } catch (error) {
        await this.recover(operation, error);
      }
    }
    this.running = false;
    this.onStatus("saved", "Saved");
  }

  async recover(operation, error) {
    if (error instanceof Offline) {
      this.onStatus("offline", error.message);
      await wait(RETRY_MS);
      return;
    }
    try {
      const again = await this.onTrouble(operation, error);
      if (!again) this.queue.shift();
    } catch (further) {
      this.onStatus("offline", further.message);
      await wait(RETRY_MS);
    }
    if (!(error instanceof Conflict)) console.warn(error.message);
  }
}

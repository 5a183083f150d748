// `Live`: the overview, asked for once a second while somebody looks.

import { askJson, key, Refused } from "./api.js";

const SECONDS = 1;
const SECONDS_AFTER_FAILURE = 3;
const QUERY_WAIT_MS = 150;

/** Refusals that the same key will meet again: asking on would be no use. */
const FINAL = [401, 403];

export class Live {
  /** `onData(overview)`, `onState(state, text)`: off, wait, on, paused, refused or lost. */
  constructor(onData, onState) {
    this.onData = onData;
    this.onState = onState;
    this.query = {};
    this.paused = false;
    this.round = 0;
    document.addEventListener("visibilitychange", () => this.restart());
  }

  /** Which adapters to list: fields of the query. */
  setQuery(fields) {
    this.query = { ...this.query, ...fields };
    this.restart(QUERY_WAIT_MS);
  }

  /** Begins anew, with the keys and the query of now. `paused`: asks once more, and then no further. */
  restart(wait = 0) {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.round += 1;
    if (key("operator") === "") this.onState("off", "no operator's key");
    else if (!document.hidden) this.timer = setTimeout(() => this.look(this.round), wait);
  }

  /** Stops and goes on. */
  setPaused(paused) {
    this.paused = paused;
    this.restart();
  }

  async look(round) {
    this.abort = new AbortController();
    let seconds = SECONDS;
    try {
      const fields = Object.entries(this.query).filter(([, value]) => value !== "");
      const path = `v1/overview?${new URLSearchParams(fields)}`;
      const overview = await askJson("operator", "GET", path, { signal: this.abort.signal });
      if (round !== this.round) return;
      this.onState(this.paused ? "paused" : "on", this.paused ? "paused" : "live");
      this.onData(overview);
    } catch (error) {
      if (round !== this.round || error.name === "AbortError") return;
      if (!(error instanceof Refused)) throw error;
      if (FINAL.includes(error.status)) {
        this.onState("refused", error.message);
        return;
      }
      this.onState("lost", error.message);
      seconds = SECONDS_AFTER_FAILURE;
    }
    if (!this.paused) this.timer = setTimeout(() => this.look(round), seconds * 1000);
  }
}

// `Playground`: one prompt to several models side by side, each answer as it comes.

import { ask } from "./api.js";
import { announce, el, get, notice, setText } from "./dom.js";
import { count, figure, seconds } from "./format.js";
import { events } from "./stream.js";

export class Playground {
  constructor(models) {
    this.models = models;
    get("playground").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    get("stop").addEventListener("click", () => this.abort?.abort());
  }

  async ask() {
    const names = [...this.models.chosen];
    if (names.length === 0) {
      notice(get("models-notice"), "Add a model to ask first.");
      return;
    }
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    get("stop").disabled = false;
    const body = {
      messages: [{ role: "user", content: get("prompt").value }],
      max_tokens: Number(get("max-tokens").value),
      temperature: Number(get("temperature").value),
    };
    const answers = names.map((name) => new Answer(name));
    get("answers").replaceChildren(...answers.map((answer) => answer.card));
    announce(`asking ${names.join(", ")}`);
    await Promise.all(answers.map((answer) => answer.run(body, abort.signal)));
    if (this.abort !== abort) return;
    const hadFocus = document.activeElement === get("stop");
    get("stop").disabled = true;
    if (hadFocus) get("ask").focus();
    announce(answers.map((answer) => `${answer.name}: ${answer.text || answer.state}`).join(". "));
  }
}

/** One model's answer. */
class Answer {
  constructor(name) {
    this.name = name;
    this.text = "";
    this.state = "waits";
    this.said = el("p", { class: "said" });
    this.note = el("p", { class: "quiet" });
    this.card = el("article", { class: "answer", "aria-busy": "true" }, el("h3", { class: "name", text: name }), this.said, this.note);
  }

  async run(body, signal) {
    const began = performance.now();
    let first = null;
    let tokens = 0;
    let generation = "";
    this.tell("waits for its first token");
    try {
      const whole = { ...body, model: this.name, stream: true, stream_options: { include_usage: true } };
      const answer = await ask("api", "POST", "v1/chat/completions", { body: whole, signal });
      for await (const chunk of events(answer)) {
        first ??= performance.now();
        generation = chunk.system_fingerprint ?? generation;
        tokens = chunk.usage?.completion_tokens ?? tokens;
        const added = chunk.choices[0]?.delta?.content;
        if (added) {
          this.text += added;
          this.said.append(added);
          this.tell(`first token after ${seconds((first - began) / 1000)}`);
        }
      }
      const took = (performance.now() - began) / 1000;
      const parts = [`${count(tokens)} tokens in ${seconds(took)}`, `${figure(tokens / took)} tok/s`];
      if (first !== null) parts.push(`TTFT ${seconds((first - began) / 1000)}`);
      if (generation) parts.push(generation.slice(0, 8));
      this.tell(parts.join(" · "));
    } catch (error) {
      this.card.classList.toggle("failed", error.name !== "AbortError");
      this.tell(error.name === "AbortError" ? "stopped" : error.message);
    }
    this.card.setAttribute("aria-busy", "false");
  }

  tell(state) {
    this.state = state;
    setText(this.note, state);
  }
}

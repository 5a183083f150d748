// `Tenants`: who waits, and how long, where tenants are kept.

import { el, get, keyed, setText } from "./dom.js";
import { count, seconds } from "./format.js";

const COLUMNS = 9;

export class Tenants {
  show({ tenants }) {
    get("tenants-section").hidden = get("tenants-link").hidden = tenants === null;
    if (tenants === null) return;
    const { data, total } = tenants;
    const shown = data.length < total ? `, those with the longest queues first; ${count(data.length)} are shown` : "";
    setText(get("tenants-text"), `${count(total)} tenants${shown}. TTFT of the last minute; counts since the start.`);
    keyed(get("tenants").tBodies[0], data, {
      key: (tenant) => tenant.name,
      make: () =>
        el(
          "tr",
          {},
          el("th", { scope: "row", class: "name" }),
          ...Array.from({ length: COLUMNS - 1 }, () => el("td", { class: "number" })),
        ),
      update: (row, tenant) => {
        const { first_tokens: waits, since_start: used } = tenant;
        const texts = [
          tenant.name,
          count(tenant.weight),
          count(tenant.waiting),
          count(tenant.answering),
          tenant.waiting ? seconds(tenant.longest_wait_s) : "–",
          seconds(waits.p50_s),
          seconds(waits.p95_s),
          count(used.requests),
          count(used.generation_tokens),
        ];
        texts.forEach((text, index) => setText(row.children[index], text));
        row.classList.toggle("busy", tenant.waiting > 0);
      },
    });
  }
}

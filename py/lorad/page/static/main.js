// The page: who is asked for what, and where the answers are shown.

import { Adapters } from "./adapters.js";
import { keepKey, key, keyFault } from "./api.js";
import { Charts } from "./charts.js";
import { announce, get, notice, setText } from "./dom.js";
import { Live } from "./live.js";
import { Models } from "./models.js";
import { Playground } from "./playground.js";
import { PoolMap } from "./pool.js";
import { Tenants } from "./tenants.js";
import { startTheme } from "./theme.js";
import { Tiles } from "./tiles.js";

const NO_KEY = "Live figures are for operators: give the operator's key above.";

startTheme();

const live = new Live(show, connection);
const models = new Models();
new Playground(models);
const views = [new Tiles(), new PoolMap(), new Charts(), new Tenants()];
const adapters = new Adapters((query) => live.setQuery(query), () => live.restart());
let named = "";

function show(overview) {
  if (get("live").hidden) opened();
  setText(get("model"), `${overview.model.name}, ${overview.model.dtype}`);
  for (const view of [...views, adapters]) view.show(overview);
  // Names that have come or gone concern the playground.
  const { total } = overview.adapters;
  const ended = overview.operations.filter((operation) => operation.state === "succeeded").map((operation) => operation.id);
  const now = `${total} ${ended.join(" ")}`;
  if (named !== "" && named !== now) models.renew();
  named = now;
}

function setLive(isLive) {
  get("live").hidden = !isLive;
  for (const link of document.querySelectorAll("[data-live]")) link.hidden = !isLive;
}

/** The operator's key is right: it's out of the way from now on. */
function opened() {
  setLive(true);
  const box = get("keys-box");
  if (box.contains(document.activeElement)) box.firstElementChild.focus();
  box.open = false;
}

function connection(state, text) {
  const shown = get("connection");
  if (shown.dataset.state !== state) {
    announce(text);
    shown.dataset.state = state;
  }
  const words = { refused: "refused", lost: "lost" };
  setText(shown, words[state] ?? text);
  const texts = { off: NO_KEY, refused: `No live figures: ${text}.`, lost: `The figures stand still: ${text}.` };
  notice(get("live-notice"), texts[state] ?? "");
  // Figures that were fetched with another key go with it.
  if (state === "off" || state === "refused") {
    setLive(false);
    get("tenants-link").hidden = true;
    get("keys-box").open = true;
  }
}

function useKeys() {
  const typed = { operator: get("operator-key").value, api: get("api-key").value };
  const fault = keyFault(typed.operator) || keyFault(typed.api);
  notice(get("keys-notice"), fault);
  if (fault) return;
  keepKey("operator", typed.operator);
  keepKey("api", typed.api);
  live.restart();
  models.renew();
}

get("operator-key").value = key("operator");
get("api-key").value = key("api");
get("keys").addEventListener("submit", (event) => {
  event.preventDefault();
  useKeys();
});
get("forget").addEventListener("click", () => {
  get("operator-key").value = get("api-key").value = "";
  useKeys();
  announce("keys forgotten");
});
get("pause").addEventListener("click", () => {
  const paused = !live.paused;
  get("pause").setAttribute("aria-pressed", String(paused));
  live.setPaused(paused);
});

live.restart();
models.renew();

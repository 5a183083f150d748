// Light, dark, or as the system has it.

import { get } from "./dom.js";

const KEPT = "lorad.theme";

/** Begins with what was chosen last. */
export function startTheme() {
  const select = get("theme");
  const kept = localStorage.getItem(KEPT);
  if (["light", "dark"].includes(kept)) select.value = kept;
  const apply = () => {
    if (select.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = select.value;
  };
  select.addEventListener("change", () => {
    localStorage.setItem(KEPT, select.value);
    apply();
  });
  apply();
}

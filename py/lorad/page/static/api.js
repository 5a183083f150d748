// The server's endpoints, and the keys that open them. Keys go into headers and this tab's storage, never into a URL.

const KEYS = { operator: "lorad.operator-key", api: "lorad.api-key" };

/** A refusal, in the server's own words. `status` 0: the server wasn't reached. */
export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The key that was typed, "" if none was. `whose`: operator or api. */
export const key = (whose) => sessionStorage.getItem(KEYS[whose]) ?? "";

/** Keeps a key for as long as the tab lives; "" forgets it. */
export function keepKey(whose, value) {
  if (value === "") sessionStorage.removeItem(KEYS[whose]);
  else sessionStorage.setItem(KEYS[whose], value);
}

/** Why a text can't be sent as a key; "" if it can. */
export function keyFault(value) {
  return /^[\x21-\x7e]*$/.test(value) ? "" : "a key has no spaces and no letters beyond ASCII";
}

/** The path of an adapter. Its name is opaque, and slashes are part of it. */
export function adapterPath(name) {
  const parts = name.split("/");
  if (parts.some((part) => part === "." || part === "..")) {
    // Browsers take such a part for a step in the path, however it's written.
    throw new Refused(0, "name", `a browser can't send the name ${name}; use the lorad adapters command`);
  }
  return `v1/lora_adapters/${parts.map(encodeURIComponent).join("/")}`;
}

/** An answer, once its head is there; what isn't 2xx is thrown as `Refused`. */
export async function ask(whose, method, path, { body, signal } = {}) {
  const headers = {};
  if (key(whose) !== "") headers.Authorization = `Bearer ${key(whose)}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const options = { method, headers, signal, cache: "no-store", credentials: "omit" };
  if (body !== undefined) options.body = JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(new URL(path, document.baseURI), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "unreachable", "the server can't be reached");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

/** An answer's JSON. */
export async function askJson(whose, method, path, options) {
  return (await ask(whose, method, path, options)).json();
}

async function refusal(answer) {
  try {
    const { error } = await answer.json();
    return new Refused(answer.status, String(error.code), String(error.message));
  } catch {
    return new Refused(answer.status, "answer", `the server answered ${answer.status}, and not in lorad's form`);
  }
}

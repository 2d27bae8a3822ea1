// Asking the server. The token comes in the address behind `#`, and stays in this window.
const KEY = "backtrail-token";
let token = null;
const windows = "BroadcastChannel" in globalThis ? new BroadcastChannel("backtrail") : null;

export class Failed extends Error {
  constructor(status, code, message) { super(message); this.status = status; this.code = code; }
}

export async function begin() {
  const given = /^#token=([\w-]+)/.exec(location.hash);
  if (given) {
    sessionStorage.setItem(KEY, given[1]);
    history.replaceState(null, "", location.pathname + location.search);
  }
  token = sessionStorage.getItem(KEY) ?? await fromAnotherWindow();
  if (token) sessionStorage.setItem(KEY, token);
  // Another window of this very origin may be opened by a link in this one.
  windows?.addEventListener("message", (event) => {
    if (event.data?.wants === "token" && token) windows.postMessage({ token });
  });
  return token !== null;
}

function fromAnotherWindow() {
  if (!windows) return null;
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(null), 250);
    windows.addEventListener("message", (event) => {
      if (typeof event.data?.token === "string") { clearTimeout(timer); resolve(event.data.token); }
    });
    windows.postMessage({ wants: "token" });
  });
}

const listeners = new Set();
let up = true;
export function onServer(listener) { listeners.add(listener); return () => listeners.delete(listener); }
function isUp(now) {
  if (now !== up) { up = now; for (const one of listeners) one(up); }
}

async function asked(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: { ...options.headers, authorization: `Bearer ${token}` } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    isUp(false);
    throw new Failed(0, "gone", "The viewer does not answer. It was stopped: run `backtrail ui` again.");
  }
  isUp(true);
  return answer;
}

async function read(answer) {
  let body = null;
  try { body = await answer.json(); } catch { /* not ours */ }
  if (!answer.ok) {
    const error = body?.error ?? {};
    throw new Failed(answer.status, error.code ?? "error", error.message ?? `The viewer said ${answer.status}.`);
  }
  return body;
}

export const query = (params) => {
  const kept = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
};

export const get = async (path, params = {}) => read(await asked(`/api/${path}${query(params)}`));
export const post = async (path, body) => read(await asked(`/api/${path}`, {
  method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
}));
export const of = (id, rest = "") => `s/${encodeURIComponent(id)}${rest}`;

// Follow a stream until `stop` is called; it is opened again where it broke.
export function live(params, heard) {
  const ending = new AbortController();
  let after = params.after ?? 0;
  (async () => {
    let pause = 500;
    while (!ending.signal.aborted) {
      try {
        const answer = await asked(`/api/live${query({ ...params, after })}`, { signal: ending.signal });
        if (!answer.ok) { await read(answer); }
        pause = 500;
        heard("open", {});
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          const parts = (rest + value).split("\n\n");
          rest = parts.pop();
          for (const part of parts) {
            const found = Object.fromEntries(part.split("\n").map((line) => line.split(/: (.*)/s).slice(0, 2)));
            if (!found.event) continue;
            if (found.id) after = Number(found.id);
            heard(found.event, JSON.parse(found.data));
            if (found.event === "gone") return;
          }
        }
        isUp(false);
      } catch (error) {
        if (ending.signal.aborted) return;
        if (error.status === 404) { heard("gone", {}); return; }
        if (error.status === 401) { heard("refused", error); return; }
        isUp(false);
      }
      heard("closed", {});
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(5000, pause * 1.6);
    }
  })();
  return () => ending.abort();
}

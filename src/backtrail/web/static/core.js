// What every screen uses: elements, times, numbers, small parts.
import { h, render, Fragment } from "./vendor/preact.js";
import { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { h, render, Fragment, useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback };

export const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

export function size(n) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (n < 1000) return `${unit === "B" || n >= 100 ? Math.round(n) : n.toFixed(1)} ${unit}`;
    n /= 1000;
  }
  return `${n.toFixed(1)} TB`;
}

export function ago(ts, now = Date.now()) {
  const seconds = (now - Date.parse(ts)) / 1000;
  if (!(seconds >= 5)) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  if (seconds < 30 * 86400) return `${Math.floor(seconds / 86400)} d ago`;
  return new Date(ts).toLocaleDateString(undefined, { dateStyle: "medium" });
}

export const clock = (ts) => new Date(ts).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
export const moment = (ts) => new Date(ts).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
export const money = (usd) => usd == null ? "" : `$${usd >= 0.01 || !usd ? usd.toFixed(2) : usd.toFixed(4)}`;

// A time that grows old on the page.
export function Ago({ ts }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 20000);
    return () => clearInterval(timer);
  }, []);
  return ts ? html`<time datetime=${ts} title=${moment(ts)}>${ago(ts)}</time>` : null;
}

export function Lines({ plus, minus }) {
  if (!plus && !minus) return null;
  return html`<span class="lines">${plus ? html`<span class="plus">+${plus.toLocaleString("en")}</span>` : null}${
    minus ? html`<span class="minus">−${minus.toLocaleString("en")}</span>` : null}</span>`;
}

const LETTER = { added: "A", deleted: "D", modified: "M", renamed: "R", mode: "M", type: "T", "not captured": "?",
  create: "A", write: "M", delete: "D", chmod: "M", link: "L", merge: "↔", move: "R", skip: "·", conflict: "!" };
export function Badge({ status }) {
  const letter = LETTER[status] ?? status;
  return html`<span class=${`badge b-${{ A: "add", D: "del", M: "mod", R: "ren", "!": "bad" }[letter] ?? "other"}`} title=${status}>${letter}</span>`;
}

const PATHS = {
  back: "M9 5 4 10l5 5M4.500 10H14a5 5 0 0 1 0 10h-3",
  fork: "M6 4v5a4 4 0 0 0 4 4h4a4 4 0 0 0 4-4V4M12 13v7M6 4h0M18 4h0M12 20h0",
  tree: "M6 4v16M6 9h6a4 4 0 0 1 4 4v7",
  diff: "M12 4v10M7 9h10M7 19h10",
  search: "M10.500 4a6.500 6.500 0 1 0 0 13 6.500 6.500 0 0 0 0-13M15.500 15.500 21 21",
  pin: "M9 4h6l-1 6 3 3v2H7v-2l3-3zM12 15v6",
  box: "M4 5h16v4H4zM6 9v10h12V9M10 13h4",
  copy: "M8 8h11v12H8zM5 16V4h11",
  pen: "M4 20l1-5L16 4l4 4L9 19z",
  tag: "M4 4h8l8 8-8 8-8-8zM8 8h0",
  pulse: "M3 12h4l3-8 4 16 3-8h4",
  sun: "M12 7a5 5 0 1 0 0 10 5 5 0 0 0 0-10M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1 1M18 18l1 1M19 5l-1 1M6 18l-1 1",
  moon: "M20 14A8 8 0 1 1 10 4a7 7 0 0 0 10 10z",
  home: "M4 11 12 4l8 7M6 10v10h12V10",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  folder: "M3 6h6l2 2h10v11H3z",
  help: "M9 9a3 3 0 1 1 4 3c-1 .5-1 1-1 2M12 18h0",
  down: "M6 9l6 6 6-6",
  close: "M6 6l12 12M18 6 6 18",
  clock: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16M12 8v4l3 2",
};
export const Icon = ({ name }) =>
  html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;

// `page`: there is nothing else on the page, so this is its heading.
export function Empty({ title, children, page }) {
  return html`<div class="empty">${page ? html`<h1 class="empty-title">${title}</h1>` : html`<p class="empty-title">${title}</p>`}${children}</div>`;
}

export function Failure({ error, again, page }) {
  return html`${page ? html`<h1 class="sr">This cannot be shown</h1>` : null}<div class="failure" role="alert"><p>${error.message}</p>
    ${again ? html`<button onClick=${again}>Try again</button>` : null}</div>`;
}

// Data that a screen needs: null while it comes, and what went wrong.
export function useData(load, keys) {
  const [state, set] = useState({ data: null, error: null });
  const turn = useRef(0);
  const again = useCallback(() => {
    const mine = ++turn.current;
    return load().then(
      (data) => mine === turn.current && set({ data, error: null }),
      (error) => mine === turn.current && set((old) => ({ data: old.data, error })),
    );
  }, keys);
  useEffect(() => { set({ data: null, error: null }); again(); return () => { turn.current++; }; }, [again]);
  return { ...state, again };
}

export async function copyText(text) {
  try { await navigator.clipboard.writeText(text); return true; } catch { return false; }
}

// A line of code: spans with the classes of their syntax.
export const Code = ({ spans }) => spans.map(([kind, text]) => kind
  ? html`<span class=${kind.split(" ").map((one) => `s-${one}`).join(" ")}>${text}</span>` : text);

export function isTyping(event) {
  const target = event.target;
  return target.closest?.("input:not([type=range]):not([type=radio]):not([type=checkbox]), textarea, select, [contenteditable]");
}

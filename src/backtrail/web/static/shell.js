// What is around every screen: addresses, keys, notices, the palette, help.
import { html, useState, useEffect, useLayoutEffect, useRef, Icon, isTyping } from "./core.js";
import { get } from "./api.js";

export const link = (id, rest = "") => `/s/${encodeURIComponent(id)}${rest}`;
const routes = new Set();
export function onRoute(listener) { routes.add(listener); return () => routes.delete(listener); }
export function go(path, { replace = false, quiet = false } = {}) {
  if (path === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", path);
  // A quiet change is one that the screen has made itself.
  if (!quiet) moved();
}
function moved() { held ??= []; for (const one of routes) one(); }
addEventListener("popstate", moved);
addEventListener("click", (event) => {
  const to = event.target.closest?.("a[href]");
  if (!to || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (to.origin !== location.origin || to.target) return;
  event.preventDefault();
  go(to.pathname + to.search);
});

// --- notices ---
const notices = new Set();
let shown = [];
export function toast(text, kind = "") {
  const one = { text, kind, key: Math.random() };
  shown = [...shown.slice(-2), one];
  for (const notify of notices) notify(shown);
  setTimeout(() => { shown = shown.filter((other) => other !== one); for (const notify of notices) notify(shown); }, kind === "bad" ? 9000 : 4000);
}
export function Toasts() {
  const [list, set] = useState([]);
  useEffect(() => { notices.add(set); return () => notices.delete(set); }, []);
  return html`<div class="toasts" role="status" aria-live="polite">${list.map((one) => html`<div key=${one.key} class=${`toast ${one.kind === "bad" ? "toast-bad" : ""}`}>${one.text}</div>`)}</div>`;
}

// --- keys: those of the screen, then those that hold everywhere ---
const stack = [];
// Always those of the last rendering: what is seen can be acted on.
export function useKeys(keys) {
  const last = useRef(keys);
  last.current = keys;
  useLayoutEffect(() => { stack.push(last); return () => stack.splice(stack.indexOf(last), 1); }, []);
}
let before = "";
// While a screen comes, what is typed waits for it: it was meant for what the address says.
let held = null;
export function arrived() {
  const keys = held ?? [];
  held = null;
  for (const key of keys) {
    const box = document.activeElement;
    if (isTyping({ target: box }) && key.length === 1) { box.value += key; box.dispatchEvent(new Event("input", { bubbles: true })); }
    else press({ key, target: document.body, preventDefault() {} });
  }
}
addEventListener("keydown", (event) => {
  if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") { event.preventDefault(); open("palette"); return; }
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  if (isTyping(event)) { if (event.key === "Escape") event.target.blur(); return; }
  if (held) { event.preventDefault(); held.push(event.key); return; }
  press(event);
});
function press(event) {
  const name = before === "g" ? `g ${event.key}` : event.key;
  before = event.key === "g" && before !== "g" ? "g" : "";
  // A button that has the focus is pressed by these.
  if ((event.key === "Enter" || event.key === " ") && event.target.closest?.("button, a, summary, input")) return;
  for (let i = stack.length - 1; i >= 0; i--) {
    const act = stack[i].current[name];
    if (act) { event.preventDefault(); act(event); return; }
  }
}

const openers = new Set();
export const open = (what) => { for (const one of openers) one(what); };

const KEYS = [
  ["j / k", "next and previous prompt, row or file"], ["[ / ]", "previous and next change in a diff"], ["n / p", "next and previous file"],
  ["d", "diff"], ["b", "files and who wrote them"], ["t", "tree of branches"], ["r", "rewind to before this prompt"], ["u", "undo the last"],
  ["f", "fork from here"], ["y", "copy the line that resumes"], ["/", "search"], ["⌘K", "everything by name"], ["g h", "all sessions"],
  ["G, Esc", "back to now"], ["?", "these keys"],
];

export function Dialogs({ id }) {
  const [what, set] = useState(null);
  useEffect(() => { openers.add(set); return () => openers.delete(set); }, []);
  // One that closes may be heard of after the next has opened.
  const close = (own) => () => set((now) => now === own ? null : now);
  if (what === "help") return html`<${Modal} label="Keys" close=${close("help")}>
    <h2>Keys</h2><dl class="keys">${KEYS.map(([key, text]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl></${Modal}>`;
  if (what === "palette") return html`<${Palette} id=${id} close=${close("palette")} />`;
  return null;
}

export function Modal({ label, close, children, className = "" }) {
  const box = useRef(null);
  useEffect(() => { const node = box.current; node.showModal(); return () => node.open && node.close(); }, []);
  return html`<dialog class=${className} ref=${box} aria-label=${label} onClose=${close} onClick=${(event) => event.target === box.current && close()}>
    <div class="dialog-body">${children}</div></dialog>`;
}

function Palette({ id, close }) {
  const [text, setText] = useState(""), [at, setAt] = useState(0), [sessions, set] = useState([]);
  useEffect(() => { get("home", { q: text }).then((found) => set(found.sessions.slice(0, 12)), () => {}); }, [text]);
  const here = id ? [["Rewind", link(id, "/rewind?last=1")], ["Undo", link(id, "/undo")], ["Redo", link(id, "/redo")], ["Diff of the session", link(id, "/diff?from=0")],
    ["Tree of branches", link(id, "/tree")], ["Files", link(id, "/file")], ["What was not captured", link(id, "/health")]] : [];
  const words = [...here, ["All sessions", "/"], ["Search", `/search?q=${encodeURIComponent(text)}`], ["Health", "/health"]];
  const found = [...words.filter(([name]) => name.toLowerCase().includes(text.toLowerCase())).map(([name, to]) => ({ name, to, kind: "" })),
    ...sessions.map((one) => ({ name: one.title || one.short, to: link(one.id), kind: one.agent || one.model }))];
  if (text && !found.some((one) => one.name === "Search")) found.push({ name: `Search “${text}”`, to: `/search?q=${encodeURIComponent(text)}`, kind: "" });
  const take = (one) => { close(); if (one) go(one.to); };
  const pressed = (event) => {
    if (event.key === "ArrowDown") { event.preventDefault(); setAt(Math.min(found.length - 1, at + 1)); }
    else if (event.key === "ArrowUp") { event.preventDefault(); setAt(Math.max(0, at - 1)); }
    else if (event.key === "Enter") { event.preventDefault(); take(found[at]); }
  };
  return html`<${Modal} label="Go to" close=${close} className="palette">
    <input type="text" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant=${`palette-${at}`} aria-label="Go to"
      placeholder="Go to a session or a screen" value=${text} autofocus onInput=${(event) => { setText(event.target.value); setAt(0); }} onKeyDown=${pressed} />
    <ul id="palette-list" role="listbox" aria-label="Places">${found.map((one, n) => html`<li key=${n} id=${`palette-${n}`} role="option" aria-selected=${n === at}
      onMouseMove=${() => setAt(n)} onClick=${() => take(one)}><span>${one.name}</span><span class="muted">${one.kind}</span></li>`)}</ul></${Modal}>`;
}

// The page: which screen an address is, and what stays around it.
import { html, render, useState, useEffect, Icon, Failure, Empty } from "./core.js";
import { begin, onServer, post, of } from "./api.js";
import { arrived, go, link, onRoute, open, Toasts, Dialogs, useKeys, toast } from "./shell.js";

const screens = {
  home: () => import("./home.js").then((m) => m.HomeScreen),
  session: () => import("./session.js").then((m) => m.SessionScreen),
  diff: () => import("./diff.js").then((m) => m.DiffScreen),
  tree: () => import("./tree.js").then((m) => m.TreeScreen),
  rewind: () => import("./rewind.js").then((m) => m.RewindScreen),
  file: () => import("./file.js").then((m) => m.FileScreen),
  search: () => import("./search.js").then((m) => m.SearchScreen),
  health: () => import("./health.js").then((m) => m.HealthScreen),
};

function route() {
  const params = Object.fromEntries(new URLSearchParams(location.search));
  const parts = location.pathname.split("/").filter(Boolean);
  try { for (let i = 0; i < parts.length; i++) parts[i] = decodeURIComponent(parts[i]); } catch { return { screen: "none" }; }
  const [top, id, what, which] = parts;
  if (!top) return { screen: "home", params };
  if (top === "search" || top === "health") return { screen: top, params };
  if (top !== "s" || !id) return { screen: "none" };
  if (!what) return { screen: "session", id, params };
  if (what === "e" && /^\d+$/.test(which ?? "")) return { screen: "session", id, seq: Number(which), params };
  if (["rewind", "undo", "redo"].includes(what)) return { screen: "rewind", id, verb: what, params };
  if (["diff", "tree", "file", "health"].includes(what)) return { screen: what, id, params };
  return { screen: "none" };
}

function theme(next) {
  const root = document.documentElement;
  if (next) { root.dataset.theme = next; try { localStorage.setItem("backtrail-theme", next); } catch { /* private */ } }
  return root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}
try { const kept = localStorage.getItem("backtrail-theme"); if (kept) document.documentElement.dataset.theme = kept; } catch { /* private */ }

// What was done last: it stays one key away until it is taken back or waved off.
let tellDone = () => {};
export const done = (what) => tellDone(what);
globalThis.backtrailDone = done;

function App() {
  const [wanted, setWanted] = useState(route()), [view, setView] = useState({ at: wanted, Screen: null }), [up, setUp] = useState(true), [dark, setDark] = useState(theme() === "dark");
  const [last, setLast] = useState(null);
  tellDone = setLast;
  useEffect(() => onRoute(() => setWanted(route())), []);
  useEffect(() => onServer(setUp), []);
  useEffect(() => {
    // An address and its screen change together.
    let over = false;
    if (!screens[wanted.screen]) { setView({ at: wanted, Screen: null }); return; }
    const load = () => screens[wanted.screen]().then((Screen) => over || setView({ at: wanted, Screen }), () => over || setTimeout(load, 1000));
    load();
    return () => { over = true; };
  }, [wanted]);
  // Behind the effects of the screen: by now it has its keys and its focus.
  useEffect(() => { const timer = setTimeout(arrived); return () => clearTimeout(timer); }, [view]);
  const { at, Screen } = view;
  useEffect(() => { const name = { home: "Sessions", session: "Session" }[at.screen] ?? at.screen[0].toUpperCase() + at.screen.slice(1); document.title = `${name} · Backtrail`; }, [at.screen]);
  useKeys({ "/": () => go("/search"), "?": () => open("help"), "g h": () => go("/"), "g s": () => go("/search") });
  const flip = () => { const next = theme() === "dark" ? "light" : "dark"; theme(next); setDark(next === "dark"); };
  const screen = at.screen === "none" ? html`<${Empty} page title="There is nothing at this address"><p><a href="/">All sessions</a></p></${Empty}>`
    : Screen ? html`<${Screen} key=${at.screen} ...${at} />` : null;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>To the content</a>
    <header class="bar">
      <a class="brand" href="/" aria-label="Backtrail"><${Icon} name="back" /><span class=${at.id ? "not-narrow" : ""}>Backtrail</span></a>
      ${at.id ? html`<a class="crumb" href=${link(at.id)}>${at.screen === "session" ? "Session" : "← Session"}</a>` : null}
      <span class="grow"></span>
      <button class="find" onClick=${() => open("palette")} aria-keyshortcuts="Control+K"><${Icon} name="search" /><span>Go to…</span><kbd>⌘K</kbd></button>
      <a class="icon-button" href="/search" aria-label="Search" title="Search  /"><${Icon} name="search" /></a>
      <a class="icon-button" href="/health" aria-label="Health" title="Health"><${Icon} name="pulse" /></a>
      <button class="icon-button" aria-label=${dark ? "Light colours" : "Dark colours"} title="Colours" onClick=${flip}><${Icon} name=${dark ? "sun" : "moon"} /></button>
      <button class="icon-button" aria-label="Keys" title="Keys  ?" onClick=${() => open("help")}><${Icon} name="help" /></button>
    </header>
    ${up ? null : html`<div class="down" role="alert">The viewer does not answer. If it was stopped, run <code>backtrail ui</code> again; this page goes on when it is back.</div>`}
    <main id="main" tabindex="0">${screen}</main>
    ${last ? html`<${Done} last=${last} close=${() => setLast(null)} />` : null}
    <${Dialogs} id=${at.id} /><${Toasts} />`;
}

function Done({ last, close }) {
  const [busy, setBusy] = useState(false);
  const back = last.verb === "undo" ? "redo" : "undo";
  const take = async () => {
    setBusy(true);
    try {
      const plan = await post(of(last.id, "/preview"), { verb: back });
      if (plan.conflicts || plan.error) { close(); go(link(last.id, `/${back}`)); return; }
      await post(of(last.id, "/act"), { verb: back, plan: plan.plan });
      close();
      toast(back === "undo" ? "Taken back: all is as before." : "Done again.");
      go(link(last.id));
    } catch (error) { toast(error.message, "bad"); setBusy(false); }
  };
  return html`<div class="done" role="status"><span>${last.text}</span><span class="grow"></span>
    <button class="primary small" disabled=${busy} onClick=${take}>${back === "undo" ? "Undo" : "Redo"}</button>
    <button class="icon-button" aria-label="Close" onClick=${close}><${Icon} name="close" /></button></div>`;
}

if (await begin()) render(html`<${App} />`, document.getElementById("app"));
else render(html`<main class="alone"><${Icon} name="back" /><h1>This window has no key</h1>
  <p>Run <code>backtrail ui</code> again: it opens a window on the viewer that runs, and prints its address with <code>--no-browser</code>.</p></main>`, document.getElementById("app"));

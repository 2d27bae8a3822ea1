// How things stand: what is not captured, what hooks missed, space, what was cut short.
import { html, Failure, Ago, plural, size, useData } from "./core.js";
import { get, of } from "./api.js";
import { go, link, useKeys } from "./shell.js";

const Card = ({ title, state, children }) => html`<section class=${`health-card ${state}`} aria-label=${title}><h2><span class="state" aria-hidden="true"></span>${title}<span class="sr">: ${state}</span></h2>${children}</section>`;

export function HealthScreen({ id }) {
  const { data, error, again } = useData(() => get("health"), []);
  const own = useData(() => id ? get(of(id, "/uncaptured")) : Promise.resolve(null), [id]);
  useKeys({ Escape: () => go(id ? link(id) : "/") });
  if (error ?? own.error) return html`<${Failure} page error=${error ?? own.error} again=${again} />`;
  if (!data) return html`<div class="loading">Reading…</div>`;
  const { contents, misses, calls } = data;
  const part = contents ? contents.used / contents.budget : 0;
  return html`<div class="screen health"><header class="head"><div class="head-title"><h1>Health</h1><p class="facts"><span>${data.store}</span></p></div></header>
    <div class="health-cards">
      ${own.data ? html`<${Card} title="Not captured in this session" state=${own.data.total ? "warning" : "ok"}>${own.data.total ? html`<ul class="plain-list">${own.data.rows.slice(0, 50).map(([path, why, bytes]) => html`<li><code>${path}</code> <span class="muted">${why}${bytes ? `, ${size(bytes)}` : ""}</span></li>`)}</ul>` : html`<p>All was captured.</p>`}</${Card}>` : null}
      <${Card} title="Store" state=${data.writable && !data.problems.length ? "ok" : "bad"}><p>${plural(data.sessions, "session")}, ${plural(data.turns, "turn")}, ${plural(data.messages, "message")}</p>
        ${data.writable ? null : html`<p>It can be read and not written: nothing is recorded, and nothing goes back.</p>`}${data.problems.map((text) => html`<p class="is-bad">${text}</p>`)}</${Card}>
      <${Card} title="Space for contents of files" state=${part > 1 ? "bad" : part > 0.9 ? "warning" : "ok"}>${contents ? html`<p>${size(contents.used)} of ${size(contents.budget)}</p><progress max="1" value=${Math.min(1, part)} aria-label="Space used"></progress><p class="muted">${plural(contents.folders, "folder")} watched</p>` : html`<p>No files were captured yet.</p>`}</${Card}>
      <${Card} title="Hooks" state=${misses?.count ? "warning" : "ok"}>${misses?.count ? html`<p>${plural(misses.count, "event")} missed</p><ul class="plain-list">${misses.rows.slice(0, 20).map((row) => html`<li><${Ago} ts=${row.ts} /> ${row.agent} ${row.event}: <span class="muted">${row.why}</span></li>`)}</ul>` : html`<p>Nothing was missed.</p>`}</${Card}>
      <${Card} title="Restores" state=${contents?.cut_short.length ? "warning" : "ok"}>${contents?.cut_short.length ? html`<p>Cut short, and finished by the next look at the folder:</p><ul class="plain-list">${contents.cut_short.map((path) => html`<li><code>${path}</code></li>`)}</ul>` : html`<p>None was cut short.</p>`}</${Card}>
      <${Card} title="Calls under way" state=${calls?.some((one) => !one.lives && !one.over) ? "warning" : "ok"}>${calls?.length ? html`<ul class="plain-list">${calls.map((one) => html`<li>${one.what}${one.lives ? "" : html` <span class="is-warn">its process is gone</span>`}</li>`)}</ul>` : html`<p>None is open.</p>`}</${Card}>
      <${Card} title="Folders" state=${data.gone.length ? "warning" : "ok"}>${data.gone.length ? html`<p>Of ${plural(data.gone.length, "session")} the folder is gone:</p><ul class="plain-list">${data.gone.slice(0, 20).map((one) => html`<li><a href=${link(one.id)}>${one.title || one.short}</a> <code>${one.cwd}</code></li>`)}</ul>` : html`<p>Every session's folder is there.</p>`}</${Card}>
      <${Card} title="Settings" state="ok"><dl class="facts-list">${data.settings.map(([name, value, origin]) => html`<div><dt>${name}</dt><dd>${{ None: "not set", True: "on", False: "off" }[value] ?? value} <span class="muted">${origin}</span></dd></div>`)}</dl></${Card}>
    </div></div>`;
}

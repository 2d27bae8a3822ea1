// All sessions: by folder and filter, named, pinned, tagged, archived.
import { html, useState, useEffect, useRef, Icon, Ago, Failure, Empty, plural, money, copyText, useData } from "./core.js";
import { get, post, of, live, query } from "./api.js";
import { go, link, toast, useKeys } from "./shell.js";

export function HomeScreen({ params }) {
  const { folder, agent, tag, q, archived } = params;
  const { data, error, again } = useData(() => get("home", { folder, agent, tag, q, archived }), [folder, agent, tag, q, archived]);
  const [more, setMore] = useState([]), [at, setAt] = useState(0), [editing, setEditing] = useState(null);
  const find = useRef(null), rows = useRef([]);
  useEffect(() => setMore([]), [data]);
  useEffect(() => live({}, (what) => what === "sessions" && again()), [again]);
  useEffect(() => { const timer = setInterval(again, 15000); return () => clearInterval(timer); }, [again]);
  const sessions = [...(data?.sessions ?? []), ...more];
  const filter = (changes) => go(`/${query({ folder, agent, tag, q, archived, ...changes })}`, { replace: true });
  const move = (delta) => { const next = Math.max(0, Math.min(sessions.length - 1, at + delta)); setAt(next); rows.current[next]?.focus(); };
  const one = sessions[at];
  const change = async (session, body, text) => {
    try { await post(of(session.id, "/label"), body); again(); if (text) toast(text); } catch (problem) { toast(problem.message, "bad"); }
  };
  const copy = (session) => copyText(session.resume).then((ok) => toast(ok ? "Resume line copied" : session.resume));
  useKeys({
    j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1), Enter: () => one && go(link(one.id)),
    "/": () => find.current?.focus(), e: () => one && !data.read_only && setEditing({ id: one.id, what: "title" }), "#": () => one && !data.read_only && setEditing({ id: one.id, what: "tag" }),
    p: () => one && change(one, { tags: { pinned: !one.pinned } }), x: () => one && change(one, { tags: { archived: !one.archived } }, one.archived ? "Listed again" : "Archived"),
    y: () => one && copy(one), r: () => one && go(link(one.id, "/rewind")),
  });
  const running = sessions.filter((session) => session.running).length;
  return html`<div class="home">
    <aside class="folders" aria-label="Folders">
      <h2>Folders</h2>
      <button class="folder" aria-current=${!folder ? "true" : null} onClick=${() => filter({ folder: "" })}><span>All folders</span></button>
      ${(data?.folders ?? []).filter(([name]) => name).map(([name, count]) => html`<button key=${name} class="folder" aria-current=${folder === name ? "true" : null} title=${name} onClick=${() => filter({ folder: name })}>
        <bdi>${name.split("/").filter(Boolean).at(-1) ?? "/"}</bdi><span class="count">${count}</span></button>`)}
      <label class="check"><input type="checkbox" checked=${archived === "1"} onChange=${(event) => filter({ archived: event.target.checked ? "1" : "" })} />Archived, too</label>
    </aside>
    <section class="sessions">
      <header class="home-head"><h1>Sessions</h1>
        ${data ? html`<span class="muted">${data.total.toLocaleString("en")}${running ? html` · <span class="dot"></span> ${running} at work` : ""}</span>` : null}<span class="grow"></span>
        <input ref=${find} type="search" aria-label="Filter sessions" placeholder="Filter by name, folder, model" value=${q ?? ""} onInput=${(event) => filter({ q: event.target.value })} onKeyDown=${(event) => { if (event.key === "ArrowDown") { event.preventDefault(); event.target.blur(); rows.current[0]?.focus(); } }} />
        <${Pick} label="Folder" all="All folders" value=${folder} options=${data?.folders ?? []} choose=${(value) => filter({ folder: value })} only="only-narrow" />
        <${Pick} label="Agent" all="All agents" value=${agent} options=${data?.agents ?? []} choose=${(value) => filter({ agent: value })} />
        <${Pick} label="Tag" all="All tags" value=${tag} options=${data?.tags ?? []} choose=${(value) => filter({ tag: value })} />
      </header>
      ${data?.read_only ? html`<p class="muted pad">Read-only: nothing can be changed here.</p>` : null}
      ${error ? html`<${Failure} error=${error} again=${again} />` : null}
      ${!data && !error ? html`<div class="loading">Reading…</div>` : data && !sessions.length ? html`<${Empty} title=${q || folder || agent || tag ? "No such session" : "No session yet"}>
        ${q || folder || agent || tag ? html`<button onClick=${() => go("/")}>Show all</button>` : html`<p>Record what an agent does: <code>backtrail hooks install claude-code</code>, or <code>backtrail record -- COMMAND</code>.</p>`}</${Empty}>` : null}
      <ul class="cards">${sessions.map((session, n) => html`<li key=${session.id} class=${`card ${n === at ? "at" : ""}`} onFocusIn=${() => setAt(n)}>
        ${editing?.id === session.id ? html`<${Edit} session=${session} what=${editing.what} close=${() => { setEditing(null); rows.current[n]?.focus(); }} save=${(body) => change(session, body)} />` : html`
        <a class="card-link" href=${link(session.id)} ref=${(node) => { rows.current[n] = node; }}>
          <span class="card-title">${session.running ? html`<span class="dot" title="at work"></span>` : null}${session.pinned ? html`<span class="pinned" title="pinned"><${Icon} name="pin" /></span>` : null}<bdi>${session.title || "Nothing said yet"}</bdi></span>
          <span class="card-facts">${[session.agent || session.model, plural(session.turns, "turn"), session.cost == null ? "" : money(session.cost)].filter(Boolean).map((fact) => html`<span key=${fact}>${fact}</span>`)}<bdi class="card-cwd">${session.cwd}</bdi></span>
        </a>`}
        <span class="tags">${session.tags.filter((name) => !["pinned", "archived"].includes(name)).map((name) => html`<button key=${name} class="tag" onClick=${() => filter({ tag: name })}>${name}</button>`)}${session.archived ? html`<span class="tag">archived</span>` : null}</span>
        <span class="card-when"><${Ago} ts=${session.updated} /></span>
        <span class="card-acts">
          ${data.read_only ? null : html`<button class="icon-button" aria-label=${`Rename ${session.title}`} title="Rename  e" onClick=${() => setEditing({ id: session.id, what: "title" })}><${Icon} name="pen" /></button>
          <button class="icon-button" aria-pressed=${session.pinned} aria-label=${`Pin ${session.title}`} title="Pin  p" onClick=${() => change(session, { tags: { pinned: !session.pinned } })}><${Icon} name="pin" /></button>
          <button class="icon-button" aria-label=${`Tag ${session.title}`} title="Tag  #" onClick=${() => setEditing({ id: session.id, what: "tag" })}><${Icon} name="tag" /></button>
          <button class="icon-button" aria-pressed=${session.archived} aria-label=${`Archive ${session.title}`} title="Archive  x" onClick=${() => change(session, { tags: { archived: !session.archived } }, session.archived ? "Listed again" : "Archived")}><${Icon} name="box" /></button>`}
          <button class="icon-button" aria-label=${`Copy the resume line of ${session.title}`} title="Copy resume line  y" onClick=${() => copy(session)}><${Icon} name="copy" /></button>
        </span></li>`)}</ul>
      ${data && sessions.length < data.total ? html`<button class="link" onClick=${() => get("home", { folder, agent, tag, q, archived, after: sessions.length }).then((found) => setMore([...more, ...found.sessions]))}>${plural(data.total - sessions.length, "more session")}</button>` : null}
    </section></div>`;
}

const Pick = ({ label, all, value, options, choose, only = "" }) => options.length || value ? html`<select class=${only} aria-label=${label} value=${value ?? ""} onChange=${(event) => choose(event.target.value)}>
  <option value="">${all}</option>${options.filter(([name]) => name).map(([name]) => html`<option key=${name} value=${name}>${name}</option>`)}</select>` : null;

function Edit({ session, what, close, save }) {
  const [text, setText] = useState(what === "title" ? session.named : "");
  const box = useRef(null);
  useEffect(() => { box.current.focus(); box.current.select(); }, []);
  const done = async () => {
    if (what === "title") await save({ title: text });
    else if (text.trim()) await save({ tags: { [text.trim().replace(/^-/, "")]: !text.trim().startsWith("-") } });
    close();
  };
  return html`<input class="edit" ref=${box} aria-label=${what === "title" ? "New title" : "A tag to put on; -tag takes it off"} placeholder=${what === "title" ? session.title : "tag, or -tag to take it off"} value=${text} onInput=${(event) => setText(event.target.value)}
    onKeyDown=${(event) => { if (event.key === "Enter") { event.preventDefault(); done(); } else if (event.key === "Escape") { event.preventDefault(); close(); } }} onBlur=${close} />`;
}

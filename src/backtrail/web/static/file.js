// One file: its versions, how it was at any of them, and getting it back.
import { html, useState, useEffect, useRef, Icon, Badge, Lines, Ago, Code, Failure, Empty, plural, size, useData } from "./core.js";
import { get, post, of, query } from "./api.js";
import { go, link, toast, useKeys } from "./shell.js";
import { List } from "./list.js";
import { DiffOf } from "./diff.js";
import { Path } from "./session.js";

export function FileScreen({ id, params }) {
  return params.path ? html`<${OneFile} id=${id} params=${params} />` : html`<${AllFiles} id=${id} at=${params.at} dir=${params.dir ?? ""} />`;
}

function AllFiles({ id, at, dir }) {
  const { data, error, again } = useData(() => get(of(id, "/folder"), { dir, at }), [id, dir, at]);
  const above = dir.includes("/") ? dir.slice(0, dir.lastIndexOf("/")) : "";
  const [here, setHere] = useState(0), rows = useRef([]);
  const move = (delta) => { const next = Math.max(0, Math.min((data?.entries.length ?? 1) - 1, here + delta)); setHere(next); rows.current[next]?.focus(); };
  useKeys({ j: () => move(1), k: () => move(-1), Escape: () => go(dir ? link(id, `/file${query({ at, dir: above })}`) : link(id)) });
  return html`<div class="screen"><header class="head"><div class="head-title"><h1>${dir || "Files"}</h1><p class="facts"><span>${at ? `as they were at ${data?.place ?? "a moment"}` : "as they were last seen"}</span></p></div>
    <nav class="head-acts" aria-label="Files">${at ? html`<a class="button" href=${link(id, `/file${query({ dir })}`)}>Now</a>` : null}${dir ? html`<a class="button" href=${link(id, `/file${query({ at, dir: above })}`)}>Up</a>` : null}</nav></header>
    ${error ? html`<${Failure} error=${error} again=${again} />` : !data ? html`<div class="loading">Reading…</div>` : !data.entries.length ? html`<${Empty} title="Nothing in here" />` : html`
    <ul class="entries">${data.entries.map(([name, kind, bytes], n) => { const path = dir ? `${dir}/${name}` : name; return html`<li key=${name}>
      <a ref=${(node) => { rows.current[n] = node; }} href=${link(id, `/file${query(kind === "directory" ? { dir: path, at } : { path, at })}`)}><${Icon} name=${kind === "directory" ? "folder" : "file"} /><bdi>${name}</bdi><span class="muted">${kind === "file" ? size(bytes) : kind === "directory" ? "" : kind}</span></a></li>`; })}</ul>
    ${data.more ? html`<p class="muted">and ${data.more} more</p>` : null}`}</div>`;
}

function OneFile({ id, params }) {
  const { path, at } = params;
  const info = useData(() => get(of(id)), [id]).data;
  const versions = useData(() => get(of(id, "/versions"), { path }), [id, path]);
  const rows = versions.data?.versions ?? [];
  // A version is of a session, perhaps of another one in the same folder.
  const owner = params.of ?? id;
  const chosen = rows.findIndex((one) => String(one.seq) === String(at) && one.session === owner);
  const gone = chosen >= 0 && rows[chosen].gone;
  const content = useData(() => gone ? Promise.resolve({ why: "deleted here" }) : get(of(owner, "/file"), { path, at }), [owner, path, at, gone]);
  const lines = content.data?.lines;
  const [tab, setTab] = useState("file"), [blame, setBlame] = useState(null);
  const list = useRef(null);
  const show = (n) => rows[n] && go(link(id, `/file${query({ path, at: rows[n].seq, of: rows[n].session === id ? undefined : rows[n].session })}`), { replace: true });
  useEffect(() => { setBlame(null); if (!gone && lines) get(of(owner, "/blame"), { path, at }).then((found) => setBlame(found.lines), () => setBlame(false)); }, [owner, path, at, gone, content.data]);
  useKeys({ j: () => show(chosen + 1), k: () => show(Math.max(0, chosen - 1)), Escape: () => go(link(id)), b: () => setTab("file"), d: () => setTab("diff") });
  const copy = async () => {
    try { const made = await post(of(owner, "/copy"), { path, ...(at ? { at: Number(at) } : {}) }); toast(`Written: ${made.made}`); } catch (error) { toast(error.message, "bad"); }
  };
  const row = (n) => {
    const who = blame?.[n], before = blame?.[n - 1];
    const first = who && (!before || before[3] !== who[3] || before[1] !== who[1]);
    return html`<div class="src"><span class="src-n">${n + 1}</span>${blame ? html`<span class="src-who">${first ? who[1] && who[2] ? html`<a href=${link(who[1], `/e/${who[2]}`)} title=${who[4]}>${who[3]}</a>` : html`<span class="muted">${who[3]}</span>` : ""}</span>` : null}<code><${Code} spans=${lines[n]} /></code></div>`;
  };
  return html`<div class="screen file-screen">
    <header class="head"><div class="head-title"><h1><${Path} path=${path} /></h1><p class="facts"><span>${chosen >= 0 ? html`as ${rows[chosen].by} left it${content.data?.place ? `, ${content.data.place}` : ""}` : at ? `at ${content.data?.place ?? "a moment"}` : "as it was last seen"}</span>${content.data?.size !== undefined ? html`<span>${size(content.data.size)}</span>` : null}</p></div>
      <nav class="head-acts" aria-label="File">
        ${chosen >= 0 ? html`<div class="switch" role="group" aria-label="View"><button aria-pressed=${tab === "file"} onClick=${() => setTab("file")}>File</button><button aria-pressed=${tab === "diff"} onClick=${() => setTab("diff")}>Change</button></div>` : null}
        <button disabled=${info?.read_only || gone} onClick=${copy}><${Icon} name="copy" />Copy beside</button>
        ${at && !info?.read_only ? html`<a class="button primary" href=${link(owner, `/rewind${query({ to: at, scope: "files", mode: "exact", path })}`)}><${Icon} name="back" />Restore this version</a>` : null}
      </nav></header>
    <div class="file-panes">
      <aside aria-label="Versions"><h2>Versions</h2>
        ${versions.error ? html`<${Failure} error=${versions.error} />` : !versions.data ? html`<div class="loading">Reading…</div>` : !rows.length ? html`<p class="muted">No session here changed it.</p>` : null}
        <ul class="versions"><li><button class="version" aria-current=${!at ? "true" : null} onClick=${() => go(link(id, `/file${query({ path })}`), { replace: true })}><span class="version-what">Last seen</span></button></li>
        ${rows.map((one, n) => html`<li key=${`${one.session}${one.seq}`}><button class="version" aria-current=${n === chosen ? "true" : null} onClick=${() => show(n)}>
          <span class="version-what"><${Badge} status=${one.file[1]} />${one.by}<${Lines} plus=${one.file[2]} minus=${one.file[3]} /></span>
          <span class="version-said">${one.prompt || one.title}</span><span class="muted"><${Ago} ts=${one.ts} />${one.session === id ? "" : ` · ${one.title}`}</span></button></li>`)}</ul></aside>
      <section aria-label="Content" class="file-body">
        ${tab === "diff" && chosen >= 0 ? html`<${DiffOf} id=${owner} params=${{ event: at, path: rows[chosen].file[0] }} />`
          : content.error ? html`<${Failure} error=${content.error} />` : !content.data ? html`<div class="loading">Reading…</div>`
          : content.data.why ? html`<${Empty} title=${content.data.why} />` : content.data.link !== undefined ? html`<${Empty} title=${`A link to ${content.data.link}`} />`
          : lines ? html`<${List} key=${`${owner}${path}${at}`} count=${lines.length} row=${row} usual=${21} control=${list} label=${path} version=${blame} className="source" />` : null}
      </section></div></div>`;
}

// Where a session went: its live way, what it was taken back from, its forks.
import { html, useState, useEffect, useMemo, useRef, Icon, Ago, Failure, Empty, plural, clock, moment, useData } from "./core.js";
import { get, of, query } from "./api.js";
import { go, link, useKeys } from "./shell.js";
import { fork } from "./session.js";

const WORD = { user_message: "prompt", rewound: "rewind", undone: "undo", redone: "redo", checkpoint: "checkpoint", compaction: "summary" };

// Lanes: the live way is the first; each way that was left has one of its own while it lasts.
function lanes(nodes) {
  const found = new Map();
  let lane = 0;
  for (let n = 0; n < nodes.length; n++) {
    const node = nodes[n];
    if (node.live) { found.set(node.seq, 0); lane = 0; continue; }
    if (!lane || ["rewound", "undone", "redone"].includes(node.kind)) lane = Math.min(4, (lane || 0) + 1);
    found.set(node.seq, lane);
  }
  return found;
}

export function TreeScreen({ id }) {
  const { data, error, again } = useData(() => get(of(id, "/tree")), [id]);
  const [at, setAt] = useState(null), rows = useRef(new Map());
  const place = useMemo(() => data ? lanes(data.nodes) : new Map(), [data]);
  const nodes = data?.nodes ?? [];
  const chosen = at ?? nodes.findLast((node) => node.live)?.seq;
  useEffect(() => { rows.current.get(chosen)?.scrollIntoView({ block: "nearest" }); }, [chosen, data]);
  const move = (delta) => {
    const here = nodes.findIndex((node) => node.seq === chosen);
    const next = nodes[Math.max(0, Math.min(nodes.length - 1, here + delta))];
    if (next) { setAt(next.seq); rows.current.get(next.seq)?.focus(); }
  };
  const node = nodes.find((one) => one.seq === chosen);
  const sideways = (delta) => {
    const mine = place.get(chosen) ?? 0;
    const other = nodes.filter((one) => (place.get(one.seq) ?? 0) === Math.max(0, mine + delta));
    const near = other.sort((a, b) => Math.abs(a.seq - chosen) - Math.abs(b.seq - chosen))[0];
    if (near) { setAt(near.seq); rows.current.get(near.seq)?.focus(); }
  };
  useKeys({ j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1), ArrowLeft: () => sideways(-1), ArrowRight: () => sideways(1),
    Enter: () => node && go(link(id, `/e/${node.seq}`)), f: () => node && fork(id, node.seq, data.session), r: () => node && go(link(id, `/rewind${query(node.kind === "user_message" ? { before: node.seq } : { to: node.seq })}`)), Escape: () => go(link(id)) });
  if (error) return html`<${Failure} page error=${error} again=${again} />`;
  if (!data) return html`<div class="loading">Reading…</div>`;
  return html`<div class="screen tree-screen">
    <header class="head"><div class="head-title"><h1>Where it went</h1><p class="facts"><span>${data.session.title}</span><span>${plural(data.branches.length, "way")} left behind</span></p></div></header>
    <div class="tree-panes">
      <section aria-label="Branches">${data.more ? html`<p class="muted">The latest are shown.</p>` : null}
        ${nodes.length ? html`<ol class="graph">${nodes.map((one) => {
          const lane = place.get(one.seq) ?? 0;
          const text = one.kind === "user_message" ? one.text : one.kind === "checkpoint" ? one.label || one.text : `${WORD[one.kind] ?? one.kind} ${one.text}`;
          return html`<li key=${one.seq} class=${`node lane-${lane} ${one.live ? "" : "left"} ${one.kind} ${one.seq === chosen ? "at" : ""}`}>
            <i class="node-dot" aria-hidden="true"></i>
            <button class="node-text" aria-current=${one.seq === chosen ? "true" : null} ref=${(node) => rows.current.set(one.seq, node)} onClick=${() => setAt(one.seq)} onDblClick=${() => go(link(id, `/e/${one.seq}`))}>
              <span>${text}</span><span class="muted">${one.kind === "user_message" ? "" : `${WORD[one.kind] ?? one.kind} · `}${one.place.startsWith("event") ? "" : `${one.place} · `}<time title=${moment(one.ts)}>${clock(one.ts)}</time>${one.live ? "" : " · left behind"}</span></button>
            ${one.seq === chosen ? html`<span class="node-acts"><a class="button small" href=${link(id, `/e/${one.seq}`)}>Look</a>
              <button class="small" disabled=${data.session.read_only} onClick=${() => fork(id, one.seq, data.session)}><${Icon} name="fork" />Continue from here</button>
              <a class="button small" href=${link(id, `/rewind${query(one.kind === "user_message" ? { before: one.seq } : { to: one.seq })}`)}><${Icon} name="back" />Rewind</a></span>` : null}</li>`;
        })}</ol>` : html`<${Empty} title="Nothing was said yet" />`}</section>
      <aside aria-label="Forks"><h2>Forks</h2><ul class="family">${data.family.map((one) => html`<li key=${one.id} style=${{ paddingLeft: `${one.depth * 16}px` }}>
        <a href=${link(one.id)} aria-current=${one.id === id ? "page" : null}>${one.title || one.short}</a><span class="muted">${one.from ? `from ${one.from} · ` : ""}${plural(one.turns, "turn")} · <${Ago} ts=${one.updated} /></span></li>`)}</ul></aside>
    </div></div>`;
}

// Words in what was said and answered: hits by session, and a jump to each.
import { html, useState, useEffect, useRef, Ago, Failure, Empty, plural } from "./core.js";
import { get, query } from "./api.js";
import { go, link, useKeys } from "./shell.js";

// The words that were looked for, marked.
function Snippet({ text, words }) {
  const wanted = words.filter(Boolean).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
  if (!wanted) return text;
  return text.split(new RegExp(`(${wanted})`, "giu")).map((piece, n) => n % 2 ? html`<mark>${piece}</mark>` : piece);
}

// Where a hit is: a file, what a subagent said, or an event.
const to = (hit) => link(hit.session, hit.path ? `/file${query({ path: hit.path })}` : hit.agent ? query({ agent: hit.agent }) : `/e/${hit.seq}`);

export function SearchScreen({ params }) {
  const q = params.q ?? "";
  const [text, setText] = useState(q), [found, set] = useState(null), [error, setError] = useState(null), [at, setAt] = useState(0), [took, setTook] = useState(null);
  const box = useRef(null), rows = useRef([]);
  useEffect(() => { box.current?.focus(); }, []);
  useEffect(() => { // A hit that was opened meanwhile is where the person is now.
    const timer = setTimeout(() => location.pathname === "/search" && go(`/search${query({ q: text })}`, { replace: true }), 180); return () => clearTimeout(timer); }, [text]);
  useEffect(() => {
    let over = false;
    setAt(0);
    if (!/[\p{L}\p{N}_]/u.test(q)) { set(null); setError(null); return; }
    const began = performance.now();
    get("search", { q }).then((data) => { if (!over) { set(data); setError(null); setTook(performance.now() - began); } }, (problem) => over || setError(problem));
    return () => { over = true; };
  }, [q]);
  const hits = found ? [...found.hits, ...found.paths] : [];
  const move = (delta) => { const next = Math.max(0, Math.min(hits.length - 1, at + delta)); setAt(next); rows.current[next]?.focus(); };
  const open = (hit) => hit && (box.current?.blur(), go(to(hit)));
  useKeys({ j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1), "/": () => box.current?.focus(), Enter: () => open(hits[at]), Escape: () => history.back() });
  let last = null;
  return html`<div class="screen search"><h1 class="sr">Search</h1>
    <input ref=${box} class="search-box" type="search" aria-label="Search" placeholder="Words, or “words in a row”" value=${text} onInput=${(event) => setText(event.target.value)}
      onKeyDown=${(event) => { if (event.key === "Enter") { event.preventDefault(); open(hits[0]); } else if (event.key === "ArrowDown") { event.preventDefault(); event.target.blur(); rows.current[0]?.focus(); } }} />
    <p class="muted" role="status">${found ? `${plural(hits.length, "hit")} in ${plural(Object.keys(found.sessions).length, "session")}${took === null ? "" : `, ${Math.round(took)} ms`}` : "Prompts, answers, what tools gave back, subagents, and paths of files, in all sessions."}</p>
    ${error ? html`<${Failure} error=${error} />` : null}
    ${found && !hits.length ? html`<${Empty} title="Nothing was found" />` : null}
    <div class="hits">${hits.map((hit, n) => {
      const info = found.sessions[hit.session], head = hit.session !== last;
      last = hit.session;
      return html`${head ? html`<h2 key=${`${n}h`}><a href=${link(hit.session)}>${info.title || info.short}</a><span class="muted">${info.agent || info.model} · <${Ago} ts=${info.updated} /></span></h2>` : null}
        <a key=${n} class=${`hit ${n === at ? "at" : ""}`} ref=${(node) => { rows.current[n] = node; }} href=${to(hit)} onFocus=${() => setAt(n)}><span class="hit-kind">${hit.path ? "file" : hit.kind}</span><span class="hit-text"><${Snippet} text=${hit.path ?? hit.snippet} words=${hit.words} /></span></a>`;
    })}</div></div>`;
}

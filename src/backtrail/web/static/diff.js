// Diffs: of a turn, an event, a range, a session, two sessions; in one column or two.
import { html, useState, useEffect, useRef, useMemo, Badge, Lines, Icon, Code, Failure, Empty, plural, useData } from "./core.js";
import { get, of, query } from "./api.js";
import { go, link, useKeys } from "./shell.js";
import { Path } from "./session.js";

const KEY = "backtrail-split";
let split = false;
try { split = localStorage.getItem(KEY) === "1"; } catch { /* private */ }

// The rows of one file's diff. `small` is for a narrow place.
export function DiffOf({ id, params, small = false, isSplit = false, rows: given }) {
  const [more, setMore] = useState([]);
  const { data, error } = useData(() => given ? Promise.resolve({ rows: given, total: given.length }) : get(of(id, "/diff"), params), [id, JSON.stringify(params), given]);
  useEffect(() => setMore([]), [data]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!data) return html`<div class="loading">Reading…</div>`;
  const rows = [...data.rows, ...more];
  if (!rows.length) return html`<p class="muted pad">${data.file?.[1] === "renamed" ? "Renamed, and else the same." : data.modes ? `Mode ${data.modes[0]} → ${data.modes[1]}` : "No lines differ."}</p>`;
  const next = () => get(of(id, "/diff"), { ...params, skip: rows.length }).then((found) => setMore([...more, ...found.rows]));
  return html`<div class=${`diff ${small ? "diff-small" : ""}`} tabindex="0" role="region" aria-label=${`Diff of ${params?.path ?? "the file"}`}>
    ${isSplit && !small ? html`<${Split} rows=${rows} />` : html`<${Inline} rows=${rows} small=${small} />`}
    ${rows.length < data.total ? html`<button class="link" onClick=${next}>${plural(data.total - rows.length, "more line")}</button>` : null}</div>`;
}

const KIND = { "+": "plus", "-": "minus", " ": "same", "@": "hunk", "\\": "odd" };
const Mark = ({ mark }) => html`<td class="mark">${mark === "+" ? html`<span class="sr">added </span>+` : mark === "-" ? html`<span class="sr">removed </span>−` : ""}</td>`;

function Hunk({ row, span }) {
  return html`<tr class="hunk" data-hunk="1"><td colspan=${span}>${/@@.*@@(.*)/.exec(row[3].map((s) => s[1]).join(""))?.[1] ? html`<${Code} spans=${row[3]} />` : html`<span aria-hidden="true">⋯</span><span class="sr">line ${row[2]}</span>`}</td></tr>`;
}

function Inline({ rows, small }) {
  return html`<table class="lines-table"><tbody>${rows.map((row, n) => row[0] === "@" ? html`<${Hunk} row=${row} span=${small ? 3 : 4} />`
    : html`<tr key=${n} class=${KIND[row[0]]}>${small ? html`<td class="num">${row[2] ?? row[1]}</td>` : html`<td class="num">${row[1]}</td><td class="num">${row[2]}</td>`}<${Mark} mark=${row[0]} /><td class="text"><${Code} spans=${row[3]} /></td></tr>`)}</tbody></table>`;
}

function Split({ rows }) {
  const pairs = useMemo(() => {
    const found = [];
    for (let at = 0; at < rows.length;) {
      if (rows[at][0] !== "-" && rows[at][0] !== "+") { found.push([rows[at], rows[at]]); at++; continue; }
      const gone = [], come = [];
      for (; at < rows.length && rows[at][0] === "-"; at++) gone.push(rows[at]);
      for (; at < rows.length && rows[at][0] === "+"; at++) come.push(rows[at]);
      for (let n = 0; n < Math.max(gone.length, come.length); n++) found.push([gone[n] ?? null, come[n] ?? null]);
    }
    return found;
  }, [rows]);
  const half = (row, number) => row ? html`<td class=${`num ${KIND[row[0]]}`}>${row[number]}</td><td class=${`text ${KIND[row[0]]}`}>${row[0] === "-" ? html`<span class="sr">removed </span>` : row[0] === "+" ? html`<span class="sr">added </span>` : null}<${Code} spans=${row[3]} /></td>`
    : html`<td class="num none"></td><td class="text none"></td>`;
  return html`<table class="lines-table split"><tbody>${pairs.map(([left, right], n) => left?.[0] === "@" ? html`<${Hunk} row=${left} span=${4} />`
    : html`<tr key=${n}>${half(left, 1)}${half(right, 2)}</tr>`)}</tbody></table>`;
}

export function DiffScreen({ id, params }) {
  const { path, ...rest } = params;
  const where = Object.keys(rest).length ? rest : { from: 0 };
  const { data, error, again } = useData(() => get(of(id, "/diff"), where), [id, JSON.stringify(where)]);
  const [isSplit, setSplit] = useState(split), [wide, setWide] = useState(innerWidth >= 900);
  const box = useRef(null);
  useEffect(() => { const look = () => setWide(innerWidth >= 900); addEventListener("resize", look); return () => removeEventListener("resize", look); }, []);
  const files = data?.files ?? [];
  const at = Math.max(0, files.findIndex((file) => file[0] === path));
  const file = files[at];
  const show = (n, replace = true) => files[n] && go(link(id, `/diff${query({ ...where, path: files[n][0] })}`), { replace });
  const hunk = (delta) => {
    const all = [...(box.current?.querySelectorAll("[data-hunk]") ?? [])];
    const top = box.current?.getBoundingClientRect().top ?? 0;
    const next = delta > 0 ? all.find((one) => one.getBoundingClientRect().top > top + 60) : all.findLast((one) => one.getBoundingClientRect().top < top - 4);
    next?.scrollIntoView({ block: "start" });
  };
  const flip = () => { split = !isSplit; setSplit(split); try { localStorage.setItem(KEY, split ? "1" : "0"); } catch { /* private */ } };
  useKeys({ n: () => show(at + 1), p: () => show(at - 1), j: () => show(at + 1), k: () => show(at - 1), "]": () => hunk(1), "[": () => hunk(-1), s: flip,
    Escape: () => go(link(id, where.turn ? `/e/${where.turn}` : "")) });
  const places = data?.places ?? ["…", "…", "…"];
  const title = where.other ? "Two sessions" : where.turn ? "What this turn changed" : where.event ? `What a step of ${places[0]} changed`
    : where.from === 0 || where.from === "0" ? where.to ? `From the beginning to ${places[2]}` : "What changed since the beginning" : `From ${places[1]} ${where.to ? `to ${places[2]}` : "on"}`;
  return html`<div class="screen diff-screen">
    <header class="head"><div class="head-title"><h1>${title}</h1>
      <p class="facts">${data ? html`<span>${plural(files.length, "file")}</span><span><${Lines} plus=${data.plus} minus=${data.minus} /></span>` : null}</p></div>
      <nav class="head-acts" aria-label="Diff">
        ${wide ? html`<button aria-pressed=${isSplit} onClick=${flip} title="s">Side by side</button>` : null}
        ${where.turn ? html`<a class="button" href=${link(id, `/diff${query({ from: 0 })}`)}>Whole session</a><a class="button" href=${link(id, `/diff${query({ from: where.turn })}`)}>From here on</a>` : null}
        <${Other} id=${id} where=${where} />
        ${where.turn ? html`<a class="button primary" href=${link(id, `/rewind${query({ before: where.turn })}`)}><${Icon} name="back" />Rewind</a>` : null}
      </nav></header>
    ${error ? html`<${Failure} error=${error} again=${again} />` : !data ? html`<div class="loading">Reading…</div>` : !files.length ? html`<${Empty} title="Nothing differs" />` : html`
    <div class="diff-panes">
      <nav class="diff-files" aria-label="Files">${files.map(([name, status, plus, minus, old, folder], n) => html`<button key=${name} class="diff-file" aria-current=${n === at ? "true" : null} onClick=${() => show(n)}>
        <${Badge} status=${status} /><${Path} path=${name} old=${old} folder=${folder} /><${Lines} plus=${plus} minus=${minus} /></button>`)}</nav>
      <section class="diff-body" ref=${box} aria-label=${file?.[0]} tabindex="0">
        ${file ? html`<div class="diff-head"><${Badge} status=${file[1]} /><${Path} path=${file[0]} old=${file[4]} /><span class="grow"></span>
          <a href=${link(id, `/file${query({ path: file[0] })}`)}>History</a></div>
          ${data.perhaps?.[file[0]] ? html`<p class="doubts pad">perhaps by ${data.perhaps[file[0]]}</p>` : null}
          <${DiffOf} key=${file[0]} id=${id} params=${{ ...where, path: file[0] }} isSplit=${isSplit && wide} />` : null}
      </section>
    </div>`}</div>`;
}

// Choose another session to compare with.
function Other({ id, where }) {
  const [list, set] = useState(null);
  const open = () => list || get("home").then((found) => set(found.sessions.filter((one) => one.id !== id)), () => set([]));
  return html`<label class="sr" for="other">Compare with</label><select id="other" class="small" onFocus=${open} onPointerDown=${open} value=${where.other ?? ""}
    onChange=${(event) => event.target.value && go(link(id, `/diff${query({ other: event.target.value })}`))}>
    <option value="">Compare with…</option>${where.other && !list ? html`<option value=${where.other}>another session</option>` : null}${(list ?? []).map((one) => html`<option key=${one.id} value=${one.id}>${one.title || one.short}</option>`)}</select>`;
}

// A session: its prompts, its conversation, its files; and the scrubber that moves all three.
import { html, useState, useEffect, useRef, useMemo, Icon, Lines, Badge, Ago, Failure, Empty, plural, moment, money, copyText, useData, isTyping } from "./core.js";
import { get, post, of, live, query } from "./api.js";
import { List } from "./list.js";
import { Agent, Step } from "./said.js";
import { go, link, toast, useKeys } from "./shell.js";
import { DiffOf } from "./diff.js";

const CHUNK = 60, KEPT = 4000;

// Where the history runs: rows by place, events by number.
class Course {
  constructor(ranges) {
    this.ranges = ranges;
    this.starts = [];
    let sum = 0;
    for (const [low, high] of ranges) { this.starts.push(sum); sum += high - low; }
    this.count = sum;
  }
  seq(at) {
    let i = this.starts.length - 1;
    while (i > 0 && this.starts[i] > at) i--;
    return i < 0 ? 0 : this.ranges[i][0] + 1 + at - this.starts[i];
  }
  at(seq) {
    for (let i = this.ranges.length - 1; i >= 0; i--) {
      const [low, high] = this.ranges[i];
      if (seq > low) return this.starts[i] + Math.min(seq, high) - low - 1;
    }
    return 0;
  }
}

const lower = (sorted, value) => {
  let low = 0, high = sorted.length;
  while (low < high) { const mid = (low + high) >> 1; if (sorted[mid] <= value) low = mid + 1; else high = mid; }
  return low;
};

export function SessionScreen({ id, seq, params }) {
  const [info, setInfo] = useState(null), [error, setError] = useState(null), [gone, setGone] = useState(false);
  const [course, setCourse] = useState(null), [prompts, setPrompts] = useState([]);
  const [at, setAt] = useState(seq ?? null), [version, bump] = useState(0), [pane, setPane] = useState("talk");
  const [hold, setHold] = useState(null), [working, setWorking] = useState(false), [shownAt, setShownAt] = useState(0);
  const steps = useRef(new Map()), asking = useRef(new Set()), list = useRef(null), contents = useRef(null);
  const seen = useRef(false);
  const state = useRef({}); state.current = { course, prompts, at, info };

  const take = (found) => {
    for (const step of found) steps.current.set(step.seq, step);
    if (steps.current.size > KEPT) {
      const here = state.current.course?.seq(list.current?.top() ?? 0) ?? 0;
      for (const key of steps.current.keys()) if (Math.abs(key - here) > KEPT / 2) steps.current.delete(key);
    }
    bump((n) => n + 1);
  };
  const readInfo = () => get(of(id)).then((found) => { seen.current = true; setInfo(found); }, (problem) => problem.status === 404 ? setGone(true) : setError(problem));
  const readCourse = () => get(of(id, "/outline")).then((found) => {
    setCourse(new Course(found.ranges)); setPrompts(found.prompts);
    return found;
  });

  useEffect(() => {
    steps.current = new Map(); asking.current = new Set();
    setInfo(null); setError(null); setGone(false); setCourse(null); setPrompts([]); setHold(null); setAt(seq ?? null);
    let stop = () => {}, over = false;
    readInfo();
    const begin = async () => {
      let head = 0;
      if (!seq) {
        // The end is shown before it is known where the rest is.
        const found = await get(of(id, "/events"), { limit: CHUNK });
        if (over) return;
        head = found.head;
        take(found.steps);
        const first = found.steps[0]?.seq ?? 1;
        setCourse(new Course([[Math.max(0, first - 1), head]]));
      }
      const outline = await readCourse();
      if (over) return;
      if (seq) requestAnimationFrame(() => list.current?.to(new Course(outline.ranges).at(seq), "start"));
      stop = live({ session: id, after: outline.head }, heard);
    };
    begin().catch((problem) => !over && (problem.status === 404 ? setGone(true) : setError(problem)));
    return () => { over = true; stop(); };
  }, [id]);

  // New events: what came is fetched, and with it what it completes.
  const catching = useRef(null);
  const heard = (what, data) => {
    if (what === "gone") { setGone(true); return; }
    if (what === "trouble") { setError(data); return; }
    if (what === "open") setError(null);
    if (what !== "events") return;
    const run = async () => {
      const known = [...steps.current.keys()];
      const last = known.length ? Math.max(...known) : 0;
      const old = state.current.course;
      const head = old?.ranges.at(-1)?.[1] ?? 0;
      const fresh = await get(of(id, "/events"), { after: Math.max(0, Math.min(last, head) - 20), limit: 200 });
      const jumps = fresh.steps.some((step) => ["rewound", "undone", "redone"].includes(step.kind));
      take(fresh.steps);
      if (jumps || !old) { steps.current.clear(); take(fresh.steps); await readCourse(); await readInfo(); }
      else {
        setCourse(new Course([...old.ranges.slice(0, -1), [old.ranges.at(-1)?.[0] ?? 0, fresh.head]]));
        const said = fresh.steps.filter((step) => step.kind === "user_message").map((step) => step.seq);
        setPrompts((found) => [...found, ...said.filter((one) => one > (found.at(-1) ?? 0))]);
      }
      setWorking(true);
      clearTimeout(catching.timer);
      catching.timer = setTimeout(() => { setWorking(false); readInfo(); }, 4000);
    };
    // One after the other: the next begins where this one came to.
    catching.current = (catching.current ?? Promise.resolve()).then(run).catch(() => {});
  };

  const count = course?.count ?? 0;
  const need = (first, last) => {
    if (!course) return;
    setShownAt(course.seq(first));
    for (let i = Math.max(0, first - 10); i <= Math.min(count - 1, last + 10); i++) {
      const wanted = course.seq(i);
      if (steps.current.has(wanted) || asking.current.has(wanted)) continue;
      const end = Math.min(count - 1, i + CHUNK - 1);
      const asked = [];
      for (let k = i; k <= end; k++) { const one = course.seq(k); asked.push(one); asking.current.add(one); }
      get(of(id, "/events"), { after: Math.max(0, wanted - 1), limit: CHUNK }).then((found) => {
        for (const one of asked) if (!steps.current.has(one)) steps.current.set(one, null);
        take(found.steps);
      }, () => {}).finally(() => asked.forEach((one) => asking.current.delete(one)));
      i = end;
    }
  };

  const select = (to, { replace = true } = {}) => {
    setAt(to); setHold(null);
    if (course) list.current?.to(course.at(to));
    go(link(id, `/e/${to}`), { replace, quiet: true });
  };
  const current = at ?? shownAt;
  const chosen = at === null ? prompts.length : lower(prompts, current);
  const turn = prompts[chosen - 1] ?? null;
  useEffect(() => { if (chosen) contents.current?.to(chosen - 1, "near"); }, [chosen, prompts.length]);

  const step = (delta) => {
    const next = prompts[Math.max(0, Math.min(prompts.length - 1, (at === null ? (delta < 0 ? prompts.length : prompts.length - 1) : chosen - 1) + delta))];
    if (next) select(next);
  };
  const now = () => { setAt(null); setHold(null); list.current?.toEnd(); go(link(id), { replace: true, quiet: true }); };
  useKeys({
    j: () => step(1), k: () => step(-1),
    d: () => turn && go(link(id, `/diff${query({ turn })}`)),
    r: () => turn && go(link(id, `/rewind${query({ before: turn })}`)),
    u: () => info?.undo && go(link(id, "/undo")),
    f: () => fork(id, at, info), t: () => go(link(id, "/tree")),
    y: () => info && copyText(info.resume).then((ok) => toast(ok ? "Resume line copied" : info.resume)),
    b: () => go(link(id, `/file${query({ at: at ?? undefined })}`)),
    Escape: () => at !== null && now(), G: now,
  });

  if (gone) return html`<${Empty} page title=${seen.current ? "This session was deleted" : "There is no such session"}><p><a href="/">All sessions</a></p></${Empty}>`;
  if (error && !course) return html`<${Failure} page error=${error} again=${() => location.reload()} />`;

  const row = (i) => {
    const one = course.seq(i), found = steps.current.get(one);
    if (found === undefined) return html`<div class="skeleton"></div>`;
    if (found === null || !(found.shown || found.files || found.doubts) || (found.kind === "action" && !found.parts && !found.files)) return null;
    return html`<${Step} step=${found} session=${id} number=${found.kind === "user_message" ? lower(prompts, one) : 0}
      onFile=${(path, event) => go(link(id, `/diff${query({ event, path })}`))} />`;
  };

  return html`<div class=${`session pane-${pane}`}>
    <header class="head">
      <div class="head-title"><h1>${info?.title || "Session"}</h1>
        ${working || info?.running ? html`<span class="dot" title="an agent is at work"></span>` : null}
        <p class="facts">${info ? [info.agent, info.model, info.cwd, plural(info.turns, "turn"), money(info.cost)].filter(Boolean).map((fact, n) => html`<span key=${n}>${fact}</span>`) : null}
          ${info ? html`<span><${Ago} ts=${info.updated} /></span>` : null}</p></div>
      <nav class="head-acts" aria-label="Session">
        <a class="button" href=${link(id, `/diff${query(turn ? { turn } : { from: 0 })}`)} title="d"><${Icon} name="diff" />Diff</a>
        <a class="button" href=${link(id, "/tree")} title="t"><${Icon} name="tree" />Tree</a>
        <a class="button" href=${link(id, `/file${query({ at: at ?? undefined })}`)} title="b"><${Icon} name="file" />Files</a>
        <button title="f" disabled=${info?.read_only} onClick=${() => fork(id, at, info)}><${Icon} name="fork" />Fork</button>
        <button title="y" onClick=${() => info && copyText(info.resume).then((ok) => toast(ok ? "Resume line copied" : info.resume))}><${Icon} name="copy" />Resume</button>
        ${info?.undo ? html`<a class="button" href=${link(id, "/undo")} title="u">Undo</a>` : null}
        ${turn ? html`<a class="button primary" href=${link(id, `/rewind${query({ before: turn })}`)} title="r"><${Icon} name="back" />Rewind</a>` : null}
      </nav>
    </header>
    <${Scrubber} id=${id} course=${course} prompts=${prompts} at=${at} shown=${shownAt} info=${info} hold=${hold} setHold=${setHold}
      move=${(to) => { setAt(to); setHold(null); list.current?.to(course.at(to)); }} now=${now} />
    <div class="tabs only-narrow" role="tablist" aria-label="Panes">${[["prompts", "Prompts"], ["talk", "Conversation"], ["files", "Files"]].map(([name, text]) =>
      html`<button role="tab" aria-selected=${pane === name} onClick=${() => setPane(name)}>${text}</button>`)}</div>
    <div class="panes">
      <aside class="pane-prompts" aria-label="Prompts">
        <${Prompts} id=${id} prompts=${prompts} chosen=${at === null ? 0 : chosen} select=${(to) => { select(to, { replace: false }); setPane("talk"); }} control=${contents} />
      </aside>
      <section class="pane-talk">
        ${params?.agent ? html`<div class="loose-agents"><${Agent} key=${params.agent} session=${id} name=${params.agent} title=${params.agent} begun=${true} /></div>`
          : info?.subagents.length ? html`<details class="loose-agents"><summary>${plural(info.subagents.length, "subagent")} that no call here started</summary>
          ${info.subagents.map(([name, title]) => html`<${Agent} key=${name} session=${id} name=${name} title=${title} />`)}</details>` : null}
        ${course && count ? html`<${List} count=${count} row=${row} usual=${70} control=${list} seen=${need} stick=${at === null} label="Conversation" version=${version} className="talk" />`
          : course ? html`<${Empty} title="Nothing was said yet" />` : html`<div class="loading">Reading…</div>`}
        ${at === null ? null : html`<button class="to-now" onClick=${now}>Now <${Icon} name="down" /></button>`}
      </section>
      <aside class="pane-files" aria-label="Files"><${Side} id=${id} turn=${turn} at=${at} info=${info} head=${course?.ranges.at(-1)?.[1] ?? 0} /></aside>
    </div>
  </div>`;
}

export async function fork(id, at, info) {
  if (info?.read_only) return;
  try {
    const made = await post(of(id, "/fork"), at ? { at } : {});
    toast("Forked. Its resume line can be copied there with y.");
    go(link(made.id));
  } catch (error) { toast(error.message, "bad"); }
}

// Time as a line: prompts are its marks. Let go of it and see what going there would do.
function Scrubber({ id, course, prompts, at, shown, move, now, info, hold, setHold }) {
  const count = course?.count ?? 0;
  const here = at === null ? count : course ? course.at(at) + 1 : 0;
  const [text, setText] = useState("");
  const release = async () => {
    if (at === null || here >= count || !info) return;
    setHold({ at, busy: true });
    try {
      const plan = await post(of(id, "/preview"), { verb: "rewind", to: at });
      setHold((old) => old && old.at === at ? { at, plan } : old);
    } catch (error) { setHold((old) => old && old.at === at ? { at, error } : old); }
  };
  const marks = prompts.length <= 240 ? prompts : [];
  const n = lower(prompts, at ?? Infinity);
  const later = n && at !== null ? course.at(at) - course.at(prompts[n - 1]) : 0;
  const label = at === null ? "now" : n ? `prompt ${n}${later ? `, step ${later}` : ""}` : "the beginning";
  return html`<div class=${`scrub ${at === null ? "" : "scrub-back"}`}>
    <div class="scrub-line">
      <div class="scrub-marks" aria-hidden="true">${count > 1 ? marks.map((seq) => html`<i key=${seq} class=${seq === prompts[n - 1] && at !== null ? "on" : ""} style=${{ left: `${100 * (course.at(seq) + 1) / count}%` }}></i>`) : null}</div>
      <input type="range" min="0" max=${count} value=${here} disabled=${!count} aria-label="Time" aria-valuetext=${label}
        onInput=${(event) => { const to = Number(event.target.value); to >= count ? now() : move(course.seq(Math.max(0, to - 1))); }}
        onChange=${release} onKeyUp=${(event) => event.key === "Enter" && release()} />
    </div>
    <output class="scrub-where">${at === null ? "Now" : n ? html`Prompt ${n}${later ? html` <span class="muted">· step ${later.toLocaleString("en")}</span>` : null}` : "Beginning"}</output>
    ${hold && at !== null ? html`<div class="hold" role="status">
      ${hold.busy ? "Looking what going back here would do…" : hold.error ? html`<span class="is-bad">${hold.error.message}</span>` : html`
        <span>Going back here: <strong>${plural(hold.plan.files.filter((one) => !["skip", "conflict"].includes(one.action)).length, "file")}</strong> <${Lines} plus=${hold.plan.plus} minus=${hold.plan.minus} />${", "}<strong>${plural(hold.plan.dropped, "event")}</strong> ${hold.plan.dropped === 1 ? "leaves" : "leave"} the conversation${hold.plan.conflicts ? html`, <strong class="is-warn">${plural(hold.plan.conflicts, "conflict")}</strong>` : null}</span>`}
      <span class="grow"></span>
      <a class="button primary small" href=${link(id, `/rewind${query({ to: at })}`)}>Preview</a>
      <button class="small" onClick=${now}>Back to now</button></div>` : null}
  </div>`;
}

// The prompts as a table of contents, with what each turn did to the files.
function Prompts({ id, prompts, chosen, select, control }) {
  const rows = useRef(new Map()), asked = useRef(new Set()), [version, bump] = useState(0);
  useEffect(() => { rows.current = new Map(); asked.current = new Set(); bump((n) => n + 1); }, [id]);
  const last = prompts.at(-1);
  useEffect(() => { if (last) { asked.current.delete(`t${last}`); } }, [version, last]);
  const need = async (first, end) => {
    const from = Math.max(0, first - 10), to = Math.min(prompts.length - 1, end + 20);
    const missing = [];
    for (let i = from; i <= to; i++) if (!asked.current.has(prompts[i])) missing.push(i);
    if (!missing.length) return;
    for (const i of missing) asked.current.add(prompts[i]);
    try {
      const found = await get(of(id, "/prompts"), { first: missing[0] + 1, count: missing.at(-1) - missing[0] + 1 });
      for (const one of found.prompts) rows.current.set(one.seq, one);
      bump((n) => n + 1);
      const seqs = missing.map((i) => prompts[i]);
      for (let i = 0; i < seqs.length; i += 40) {
        const some = await get(of(id, "/turns"), { seqs: seqs.slice(i, i + 40).join(",") });
        for (const [seq, sums] of Object.entries(some.turns)) { const one = rows.current.get(Number(seq)); if (one) one.sums = sums; }
        bump((n) => n + 1);
      }
    } catch { for (const i of missing) asked.current.delete(prompts[i]); }
  };
  const row = (i) => {
    const seq = prompts[i], found = rows.current.get(seq);
    return html`<button class="toc" aria-current=${chosen === i + 1 ? "true" : null} onClick=${() => select(seq)}>
      <span class="toc-n">${i + 1}</span>
      <span class="toc-text">${found?.text ?? "…"}</span>
      <span class="toc-sums">${found?.sums?.[0] ? html`${plural(found.sums[0], "file")} <${Lines} plus=${found.sums[1]} minus=${found.sums[2]} />` : null}</span></button>`;
  };
  if (!prompts.length) return html`<p class="muted pad">No prompts</p>`;
  return html`<${List} count=${prompts.length} row=${row} usual=${58} control=${control} seen=${need} label="Prompts" version=${version} className="tocs" stick=${!chosen} />`;
}

function Side({ id, turn, at, info, head }) {
  const [tab, setTab] = useState("changes");
  if (info && !info.files) return html`<${Empty} title="No files were captured"><p class="muted">This session had no folder.</p></${Empty}>`;
  return html`<div class="side">
    <div class="tabs" role="tablist" aria-label="Files">
      <button role="tab" aria-selected=${tab === "changes"} onClick=${() => setTab("changes")}>Changes</button>
      <button role="tab" aria-selected=${tab === "tree"} onClick=${() => setTab("tree")}>All files ${at === null ? "now" : "then"}</button>
    </div>
    ${tab === "changes" ? html`<${TurnFiles} id=${id} turn=${turn} head=${head} info=${info} />` : html`<${Tree} id=${id} at=${at} base=${turn} head=${head} />`}
  </div>`;
}

function TurnFiles({ id, turn, head, info }) {
  const [open, setOpen] = useState(null);
  const slow = useSlow(head);
  const { data, error } = useData(() => turn ? get(of(id, "/diff"), { turn }) : Promise.resolve({ files: [], perhaps: {} }), [id, turn, slow]);
  useEffect(() => setOpen(null), [id, turn]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!data) return html`<div class="loading">Reading…</div>`;
  if (!data.files.length) return html`<p class="muted pad">This turn changed no files.</p>`;
  return html`<div class="files">
    <p class="files-sum">${plural(data.files.length, "file")} <${Lines} plus=${data.plus} minus=${data.minus} /><span class="grow"></span>
      ${info?.read_only ? null : html`<a href=${link(id, `/rewind${query({ turn })}`)} title="later turns stay">Take out</a>`}<a href=${link(id, `/diff${query({ turn })}`)}>Whole diff</a></p>
    ${data.files.map(([path, status, plus, minus, old, folder]) => html`<div class="file" key=${path}>
      <button class="file-head" aria-expanded=${open === path} onClick=${() => setOpen(open === path ? null : path)}>
        <${Badge} status=${status} /><${Path} path=${path} old=${old} folder=${folder} /><${Lines} plus=${plus} minus=${minus} /></button>
      ${data.perhaps[path] ? html`<p class="doubts">perhaps by ${data.perhaps[path]}</p>` : null}
      ${open === path ? html`<${DiffOf} id=${id} params=${{ turn, path }} small=${true} />
        <p class="file-more"><a href=${link(id, `/file${query({ path })}`)}>History</a></p>` : null}
    </div>`)}</div>`;
}

// While events rush in, files are looked at now and then.
function useSlow(value) {
  const [slow, set] = useState(value), timer = useRef(0);
  useEffect(() => { clearTimeout(timer.current); timer.current = setTimeout(() => set(value), 600); return () => clearTimeout(timer.current); }, [value]);
  return slow;
}

export function Path({ path, old, folder }) {
  const cut = path.lastIndexOf("/") + 1;
  return html`<span class="path" title=${old ? `${old} → ${path}` : path}><bdi><span class="path-dir">${path.slice(0, cut)}</span><span class="path-name">${path.slice(cut)}${folder ? "/" : ""}</span></bdi>${old ? html`<span class="muted"> from ${old}</span>` : null}</span>`;
}

// The folder as it was: what the turn changed in it is marked.
function Tree({ id, at, base, head }) {
  const slow = useSlow(at ?? head);
  return html`<div class="treeview" role="tree" aria-label="Files"><${Folder} id=${id} at=${at} base=${base} dir="" tick=${slow} depth=${0} open=${true} /></div>`;
}

const openDirs = new Map();
function Folder({ id, at, base, dir, tick, depth }) {
  const [found, set] = useState(null), [, redraw] = useState(0);
  useEffect(() => {
    let over = false;
    get(of(id, "/folder"), { dir, at: at ?? undefined, base: base ?? undefined }).then((data) => !over && set(data), (error) => !over && set({ error }));
    return () => { over = true; };
  }, [id, dir, at, base, tick]);
  if (!found) return null;
  if (found.error) return html`<p class="muted pad">${found.error.message}</p>`;
  if (!found.entries.length && !depth) return html`<p class="muted pad">Empty</p>`;
  return found.entries.map(([name, kind, size, status]) => {
    const path = dir ? `${dir}/${name}` : name, key = `${id}/${path}`;
    const isOpen = openDirs.get(key) ?? (status === "M" && depth < 4);
    if (kind === "directory") return html`<div key=${path} role="treeitem" aria-expanded=${isOpen} aria-selected="false" class="tree-item">
      <button class=${`tree-row st-${status}`} style=${{ paddingLeft: `${10 + 14 * depth}px` }} onClick=${() => { openDirs.set(key, !isOpen); redraw((n) => n + 1); }}>
        <span class=${`chevron ${isOpen ? "open" : ""}`} aria-hidden="true"></span><bdi>${name}</bdi>${status ? html`<${Badge} status=${status} />` : null}</button>
      ${isOpen ? html`<div role="group"><${Folder} id=${id} at=${at} base=${base} dir=${path} tick=${tick} depth=${depth + 1} /></div>` : null}</div>`;
    return html`<div key=${path} role="treeitem" aria-selected="false" class="tree-item"><a class=${`tree-row st-${status}`} style=${{ paddingLeft: `${26 + 14 * depth}px` }}
      href=${link(id, `/file${query({ path, at: at ?? undefined })}`)}><bdi>${name}</bdi>${status ? html`<${Badge} status=${status} />` : null}</a></div>`;
  });
}

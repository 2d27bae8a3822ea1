// Going back: what it would do, a decision for each conflict, one button, and a way to take it back.
import { html, useState, useEffect, useRef, Icon, Badge, Lines, Failure, Empty, plural, copyText } from "./core.js";
import { get, post, of, query } from "./api.js";
import { go, link, toast, useKeys } from "./shell.js";
import { DiffOf } from "./diff.js";
import { Path } from "./session.js";

const WAYS = [["keep", "Keep", "as it is on the disk"], ["merge", "Merge", "take only this session's changes out"], ["aside", "Aside", "write the earlier one beside it"], ["overwrite", "Overwrite", "let the past win"]];
const ORDER = ["conflict", "delete", "write", "merge", "move", "link", "chmod", "create", "skip"];
const acts = (file) => !["skip", "conflict"].includes(file.action);

export function RewindScreen({ id, verb, params }) {
  const [info, setInfo] = useState(null), [plan, setPlan] = useState(null), [error, setError] = useState(null), [moved, setMoved] = useState(false);
  const [scope, setScope] = useState(params.scope ?? "both"), [mode, setMode] = useState(params.mode ?? "mine"), [decisions, setDecisions] = useState({});
  const [busy, setBusy] = useState(false), [result, setResult] = useState(null), [target, setTarget] = useState(null), [force, setForce] = useState(false);
  const turn = useRef(0), button = useRef(null);
  const paths = params.path ? [params.path] : null;

  useEffect(() => { get(of(id)).then(setInfo, setError); }, [id]);
  useEffect(() => {
    (async () => {
      if (verb !== "rewind") { setTarget({}); return; }
      if (params.turn) { setTarget({ turn: Number(params.turn) }); return; }
      if (params.before || params.to) { setTarget(params.before ? { before: Number(params.before) } : { to: Number(params.to) }); return; }
      const outline = await get(of(id, "/outline"));
      setTarget(outline.prompts.length ? { before: outline.prompts.at(-1) } : null);
    })().catch(setError);
  }, [id, verb, params.before, params.to, params.turn]);

  const wish = () => ({ verb, ...target, scope, mode, decisions, force, ...(paths ? { paths } : {}) });
  const look = async () => {
    if (!target) return;
    const mine = ++turn.current;
    try {
      const found = await post(of(id, "/preview"), wish());
      if (mine !== turn.current) return;
      setPlan(found); setError(null);
    } catch (problem) { if (mine === turn.current) { setError(problem); setPlan(null); } }
  };
  useEffect(() => { look(); }, [target, scope, mode, JSON.stringify(decisions), force]);

  const act = async () => {
    if (!plan || busy || plan.error || info?.read_only) return;
    setBusy(true);
    try {
      const found = await post(of(id, "/act"), { ...wish(), plan: plan.plan });
      setResult(found); setMoved(false);
      const word = { rewind: "Rewound", undo: "Undone", redo: "Done again" }[verb];
      const files = found.files.filter(acts).length;
      globalThis.backtrailDone({ id, verb, text: `${word}: ${plural(files, "file")}, ${plural(found.left, "message")} left${found.conflicts ? `, ${plural(found.conflicts, "conflict")} kept` : ""}.` });
    } catch (problem) {
      if (problem.status === 409) { setMoved(true); await look(); } else setError(problem);
    } finally { setBusy(false); }
  };
  useKeys({ Escape: () => go(link(id)), "1": () => setScope("both"), "2": () => setScope("conversation"), "3": () => setScope("files") });

  if (result) return html`<${Result} id=${id} verb=${verb} result=${result} />`;
  const title = params.turn ? "Take one turn out" : paths ? `Restore ${paths[0]}` : verb === "undo" ? "Undo" : verb === "redo" ? "Redo" : target?.before ? "Rewind to before a prompt" : "Rewind to a point";
  const point = target?.before ?? target?.to ?? target?.turn;
  const files = [...(plan?.files ?? [])].sort((a, b) => ORDER.indexOf(a.action) - ORDER.indexOf(b.action));
  const conflicts = files.filter((file) => plan.ways?.[file.path] !== undefined || file.action === "conflict");
  const rest = files.filter((file) => !conflicts.includes(file));
  const count = files.filter(acts).length;
  const nothing = plan && !count && !plan.dropped && verb === "rewind" && plan.before === plan.left;
  return html`<div class="screen rewind">
    <header class="head"><div class="head-title"><h1>${title}</h1>
      ${info ? html`<p class="facts"><span>${info.title}</span></p>` : null}</div></header>
    <${Where} id=${id} verb=${verb} point=${point} before=${target?.before !== undefined} turn=${target?.turn !== undefined} info=${info} />
    ${target === null && !error ? html`<${Empty} title="There is no prompt to go back to" />` : null}
    ${verb === "rewind" && !paths && !params.turn ? html`<fieldset class="choice"><legend>What goes back</legend>${[["both", "Conversation and files"], ["conversation", "Conversation"], ["files", "Files"]].map(([value, text]) =>
      html`<label><input type="radio" name="scope" value=${value} checked=${scope === value} onChange=${() => setScope(value)} />${text}</label>`)}
      ${scope !== "conversation" ? html`<label class="apart"><input type="checkbox" checked=${mode === "exact"} onChange=${(event) => setMode(event.target.checked ? "exact" : "mine")} />Make files exactly as they were, also what others changed</label>` : null}</fieldset>` : null}
    ${moved ? html`<p class="moved" role="alert">Files or session have moved since you looked, so nothing was done. This is the plan as it is now.</p>` : null}
    ${error ? html`<${Failure} error=${error} again=${look} />` : null}
    ${force || error?.message.includes("--force") ? html`<label class="pad"><input type="checkbox" checked=${force} onChange=${(event) => setForce(event.target.checked)} /> Go back though a call is under way there</label>` : null}
    ${!plan && !error && target ? html`<div class="loading">Looking what it would do…</div>` : null}
    ${plan ? html`
      <section class="sums" aria-label="In short">
        <div><strong>${plan.no_files ? "–" : count.toLocaleString("en")}</strong><span>${count === 1 ? "file changes" : "files change"}</span><${Lines} plus=${plan.plus} minus=${plan.minus} /></div>
        <div><strong>${Math.max(0, plan.before - plan.left).toLocaleString("en")}</strong><span>${plan.left > plan.before ? "messages come back" : "messages leave the conversation"}</span><span class="muted">${plural(plan.left, "message")} ${plan.left === 1 ? "stays" : "stay"}</span></div>
        <div class=${conflicts.length ? "is-warn" : ""}><strong>${conflicts.length}</strong><span>${conflicts.length === 1 ? "conflict" : "conflicts"}</span>${conflicts.length ? html`<span class="muted">decide below</span>` : html`<span class="muted">nobody else changed these files</span>`}</div>
      </section>
      ${plan.no_files ? html`<p class="warning">Files stay as they are: ${plan.no_files}</p>` : null}
      ${plan.error ? html`<p class="warning bad" role="alert">This would be refused: ${plan.error}</p>` : null}
      ${conflicts.length ? html`<section aria-label="Conflicts"><h2>Others changed these, too</h2>
        ${conflicts.map((file) => html`<${Conflict} key=${file.path} id=${id} file=${file} at=${point ?? info?.[verb]?.seq} why=${plan.ways?.[file.path] ?? ""} choice=${decisions[file.path] ?? (params.turn && !plan.ways?.[file.path] ? "merge" : "keep")} choose=${(way) => setDecisions({ ...decisions, [file.path]: way })} />`)}</section>` : null}
      ${rest.length ? html`<section aria-label="Files"><h2>File by file</h2><ul class="plan">${rest.map((file) => html`<li key=${file.path}>
        <${Badge} status=${file.action} /><span class="plan-what">${file.action}</span><${Path} path=${file.name} old=${file.old} folder=${file.folder} /><${Lines} plus=${file.plus} minus=${file.minus} />
        ${file.modes ? html`<span class="muted">mode ${file.modes[0]} → ${file.modes[1]}</span>` : null}${file.reason ? html`<span class="is-warn">${file.reason}</span>` : null}</li>`)}</ul></section>` : null}
      ${plan.warnings.length || plan.lost.length ? html`<section aria-label="What cannot be taken back"><h2>What cannot be taken back</h2><ul class="plain-list">
        ${plan.warnings.map((text) => html`<li>${text}</li>`)}${plan.lost.map(([path, why]) => html`<li><code>${path}</code> ${why}</li>`)}</ul></section>` : null}
      ${plan.never.length ? html`<details class="never"><summary>Not captured, so not touched: ${plural(plan.never.length, "path")}</summary><ul class="plain-list">${plan.never.map(([path, why]) => html`<li><code>${path}</code> ${why}</li>`)}</ul></details>` : null}
      <div class="go"><button ref=${button} class="primary big" disabled=${busy || !!plan.error || info?.read_only || nothing} onClick=${act}><${Icon} name="back" />${busy ? "Going back…" : paths ? "Restore" : params.turn ? "Take out" : title.split(" ")[0]}${count && scope !== "conversation" ? ` ${plural(count, "file")}` : ""}</button>
        <a class="button" href=${link(id)}>Cancel</a><span class="muted">${info?.read_only ? "This viewer is read-only." : nothing ? "All is so already." : "Nothing is erased: an undo takes it back."}</span></div>` : null}
  </div>`;
}

// Which point that is, in words.
function Where({ id, verb, point, before, turn, info }) {
  const [said, set] = useState(null);
  useEffect(() => { if (point) get(of(id, `/event/${point}`)).then(set, () => {}); }, [id, point]);
  if (verb !== "rewind") {
    const what = info?.[verb];
    return info ? html`<blockquote class="where">${what ? `${verb === "undo" ? "Takes back" : "Does again"} ${what.what}` : verb === "undo" ? "There is nothing to undo." : "There is nothing to redo."}</blockquote>` : null;
  }
  if (!said) return null;
  const text = (said.parts ?? []).filter((part) => part.t === "text").map((part) => part.text).join(" ") || said.parts?.find((part) => part.t === "call")?.brief || said.note || said.kind;
  return html`<blockquote class="where"><span class="muted">${turn ? "only this turn leaves the files; later ones and the conversation stay · " : before ? "before " : "after "}${said.place}</span> ${text.slice(0, 300)}</blockquote>`;
}

function Conflict({ id, file, at, why, choice, choose }) {
  const [rows, setRows] = useState(null), [open, setOpen] = useState(false);
  const look = () => {
    setOpen(!open);
    if (!rows && at) post(of(id, "/differing/preview"), { path: file.path, at }).then((found) => setRows(found.rows), (error) => toast(error.message, "bad"));
  };
  return html`<div class="conflict">
    <div class="conflict-head"><${Badge} status="conflict" /><${Path} path=${file.name} /><span class="muted">${file.reason.split(";")[0]}</span><span class="grow"></span>
      ${at ? html`<button class="small" aria-expanded=${open} onClick=${look}>What differs</button>` : null}</div>
    <fieldset class="ways"><legend class="sr">What to do with ${file.name}</legend>${WAYS.map(([value, name, text]) => {
      const cannot = value === "merge" && why;
      return html`<label class=${`way ${choice === value ? "on" : ""} ${cannot ? "off" : ""}`}><input type="radio" name=${`way-${file.path}`} value=${value} checked=${choice === value} disabled=${!!cannot} onChange=${() => choose(value)} />
        <span><strong>${name}</strong><span class="muted">${cannot ? `not possible: ${why}` : text}</span></span></label>`;
    })}</fieldset>
    ${open ? rows ? html`<${DiffOf} id=${id} params=${{ path: file.name }} rows=${rows} small=${true} />` : html`<div class="loading">Reading…</div>` : null}</div>`;
}

function Result({ id, verb, result }) {
  const resume = result.resume ?? result.session.resume;
  const head = useRef(null);
  useEffect(() => head.current?.focus(), []);
  const files = result.files.filter(acts);
  return html`<div class="screen rewind"><header class="head"><div class="head-title"><h1 tabindex="-1" ref=${head}>${{ rewind: "Rewound", undo: "Undone", redo: "Done again" }[verb]}</h1></div></header>
    <section class="sums"><div><strong>${files.length}</strong><span>${files.length === 1 ? "file changed" : "files changed"}</span><${Lines} plus=${result.plus} minus=${result.minus} /></div>
      <div><strong>${result.left}</strong><span>messages in the conversation</span></div>
      <div class=${result.conflicts ? "is-warn" : ""}><strong>${result.conflicts}</strong><span>${result.conflicts === 1 ? "conflict was kept" : "conflicts were kept"}</span></div></section>
    ${result.native_error ? html`<p class="warning">The agent's own session could not follow: ${result.native_error}</p>` : null}
    <h2>Go on with</h2><div class="resume"><code>${resume}</code><button class="small" onClick=${() => copyText(resume).then((ok) => toast(ok ? "Copied" : "Copy it by hand"))}><${Icon} name="copy" />Copy</button></div>
    ${files.length ? html`<h2>Files</h2><ul class="plan">${result.files.map((file) => html`<li key=${file.path}><${Badge} status=${file.action} /><span class="plan-what">${file.action}</span><${Path} path=${file.name} old=${file.old} folder=${file.folder} /><${Lines} plus=${file.plus} minus=${file.minus} /></li>`)}</ul>` : null}
    <div class="go"><a class="button primary" href=${link(id)}>To the session</a></div></div>`;
}

// What was said, called and done, as elements. Text stays text: nothing here makes HTML of it.
import { html, useState, useEffect, Badge, Lines, Icon, plural, clock, moment, Failure } from "./core.js";
import { get, of } from "./api.js";

// A little of Markdown: blocks of code, headings, lists, quotes; in a line code and stress.
const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|__(.+?)__/g;
function inline(text) {
  const found = [];
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    found.push(text.slice(last, match.index));
    found.push(match[2] !== undefined ? html`<code>${match[2]}</code>` : html`<strong>${match[3] ?? match[4]}</strong>`);
    last = match.index + match[0].length;
  }
  found.push(text.slice(last));
  return found;
}

export function Marked({ text }) {
  const out = [];
  const lines = text.split("\n");
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const fence = /^\s*(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
    if (fence) {
      const body = [];
      for (at++; at < lines.length && !lines[at].trim().startsWith(fence[1]); at++) body.push(lines[at]);
      at++;
      out.push(html`<pre class="code"><code>${body.join("\n")}</code></pre>`);
      continue;
    }
    const heading = /^(#{1,6})\s+(.*)/.exec(line);
    if (heading) { out.push(html`<p class="heading">${inline(heading[2])}</p>`); at++; continue; }
    if (/^\s*([-*+]|\d+[.)])\s+/.test(line)) {
      const items = [];
      for (; at < lines.length && /^\s*([-*+]|\d+[.)])\s+/.test(lines[at]); at++) {
        const [, lead, mark, rest] = /^(\s*)([-*+]|\d+[.)])\s+(.*)/.exec(lines[at]);
        items.push(html`<li class=${lead.length > 1 ? "deeper" : ""}><span class="bullet" aria-hidden="true">${/\d/.test(mark) ? mark : "•"}</span><span>${inline(rest)}</span></li>`);
      }
      out.push(html`<ul class="items">${items}</ul>`);
      continue;
    }
    if (/^>\s?/.test(line)) {
      const body = [];
      for (; at < lines.length && /^>\s?/.test(lines[at]); at++) body.push(lines[at].replace(/^>\s?/, ""));
      out.push(html`<blockquote>${inline(body.join("\n"))}</blockquote>`);
      continue;
    }
    if (!line.trim()) { at++; continue; }
    const body = [];
    for (; at < lines.length && lines[at].trim() && !/^\s*(```|~~~|#{1,6}\s|>|[-*+]\s|\d+[.)]\s)/.test(lines[at]); at++) body.push(lines[at]);
    if (!body.length) { body.push(line); at++; }
    out.push(html`<p>${inline(body.join("\n"))}</p>`);
  }
  return html`<div class="marked">${out}</div>`;
}

const lineCount = (text) => text ? text.split("\n").length : 0;

function Answer({ answer }) {
  const [all, setAll] = useState(false);
  const lines = answer.text.split("\n");
  const short = !all && lines.length > 30;
  return html`<div class=${`answer ${answer.failed ? "failed" : ""}`}>
    ${answer.text ? html`<pre tabindex="0">${short ? lines.slice(0, 24).join("\n") : answer.text}</pre>` : null}
    ${short ? html`<button class="link" onClick=${() => setAll(true)}>${plural(lines.length - 24, "more line")}</button>` : null}
    ${answer.pictures.map((one) => html`<${Picture} ...${one} />`)}
  </div>`;
}

const Picture = ({ type, data }) => /^image\/(png|jpeg|gif|webp)$/.test(type)
  ? html`<img class="picture" src=${`data:${type};base64,${data}`} alt="a picture in this message" />` : null;

// A call, folded: its name and what it is about; open: arguments, answer, subagent.
function Call({ part, session, seq, open, toggle, depth }) {
  const answer = part.answer;
  const state = answer === null ? "no answer" : answer.failed ? "failed" : "";
  return html`<div class=${`call ${state === "failed" ? "call-failed" : ""}`}>
    <button class="call-head" aria-expanded=${open} onClick=${toggle}>
      <span class=${`chevron ${open ? "open" : ""}`} aria-hidden="true"></span>
      <span class="call-name">${part.name}</span><span class="call-brief">${part.brief}</span>
      ${state ? html`<span class=${`call-state ${state === "failed" ? "is-bad" : ""}`}>${state}</span>`
        : answer?.text ? html`<span class="call-state">${plural(lineCount(answer.text), "line")}</span>` : null}
    </button>
    ${open ? html`<div class="call-body">
      ${part.args ? html`<pre class="args" tabindex="0">${part.args}</pre>` : null}
      ${answer ? html`<${Answer} answer=${answer} />` : null}
    </div>` : null}
    ${part.agent ? html`<${Agent} session=${session} name=${part.agent[0]} title=${part.agent[1]} depth=${depth + 1} />` : null}
  </div>`;
}

export function Agent({ session, name, title, depth = 0, begun = false }) {
  const [state, set] = useState({ open: false, steps: null, error: null, more: false });
  const load = (after) => get(of(session, "/events"), { agent: name, after, limit: 100 }).then(
    (found) => set((old) => ({ open: true, error: null, more: found.more, steps: [...(after ? old.steps : []), ...found.steps] })),
    (error) => set((old) => ({ ...old, open: true, error })));
  useEffect(() => { if (begun) load(0); }, []);
  const toggle = () => state.steps ? set((old) => ({ ...old, open: !old.open })) : load(0);
  return html`<div class="agent">
    <button class="call-head" aria-expanded=${state.open} onClick=${toggle}>
      <span class=${`chevron ${state.open ? "open" : ""}`} aria-hidden="true"></span>
      <span class="call-name">subagent</span><span class="call-brief">${title}</span></button>
    ${state.open ? html`<div class="agent-body">
      ${state.error ? html`<${Failure} error=${state.error} />` : null}
      ${(state.steps ?? []).filter((one) => one.shown && one.kind !== "start").map((step) => html`<${Step} key=${step.seq} step=${step} session=${session} agent=${name} depth=${depth} />`)}
      ${state.more ? html`<button class="link" onClick=${() => load(state.steps.at(-1).seq)}>more of it</button>` : null}
    </div>` : null}
  </div>`;
}

export function FileChips({ files, onFile }) {
  if (!files?.length) return null;
  const shown = files.slice(0, 6);
  return html`<div class="chips">${shown.map(([path, status, plus, minus, old]) => html`
    <button class="chip" onClick=${() => onFile?.(path)} title=${old ? `${old} → ${path}` : path}>
      <${Badge} status=${status} /><span class="chip-name">${path}</span><${Lines} plus=${plus} minus=${minus} /></button>`)}
    ${files.length > 6 ? html`<span class="muted">and ${files.length - 6} more</span>` : null}</div>`;
}

const NAMES = { user: "You", assistant: "Agent", system: "System", tool: "Tool", note: "" };
const opened = new Map();

export function Step({ step, session, number, agent, onFile, depth = 0 }) {
  const [, redraw] = useState(0);
  const [full, setFull] = useState(null);
  const key = (part) => `${session}/${agent ?? ""}/${step.seq}/${part}`;
  const shown = full ?? step;
  const flip = (name, now) => { opened.set(key(name), !now); redraw((n) => n + 1); };
  const isOpen = (name, usual) => opened.get(key(name)) ?? usual;
  const cut = step.cut && !full ? html`<button class="link" onClick=${() =>
    get(of(session, `/event/${step.seq}`), { agent }).then((found) => setFull({ ...step, parts: merged(step, found), cut: false }))
  }>Show all of it</button>` : null;
  const chips = html`<${FileChips} files=${step.files} onFile=${(path) => onFile?.(path, step.seq)} />`;
  const doubts = step.doubts ? html`<p class="doubts">${step.doubts.join("; ")}</p>` : null;

  if (step.speaker === "note") {
    if (!step.note && !step.files) return null;
    return html`<div class="note">${step.note ? html`<span class="note-text">${step.note}</span>` : html`<span class="note-text">changed by ${step.by || "others"}</span>`}${chips}${doubts}</div>`;
  }
  const parts = (shown.parts ?? []).map((part, at) => {
    if (part.t === "text") return step.speaker === "user" ? html`<div class="plain">${part.text}</div>` : html`<${Marked} text=${part.text} />`;
    if (part.t === "thought") return part.text ? html`<details class="thought"><summary>Thought</summary><div class="plain">${part.text}</div></details>` : null;
    if (part.t === "picture") return html`<${Picture} type=${part.type} data=${part.data} />`;
    if (part.t === "aside") return html`<details class="thought"><summary>${part.title}</summary>${part.text ? html`<pre>${part.text}</pre>` : null}</details>`;
    const open = isOpen(at, false);
    return html`<${Call} part=${part} session=${session} seq=${step.seq} depth=${depth} open=${open} toggle=${() => flip(at, open)} />`;
  });
  const loose = (shown.loose ?? []).map((one) => html`<${Answer} answer=${one} />`);
  if (step.speaker === "user") {
    return html`<article class="step prompt" aria-label=${number ? `prompt ${number}` : "prompt"}>
      <header><span class="who">${number ? `Prompt ${number}` : NAMES.user}</span><time title=${moment(step.ts)}>${clock(step.ts)}</time></header>
      ${parts}${loose}${cut}${chips}${doubts}</article>`;
  }
  const onlyCalls = step.speaker !== "system" && (shown.parts ?? []).every((part) => part.t === "call");
  return html`<article class=${`step ${step.speaker} ${onlyCalls ? "only-calls" : ""}`} aria-label=${NAMES[step.speaker]}>
    ${step.speaker === "system" ? html`<details class="thought"><summary>System prompt</summary>${parts}</details>` : parts}
    ${loose}${cut}${chips}${doubts}</article>`;
}

// The texts in full, with the answers that were found for the calls.
function merged(step, found) {
  return (found.parts ?? []).map((part, at) => {
    const known = step.parts?.[at];
    return part.t === "call" && known?.t === "call" ? { ...part, answer: known.answer, agent: known.agent } : part;
  });
}

"""The style and the script of an exported page. Both stand in the page; nothing is fetched."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c1e21;--dim:#5f6670;--line:#d9dde2;--soft:#f5f6f8;
--user:#0b62c4;--agent:#6d3fc0;--tool:#8a5a00;--bad:#b3261e;--add:#e2f5e5;--addfg:#0b5a1d;
--del:#fde7e6;--delfg:#8c1d18;--mark:#fff3bf}
@media (prefers-color-scheme:dark){:root{--bg:#15171a;--fg:#e4e6ea;--dim:#9aa2ad;--line:#31363d;
--soft:#1d2024;--user:#75b1ff;--agent:#bd9bff;--tool:#e0ac4a;--bad:#ff8f86;--add:#12301a;
--addfg:#8fe0a2;--del:#3a1a1a;--delfg:#ffaaa3;--mark:#4a4113}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.55 system-ui,sans-serif}
header,main,footer{max-width:60rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:1.5rem}
h1{font-size:1.45rem;line-height:1.25;margin:0 0 .5rem;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:0 0 1rem;
color:var(--dim)}
dt,dd{margin:0;overflow-wrap:anywhere}
dd{color:var(--fg)}
.bar{position:sticky;top:0;z-index:1;background:var(--bg);border-bottom:1px solid var(--line);
padding:.6rem 0;display:flex;gap:.6rem;align-items:center;flex-wrap:wrap}
.bar input{flex:1 1 14rem;font:inherit;padding:.35rem .6rem;color:inherit;background:var(--soft);
border:1px solid var(--line);border-radius:.4rem}
.bar button{font:inherit;padding:.35rem .7rem;color:inherit;background:var(--soft);
border:1px solid var(--line);border-radius:.4rem;cursor:pointer}
.bar output{color:var(--dim);font-size:.85rem}
section.turn{border-top:1px solid var(--line);padding:.4rem 0 .8rem}
section.turn:first-child{border-top:0}
article{margin:.9rem 0;scroll-margin-top:4.5rem}
article>h2{font-size:.8rem;font-weight:600;margin:0 0 .2rem;display:flex;gap:.6rem;
align-items:baseline}
article>h2 a{color:var(--dim);font-weight:400;text-decoration:none;
font-variant-numeric:tabular-nums}
article>h2 a:hover{text-decoration:underline}
.user>h2{color:var(--user)}.assistant>h2{color:var(--agent)}.tool>h2,.system>h2{color:var(--tool)}
.user>.words{border-left:3px solid var(--user);padding-left:.8rem}
.note{color:var(--dim);font-size:.9rem}
.note>h2{color:var(--dim)}
.words{white-space:pre-wrap;overflow-wrap:anywhere}
.words+.words,.words+details,details+.words{margin-top:.5rem}
pre{margin:.4rem 0;padding:.6rem .8rem;background:var(--soft);border:1px solid var(--line);
border-radius:.4rem;overflow:auto;max-height:34rem;font:13px/1.45 ui-monospace,monospace;
white-space:pre-wrap;overflow-wrap:anywhere}
details{margin:.3rem 0}
summary{cursor:pointer;overflow-wrap:anywhere}
summary code{font:13px ui-monospace,monospace;color:var(--dim)}
details.call>summary{color:var(--tool)}details.thought>summary,details.aside>summary{color:var(--dim)}
details.thought>.words{color:var(--dim);border-left:3px solid var(--line);padding-left:.8rem}
.failed{color:var(--bad)}
.subagent{border-left:3px solid var(--line);padding-left:1rem;margin:.5rem 0}
.files{font-size:.9rem;margin:.6rem 0}
.files>h3{font-size:.8rem;margin:.4rem 0;color:var(--dim)}
.plus{color:var(--addfg)}.minus{color:var(--delfg)}
pre.diff{white-space:pre;overflow-wrap:normal;padding:.4rem 0}
pre.diff span{display:block;padding:0 .8rem}
pre.diff .a{background:var(--add);color:var(--addfg)}
pre.diff .d{background:var(--del);color:var(--delfg)}
pre.diff .h{color:var(--dim)}
img{max-width:100%;height:auto;border:1px solid var(--line);border-radius:.4rem;margin:.4rem 0}
:target{background:var(--mark)}
[hidden]{display:none!important}
footer{color:var(--dim);font-size:.85rem;border-top:1px solid var(--line);margin-top:1.5rem;
padding-top:.8rem;padding-bottom:2rem}
@media print{.bar{display:none}pre{max-height:none}}
"""

SCRIPT = """
"use strict";
const box = document.getElementById("search");
const count = document.getElementById("found");
const articles = Array.from(document.querySelectorAll("main section.turn > article"));
const turns = Array.from(document.querySelectorAll("main section.turn"));
for (const time of document.querySelectorAll("time")) {
  const moment = new Date(time.dateTime);
  if (!Number.isNaN(moment.getTime())) {
    time.title = time.dateTime;
    time.textContent = moment.toLocaleString(undefined, {dateStyle: "medium", timeStyle: "medium"});
  }
}
const texts = articles.map((article) => article.textContent.toLowerCase());
function search() {
  const wanted = box.value.trim().toLowerCase().split(/\\s+/).filter(Boolean);
  let shown = 0;
  articles.forEach((article, at) => {
    article.hidden = !wanted.every((word) => texts[at].includes(word));
    shown += article.hidden ? 0 : 1;
  });
  for (const turn of turns) {
    const files = turn.querySelector(":scope > .files");
    if (files) files.hidden = wanted.length > 0;
    turn.hidden = !turn.querySelector(":scope > article:not([hidden])") && wanted.length > 0;
  }
  count.textContent = wanted.length ? shown + " of " + articles.length : "";
}
function reveal() {
  const found = document.getElementById(location.hash.slice(1));
  for (let at = found; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (found) found.scrollIntoView();
}
function open(all) {
  document.querySelectorAll("main details").forEach((part) => { part.open = all; });
}
box.addEventListener("input", search);
document.getElementById("expand").addEventListener("click", () => open(true));
document.getElementById("collapse").addEventListener("click", () => open(false));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== box) { event.preventDefault(); box.focus(); }
  if (event.key === "Escape") { box.value = ""; search(); }
});
addEventListener("hashchange", reveal);
document.querySelector(".bar").hidden = false;
reveal();
"""


def policy() -> str:
    """What the page may load and run: its own style and script, pictures in it, nothing else."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )

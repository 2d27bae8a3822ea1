// A list of any length of which only what is in view is on the page. Heights are measured.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./core.js";

// Sums of heights, found and changed in a few steps however many there are.
class Heights {
  constructor(count, usual) {
    this.usual = usual;
    this.resize(count);
  }
  resize(count) {
    const old = this.own;
    this.count = count;
    this.own = new Float64Array(count).fill(this.usual);
    if (old) this.own.set(old.subarray(0, Math.min(count, old.length)));
    this.tree = new Float64Array(count + 1);
    for (let i = 1; i <= count; i++) {
      this.tree[i] += this.own[i - 1];
      const up = i + (i & -i);
      if (up <= count) this.tree[up] += this.tree[i];
    }
  }
  set(at, height) {
    const delta = height - this.own[at];
    if (!delta) return 0;
    this.own[at] = height;
    for (let i = at + 1; i <= this.count; i += i & -i) this.tree[i] += delta;
    return delta;
  }
  before(at) {
    let sum = 0;
    for (let i = Math.min(at, this.count); i > 0; i -= i & -i) sum += this.tree[i];
    return sum;
  }
  at(y) {
    let at = 0, left = y;
    for (let bit = 1 << 30; bit; bit >>= 1) {
      const next = at + bit;
      if (next <= this.count && this.tree[next] <= left) { at = next; left -= this.tree[next]; }
    }
    return Math.min(at, this.count - 1);
  }
}

const MOST = 300;

/* `count` rows, each made by `row(at)`. `control` gets `{ to(at, where), shown() }`.
   `seen(first, last)` says what is in view; `stick` keeps the end in view as rows come. */
export function List({ count, row, usual = 60, control, seen, stick = false, label, className = "", version, id }) {
  const box = useRef(null), heights = useRef(null), bottom = useRef(stick), wanted = useRef(null);
  const [range, setRange] = useState([0, 0]);
  if (!heights.current) heights.current = new Heights(count, usual);
  if (heights.current.count !== count) heights.current.resize(count);
  const all = heights.current;

  const look = () => {
    const node = box.current;
    if (!node || !count) return;
    const top = node.scrollTop, high = node.clientHeight || 600;
    let first = Math.max(0, all.at(Math.max(0, top - 400))), last = all.at(top + high + 400) + 1;
    if (last - first > MOST) { first = all.at(top); last = first + MOST; }
    last = Math.min(count, last);
    setRange((old) => old[0] === first && old[1] === last ? old : [first, last]);
    seen?.(all.at(top), Math.min(count - 1, all.at(top + high)));
  };

  const place = () => {
    const node = box.current;
    if (!node) return;
    if (wanted.current) {
      const { at, where } = wanted.current;
      const y = all.before(at);
      node.scrollTop = where === "end" ? y + all.own[at] - node.clientHeight
        : where === "middle" ? y - node.clientHeight / 3
        : where === "near" && y >= node.scrollTop && y + all.own[at] <= node.scrollTop + node.clientHeight ? node.scrollTop
        : y - 8;
    } else if (bottom.current && stick) node.scrollTop = node.scrollHeight;
  };

  if (control) control.current = {
    to(at, where = "start") {
      wanted.current = { at: Math.max(0, Math.min(count - 1, at)), where };
      bottom.current = false;
      place(); look();
      clearTimeout(wanted.timer);
      wanted.timer = setTimeout(() => { wanted.current = null; }, 400);
    },
    toEnd() { bottom.current = true; wanted.current = null; if (box.current) box.current.scrollTop = box.current.scrollHeight; look(); },
    isAtEnd: () => bottom.current,
    top: () => all.at(box.current?.scrollTop ?? 0),
    box: () => box.current,
  };

  useLayoutEffect(() => { place(); look(); }, [count, version]);
  useEffect(() => {
    const watch = new ResizeObserver(() => { place(); look(); });
    watch.observe(box.current);
    return () => watch.disconnect();
  }, [count]);

  // Measure what is there now; what is above keeps its place.
  useLayoutEffect(() => {
    const node = box.current;
    if (!node) return;
    const top = node.scrollTop;
    let moved = 0, changed = false;
    for (const child of node.firstElementChild.children) {
      const at = Number(child.dataset.at);
      if (Number.isNaN(at)) continue;
      const y = all.before(at);
      const delta = all.set(at, child.offsetHeight);
      if (delta) { changed = true; if (y < top) moved += delta; }
    }
    if (changed) {
      node.firstElementChild.style.height = `${all.before(count)}px`;
      if (wanted.current || (bottom.current && stick)) place();
      else if (moved) node.scrollTop = top + moved;
      for (const child of node.firstElementChild.children) {
        const at = Number(child.dataset.at);
        if (!Number.isNaN(at)) child.style.transform = `translateY(${all.before(at)}px)`;
      }
      look();
    }
  });

  const scrolled = () => {
    const node = box.current;
    if (!wanted.current) bottom.current = node.scrollTop + node.clientHeight >= node.scrollHeight - 40;
    look();
  };
  const taken = () => { wanted.current = null; };
  const rows = [];
  for (let at = range[0]; at < Math.min(range[1], count); at++) {
    rows.push(html`<div key=${at} data-at=${at} class="row" role="listitem"
      style=${{ transform: `translateY(${all.before(at)}px)` }}>${row(at)}</div>`);
  }
  return html`<div class=${`list ${className}`} id=${id} ref=${box} onScroll=${scrolled} onWheel=${taken} onPointerDown=${taken}
      tabindex="0" role="region" aria-label=${label}>
    <div class="list-inner" role="list" style=${{ height: `${all.before(count)}px` }}>${rows}</div></div>`;
}

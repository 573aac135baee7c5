'use strict';
// Draws the page of what stands in #data. All text from a run is set as text, never as HTML.
(() => {
const data = JSON.parse(document.getElementById('data').textContent);
const runs = data.runs;
const by = id => document.getElementById(id);
const many = runs.length > 1;

/* ---- small helpers ---- */
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'class') node.className = value;
    else if (name === 'style') node.style.cssText = value;
    else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}
function draw(tag, attributes, text) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  if (text !== undefined) node.textContent = text;
  return node;
}
const color = index => `var(--c${index % 8})`;
const dot = index => make('i', {class: 'dot', style: `background:${color(index)}`});
function number(value) {
  if (value === null || value === undefined) return '–';
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(3).replace(/\.?0+e/, 'e').replace('e+', 'e');
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
}
function duration(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const s = Math.round(seconds), two = n => String(n).padStart(2, '0');
  if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)} h`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}
function bytes(count) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (count >= 1000 && unit < 4) { count /= 1000; ++unit; }
  return `${unit ? count.toPrecision(3) : count} ${units[unit]}`;
}
const date = seconds => seconds ? new Date(seconds * 1000).toLocaleString(undefined, {dateStyle: 'medium', timeStyle: 'short'}) : '–';
const plural = (count, noun) => `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`;
const isShare = name => /accuracy|f1|precision|recall|correlation|pearson|spearman|exact_match/.test(name);  // at most 1, or at most 100
const direction = name => /loss|perplexity|error|wer|cer/.test(name) ? -1 : isShare(name) || /bleu|per_second/.test(name) ? 1 : 0;

/* ---- what is shown ---- */
const longest = Math.max(...runs.flatMap(run => run.series.map(series => series.mean.length)), 0);
const hasTime = runs.every(run => run.axes.every(axis => axis.time));
const state = {x: 'step', smoothing: longest >= 60 ? 0.6 : 0, log: false, outliers: false, hidden: new Set(), zoom: null, hover: null, filter: ''};

const groups = new Map();  // name -> lines
runs.forEach((run, r) => run.series.forEach(series => {
  if (!groups.has(series.name)) groups.set(series.name, []);
  groups.get(series.name).push({run: r, series, axis: run.axes[series.axis]});
}));
function section(name) {
  if (/per_second$/.test(name)) return 'Throughput';
  if (/time_.*_ms$/.test(name)) return 'Where the time goes';
  if (/^rank\/|memory|cpu_load/.test(name)) return 'Processor and memory';
  return 'Curves';
}
const order = name => ['steps_per_second', 'train/loss', 'eval/loss'].indexOf(name) + 1 || (name.startsWith('eval/') ? 4 : name.startsWith('train/') ? 5 : 6);
const names = [...groups.keys()].filter(name => name !== 'train/epoch' && !/^(eval|test)\/runtime$/.test(name))
  .sort((a, b) => order(a) - order(b) || a.localeCompare(b));

/* ---- charts ---- */
const charts = [];
const margin = {left: 52, right: 10, top: 8, bottom: 24};

function smoothed(values, weight) {
  if (weight <= 0) return values;
  let last = 0, debias = 1;
  return values.map(value => {
    if (value === null) return null;
    last = last * weight + (1 - weight) * value;
    debias *= weight;
    return last / (1 - debias);
  });
}
function ticks(low, high, count, isTime) {
  const span = high - low || 1;
  const steps = isTime ? [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400] : [];
  let step = steps.find(each => span / each <= count);
  if (!step || (isTime && span < count)) {
    step = 10 ** Math.floor(Math.log10(span / count));
    step *= [1, 2, 2.5, 5, 10].find(factor => span / (step * factor) <= count) || 10;
  }
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; ++at) found.push(at * step);
  return found;
}
function logTicks(low, high) {
  const found = [];
  const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
  const factors = to - from <= 2 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil((to - from) / 6));
  for (let power = from; power <= to; power += every) for (const factor of factors) {
    const at = factor * 10 ** power;
    if (at >= low * 0.999 && at <= high * 1.001) found.push(at);
  }
  return found;
}
function clock(seconds, span) {
  if (span < 120) return `${Number(seconds.toPrecision(3))} s`;
  const s = Math.round(seconds), two = n => String(n).padStart(2, '0');
  return span < 7200 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)} h`;
}
function stepText(step) { return step >= 1e6 ? `${Number((step / 1e6).toPrecision(4))}M` : step >= 1e4 ? `${Number((step / 1e3).toPrecision(4))}k` : String(Math.round(step * 100) / 100); }

/* "train/" and "backward, ms" of "train/time_backward_ms". */
function title(name) {
  const rest = name.slice(name.indexOf('/') + 1);
  return [name.slice(0, name.length - rest.length), rest.replace(/^time_(.*)_ms$/, '$1, ms').replace(/_/g, ' ')];
}

class Chart {
  constructor(name, lines) {
    this.name = name;
    this.lines = lines;
    const [prefix, rest] = title(name);
    this.last = make('b');
    this.svg = draw('svg', {role: 'img', 'aria-label': this.describe()});
    this.node = make('div', {class: 'card chart'},
      make('h3', {}, make('span', {}, make('i', {}, prefix), rest), this.last), this.warning(), this.svg);
    this.svg.addEventListener('pointermove', event => this.move(event));
    this.svg.addEventListener('pointerleave', () => { state.hover = null; by('tip').hidden = true; refreshCursors(); });
    this.svg.addEventListener('pointerdown', event => { if (event.button === 0 && event.pointerType === 'mouse') this.brush = this.x(event); });
    this.svg.addEventListener('dblclick', () => zoom(null));
    this.visible = false;
    charts.push(this);
  }
  describe() {
    return this.name + ': ' + this.lines.map(line => `${label(line)} ends at ${number(line.series.last)}`).join(', ');
  }
  warning() {
    const bad = this.lines.filter(line => line.series.bad);
    if (!bad.length) return null;
    return make('p', {class: 'warn'}, bad.map(line => `${many ? label(line) + ': ' : ''}${plural(line.series.bad[0], 'value')} not finite, first at step ${line.series.bad[1]}`).join('; '));
  }
  shown() { return this.lines.filter(line => !state.hidden.has(line.run)); }
  xs(line) { return state.x === 'time' && line.axis.time ? line.axis.time : line.axis.step; }
  tint(line) {
    const ranks = new Set(this.lines.map(each => each.series.rank)).size;
    return !many && ranks > 1 ? color(line.series.rank) : color(line.run);
  }
  x(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - margin.left) / (box.width - margin.left - margin.right);
    return this.from + Math.min(Math.max(share, 0), 1) * (this.to - this.from);
  }
  render() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    if (!width) return;
    const lines = this.shown();
    this.node.style.opacity = lines.length ? '' : '0.4';
    let [from, to] = state.zoom || [Infinity, -Infinity];
    if (!state.zoom) for (const line of lines) {
      const xs = this.xs(line);
      from = Math.min(from, xs[0]); to = Math.max(to, xs[xs.length - 1]);
    }
    if (!(from <= to)) [from, to] = [0, 1];
    if (from === to) { from -= 0.5; to += 0.5; }
    this.from = from; this.to = to;

    let low = Infinity, high = -Infinity;
    const inside = [], bands = [];
    this.curves = lines.map(line => {
      const xs = this.xs(line), means = line.series.mean, smooth = smoothed(means, means.length > 30 ? state.smoothing : 0);
      for (let i = 0; i < xs.length; ++i) {
        if (means[i] === null || xs[i] < from || xs[i] > to) continue;
        for (const value of [means[i], smooth[i]]) if (!state.log || value > 0) inside.push(value);
        if (line.series.low) for (const value of [line.series.low[i], line.series.high[i]]) if (!state.log || value > 0) bands.push(value);
      }
      return {line, xs, means, smooth};
    });
    if (state.outliers && inside.length > 40) {
      inside.sort((a, b) => a - b);
      low = inside[Math.floor(inside.length * 0.03)]; high = inside[Math.ceil(inside.length * 0.97) - 1];
    } else for (const value of inside) { low = Math.min(low, value); high = Math.max(high, value); }
    if (bands.length && !state.outliers) {  // a band's rare peaks would flatten the curve
      bands.sort((a, b) => a - b);
      low = Math.min(low, bands[Math.floor(bands.length * 0.01)]); high = Math.max(high, bands[Math.ceil(bands.length * 0.99) - 1]);
    }
    const isLog = state.log && low > 0;
    if (!(low <= high)) [low, high] = [0, 1];
    const least = low, most = high;
    if (low === high) { const pad = Math.abs(low) * 0.1 || 1; low -= pad; high += pad; }
    const warp = isLog ? Math.log : value => value;
    let bottom = warp(low), top = warp(high);
    const pad = (top - bottom) * 0.06; bottom -= low === 0 ? 0 : pad; top += pad;
    if (!isLog && isShare(this.name) && most <= 1) {
      top = Math.min(top, 1);
      if (least >= 0) bottom = Math.max(bottom, 0);
    }
    const X = value => margin.left + (value - from) / (to - from) * (width - margin.left - margin.right);
    const Y = value => margin.top + (1 - (warp(value) - bottom) / (top - bottom)) * (height - margin.top - margin.bottom);
    this.X = X; this.Y = Y;

    const nodes = [];
    const unwarp = isLog ? Math.exp : value => value;
    const clip = `clip${charts.indexOf(this)}`;
    const box = {x: margin.left - 4, y: margin.top - 4, width: Math.max(width - margin.left - margin.right, 1) + 8, height: height - margin.top - margin.bottom + 5};
    const clipPath = draw('clipPath', {id: clip});
    clipPath.append(draw('rect', box));
    nodes.push(clipPath);
    let marks = isLog ? logTicks(unwarp(bottom), unwarp(top)) : ticks(bottom, top, 5, false);
    if (isLog && marks.length < 2) marks = ticks(unwarp(bottom), unwarp(top), 4, false);
    for (const at of marks) {
      nodes.push(draw('line', {class: 'gridline', x1: margin.left, x2: width - margin.right, y1: Y(at), y2: Y(at)}));
      nodes.push(draw('text', {x: margin.left - 7, y: Y(at) + 4, 'text-anchor': 'end'}, number(Number(at.toPrecision(8)))));
    }
    const isTime = state.x === 'time' && hasTime;
    for (const at of ticks(from, to, Math.max(2, Math.floor(width / 95)), isTime)) {
      const text = isTime ? clock(at, to - from) : stepText(at);
      const anchor = X(at) > width - 30 ? 'end' : 'middle';
      nodes.push(draw('line', {class: 'axis', x1: X(at), x2: X(at), y1: height - margin.bottom, y2: height - margin.bottom + 4}));
      nodes.push(draw('text', {x: anchor === 'end' ? Math.min(X(at) + 8, width - 2) : X(at), y: height - 7, 'text-anchor': anchor}, text));
    }
    nodes.push(draw('line', {class: 'axis', x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom}));

    const plot = draw('g', {'clip-path': `url(#${clip})`});
    const path = (xs, ys) => {
      let text = '', pen = 'M';
      for (let i = 0; i < xs.length; ++i) {
        if (ys[i] === null || (isLog && ys[i] <= 0)) { pen = 'M'; continue; }
        text += `${pen}${X(xs[i]).toFixed(1)} ${Y(ys[i]).toFixed(1)}`;
        pen = 'L';
      }
      return text;
    };
    for (const {line, xs, means, smooth} of this.curves) {
      const tint = this.tint(line);
      const dash = many && line.series.rank > 0 ? `${2 + line.series.rank} 3` : '';
      if (line.series.low) {
        let upper = '', lower = '', pen = 'M';
        for (let i = 0; i < xs.length; ++i) {
          if (means[i] === null || (isLog && line.series.low[i] <= 0)) continue;
          const at = X(xs[i]).toFixed(1);
          upper += `${pen}${at} ${Y(line.series.high[i]).toFixed(1)}`;
          lower = `L${at} ${Y(line.series.low[i]).toFixed(1)}` + lower;
          pen = 'L';
        }
        if (upper) plot.append(draw('path', {d: upper + lower + 'Z', style: `fill:${tint}`, opacity: 0.13}));
      }
      const isSmooth = smooth !== means;
      if (isSmooth) plot.append(draw('path', {d: path(xs, means), fill: 'none', style: `stroke:${tint}`, 'stroke-width': 1, opacity: 0.3}));
      plot.append(draw('path', {d: path(xs, smooth), fill: 'none', style: `stroke:${tint}`, 'stroke-width': 1.9, 'stroke-linejoin': 'round', 'stroke-dasharray': dash}));
      const few = xs.length <= 24;
      if (few) xs.forEach((at, i) => {
        if (means[i] !== null && !(isLog && means[i] <= 0)) plot.append(draw('circle', {cx: X(at), cy: Y(means[i]), r: 2.7, style: `fill:${tint}`}));
      });
    }
    this.overlay = draw('g', {});
    nodes.push(plot, this.overlay);
    this.svg.replaceChildren(...nodes);
    this.last.textContent = lines.length === 1 ? number(lines[0].series.last) : '';
    this.cursor();
  }
  near(curve, at) {
    const {xs} = curve;
    let a = 0, b = xs.length - 1;
    while (b - a > 1) { const middle = (a + b) >> 1; if (xs[middle] < at) a = middle; else b = middle; }
    return Math.abs(xs[a] - at) <= Math.abs(xs[b] - at) ? a : b;
  }
  cursor() {
    if (!this.overlay) return;
    this.overlay.replaceChildren();
    const height = this.svg.clientHeight;
    if (this.brush !== undefined && state.hover && state.hover.chart === this) {
      const [a, b] = [this.X(this.brush), this.X(state.hover.at)].sort((p, q) => p - q);
      this.overlay.append(draw('rect', {class: 'brush', x: a, y: margin.top, width: b - a, height: height - margin.top - margin.bottom}));
    }
    if (!state.hover || state.hover.at < this.from || state.hover.at > this.to) return;
    const x = this.X(state.hover.at);
    this.overlay.append(draw('line', {class: 'cursor', x1: x, x2: x, y1: margin.top, y2: height - margin.bottom}));
    for (const curve of this.curves) {
      const i = this.near(curve, state.hover.at), value = curve.smooth[i];
      if (value === null || curve.xs[i] < this.from || curve.xs[i] > this.to || !isFinite(this.Y(value))) continue;
      this.overlay.append(draw('circle', {cx: this.X(curve.xs[i]), cy: this.Y(value), r: 3.6, style: `fill:${this.tint(curve.line)};stroke:var(--card);stroke-width:1.5`}));
    }
  }
  move(event) {
    if (!this.curves || !this.curves.length) return;
    state.hover = {chart: this, at: this.x(event)};
    refreshCursors();
    const tip = by('tip'), rows = [];
    let header = '';
    for (const curve of this.curves) {
      const {line, means, smooth} = curve, i = this.near(curve, state.hover.at), axis = line.axis;
      if (!header) header = `step ${stepText(axis.step[i])}` + (axis.time ? ` · ${duration(axis.time[i])}` : '');
      const range = line.series.low && means[i] !== null ? `${number(line.series.low[i])} – ${number(line.series.high[i])}` : smooth !== means ? `raw ${number(means[i])}` : '';
      rows.push(make('tr', {}, make('td', {}, make('i', {class: 'dot', style: `background:${this.tint(line)}`})), make('td', {}, label(line)),
        make('td', {class: 'value'}, number(smooth[i])), make('td', {class: 'range'}, range)));
    }
    const table = make('table', {});
    table.append(...rows.slice(0, 16));
    tip.replaceChildren(make('p', {}, header), table);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 14 : event.clientX + 16;
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - box.height - 6)}px`;
  }
}
function label(line) {
  const rank = runs[line.run].ranks > 1 && groups.get(line.series.name).some(each => each.series.rank > 0) ? `rank ${line.series.rank}` : '';
  return many ? runs[line.run].name + (rank && `, ${rank}`) : rank || (runs[line.run].name);
}
let pending = false;
function refresh() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; for (const chart of charts) { chart.stale = true; if (chart.visible) { chart.stale = false; chart.render(); } } });
}
function refreshCursors() { for (const chart of charts) if (chart.visible) chart.cursor(); }
function zoom(range) { state.zoom = range; by('zoom-out').hidden = range === null; refresh(); }
addEventListener('pointerup', event => {
  for (const chart of charts) {
    if (chart.brush === undefined) continue;
    const range = [chart.brush, chart.x(event)].sort((a, b) => a - b);
    chart.brush = undefined;
    if (chart.X(range[1]) - chart.X(range[0]) > 6) zoom(range); else chart.cursor();
  }
});
const seen = new IntersectionObserver(entries => {
  for (const entry of entries) {
    const chart = charts.find(each => each.node === entry.target);
    chart.visible = entry.isIntersecting;
    if (chart.visible && chart.stale !== false) { chart.stale = false; chart.render(); }
  }
}, {rootMargin: '300px'});
addEventListener('resize', refresh);
addEventListener('beforeprint', () => charts.forEach(chart => chart.render()));

/* ---- sections ---- */
const content = by('content');
function addSection(title, note) {
  const id = title.toLowerCase().replace(/[^a-z]+/g, '-');
  const node = make('section', {id}, make('h2', {}, title, note ? make('small', {}, note) : null));
  content.append(node);
  by('sections').append(make('a', {href: `#${id}`}, title));
  return node;
}
/* One value is a number, no curve. */
const isNumber = name => groups.get(name).every(line => line.series.mean.length === 1);
const numbers = [];
function numberTile(name) {
  const lines = groups.get(name), single = lines.length === 1;
  const node = make('div', {class: 'tile'}, make('span', {}, title(name).join('')),
    ...lines.map(line => make('b', single ? {} : {title: label(line)}, single ? null : dot(many ? line.run : line.series.rank), number(line.series.last))),
    make('small', {}, `at step ${[...new Set(lines.map(line => stepText(line.axis.step[0])))].join(', ')}`));
  numbers.push({name, node});
  return node;
}
function addCharts(node, wanted) {
  const grid = make('div', {class: 'grid'}), shownAbove = many ? [] : evalNames.slice(0, 3);
  const tiles = make('div', {class: 'tiles few'}, ...wanted.filter(name => isNumber(name) && !shownAbove.includes(name)).map(numberTile));
  if (tiles.children.length) node.append(tiles);
  for (const name of wanted.filter(each => !isNumber(each))) {
    const chart = new Chart(name, groups.get(name));
    grid.append(chart.node);
    seen.observe(chart.node);
  }
  node.append(grid);
}
const of = title => names.filter(name => section(name) === title)
  .sort((a, b) => title === 'Curves' ? 0 : a.startsWith('eval/') - b.startsWith('eval/'));

/* Without times the duration is that of the last training, which may have been resumed. */
function partOf(run) {
  const steps = Math.round(run.results.train_runtime * run.results.train_steps_per_second);
  return steps < run.steps - Math.max(1, run.steps / 100) ? `of the last ${plural(steps, 'step')}` : '';
}
function statusNode(run) {
  return make('span', {class: run.kind, title: run.error}, (run.status || 'not known') + (many && run.detail ? `, ${run.detail}` : ''));
}
function lastOf(run, name) { const found = run.series.find(series => series.name === name && series.rank === 0); return found ? found.last : null; }
function speedOf(run) {
  const unit = name => name.includes('samples') ? 'samples/s' : 'steps/s';
  for (const name of ['train_samples_per_second', 'train_steps_per_second']) if (run.results[name] > 0) return [run.results[name], unit(name)];  // 0: no step was left
  for (const name of ['train/samples_per_second', 'train/steps_per_second', 'steps_per_second']) {
    const series = run.series.find(each => each.name === name && each.rank === 0);
    const values = series ? series.mean.filter(value => value > 0).sort((a, b) => a - b) : [];
    if (values.length) return [values[values.length >> 1], unit(name)];
  }
  return [null, ''];
}
function bestOf(run, name) {
  const found = run.series.find(series => series.name === name && series.rank === 0);
  if (!found) return null;
  const sign = direction(name);
  return sign === 0 ? [found.last, null] : sign < 0 ? found.least : found.greatest;
}
const evalNames = names.filter(name => name.startsWith('eval/') && !/per_second|runtime/.test(name));

function overview() {
  const node = by('overview');
  const total = runs.reduce((sum, run) => sum + run.points, 0);
  by('subtitle').textContent = `${many ? plural(runs.length, 'run') + ' · ' : ''}${plural(total, 'logged value')} · ${date(data.generated)}`;
  if (!many) {
    const run = runs[0], [speed, unit] = speedOf(run);
    const tile = (name, value, more) => make('div', {class: 'tile'}, make('span', {}, name), make('b', {}, value), make('small', {}, more || '\u00a0'));
    const tiles = make('div', {class: 'tiles'});
    tiles.append(tile('Status', statusNode(run), [run.detail, run.started && `since ${date(run.started)}`].filter(Boolean).join(' · ')));
    tiles.append(tile('Steps', run.steps.toLocaleString('en'), (run.max_steps > run.steps ? `of ${run.max_steps.toLocaleString('en')} · ` : '') + plural(run.ranks, 'rank')));
    if (run.duration !== null) tiles.append(tile('Duration', duration(run.duration), run.ended ? `until ${date(run.ended)}` : partOf(run)));
    if (lastOf(run, 'train/loss') !== null) tiles.append(tile('Training loss', number(lastOf(run, 'train/loss')), `least ${number(bestOf(run, 'train/loss')[0])} at step ${bestOf(run, 'train/loss')[1]}`));
    for (const name of evalNames.slice(0, 3)) {
      const [value, step] = bestOf(run, name);
      tiles.append(tile(`${direction(name) && !isNumber(name) ? 'Best ' : ''}${name}`.replace(/_/g, ' '), number(value), step === null ? '' : `at step ${step}`));
    }
    if (speed !== null) tiles.append(tile('Throughput', `${number(Number(speed.toPrecision(4)))}`, unit));
    node.append(tiles);
    if (run.error) node.append(make('p', {class: 'card note bad'}, run.error));
    return;
  }
  const columns = ['train/loss', ...evalNames.slice(0, 4)].filter(name => groups.has(name));
  const table = make('table', {class: 'facts runs'});
  table.append(make('thead', {}, make('tr', {}, make('th', {}, 'Run'), make('th', {}, 'Status'), make('th', {}, 'Started'), make('th', {class: 'number'}, 'Duration'),
    make('th', {class: 'number'}, 'Steps'), make('th', {class: 'number'}, 'Ranks'),
    ...columns.map(name => make('th', {class: 'number'}, `${direction(name) ? 'Best ' : ''}${name}`)), make('th', {class: 'number'}, 'Throughput'))));
  const body = make('tbody');
  const winners = columns.map(name => {
    const values = runs.map(run => bestOf(run, name)).filter(Boolean).map(best => best[0] * direction(name));
    return direction(name) && values.length > 1 ? Math.max(...values) * direction(name) : null;
  });
  runs.forEach((run, r) => {
    const [speed, unit] = speedOf(run);
    body.append(make('tr', {}, make('td', {}, dot(r), run.name), make('td', {class: 'status'}, statusNode(run)), make('td', {class: 'date'}, date(run.started)),
      make('td', {class: 'number'}, duration(run.duration)),
      make('td', {class: 'number'}, run.steps.toLocaleString('en')), make('td', {class: 'number'}, run.ranks),
      ...columns.map((name, c) => { const best = bestOf(run, name); return make('td', {class: best && best[0] === winners[c] ? 'number best' : 'number'}, best ? number(best[0]) : '–'); }),
      make('td', {class: 'number'}, speed === null ? '–' : `${number(Number(speed.toPrecision(4)))} ${unit}`)));
  });
  table.append(body);
  node.append(make('h2', {}, 'Runs'), make('div', {class: 'card scroll'}, table));
}

// In both themes; the text on them is white (page.css), with a contrast of at least 4.5.
const partColors = {data: '#3c7d74', forward: '#2e79b0', backward: '#2b5597', optimizer: '#8259b3', communication: '#c8473c', other: '#6f757d'};
const partColor = name => partColors[name] || '#8a6a2f';
function timeParts(node) {
  const rows = runs.flatMap((run, r) => run.time.map(each => ({...each, run: r})));
  const card = make('div', {class: 'card parts'});
  if (!rows.length) {
    node.append(make('div', {class: 'card'}, make('p', {class: 'note'}, 'Not recorded. Train with --report-performance, or set LOCKSTEP_TIMELINE=RUN_DIR/timeline.json for one run.')));
    return;
  }
  const sum = row => row.parts.reduce((total, part) => total + part[1], 0);
  const most = Math.max(...rows.map(sum));
  const known = [...new Set(rows.flatMap(row => row.parts.map(part => part[0])))];
  const key = make('div', {class: 'key'});
  for (const part of known) key.append(make('span', {}, make('i', {class: 'dot', style: `background:${partColor(part)}`}), part));
  card.append(key);
  for (const row of rows) {
    const bar = make('div', {class: 'bar', role: 'img', 'aria-label': row.parts.map(part => `${part[0]} ${number(part[1])} ms`).join(', ')});
    for (const [name, value] of row.parts) {
      const share = value / (most || 1) * 100, own = value / (sum(row) || 1);
      bar.append(make('i', {style: `width:${share}%;background:${partColor(name)}`, title: `${name}: ${number(Number(value.toPrecision(4)))} ms, ${(own * 100).toFixed(1)} %`},
        share > 7 ? `${(own * 100).toFixed(0)} %` : ''));
    }
    card.append(make('div', {class: 'part-row'}, make('span', {}, many ? dot(row.run) : null, many ? `\u2002${runs[row.run].name}, ${row.rank}` : row.rank), bar, make('span', {}, `${number(Number(sum(row).toPrecision(3)))} ms/step`)));
  }
  node.append(card);
}

/* What lockrun --event-log has written. */
function jobEvents() {
  if (!runs.some(run => run.events.length)) return;
  const damaged = runs.reduce((sum, run) => sum + run.damaged_events, 0);
  const node = addSection('What happened to the job', 'lockrun --event-log' + (damaged ? `; ${plural(damaged, 'line')} left out because damaged` : ''));
  const table = make('table', {class: 'facts'});
  table.append(make('thead', {}, make('tr', {}, many ? make('th', {}, 'Run') : null, make('th', {class: 'number'}, 'After'), make('th', {}, 'Event'), make('th', {}, ''))));
  const body = make('tbody');
  runs.forEach((run, r) => run.events.forEach(([time, name, text, trouble], e) => {
    if (run.events_left_out && e === run.events.length >> 1) body.append(make('tr', {}, make('td', {colspan: many ? 4 : 3}, `${plural(run.events_left_out, 'event')} left out`)));
    const when = make('td', {class: 'number', title: new Date(time * 1000).toLocaleString()}, duration(time - run.events[0][0]));
    body.append(make('tr', {}, many ? make('td', {}, dot(r), run.name) : null, when, make('td', {}, make('span', trouble ? {class: 'bad'} : {}, name)), make('td', {}, text)));
  }));
  table.append(body);
  node.append(make('div', {class: 'card scroll'}, table));
}

function checkpoints() {
  if (!runs.some(run => run.checkpoints.length)) return;
  const node = addSection('Checkpoints');
  const table = make('table', {class: 'facts'});
  table.append(make('thead', {}, make('tr', {}, many ? make('th', {}, 'Run') : null, make('th', {}, 'Checkpoint'), make('th', {class: 'number'}, 'Step'), make('th', {class: 'number'}, 'Size'),
    make('th', {class: 'number'}, 'Ranks'), make('th', {}, 'Written'))));
  const body = make('tbody');
  runs.forEach((run, r) => run.checkpoints.forEach(saved => {
    const name = make('td', {}, saved.name, saved.best ? make('span', {class: 'tag good'}, 'best') : null, saved.problem ? make('span', {class: 'tag bad', title: saved.problem}, 'incomplete') : null);
    body.append(make('tr', {}, many ? make('td', {}, dot(r), run.name) : null, name, make('td', {class: 'number'}, saved.step.toLocaleString('en')), make('td', {class: 'number'}, bytes(saved.bytes)),
      make('td', {class: 'number'}, saved.problem ? '–' : saved.ranks), make('td', {class: 'date'}, date(saved.written))));
  }));
  table.append(body);
  node.append(make('div', {class: 'card scroll'}, table));
}

function facts(title, field) {
  // Arguments that were given as flags come first.
  const commands = field === 'arguments' ? runs.map(run => `${run.environment.command ?? ''} `.replaceAll('_', '-')) : [];
  const isSet = key => commands.some(command => [' ', '='].some(end => command.includes(` --${key.replaceAll('_', '-')}${end}`)));
  const keys = [...new Set(runs.flatMap(run => Object.keys(run[field])))].sort().sort((a, b) => isSet(b) - isSet(a));
  if (!keys.length) return;
  const set = keys.filter(isSet).length;
  const differs = key => runs.some(run => run[field][key] !== runs[0][field][key]);
  const different = many ? keys.filter(differs) : [];
  const node = addSection(title, many ? `${different.length} of ${keys.length} differ` : set ? `the ${set} that were set come first` : '');
  const body = make('tbody');
  for (const key of keys) {
    body.append(make('tr', {class: many && differs(key) ? 'differs' : '', 'data-key': key}, make('th', {scope: 'row'}, key), ...runs.map(run => make('td', {}, run[field][key] === undefined ? '–' : run[field][key] === '' ? '""' : run[field][key]))));
  }
  const search = make('input', {type: 'search', placeholder: 'Filter', 'aria-label': `Filter ${title}`});
  const only = make('input', {type: 'checkbox'});
  const show = () => {
    for (const row of body.children) {
      row.hidden = !row.textContent.toLowerCase().includes(search.value.toLowerCase()) || (only.checked && !row.classList.contains('differs'));
    }
  };
  search.addEventListener('input', show);
  only.addEventListener('change', show);
  only.checked = different.length > 0;
  const table = make('table', {class: 'facts'});
  if (many) table.append(make('thead', {}, make('tr', {}, make('th', {}), ...runs.map((run, r) => make('th', {}, dot(r), ' ', run.name)))));
  table.append(body);
  node.append(make('div', {class: 'card'}, make('div', {class: 'above'}, search, many ? make('label', {}, only, 'Only differences') : null), make('div', {class: 'scroll'}, table)));
  show();
}

/* ---- the page ---- */
overview();
by('controls').hidden = names.length === 0;
if (many) runs.forEach((run, r) => by('legend').append(make('button', {type: 'button', 'aria-pressed': 'true', onclick: event => {
  if (!state.hidden.delete(r)) state.hidden.add(r);
  event.currentTarget.setAttribute('aria-pressed', String(!state.hidden.has(r)));
  refresh();
}}, dot(r), run.name)));
if (of('Curves').length) addCharts(addSection('Curves', 'drag to zoom, double-click to zoom out'), of('Curves'));
if (of('Throughput').length) addCharts(addSection('Throughput'), of('Throughput'));
const time = addSection('Where the time goes', 'per rank and step; communication: what the rank waited for');
timeParts(time);
if (of('Where the time goes').length) { time.append(make('div', {style: 'height:14px'})); addCharts(time, of('Where the time goes')); }
if (of('Processor and memory').length) addCharts(addSection('Processor and memory'), of('Processor and memory'));
jobEvents();
checkpoints();
facts('Arguments', 'arguments');
facts('Results', 'results_text');
facts('Environment', 'environment');
by('footer').textContent = `Made by lockstep report. ${runs.map(run => `${run.directory}: ${run.source}${run.damaged ? `, ${plural(run.damaged, 'line')} left out because damaged` : ''}`).join('; ')}. ` +
  (data.limit < longest || runs.some(run => run.series.some(series => series.low)) ? `A curve has at most ${data.limit.toLocaleString('en')} points, each the mean of several values; the band is their range.` : '');

const slider = by('smoothing');
slider.value = state.smoothing;
const showSmoothing = () => { by('smoothed').textContent = Number(state.smoothing).toFixed(2); };
showSmoothing();
slider.addEventListener('input', () => { state.smoothing = Number(slider.value); showSmoothing(); refresh(); });
by('log').addEventListener('change', event => { state.log = event.target.checked; refresh(); });
by('outliers').addEventListener('change', event => { state.outliers = event.target.checked; refresh(); });
by('filter').addEventListener('input', event => {
  for (const each of numbers) each.node.hidden = !each.name.toLowerCase().includes(event.target.value.toLowerCase());
  for (const chart of charts) chart.node.hidden = !chart.name.toLowerCase().includes(event.target.value.toLowerCase());
  refresh();
});
by('zoom-out').addEventListener('click', () => zoom(null));
for (const button of document.querySelectorAll('[data-x]')) {
  button.setAttribute('aria-pressed', String(button.dataset.x === state.x));
  if (!hasTime && button.dataset.x === 'time') { button.disabled = true; button.title = 'log.jsonl keeps no times; train with --report-to jsonl'; }
  button.addEventListener('click', () => {
    state.x = button.dataset.x;
    state.zoom = null;
    for (const each of document.querySelectorAll('[data-x]')) each.setAttribute('aria-pressed', String(each === button));
    zoom(null);
  });
}
for (const chart of charts.slice(0, 12)) { chart.visible = true; chart.stale = false; chart.render(); }
const isDark = () => (document.documentElement.dataset.theme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
const nameTheme = () => { by('theme').textContent = isDark() ? 'Light' : 'Dark'; };
by('theme').addEventListener('click', () => { document.documentElement.dataset.theme = isDark() ? 'light' : 'dark'; nameTheme(); });
nameTheme();
})();

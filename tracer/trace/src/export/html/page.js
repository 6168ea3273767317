'use strict';
// Everything that a trace says is text here, and never becomes elements.
const data = JSON.parse(document.getElementById('data').textContent);
const about = data.about;

function element(tag, parent, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  parent.appendChild(made);
  return made;
}

const grouped = number => String(number).replace(/\B(?=(\d{3})+$)/g, ',');
const micros = ns => (ns / 1000).toFixed(3);
const seconds = ns => (ns / 1e9).toFixed(9);

function showAbout() {
  const list = document.getElementById('about');
  const line = (term, text, name) => {
    if (!text) return;
    element('dt', list, term);
    element('dd', list, text, name);
  };
  line('guest', `${about.image || 'a guest'}, ${about.vcpus} ${about.vcpus === 1 ? 'vCPU' : 'vCPUs'}`);
  line('command', about.command_line);
  const filter = about.filter.length ? ` of ${about.filter.join(' ')}` : '';
  line('recorded', [about.tracer + filter, about.clock && `clock ${about.clock}`, about.mode].filter(Boolean).join(', '));
  if (about.span_ns) {
    const [first, last] = about.span_ns;
    line('time', `${seconds(last - first)} s, from ${seconds(first)} to ${seconds(last)}`);
  }
  line('calls', `${grouped(about.calls)} of ${grouped(about.functions)} functions`);
  if (about.events) line('events', grouped(about.events));
  line('lost', about.lost ? `${grouped(about.lost)} records` : 'nothing', about.lost ? 'lost' : '');
  const pauses = about.pauses;
  if (pauses) line('pauses', `${pauses.count}: p50 ${micros(pauses.p50_ns)} us, longest ${micros(pauses.max_ns)} us`);
  const waits = about.waits;
  if (waits) {
    const meaning = about.wait_time === 'hidden' ? "hidden from the guest's clock, and so from the times of calls"
      : 'calls that were open meanwhile have it in their times';
    line('waits', `${grouped(waits.count)} ${waits.count === 1 ? 'wait' : 'waits'} of vCPUs for the reader, ${micros(waits.total_ns)} us in all, longest ${micros(waits.longest_ns)} us: ${meaning}` +
      (waits.each.length < waits.count ? `; the first ${grouped(waits.each.length)} are in the timeline` : ''));
  }
  const fired = about.fired || [];
  if (fired.length) {
    const first = fired[0];
    // The record of what it waited for can be lost.
    const when = first.time_ns === undefined ? '' : ` at ${seconds(first.time_ns)} s`;
    line('triggers', `fired ${grouped(fired.length)} times, first '${first.trigger}'${when}`);
  }
  const remarks = document.getElementById('remarks');
  data.remarks.forEach(remark => element('li', remarks, remark));
}

// A table: click a heading to sort, again to turn it round. Long ones show their first rows, and more when asked for.
const ROWS = 20;
// The columns as reports have them; others stand after these.
const ORDER = ['count', 'calls', 'duration_ns', 'entered_ns', 'cpu', 'thread', 'total_ns', 'self_ns', 'min_ns', 'avg_ns',
  'max_ns', 'event', 'function', 'caller'];
const tables = [];

function heading(key) {
  return key.replace(/_ns$/, key === 'entered_ns' ? ' s' : ' us').replace(/_/g, ' ');
}

function shown(key, value) {
  if (value === null || value === undefined) return key === 'caller' ? '(not traced)' : '-';
  if (key === 'entered_ns') return seconds(value);
  if (key.endsWith('_ns')) return micros(value);
  return typeof value === 'number' ? grouped(value) : String(value);
}

class Table {
  constructor(name, sortedBy) {
    this.rows = data[name] || [];
    this.section = document.getElementById(name);
    this.section.hidden = this.rows.length === 0;
    this.key = sortedBy;
    this.falls = true;
    this.words = '';
    this.most = ROWS;
    if (this.rows.length) this.draw();
    tables.push(this);
  }

  isWanted(row) {
    return Object.values(row).some(value => typeof value === 'string' && value.toLowerCase().includes(this.words));
  }

  ordered() {
    const rank = value => (value === null ? -Infinity : value);
    const compare = (a, b) => {
      const [x, y] = [rank(a[this.key]), rank(b[this.key])];
      if (x === y) return 0;
      const falls = typeof x === 'string' ? x > y : x < y;
      return falls === this.falls ? 1 : -1;
    };
    const wanted = this.rows.filter(row => !this.words || this.isWanted(row));
    return this.key ? wanted.sort(compare) : wanted;
  }

  draw() {
    const table = this.section.querySelector('table');
    table.replaceChildren();
    const keys = Object.keys(this.rows[0]);
    const isName = key => this.rows.some(row => typeof row[key] === 'string');
    const place = key => (ORDER.includes(key) ? ORDER.indexOf(key) : ORDER.length);
    keys.sort((a, b) => place(a) - place(b));
    const head = element('tr', element('thead', table));
    keys.forEach(key => {
      const mark = key === this.key ? (this.falls ? ' v' : ' ^') : '';
      const cell = element('th', head, heading(key) + mark, isName(key) ? 'name' : '');
      cell.onclick = () => {
        this.falls = key === this.key ? !this.falls : true;
        this.key = key;
        this.draw();
      };
    });
    const body = element('tbody', table);
    const rows = this.ordered();
    rows.slice(0, this.most).forEach(row => {
      const line = element('tr', body);
      keys.forEach(key => element('td', line, shown(key, row[key]), isName(key) ? 'name' : ''));
      if ('entered_ns' in row && timeline) {
        line.className = 'place';
        line.onclick = () => timeline.show(row.entered_ns, row.duration_ns || 0);
      }
    });
    if (rows.length > this.most) {
      const more = element('td', element('tr', body), `${grouped(rows.length - this.most)} more`, 'more');
      more.colSpan = keys.length;
      more.onclick = () => {
        this.most *= 10;
        this.draw();
      };
    }
  }

  search(words) {
    this.words = words.toLowerCase();
    if (this.rows.length) this.draw();
  }
}

// What concerns all vCPUs: where it stands in the timeline, and what is said of it.
function marks() {
  const pauses = (about.paused || []).map(pause => ({
    time: pause.begin_ns, kind: '--pause', words: `the guest was held for ${micros(pause.length_ns)} us` }));
  const fired = (about.fired || []).map(one => ({
    time: one.time_ns, kind: '--fired', words: `trigger '${one.trigger}' has fired` }));
  return [...pauses, ...fired];
}

// What concerns one vCPU: on its line, up to when it was over.
function waits() {
  return ((about.waits || {}).each || []).map(wait => ({
    line: `vCPU ${wait.vcpu}`, time: wait.end_ns, length: wait.length_ns, words: `it waited ${micros(wait.length_ns)} us for the reader` }));
}

// Lines of columns; a part of the columns is in sight.
class Timeline {
  constructor() {
    this.lines = [...data.vcpus, ...(data.threads || [])];
    this.columns = this.lines[0].at.happened.length;
    this.most = this.lines.reduce((most, line) => line.at.happened.reduce((a, b) => Math.max(a, b), most), 1);
    this.marks = marks().map(mark => ({ ...mark, column: (mark.time - data.start_ns) / data.column_ns }));
    this.waits = waits().map(wait => ({ ...wait, row: this.lines.findIndex(line => line.name === wait.line),
      end: (wait.time - data.start_ns) / data.column_ns, columns: wait.length / data.column_ns }));
    this.canvas = document.getElementById('lines');
    [this.from, this.to] = [0, this.columns];
    document.getElementById('timeline').hidden = false;
    const middle = () => (this.from + this.to) / 2;
    document.getElementById('in').onclick = () => this.zoom(middle(), 0.5);
    document.getElementById('out').onclick = () => this.zoom(middle(), 2);
    document.getElementById('all').onclick = () => this.look(0, this.columns);
    this.canvas.onwheel = event => {
      event.preventDefault();
      this.zoom(this.at(event), event.deltaY < 0 ? 0.8 : 1.25);
    };
    this.canvas.onpointerdown = event => {
      this.dragged = this.at(event);
      this.canvas.setPointerCapture(event.pointerId);
    };
    this.canvas.onpointerup = () => (this.dragged = undefined);
    this.canvas.onpointermove = event => {
      if (this.dragged === undefined) return this.say(event);
      const by = this.dragged - this.at(event);
      this.look(this.from + by, this.to + by);
    };
    this.canvas.onkeydown = event => {
      const step = (this.to - this.from) / 8;
      const keys = { '+': () => this.zoom(middle(), 0.5), '-': () => this.zoom(middle(), 2),
        ArrowLeft: () => this.look(this.from - step, this.to - step),
        ArrowRight: () => this.look(this.from + step, this.to + step) };
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    };
    window.addEventListener('resize', () => this.draw());
    this.draw();
  }

  // The column under the pointer, with its fraction.
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const part = (event.clientX - box.left - this.margin) / (box.width - this.margin);
    return this.from + part * (this.to - this.from);
  }

  zoom(around, by) {
    this.look(around - (around - this.from) * by, around + (this.to - around) * by);
  }

  look(from, to) {
    const width = Math.min(Math.max(to - from, 4), this.columns);
    this.from = Math.min(Math.max(from, 0), this.columns - width);
    this.to = this.from + width;
    this.draw();
  }

  time(column) {
    return data.start_ns + column * data.column_ns;
  }

  show(time, length) {
    const column = (time - data.start_ns) / data.column_ns;
    const width = Math.max(length / data.column_ns, 4);
    this.look(column - width, column + 2 * width);
    this.canvas.scrollIntoView({ block: 'center' });
  }

  say(event) {
    const column = Math.floor(this.at(event));
    const line = this.lines[Math.floor(event.offsetY / this.height)];
    if (!line || column < 0 || column >= this.columns) return;
    const lost = line.at.lost[column];
    // Within two pixels of it a mark is meant.
    const near = 2 * (this.to - this.from) / this.canvas.clientWidth;
    const at = this.at(event);
    const waited = wait => this.lines[wait.row] === line && wait.end - wait.columns - near <= at && at <= wait.end + near;
    const mark = this.marks.find(mark => Math.abs(mark.column - at) <= near) || this.waits.find(waited);
    document.getElementById('where').textContent =
      `${line.name}: ${grouped(line.at.happened[column])} in ${micros(data.column_ns)} us from ${seconds(this.time(column))}` +
      (lost ? `, ${grouped(lost)} lost` : '') + (mark ? `; ${mark.words} at ${seconds(mark.time)} s` : '');
  }

  draw() {
    this.height = 26;
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [this.canvas.clientWidth, (this.lines.length + 1) * this.height];
    this.canvas.style.height = `${height}px`;
    [this.canvas.width, this.canvas.height] = [width * scale, height * scale];
    const pen = this.canvas.getContext('2d');
    pen.scale(scale, scale);
    pen.font = '12px monospace';
    const style = getComputedStyle(document.documentElement);
    const ink = getComputedStyle(document.body).color;
    this.margin = 8 + Math.max(...this.lines.map(line => pen.measureText(line.name).width));
    const step = (width - this.margin) / (this.to - this.from);
    // As many columns as share a pixel are drawn as one, the fullest of them.
    const together = Math.max(1, Math.floor(1 / step));
    const end = Math.min(Math.ceil(this.to), this.columns);
    this.lines.forEach((line, row) => {
      const foot = (row + 1) * this.height - 4;
      pen.fillStyle = ink;
      pen.fillText(line.name, 0, foot - 5);
      for (let column = Math.floor(this.from); column < end; column += together) {
        let [happened, lost] = [0, 0];
        for (let one = column; one < Math.min(column + together, end); one++) {
          happened = Math.max(happened, line.at.happened[one]);
          lost = Math.max(lost, line.at.lost[one]);
        }
        if (!happened && !lost) continue;
        const left = Math.max(this.margin, this.margin + (column - this.from) * step);
        const tall = lost ? this.height - 6 : Math.max(2, (this.height - 6) * happened / this.most);
        pen.fillStyle = style.getPropertyValue(lost ? '--lost' : '--bar');
        pen.fillRect(left, foot - tall, Math.max(step * together, 1), tall);
      }
    });
    this.waits.filter(wait => wait.row >= 0 && wait.end >= this.from && wait.end - wait.columns <= this.to).forEach(wait => {
      const begin = Math.max(wait.end - wait.columns, this.from);
      pen.fillStyle = style.getPropertyValue('--wait');
      pen.fillRect(this.margin + (begin - this.from) * step, (wait.row + 1) * this.height - 3,
        Math.max((Math.min(wait.end, this.to) - begin) * step, 1), 3);
    });
    this.marks.filter(mark => mark.column >= this.from && mark.column <= this.to).forEach(mark => {
      pen.fillStyle = style.getPropertyValue(mark.kind);
      pen.fillRect(this.margin + (mark.column - this.from) * step, 0, 1, height - this.height);
    });
    pen.fillStyle = ink;
    const foot = height - 8;
    pen.fillText(`${seconds(this.time(this.from))} s`, this.margin, foot);
    const last = `${seconds(this.time(this.to))} s`;
    pen.fillText(last, width - pen.measureText(last).width, foot);
  }
}

showAbout();
const hasTimeline = (data.vcpus || []).some(line => line.at.happened.length);
const timeline = hasTimeline ? new Timeline() : undefined;
new Table('slowest', 'duration_ns');
new Table('counts', data.counts && data.counts[0] && 'self_ns' in data.counts[0] ? 'self_ns' : 'calls');
new Table('events', 'count');
new Table('values');
document.getElementById('search').oninput = event => tables.forEach(table => table.search(event.target.value));

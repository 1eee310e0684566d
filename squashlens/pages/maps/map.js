/**
 * The program of the squash map: one ES module without dependencies.
 *
 * It shows the numbers of a result and computes none. The only arithmetic is that of places and colours. All text from
 * the data becomes text nodes or attributes, never markup.
 *
 * `mount` builds a map in an element. A page holds maps as elements `.sl-map` with their data in a JSON script. As an
 * anywidget module, the default export draws the data of a model in a notebook and asks it for other queries.
 *
 * @typedef {{name: string, label: string, about: string, unit: string, by_layer: boolean, norm: string | null,
 *   starts: number[], measured: string}} Quantity
 * @typedef {{positions: number[], heads: number[], weight: number | null, over_null: number | null}} Path
 * @typedef {{query: number, paths: Path[], sink: number, share: number, position: number, head: number,
 *   attention: number}} Trace
 * @typedef {{tokens: string[], opened: number, model: string, code: string, facts: [string, string][],
 *   layers: number[], queries: number[], notes: string[], quantities: Quantity[],
 *   traces: {ranks: number, blocks: number, heads: number, queries: Trace[]} | null,
 *   distance: {length: number, series: {name: string, label: string, start: number}[]},
 *   collapse: {layers: number[], collapse_distance?: (number | null)[], collapse_noise?: (number | null)[],
 *     last_token_rms?: (number | null)[]},
 *   predicted: ([string, number] | null)[] | null, readout: ([string[][], number[][]] | null)[] | null,
 *   answers: ([string, string, number, number] | null)[] | null, again: string,
 *   spans: Spans | null, blob: string, seconds?: number | null, headline?: string}} Payload
 * @typedef {{of: number[], names: string[]}} Spans the span of each token, or -1, and its name
 * @typedef {{start: number, end: number}} Unit a group of tokens: positions from start to before end
 * @typedef {{measure: (query: number) => void}} Live
 */

const WINDOW = 512; // tokens of the ribbon that are in the page at once
const LONG = 24; // characters of a token on the ribbon
const LONGEST = 400; // characters of a token in a sentence
const FLOORS = 3; // times the noise that a change of the log-odds has to exceed
/** @type {[string, string][]} */
const UNITS = [
  ["token", "tokens"],
  ["word", "words"],
  ["line", "lines"],
  ["span", "named spans"],
];
/** @type {Record<string, string>} */
const TERMS = {
  query: "The token whose representation is influenced; click another one to choose it",
  y: "The representation of the query after the last block and the final norm, from which the next token is predicted",
  "layer 0": "The residual stream at the input of the first block: the token itself. Layer k is after k blocks",
  null: "The path bound if every token attended equally to all tokens before it: what causality alone gives",
  "path bound": "A sum over all attention paths from the token to the query (Theorem 5.1 with constants 1)",
  Jacobian: "How much a small change of a token's stream can change y",
  readout: "The residual stream of a layer, read by the model's final norm and output embedding (the logit lens)",
  "weight ÷ null": "The product of the path's attention weights, divided by that under uniform attention: 1 is by causality alone",
};
const SVG = "http://www.w3.org/2000/svg";
// Twelve colours of cividis (Nuñez, Anderton and Renslow 2018), and a scale from blue over white to orange.
const SEQUENTIAL = [
  "#00224e",
  "#0f326e",
  "#2f4070",
  "#45506f",
  "#5a5f71",
  "#6d6f75",
  "#808079",
  "#959077",
  "#aaa272",
  "#c2b46a",
  "#dac75d",
  "#fee838",
];
const DIVERGING = ["#1b5fa8", "#5b92c8", "#a5c5e2", "#f4f4f4", "#f0c08e", "#d98c3c", "#a85c00"];

/** The data of a map, with access to its numbers. */
export class Data {
  /** @param {Payload} payload */
  constructor(payload) {
    this.payload = payload;
    this.numbers = numbersOf(payload.blob);
    this.place = new Map(payload.queries.map((query, at) => [query, at]));
  }

  /** @param {string} name @returns {Quantity} */
  quantity(name) {
    const found = this.payload.quantities.find((one) => one.name === name);
    if (!found) throw new Error(`no quantity ${name}`);
    return found;
  }

  /** Whether a quantity was measured for a query. @param {string} name @param {number} query */
  has(name, query) {
    const at = this.place.get(query);
    return at !== undefined && this.quantity(name).starts[at] >= 0;
  }

  /**
   * A number of the result, or null if it was not measured or the token comes after the query. What is not by layer has
   * the same number in every row.
   * @param {string} name @param {number} query @param {number} row place of the layer @param {number} position
   * @returns {number | null}
   */
  value(name, query, row, position) {
    const at = this.place.get(query);
    const one = this.quantity(name);
    if (at === undefined || position > query || one.starts[at] < 0) return null;
    const value = this.numbers[one.starts[at] + (one.by_layer ? row * (query + 1) : 0) + position];
    return Number.isNaN(value) ? null : value;
  }

  /**
   * A number as text. A ratio to a null of zero has no value, although it was measured.
   * @param {string} name @param {number} query @param {number} row @param {number} position
   */
  text(name, query, row, position) {
    const value = this.value(name, query, row, position);
    const undefinedRatio =
      name === "bound_over_null" && value === null && this.value("null", query, row, position) === 0;
    return undefinedRatio ? "undefined (null 0)" : shown(value);
  }

  /**
   * What was measured of a query, or null.
   * @template T @param {(T | null)[] | null} values @param {number} query @returns {T | null}
   */
  of(values, query) {
    return values?.[this.place.get(query) ?? -1] ?? null;
  }

  /**
   * The attention of a head from a token to each token up to it, or null if it is not in the page.
   * @param {number} query @param {number} block @param {number} head
   */
  attention(query, block, head) {
    const trace = this.trace(query);
    if (!trace || !this.payload.traces) return null;
    const start = trace.attention + (block * this.payload.traces.heads + head) * (query + 1);
    return [...this.numbers.subarray(start, start + query + 1)];
  }

  /** @param {number} query @returns {Trace | undefined} */
  trace(query) {
    return this.payload.traces?.queries.find((one) => one.query === query);
  }

  /**
   * The most important ways from a cell on towards a query.
   * @param {number} query @param {number} block @param {number} position
   */
  ways(query, block, position) {
    const trace = this.trace(query);
    if (!trace || !this.payload.traces || position > query) return [];
    const { ranks } = this.payload.traces;
    const from = (block * (query + 1) + position) * ranks;
    return Array.from({ length: ranks }, (_, k) => ({
      share: this.numbers[trace.share + from + k],
      position: this.numbers[trace.position + from + k],
      head: this.numbers[trace.head + from + k],
    })).filter((way) => way.share > 0);
  }
}

/** Numbers from base64 of float32, little-endian. @param {string} blob */
function numbersOf(blob) {
  const text = atob(blob);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return new Float32Array(bytes.buffer);
}

/** A number with four digits. @param {number | null | undefined} value */
export function shown(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "not measured";
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(3) : value.toPrecision(4);
  const [digits, power] = text.split("e"); // only the digits lose zeros at their end
  const short = digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits;
  return power === undefined ? short : `${short}e${Number(power)}`;
}

/**
 * Text in which hidden characters can be seen: control, format and private characters, and single surrogates.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Cn}\p{Zl}\p{Zp}]/gu, (one) => {
    const code = (one.codePointAt(0) ?? 0).toString(16);
    return one === "\n" ? "\\n" : one === "\t" ? "\\t" : `\\u{${code}}`;
  });
}

/** The beginning of a text, and how long it is. @param {string} text @param {number} most */
export function cut(text, most) {
  const characters = [...text.slice(0, 2 * most + 2)];
  return characters.length > most ? `${characters.slice(0, most).join("")}…` : text;
}

/**
 * The prompt in groups: tokens, words, lines, or spans by the number that each token has (-1 for none). A span with a
 * gap is in several groups.
 * @param {string[]} tokens @param {string} unit @param {number[]} [spans] @returns {Unit[]}
 */
export function grouped(tokens, unit, spans = []) {
  /** @type {Unit[]} */
  const found = [];
  const spaced = tokens.some((token) => /\s/.test(token));
  tokens.forEach((token, at) => {
    const before = at ? tokens[at - 1] : "";
    const starts =
      unit === "word"
        ? !at ||
          /^\s/.test(token) ||
          /(\s|\\n)$/.test(before) ||
          !/[\p{L}\p{M}\p{N}]$/u.test(before) ||
          !/^[\p{L}\p{M}\p{N}]/u.test(token) ||
          !spaced
        : unit === "line"
          ? !at || endsLine(before)
          : unit !== "span" || !at || spans[at] < 0 || spans[at] !== spans[at - 1];
    if (starts) found.push({ start: at, end: at + 1 });
    else found[found.length - 1].end = at + 1;
  });
  return found;
}

/** Whether white space with a line break ends a text, or a line break that is written out. @param {string} text */
function endsLine(text) {
  const end = text.trimEnd();
  return end.endsWith("\\n") || text.slice(end.length).includes("\n");
}

/**
 * A scale from numbers to places between 0 and 1: logarithmic, that of a ratio centred at 1; of changes linear and
 * centred at 0.
 * @param {(number | null)[]} values @param {boolean} diverging @param {boolean} [signed]
 */
export function scale(values, diverging, signed = false) {
  if (signed) {
    const high = Math.max(...values.map((one) => Math.abs(one ?? 0)), 1e-30);
    const at = (/** @type {number} */ value) => (1 + value / high) / 2;
    return { low: -high, high, any: high > 1e-30, zero: false, diverging, at };
  }
  const known = /** @type {number[]} */ (values.filter((one) => one !== null && Number.isFinite(one) && one > 0));
  let low = Math.min(...known);
  let high = Math.max(...known);
  if (diverging) {
    high = Math.max(high, 1 / low, 1.0001);
    low = 1 / high;
  }
  const span = Math.log(high / low) || 1;
  return {
    low,
    high,
    any: known.length > 0,
    zero: values.includes(0),
    diverging,
    /** @param {number} value */
    at: (value) => (value <= 0 ? 0 : Math.min(1, Math.max(0, Math.log(value / low) / span))),
  };
}

/**
 * Whether the first of at least three tokens has more than 90 % of their sum, but not all.
 * @param {(number | null)[]} values
 */
export function hasNearlyAll(values) {
  const sum = values.reduce((/** @type {number} */ total, one) => total + (one ?? NaN), 0);
  const share = (values[0] ?? NaN) / sum;
  return values.length >= 3 && share > 0.9 && share < 1;
}

/** The colour at a place between 0 and 1. @param {number} at @param {boolean} diverging */
export function colour(at, diverging) {
  const stops = diverging ? DIVERGING : SEQUENTIAL;
  const place = Math.min(1, Math.max(0, at)) * (stops.length - 1);
  const below = Math.min(stops.length - 2, Math.floor(place));
  const mixed = rgb(stops[below]).map((one, k) => one + (place - below) * (rgb(stops[below + 1])[k] - one));
  return mixed.map(Math.round);
}

/** Black or white: whichever has the higher contrast, always at least 4.58. @param {number[]} background */
export function ink(background) {
  const [r, g, b] = background.map((one) => (one <= 10.31 ? one / 3294.6 : ((one / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

/** @param {string} hex */
function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** @param {number[]} channels */
function css(channels) {
  return `rgb(${channels.join(" ")})`;
}

/**
 * An element with attributes, listeners (`onclick`) and children; text is always text.
 * @param {string} name @param {Record<string, any>} [attributes] @param {...(Node | string)} children
 * @returns {any}
 */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

/** @param {string} name @param {Record<string, any>} attributes @param {...(Node | string)} children */
function draw(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

/** A term with its meaning, which a pointer and a screen reader get. @param {string} word */
function term(word) {
  return make("abbr", { title: TERMS[word] ?? TERMS[word.toLowerCase()] }, word);
}

/** @param {string} text @param {() => void} onclick */
function button(text, onclick) {
  return make("button", { type: "button", onclick }, text);
}

/**
 * A table in a region that scrolls. The first cell of a row is its heading.
 * @param {string} name @param {string} caption @param {(Node | string)[]} heads @param {(Node | string)[][]} rows
 */
function table(name, caption, heads, rows) {
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)));
  const body = rows.map(([first, ...cells]) =>
    make("tr", {}, make("th", { scope: "row" }, first), ...cells.map((cell) => make("td", {}, cell))),
  );
  const parts = [make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body)];
  const region = { class: "sl-wide", tabindex: "0", role: "region", "aria-label": name };
  return make("div", region, make("table", {}, ...parts));
}

/** A share as a percentage. @param {number | null} share */
function percent(share) {
  if (share === null) return "unknown";
  if (share > 0 && share < 1e-4) return "under 0.01 %";
  return share > 0.99 && share < 1 ? "over 99 %" : `${Number((100 * share).toPrecision(2))} %`;
}

/** A change with its sign and two digits. @param {number} value */
function change(value) {
  return `${value < 0 ? "−" : "+"}${shown(Number(Math.abs(value).toPrecision(2)))}`;
}

/** A token in a sentence, apart from the direction of the text around it. @param {string} token */
function quoted(token) {
  const text = visible(token);
  const short = cut(text, LONGEST).replaceAll(" ", "␣");
  const more = [...text].length <= LONGEST ? "" : ` (${text.length.toLocaleString("en")} characters)`;
  return make("span", {}, "“", make("bdi", {}, short), `”${more}`);
}

let maps = 0; // in this document, so that ids differ

/** One map in the page: what is chosen, and the elements that show it. */
class View {
  /** @param {HTMLElement} root @param {Payload} payload @param {Live | null} live */
  constructor(root, payload, live) {
    this.root = root;
    this.live = live;
    this.id = `sl-map-${++maps}`;
    this.data = new Data(payload);
    this.query = payload.opened;
    this.row = 0; // place of the layer
    this.cell = { row: 0, position: Math.min(payload.opened, payload.tokens.length - 1) };
    this.unit = "token";
    this.from = 0; // first token of the window
    this.wanted = this.name = this.measuredName();
    this.path = -1; // the path that is shown alone
    this.groups = grouped(payload.tokens, this.unit);
    this.redraw = () => this.drawAll();
    this.layout();
    this.show();
  }

  /** The first quantity that was measured for the query; the wanted one, if it was. @param {string} [wanted] */
  measuredName(wanted = "") {
    const { quantities } = this.data.payload;
    const known = quantities.filter((one) => this.data.has(one.name, this.query));
    // A whole quantity says more than a ratio, for which the first in the list would stand.
    const usual = known.find((one) => one.by_layer && one.name !== "bound_over_null") ?? known[0] ?? quantities[0];
    return (known.find((one) => one.name === wanted) ?? usual).name;
  }

  /** What the cells show: the chosen quantity, or in place of one that is not by layer the first that is. */
  get cellName() {
    return this.data.quantity(this.name).by_layer ? this.name : this.measuredName();
  }

  get tokens() {
    return this.data.payload.tokens;
  }

  /** The last token of the window, exclusive. */
  get to() {
    return Math.min(this.tokens.length, this.from + WINDOW);
  }

  /** Build all elements once. */
  layout() {
    const { payload } = this.data;
    const choice = (
      /** @type {string} */ label,
      /** @type {[string, string][]} */ options,
      /** @type {any} */ chosen,
    ) => {
      const select = make("select", { onchange: () => chosen(select.value) });
      for (const [value, text] of options) select.append(make("option", { value }, text));
      return [make("label", {}, label, select), select];
    };
    const [quantity, quantities] = choice(
      "Colour",
      payload.quantities.map((one) => [one.name, one.label]),
      (/** @type {string} */ name) => {
        this.wanted = name;
        this.show();
      },
    );
    quantities.value = this.name;
    const [layer, layers] = choice(
      "Layer",
      payload.layers.map((one, row) => [String(row), String(one)]),
      (/** @type {string} */ row) => this.setRow(Number(row)),
    );
    const units = UNITS.filter(([name]) => payload.spans || name !== "span");
    const [unit, unitsOf] = choice("Units", units, (/** @type {string} */ name) => this.setUnit(name));
    this.units = unitsOf;
    this.colours = quantities;
    const [theme, themes] = choice(
      "Theme",
      [
        ["auto", "as the system"],
        ["light", "light"],
        ["dark", "dark"],
      ],
      (/** @type {string} */ name) => {
        this.root.dataset.theme = name;
        this.show();
      },
    );
    themes.value = this.root.dataset.theme ?? "auto";
    const search = make("input", {
      type: "search",
      onkeydown: (/** @type {KeyboardEvent} */ event) =>
        event.key === "Enter" && this.find(search.value, event.shiftKey ? -1 : 1),
    });
    const jump = make("input", {
      type: "number",
      min: 0,
      max: this.tokens.length - 1,
      onchange: () => this.setQuery(Number(jump.value)),
    });
    this.layers = layers;
    this.jump = jump;
    const searched = make("label", {}, "Search (Enter; Shift + Enter: backwards)", search);
    const more = [searched, make("label", {}, "Go to position", jump), unit, theme];
    this.more = make("details", { class: "sl-more" }, make("summary", {}, "Search, units and theme"));
    this.more.append(make("div", { class: "sl-controls" }, ...more));
    this.status = make("p", { class: "sl-status", role: "status" });
    this.says = make("p", { class: "sl-says" });
    this.why = make("p", { class: "sl-why" });
    this.overview = make("canvas", {
      class: "sl-overview",
      "aria-hidden": "true",
      onclick: (/** @type {MouseEvent} */ event) => this.scroll(event),
    });
    this.pages = make("p", { class: "sl-pages" });
    this.ribbon = make("div", {
      class: "sl-ribbon",
      role: "listbox",
      "aria-label": "Tokens; the selected one is the query",
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.ribbonKey(event),
      onclick: (/** @type {MouseEvent} */ event) => this.ribbonClick(event),
      onmouseover: (/** @type {MouseEvent} */ event) => this.ribbonHover(event),
      onmouseleave: () => (this.hover.hidden = true),
    });
    this.legend = make("div", { class: "sl-legend" });
    this.heatLegend = make("div", { class: "sl-legend" });
    this.hover = make("div", { class: "sl-hover", "aria-hidden": "true", hidden: "" });
    this.heat = make("canvas", {
      class: "sl-heat",
      tabindex: "0",
      role: "application",
      "aria-label": "Layers and tokens. Arrow keys move from cell to cell; Enter makes the token the query.",
      "aria-describedby": `${this.id}-status`,
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.heatKey(event),
      onclick: (/** @type {MouseEvent} */ event) => this.heatClick(event),
      onmousemove: (/** @type {MouseEvent} */ event) => this.tell(event, this.cellOf(event)),
      onmouseleave: () => (this.hover.hidden = true),
    });
    this.status.id = `${this.id}-status`;
    this.hover.id = `${this.id}-hover`;
    this.cellText = make("div", { class: "sl-cell" });
    this.paths = make("div", { class: "sl-paths" });
    this.readout = make("div", { class: "sl-readout" });
    this.table = make(
      "details",
      { class: "sl-table", ontoggle: () => this.showTable() },
      make("summary", {}, "Numbers of this query as a table"),
    );
    this.below = make("div", { class: "sl-below" });
    this.code = make("pre", { tabindex: "0", "aria-label": "Code that made this map" }, payload.code);
    this.copied = make("p", { class: "sl-copied", role: "status" });
    const rows = payload.facts.map(([name, text]) => [visible(name), make("bdi", {}, visible(text))]);
    const facts = table("Provenance", "What was measured, and how", ["Fact", "Value"], rows);
    const definitions = Object.entries(TERMS).flatMap(([word, text]) => [make("dt", {}, word), make("dd", {}, text)]);
    const level = Number(this.root.dataset.level ?? 2);
    const title = (/** @type {number} */ below, /** @type {string} */ text) =>
      make(`h${level + below}`, { class: `sl-title-${below}` }, text);
    this.root.replaceChildren(
      ...[...this.root.querySelectorAll('script[type="application/json"]')],
      title(0, "Squash map"),
      make(
        "p",
        { class: "sl-quiet" },
        `${visible(payload.model)}, ${this.tokens.length.toLocaleString("en")} tokens. Click a token, or use the arrow keys, to make it the `,
        term("query"),
        ".",
      ),
      this.says,
      this.why,
      this.overview,
      this.pages,
      this.ribbon,
      this.legend,
      this.status,
      make("div", { class: "sl-controls" }, quantity, layer),
      this.more,
      title(1, "Layers (rows) and tokens (columns), with the numbered strongest paths to the query"),
      this.heat,
      this.heatLegend,
      make("div", { class: "sl-below" }, this.cellText, this.paths, this.readout),
      this.table,
      title(1, "By distance, and at the end of the prompt"),
      this.below,
      this.hover,
      title(1, "What is in this map"),
      make("ul", {}, ...payload.notes.map((note) => make("li", {}, note))),
      make(
        "p",
        {},
        button("Copy the code", () => this.copy(payload.code)),
      ),
      make("details", {}, make("summary", {}, "Terms"), make("dl", {}, ...definitions)),
      make("details", {}, make("summary", {}, "Code that made this"), this.code),
      make("details", {}, make("summary", {}, "Provenance"), facts),
      this.copied,
    );
    this.setWindow(this.query);
    this.resized = new ResizeObserver(() => this.drawAll());
    this.resized.observe(this.root);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", this.redraw);
  }

  /** Let go of the element, so that another map can take it. */
  stop() {
    this.resized?.disconnect();
    this.dark?.removeEventListener("change", this.redraw);
  }

  /** Choose what a reader of the same map with fewer numbers had chosen. @param {View} before */
  resume(before) {
    if (this.data.payload.quantities.some((one) => one.name === before.wanted)) this.wanted = before.wanted;
    this.row = Math.min(before.row, this.data.payload.layers.length - 1);
    this.cell = { row: this.row, position: Math.min(before.cell.position, this.query) };
    this.table.open = before.table.open;
    this.more.open = before.more.open;
    this.setUnit(before.unit);
  }

  /** Show everything for the present choice. What had the focus may be gone: then the query gets it. */
  show() {
    const focused = this.root.contains(document.activeElement);
    this.name = this.measuredName(this.wanted);
    if (!this.data.trace(this.query)?.paths[this.path]) this.path = -1;
    this.colours.value = this.name;
    this.units.value = this.unit;
    this.jump.value = String(this.query);
    this.layers.value = String(this.row);
    this.showRibbon();
    this.showSays();
    this.showStatus();
    this.showCell();
    this.showPaths();
    this.showReadout();
    this.showTable();
    this.showBelow();
    this.drawAll();
    if (focused && !this.root.contains(document.activeElement)) this.focus();
  }

  /** Put the focus on the query. */
  focus() {
    this.ribbon.querySelector('[aria-selected="true"]')?.focus();
  }

  /** @param {string} name */
  setUnit(name) {
    this.unit = name;
    this.groups = grouped(this.tokens, name, this.data.payload.spans?.of);
    this.show();
  }

  drawAll() {
    this.drawHeat();
    this.drawOverview();
  }

  /** @param {number} position @param {boolean} [focus] */
  setQuery(position, focus = false) {
    const last = this.tokens.length - 1;
    if (!Number.isInteger(position)) return;
    this.query = Math.min(last, Math.max(0, position));
    this.cell = { row: this.row, position: Math.min(this.cell.position, this.query) };
    if (this.query < this.from || this.query >= this.to) this.setWindow(this.query);
    this.show();
    if (focus) this.focus();
  }

  /** @param {number} row */
  setRow(row) {
    this.row = row;
    this.cell = { ...this.cell, row };
    this.show();
  }

  /** @param {number} position */
  setWindow(position) {
    const last = Math.max(0, this.tokens.length - WINDOW);
    this.from = Math.min(last, Math.max(0, position - WINDOW / 2));
  }

  /** The next token with a text. @param {string} text @param {number} step */
  find(text, step) {
    if (!text) return;
    const n = this.tokens.length;
    const wanted = text.toLowerCase();
    for (let k = 1; k <= n; k++) {
      const at = (this.query + step * k + n * k) % n;
      if (this.tokens[at].toLowerCase().includes(wanted)) return this.setQuery(at);
    }
    this.status.replaceChildren("No token contains ", quoted(text), ".");
  }

  /** The largest value of a group's tokens, and where it is. @param {Unit} group */
  largest(group) {
    let best = { value: /** @type {number | null} */ (null), position: group.start };
    for (let position = group.start; position < group.end; position++) {
      const value = this.data.value(this.name, this.query, this.row, position);
      const size = (/** @type {number} */ one) => (this.signed ? Math.abs(one) : one);
      if (value !== null && (best.value === null || size(value) > size(best.value))) best = { value, position };
    }
    return best;
  }

  /** Whether what is shown are changes, above and below 0. */
  get signed() {
    return this.name === "target_score_change";
  }

  get diverging() {
    return this.signed || this.name === "bound_over_null";
  }

  /**
   * The scale of some rows, without a first token that has nearly all of its row.
   * @param {number[]} rows @param {string} [name]
   */
  scaleOf(rows, name = this.name) {
    const each = rows.map((row) =>
      Array.from({ length: this.query + 1 }, (_, at) => this.data.value(name, this.query, row, at)),
    );
    const signed = name === "target_score_change";
    const diverging = signed || name === "bound_over_null";
    const apart = each.map((values) => !diverging && hasNearlyAll(values));
    const shown = each.flatMap((values, k) => (apart[k] ? values.slice(1) : values));
    return { ...scale(shown, diverging, signed), name, signed, beyond: apart.includes(true) };
  }

  /** What a group is called: the name of its span, or its tokens. @param {Unit} group */
  named(group) {
    const spans = this.unit === "span" ? this.data.payload.spans : null;
    const name = spans?.names[group.start];
    return visible(name || this.tokens.slice(group.start, Math.min(group.end, group.start + 64)).join(""));
  }

  showRibbon() {
    const shownScale = this.scaleOf([this.row]);
    const inside = this.groups.filter((group) => group.end > this.from && group.start < this.to);
    const { order, half } = this.ranked();
    const matter = order.slice(0, half);
    const options = inside.map((group) => {
      const text = this.named(group);
      const chosen = group.start <= this.query && this.query < group.end;
      const { value, position } = this.largest(group);
      const later = group.start > this.query;
      const says = later ? "after the query" : this.data.text(this.name, this.query, this.row, position);
      const option = make(
        "span",
        {
          role: "option",
          "aria-selected": String(chosen),
          tabindex: chosen ? "0" : "-1",
          "data-start": group.start,
          "aria-label": `${group.start}: ${cut(text, 60)}, ${says}`,
        },
        make("bdi", {}, cut(text, LONG) || "␣"),
      );
      if (value !== null) {
        const background = colour(shownScale.at(value), this.diverging);
        option.style.backgroundColor = css(background);
        option.style.color = ink(background);
        if (group.start === 0 && shownScale.beyond) option.classList.add("sl-beyond");
        if (matter.some((at) => group.start <= at && at < group.end)) option.classList.add("sl-matters");
      } else option.classList.add(later ? "sl-later" : "sl-unknown");
      return option;
    });
    this.ribbon.replaceChildren(...options);
    const many = this.tokens.length > WINDOW;
    this.overview.hidden = this.pages.hidden = !many;
    if (many)
      this.pages.replaceChildren(
        `Tokens ${this.from} to ${this.to - 1} of ${this.tokens.length.toLocaleString("en")}. `,
        this.pager("Earlier", -WINDOW),
        " ",
        this.pager("Later", WINDOW),
      );
    this.showLegend(this.legend, shownScale, `layer ${this.data.payload.layers[this.row]}`);
  }

  /** @param {string} text @param {number} step */
  pager(text, step) {
    const go = () => {
      this.from = Math.min(Math.max(0, this.tokens.length - WINDOW), Math.max(0, this.from + step));
      this.show();
    };
    return button(text, go);
  }

  /**
   * What the colours mean: those of the ribbon, and those of the heat map, whose scale spans all layers.
   * @param {HTMLElement} legend @param {ReturnType<View["scaleOf"]>} range @param {string} from
   */
  showLegend(legend, range, from) {
    const one = this.data.quantity(range.name);
    if (!this.data.has(range.name, this.query))
      return legend.replaceChildren(`${one.label}: not measured for this query.`);
    const parts = [
      `${one.measured}, unit ${one.unit}${one.norm && !one.measured.includes(one.norm) ? `, ${one.norm} norm` : ""}, `,
    ];
    const way = !one.by_layer
      ? ["one number for all layers"]
      : ["from ", from === "layer 0" ? term(from) : from, " to ", term("y")];
    const bar = make("span", { class: "sl-bar" });
    const stops = Array.from({ length: 13 }, (_, k) => css(colour(k / 12, range.diverging)));
    bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
    const ends = range.any ? [`${shown(range.low)} `, bar, ` ${shown(range.high)}`] : ["No value is above 0."];
    legend.replaceChildren(
      make("span", {}, ...ends),
      make(
        "span",
        {},
        range.signed ? " linear colours; " : " logarithmic colours; ",
        ...parts,
        ...way,
        from === "each layer" ? "." : `. ${one.about}.`,
      ),
      range.any && range.zero ? " 0 has the colour of the lower end." : "",
      ...(range.beyond
        ? [" ", quoted(this.tokens[0]), " has over 90 %: it is beyond the scale, which fits the other tokens."]
        : []),
    );
  }

  /** The prediction after the query, and what it was influenced by, in one line. */
  showSays() {
    const [next, chance] = this.data.of(this.data.payload.predicted, this.query) ?? ["", null];
    const parts = next
      ? ["After ", quoted(this.tokens[this.query]), " the model predicts ", quoted(next), ` (${percent(chance)}). `]
      : [];
    const { headline, opened } = this.data.payload;
    // What the page around the map says of its prompt comes first.
    const first = headline && this.query === opened ? [headline] : parts;
    this.says.replaceChildren(...first, ...(this.signed || first !== parts ? [] : this.conclusion()));
    const answers = this.data.of(this.data.payload.answers, this.query);
    this.why.hidden = !answers;
    if (answers) this.why.replaceChildren(...this.because(answers));
  }

  /** The tokens that decide between two answers, in words. @param {[string, string, number, number]} answers */
  because([target, against, lead, noise]) {
    const changes = Array.from({ length: this.query + 1 }, (_, position) => ({
      position,
      value: this.data.value("target_score_change", this.query, 0, position) ?? 0,
    })).filter(({ value }) => Math.abs(value) > FLOORS * noise);
    changes.sort((a, b) => a.value - b.value);
    const named = (/** @type {typeof changes} */ some) =>
      some.flatMap(({ position, value }, k) => [
        k ? ", " : "",
        quoted(this.tokens[position]),
        ` (${position}) ${change(value)}`,
      ]);
    const [first, last] = [changes.filter(({ value }) => value < 0), changes.filter(({ value }) => value > 0)];
    return [
      "Why ",
      quoted(target),
      ...(against ? [" and not ", quoted(against), `: log-odds ${shown(lead)}`] : [`: log-probability ${shown(lead)}`]),
      ...(first.length ? ["; without ", ...named(first.slice(0, 3))] : []),
      ...(last.length ? ["; against it: ", ...named(last.reverse().slice(0, 2))] : []),
      changes.length ? "." : "; no token changes it by more than the noise.",
    ];
  }

  /** The earlier tokens by what they have of the shown quantity, a first one that has nearly all apart. */
  ranked() {
    const values = Array.from(
      { length: this.query },
      (_, k) => this.data.value(this.name, this.query, this.row, k) ?? 0,
    );
    const own = this.data.value(this.name, this.query, this.row, this.query) ?? 0;
    const all = values.reduce((total, one) => total + one, own);
    const apart = !this.diverging && hasNearlyAll([...values, own]) ? values[0] / all : 0;
    if (apart) values[0] = 0;
    const order = values.map((_, k) => k).sort((a, b) => values[b] - values[a]);
    const sum = values.reduce((total, one) => total + one, 0);
    let [half, held] = [0, 0];
    while (held < sum / 2) held += values[order[half++]];
    return { values, order, sum, apart, half: this.diverging ? 0 : half };
  }

  /** Which earlier tokens matter, in words. @returns {(Node | string)[]} */
  conclusion() {
    const { label } = this.data.quantity(this.name);
    const { values, order, sum, apart, half } = this.ranked();
    if (!(sum > 0)) return ["It is influenced by no earlier token here."];
    const most = quoted(this.tokens[order[0]]);
    if (this.diverging)
      return [
        most,
        ` (${order[0]}) is the furthest above what uniform attention gives: ${shown(values[order[0]])} times.`,
      ];
    const count = values.length - (apart ? 1 : 0);
    const beside = apart ? [" Apart: ", quoted(this.tokens[0]), `, with ${percent(apart)} of all.`] : [];
    if (count === 1)
      return ["The only ", apart ? "other " : "", "earlier token is ", most, ` (${order[0]}).`, ...beside];
    const jacobian = label[0].toLowerCase() === "j";
    return [
      `Of the ${count} earlier tokens, `,
      most,
      ` (${order[0]}) has the most influence (${jacobian ? `${label}, of small changes` : label.toLowerCase()}, ${percent(values[order[0]] / sum)} of the sum)`,
      ...(order[0] === 0 && values[order[1]] > 0 ? [", then ", quoted(this.tokens[order[1]]), ` (${order[1]})`] : []),
      `; half of it is in the ${half === 1 ? "underlined token" : `${half} underlined tokens`}.`,
      ...beside,
    ];
  }

  /** The query, and where what was wanted was not measured for it, what is shown and how to measure it. */
  showStatus() {
    const { payload } = this.data;
    const token = [`Query ${this.query} `, quoted(this.tokens[this.query])];
    const one = this.data.quantity(this.name);
    if (this.data.has(this.wanted, this.query)) {
      const cells = this.data.quantity(this.cellName).label;
      const whole = `. ${one.label} has one number for each token, so the cells of layers below show ${cells}.`;
      this.status.replaceChildren(...token, one.by_layer ? "." : whole);
      return;
    }
    const { label } = this.data.quantity(this.wanted);
    const shownNow = this.data.has(this.name, this.query) ? `, so ${one.label} is shown` : "";
    const known = payload.queries.filter((query) => this.data.has(this.wanted, query));
    const near = known.sort((a, b) => Math.abs(a - this.query) - Math.abs(b - this.query))[0];
    const { live, query } = this;
    const call = payload.again.replace("'QUERY'", String(query));
    const takes = payload.seconds ? ` (about ${Number(payload.seconds.toPrecision(2))} s)` : "";
    this.status.replaceChildren(
      ...token,
      `: ${label} was not measured for this query${shownNow}. `,
      ...(near === undefined ? [] : [button(`Go to query ${near}`, () => this.setQuery(near)), " "]),
      live
        ? button(`Measure it${takes}`, () => live.measure(query))
        : button(`Copy the call that measures it${takes}`, () => this.copy(call)),
    );
  }

  /** What is known about a cell. @param {number} row @param {number} position @returns {(Node | string)[]} */
  about(row, position) {
    const { payload } = this.data;
    const name = [`Token ${position} `, quoted(this.tokens[position]), `, layer ${payload.layers[row]}`];
    if (position > this.query) return [...name, ": after the query, which it cannot influence."];
    const values = payload.quantities.map((one) => {
      const text = `${one.label} ${this.data.text(one.name, this.query, row, position)}`;
      return one.by_layer ? text : `${text} (all layers at once)`;
    });
    return [...name, `, to query ${this.query}: ${values.join("; ")}.`];
  }

  /** The chosen cell, and the ways from it to the query. */
  showCell() {
    const { row, position } = this.cell;
    const text = make("p", { role: "status" }, ...this.about(row, position));
    const layer = this.data.payload.layers[row];
    const blocks = this.data.payload.traces?.blocks ?? 0;
    const ways = layer < blocks ? this.data.ways(this.query, layer, position) : [];
    this.cellText.replaceChildren(text);
    if (!ways.length) return;
    const list = ways.map((way) =>
      make(
        "li",
        {},
        `share ${shown(way.share)}: `,
        ...(way.head < 0
          ? ["stays at this token, through the residual connection"]
          : [
              `read by token ${way.position} `,
              quoted(this.tokens[way.position]),
              "; moved most by ",
              this.headNamed(layer, way.head, way.position),
              " (attention × value norm)",
            ]),
      ),
    );
    this.cellText.append(make("p", {}, `Where its paths go in block ${layer}:`), make("ol", {}, ...list));
  }

  showPaths() {
    const trace = this.data.trace(this.query);
    if (!trace?.paths.length) {
      const none = trace ? "No other path reaches this query." : "The strongest paths to this query were not traced.";
      this.paths.replaceChildren(make("p", { class: "sl-quiet" }, none));
      return;
    }
    const { layers } = this.data.payload.collapse; // those of the result, of which the page may have fewer
    const rows = trace.paths.map((path, k) => {
      const walk = path.positions.flatMap((one, at) => {
        if (at && one === path.positions[at - 1]) return [];
        const block = layers[at] - 1;
        const by = at && layers[at - 1] === block ? [" by ", this.headNamed(block, path.heads[block], one)] : [];
        return [`${at ? " → " : ""}layer ${layers[at]}`, ...by, ": ", quoted(cut(this.tokens[one], 40)), ` (${one})`];
      });
      const numbers = [shown(path.over_null), shown(path.weight)];
      const toggle = () => {
        this.path = this.path === k ? -1 : k;
        this.showPaths();
        this.drawAll();
        this.paths.querySelectorAll("[aria-pressed]")[k]?.focus();
      };
      const pressed = String(this.path === k);
      const only = make("button", { type: "button", "aria-pressed": pressed, onclick: toggle }, String(k + 1));
      only.title = "Draw this path alone";
      return [only, make("span", {}, ...walk), ...numbers];
    });
    const heads = ["Path", "Tokens, where the path changes them", term("Weight ÷ null"), "Weight"];
    const sink = trace.sink
      ? `, and all paths from ${visible(this.tokens[0])}, which have ${(100 * trace.sink).toPrecision(4)} % of the weight`
      : "";
    const caption = "Strongest attention paths from other tokens to the query, drawn on the map. Left out: ";
    const whole = `${caption}the path that stays at the query${sink}.`;
    this.paths.replaceChildren(table("Strongest paths", whole, heads, rows));
  }

  /**
   * A head, whose attention from the token that reads is shown beside it while it has the pointer or the focus.
   * @param {number} block @param {number} head @param {number} query
   */
  headNamed(block, head, query) {
    const attention = this.data.attention(query, block, head);
    if (!attention) return `head ${head}`;
    const text = [`Head ${head} of block ${block} attends from token ${query} `, quoted(this.tokens[query]), " to:"];
    const show = (/** @type {Event} */ { currentTarget }) => {
      const { left, bottom } = /** @type {HTMLElement} */ (currentTarget).getBoundingClientRect();
      const order = attention.map((_, at) => at).sort((a, b) => attention[b] - attention[a]);
      const seen = order.slice(0, 64).sort((a, b) => a - b);
      const cells = seen.map((at) => {
        const background = colour(attention[at] / attention[order[0]], false);
        const token = make("bdi", {}, cut(visible(this.tokens[at]), 12) || "␣");
        token.style.backgroundColor = css(background);
        token.style.color = ink(background);
        return token;
      });
      const most = order
        .slice(0, 3)
        .flatMap((at, k) => [k ? ", " : " ", quoted(cut(this.tokens[at], 24)), ` (${at}) ${percent(attention[at])}`]);
      this.place({ clientX: left, clientY: bottom }, [
        make("p", {}, ...text, ...most, "."),
        make("p", { class: "sl-attended" }, ...cells),
      ]);
    };
    const hide = () => (this.hover.hidden = true);
    const on = { onmouseenter: show, onfocus: show, onclick: show, onmouseleave: hide, onblur: hide };
    const described = { class: "sl-head", "aria-describedby": this.hover.id };
    return make("button", { type: "button", ...described, ...on }, `head ${head}`);
  }

  /** What the query would predict if it were read after each layer. */
  showReadout() {
    const readout = this.data.of(this.data.payload.readout, this.query);
    this.readout.hidden = !readout;
    if (!readout) return;
    const [tokens, chances] = readout;
    const rows = this.data.payload.layers.map((layer, row) => [
      String(layer),
      ...tokens[row].map((token, k) =>
        make("span", {}, quoted(cut(token, 24)), " ", make("span", {}, percent(chances[row][k]))),
      ),
    ]);
    const caption = `What query ${this.query} would predict if the model read it after each layer`;
    this.readout.replaceChildren(table("Readout", caption, ["Layer", term("Readout"), "2nd", "3rd"], rows.reverse()));
  }

  /** All layers of the window's tokens, when the table is open. */
  showTable() {
    while (this.table.children.length > 1) this.table.lastChild?.remove();
    if (!this.table.open) return;
    const { label, unit, by_layer } = this.data.quantity(this.name);
    const columns = by_layer ? this.data.payload.layers.map((layer) => `Layer ${layer}`) : ["All layers at once"];
    const rows = [];
    for (let at = this.from; at < Math.min(this.to, this.query + 1); at++)
      rows.push([
        String(at),
        quoted(cut(this.tokens[at], 60)),
        ...columns.map((_, row) => this.data.text(this.name, this.query, row, at)),
      ]);
    const heads = ["Position", "Token", ...columns];
    const caption = `${label} (unit ${unit}) of query ${this.query}`;
    this.table.append(table("Numbers of this query", caption, heads, rows));
  }

  /** Influence by distance, and the distance of v and v*. */
  showBelow() {
    const { payload, numbers } = this.data;
    const { distance, collapse } = payload;
    const lines = distance.series.map(({ label, start }) => ({
      label,
      points: Array.from(
        { length: distance.length },
        (_, r) => /** @type {[number, number]} */ ([r + 1, numbers[start + this.row * distance.length + r]]),
      ),
    }));
    const charts = [
      chart(
        `Mean influence by distance, from layer ${payload.layers[this.row]}, without BOS`,
        "distance + 1 (tokens)",
        "mean over queries (unit 1)",
        lines,
        true,
      ),
    ];
    const ends = [
      ["collapse_distance", "L∞ distance of v and v*"],
      ["collapse_noise", "noise floor"],
      ["last_token_rms", "root mean square of v"],
    ];
    const tail = ends.flatMap(([key, label]) => {
      const held = /** @type {any} */ (collapse)[key];
      const zero = held?.every((/** @type {number | null} */ one) => one === 0) ? ": 0 at every layer" : "";
      return held
        ? [
            {
              label: label + zero,
              points: collapse.layers.map((layer, k) => /** @type {[number, number]} */ ([layer, held[k] ?? NaN])),
            },
          ]
        : [];
    });
    if (tail.length)
      charts.push(
        chart("The prompt (v) and the prompt with its last token repeated (v*)", "layer", "model units", tail, false),
      );
    this.below.replaceChildren(...charts);
  }

  /** The size of a canvas in pixels of the screen. @param {HTMLCanvasElement} canvas @param {number} height */
  sized(canvas, height) {
    const width = Math.max(1, Math.floor(this.root.clientWidth));
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(ratio, ratio);
    context.clearRect(0, 0, width, height);
    return { width, context };
  }

  /** Where the cells of the heat map are. */
  get grid() {
    const rows = this.data.payload.layers.length;
    const left = 34;
    const tall = Math.max(10, Math.min(28, 360 / rows));
    const wide = (Math.max(1, Math.floor(this.root.clientWidth)) - left - 4) / (this.to - this.from);
    return { left, top: 6, tall, wide, rows };
  }

  /** A colour of the styles, which depends on the theme. @param {string} name */
  paint(name) {
    this.heat.style.color = `var(--sl-${name})`;
    return getComputedStyle(this.heat).color;
  }

  /**
   * Tokens under the columns: rotated if they do not fit side by side, and only some where columns are narrow.
   * @param {number} wide
   */
  columnLabels(wide) {
    const context = /** @type {CanvasRenderingContext2D} */ (this.heat.getContext("2d"));
    context.font = "12px system-ui, sans-serif";
    const every = Math.max(1, Math.ceil(13 / wide));
    const labels = [];
    for (let at = this.from; at < this.to; at++)
      if (at === this.query || (at % every === 0 && Math.abs(at - this.query) >= every))
        labels.push({ at, label: cut(visible(this.tokens[at]).trim(), 12) || "␣" });
    const widest = Math.max(...labels.map(({ label }) => context.measureText(label).width));
    const rotated = widest > every * wide - 4;
    return { labels, rotated, height: rotated ? widest + 10 : 20 };
  }

  drawHeat() {
    const { left, top, tall, wide, rows } = this.grid;
    const { payload } = this.data;
    const columns = this.columnLabels(wide);
    const { context } = this.sized(this.heat, top + rows * tall + columns.height + 20);
    const [text, tint] = [this.paint("ink"), this.paint("tint")];
    const name = this.cellName;
    const range = this.scaleOf([...payload.layers.keys()], name);
    this.showLegend(this.heatLegend, range, "each layer");
    const y = (/** @type {number} */ row) => top + (rows - 1 - row) * tall;
    const x = (/** @type {number} */ position) => left + (position - this.from) * wide;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    payload.layers.forEach((layer, row) => {
      context.fillStyle = text;
      if (tall >= 13 || row % 2 === 0) context.fillText(String(layer), 8, y(row) + tall / 2);
      for (let at = this.from; at < Math.min(this.to, this.query + 1); at++) {
        const value = this.data.value(name, this.query, row, at);
        context.fillStyle = value === null ? this.paint("tint") : css(colour(range.at(value), range.diverging));
        context.fillRect(x(at), y(row), Math.max(wide - (wide > 4 ? 1 : 0), 0.7), tall - 1);
      }
    });
    context.fillStyle = text;
    const every = Math.max(1, Math.ceil(40 / wide));
    context.textAlign = "center";
    for (let at = Math.ceil(this.from / every) * every; at < this.to; at += every)
      context.fillText(String(at), x(at) + wide / 2, top + rows * tall + columns.height + 10);
    for (const { at, label } of columns.labels) {
      context.save();
      context.translate(x(at) + wide / 2, top + rows * tall + (columns.rotated ? 5 : 10));
      if (columns.rotated) context.rotate(-Math.PI / 2);
      context.textAlign = columns.rotated ? "right" : "center";
      context.fillStyle = this.paint(at === this.query ? "path" : at > this.query ? "quiet" : "ink");
      context.fillText(label, 0, 0);
      context.restore();
    }
    const outline = (/** @type {number} */ at, /** @type {number} */ row, /** @type {number} */ high) => {
      for (const [stroke, thick] of /** @type {[string, number][]} */ ([
        [this.paint("paper"), 4],
        [text, 2],
      ])) {
        context.strokeStyle = stroke;
        context.lineWidth = thick;
        context.strokeRect(x(at) - 1, y(row) - 1, Math.max(wide, 3), high);
      }
    };
    outline(this.query, rows - 1, rows * tall);
    outline(this.cell.position, this.cell.row, tall);
    this.drawPaths(context, x, y);
  }

  /**
   * The strongest paths as arcs from the token at layer 0 up to the query; the first is the widest.
   * @param {CanvasRenderingContext2D} context
   * @param {(position: number) => number} x @param {(row: number) => number} y
   */
  drawPaths(context, x, y) {
    const { tall, wide } = this.grid;
    const trace = this.data.trace(this.query);
    const { layers, collapse } = this.data.payload;
    const paths = trace?.paths ?? [];
    const drawn = paths.map((_, k) => k).filter((k) => this.path < 0 || k === this.path);
    for (const k of drawn) {
      const places = layers.map((layer) => paths[k].positions[collapse.layers.indexOf(layer)]);
      const points = places.map((place, row) => [x(place) + wide / 2, y(row) + tall / 2]);
      for (const [stroke, more] of /** @type {[string, number][]} */ ([
        [this.paint("paper"), 1.5],
        [this.paint("path"), 0],
      ])) {
        context.strokeStyle = stroke;
        context.lineWidth = Math.max(1.5, 3 - 0.5 * k) + more;
        context.beginPath();
        points.forEach(([px, py], at) => {
          if (!at) return context.moveTo(px, py);
          const [bx, by] = points[at - 1];
          context.bezierCurveTo(bx, by - tall / 2, px, py + tall / 2, px, py);
        });
        context.stroke();
      }
    }
    for (const k of drawn) {
      const [start] = paths[k].positions;
      const below = drawn.filter((other) => other < k && paths[other].positions[0] === start).length;
      const [px, py] = [x(start) + wide / 2, y(0) + tall / 2 - 15 * below];
      context.fillStyle = this.paint("path");
      context.beginPath();
      context.arc(px, py, 7, 0, 2 * Math.PI);
      context.fill();
      context.fillStyle = this.paint("paper");
      context.fillText(String(k + 1), px, py + 0.5);
    }
  }

  /** The whole prompt as one bar, with the window marked. */
  drawOverview() {
    if (this.overview.hidden) return;
    const { width, context } = this.sized(this.overview, 36);
    const n = this.tokens.length;
    const [range, tint] = [this.scaleOf([this.row]), this.paint("tint")];
    for (let px = 0; px < width; px++) {
      const first = Math.floor((px * n) / width);
      const { value } = this.largest({ start: first, end: Math.max(first + 1, Math.floor(((px + 1) * n) / width)) });
      context.fillStyle = value === null ? this.paint("tint") : css(colour(range.at(value), this.diverging));
      context.fillRect(px, 4, 1, 28);
    }
    context.strokeStyle = context.fillStyle = this.paint("ink");
    context.lineWidth = 2;
    context.strokeRect((this.from * width) / n + 1, 1, ((this.to - this.from) * width) / n - 2, 34);
    context.fillRect((this.query * width) / n, 0, 2, 36);
  }

  /** @param {MouseEvent} event */
  scroll(event) {
    const box = this.overview.getBoundingClientRect();
    this.setWindow(Math.floor(((event.clientX - box.left) / box.width) * this.tokens.length));
    this.show();
  }

  /** The group that an event of the ribbon is about. @param {Event} event */
  groupOf(event) {
    const option = /** @type {HTMLElement} */ (event.target).closest?.("[data-start]");
    const start = Number(option?.getAttribute("data-start") ?? NaN);
    return this.groups.find((group) => group.start === start);
  }

  /** @param {MouseEvent} event */
  ribbonClick(event) {
    const group = this.groupOf(event);
    if (group) this.setQuery(group.end - 1, true);
  }

  /** @param {MouseEvent} event */
  ribbonHover(event) {
    const group = this.groupOf(event);
    this.tell(event, group ? { row: this.row, position: this.largest(group).position } : null);
  }

  /** @param {KeyboardEvent} event */
  ribbonKey(event) {
    const at = this.groups.findIndex((group) => group.start <= this.query && this.query < group.end);
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, PageUp: -16, PageDown: 16 }[event.key];
    let next = step === undefined ? -1 : at + step;
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = this.groups.length - 1;
    if (step === undefined && next < 0) return;
    event.preventDefault();
    this.setQuery(this.groups[Math.min(this.groups.length - 1, Math.max(0, next))].end - 1, true);
  }

  /** The cell under the pointer. @param {MouseEvent} event */
  cellOf(event) {
    const box = this.heat.getBoundingClientRect();
    const { left, top, tall, wide, rows } = this.grid;
    const row = rows - 1 - Math.floor((event.clientY - box.top - top) / tall);
    const position = this.from + Math.floor((event.clientX - box.left - left) / wide);
    return row >= 0 && row < rows && position >= this.from && position < this.to ? { row, position } : null;
  }

  /** @param {MouseEvent} event */
  heatClick(event) {
    const cell = this.cellOf(event);
    if (cell) this.setCell(cell.row, cell.position);
  }

  /** @param {number} row @param {number} position */
  setCell(row, position) {
    const rows = this.data.payload.layers.length;
    this.cell = { row: Math.min(rows - 1, Math.max(0, row)), position: Math.min(this.query, Math.max(0, position)) };
    if (this.cell.position < this.from || this.cell.position >= this.to) {
      this.setWindow(this.cell.position);
      this.showRibbon();
    }
    this.showCell();
    this.drawAll();
  }

  /** Say what is known about a cell beside the pointer. @param {MouseEvent} event @param {View["cell"] | null} cell */
  tell(event, cell) {
    this.place(event, cell && this.about(cell.row, cell.position));
  }

  /**
   * Put something beside a point of the window, or nothing.
   * @param {{clientX: number, clientY: number}} point @param {(Node | string)[] | null} parts
   */
  place({ clientX, clientY }, parts) {
    if (parts) this.hover.replaceChildren(...parts);
    this.hover.hidden = !parts;
    this.hover.style.left = `${Math.max(0, Math.min(clientX + 12, innerWidth - 340))}px`;
    this.hover.style.top = `${clientY + (clientY > innerHeight / 2 ? -12 : 20)}px`;
    this.hover.style.transform = clientY > innerHeight / 2 ? "translateY(-100%)" : "none";
  }

  /** @param {KeyboardEvent} event */
  heatKey(event) {
    const { row, position } = this.cell;
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      ArrowUp: [1, 0],
      ArrowDown: [-1, 0],
      PageUp: [0, -16],
      PageDown: [0, 16],
      Home: [0, -position],
      End: [0, this.query],
    };
    const move = moves[event.key];
    if (move) this.setCell(row + move[0], position + move[1]);
    else if (event.key === "Enter" || event.key === " ") this.setQuery(position);
    else return;
    event.preventDefault();
  }

  /** Put a text on the clipboard; by a selection where the page has no right to. @param {string} text */
  async copy(text) {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", { "aria-label": "Text to copy" });
      area.value = text;
      this.root.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    this.copied.textContent = done ? "Copied." : "The browser does not allow copying here.";
    setTimeout(() => this.copied.replaceChildren(), 4000);
  }
}

/**
 * Round numbers from low to high, at most seven: on a logarithmic axis powers of ten, or also twice and five times those.
 * @param {number} low @param {number} high @param {boolean} logarithmic
 */
export function ticks(low, high, logarithmic) {
  const size = logarithmic ? Math.log10(high / low) : high - low;
  const unit = logarithmic ? 1 : 10 ** Math.floor(Math.log10(size || 1) - 0.8);
  const step = [1, 2, 5, 10, 20].map((k) => k * unit).find((one) => size / one <= 6) ?? 50;
  const factors = size < 2 ? [1, 2, 5] : [1];
  const start = Math.ceil((logarithmic ? Math.floor(Math.log10(low)) : low) / step);
  const values = Array.from({ length: 8 }, (_, k) => (start + k) * step);
  const all = logarithmic ? values.flatMap((power) => factors.map((k) => Number(`${k}e${power}`))) : values;
  const inside = all.filter((one) => one >= low * (1 - 1e-9) && one <= high * (1 + 1e-9));
  return inside.length > 1 ? inside : [low, ...(high > low ? [high] : [])];
}

/**
 * Curves as a picture, with their numbers as a table. Vertical axes are logarithmic; zeros and unknown values are left
 * out of the picture.
 * @param {string} title @param {string} horizontal @param {string} vertical
 * @param {{label: string, points: [number, number][]}[]} lines @param {boolean} logarithmic horizontally
 */
function chart(title, horizontal, vertical, lines, logarithmic) {
  const [width, height, left, bottom] = [480, 240, 84, 40];
  const known = lines.flatMap(({ points }) => points.filter(([, value]) => Number.isFinite(value) && value > 0));
  const caption = make("figcaption", {}, title);
  if (!known.length) return make("figure", {}, caption, make("p", {}, "No value above 0."));
  const ends = (/** @type {number[]} */ values) => [Math.min(...values), Math.max(...values)];
  const across = (/** @type {number} */ value) => (logarithmic ? Math.log(value) : value);
  const [x0, x1] = ends(known.map(([at]) => across(at)));
  const [y0, y1] = ends(known.map(([, value]) => Math.log(value)));
  const x = (/** @type {number} */ at) => left + ((across(at) - x0) / (x1 - x0 || 1)) * (width - left - 12);
  const y = (/** @type {number} */ value) =>
    10 + (1 - (Math.log(value) - y0) / (y1 - y0 || 1)) * (height - bottom - 20);
  const picture = draw("svg", {
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": `${title}. The numbers are in the table below.`,
  });
  for (const value of ticks(Math.exp(y0), Math.exp(y1), true))
    picture.append(
      draw("path", { class: "sl-grid", d: `M${left} ${y(value)}H${width - 8}` }),
      draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, shown(value)),
    );
  const [first, last] = logarithmic ? [Math.exp(x0), Math.exp(x1)] : [x0, x1];
  for (const value of ticks(first, last, logarithmic))
    picture.append(
      draw("path", { class: "sl-grid", d: `M${x(value)} 4V${height - bottom}` }),
      draw("text", { x: x(value), y: height - bottom + 16, "text-anchor": "middle" }, shown(value)),
    );
  picture.append(
    draw("path", { class: "sl-axis", d: `M${left} 4V${height - bottom}H${width - 8}` }),
    draw("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, horizontal),
    draw("text", { x: -(height - bottom) / 2, y: 12, "text-anchor": "middle", transform: "rotate(-90)" }, vertical),
  );
  const names = make("ul", { class: "sl-lines" });
  lines.forEach(({ label, points }, k) => {
    const drawn = points.filter(([, value]) => Number.isFinite(value) && value > 0);
    const d = drawn.map(([at, value], i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    picture.append(draw("path", { class: `sl-line sl-line-${k % 4}`, d }));
    for (const [at, value] of drawn.length <= 64 ? drawn : [])
      picture.append(draw("circle", { class: `sl-dot sl-line-${k % 4}`, cx: x(at), cy: y(value), r: 2.5 }));
    const sample = draw("svg", { viewBox: "0 0 28 8", width: 28, height: 8, "aria-hidden": "true" });
    sample.append(draw("path", { class: `sl-line sl-line-${k % 4}`, d: "M0 4H28" }));
    names.append(make("li", {}, sample, ` ${label}`));
  });
  const details = make(
    "details",
    {
      ontoggle: () => {
        if (details.children.length > 1) return;
        const rows = lines[0].points.map(([at], i) => [shown(at), ...lines.map(({ points }) => shown(points[i][1]))]);
        const heads = [horizontal, ...lines.map(({ label }) => label)];
        details.append(table(title, `${title}: ${vertical}`, heads, rows));
      },
    },
    make("summary", {}, "Numbers"),
  );
  return make("figure", {}, caption, names, picture, details);
}

/**
 * Build a map in an element.
 * @param {HTMLElement} root @param {Payload} payload @param {Live | null} [live]
 */
export function mount(root, payload, live = null) {
  return new View(root, payload, live);
}

/** The map as a widget: `model` has the data, takes requests, and says how they go on. */
export default {
  /** @param {{model: any, el: HTMLElement}} given */
  render({ model, el }) {
    const root = make("div", { class: "sl-map" });
    // JupyterLab takes keys before the map gets them, and "d" twice deletes the cell; this word on what has the focus
    // keeps it from that.
    el.addEventListener("focusin", ({ target }) => {
      /** @type {HTMLElement} */ (target).dataset.lmSuppressShortcuts = "true";
    });
    const light = document.body.dataset.jpThemeLight; // of JupyterLab, whose theme need not be the system's
    if (light) root.dataset.theme = light === "true" ? "light" : "dark";
    const text = make("span", { role: "status" });
    const bar = make("progress", { max: 1, "aria-label": "Progress" });
    const cancel = button("Cancel", () => model.send({ kind: "cancel" }));
    const state = make("p", { class: "sl-map sl-live" }, text, " ", bar, " ", cancel);
    if (root.dataset.theme) state.dataset.theme = root.dataset.theme;
    const busy = (/** @type {boolean} */ on) => {
      if (!on && document.activeElement === cancel) view?.focus();
      bar.hidden = cancel.hidden = !on;
    };
    /** @type {View | null} */
    let view = null;
    const live = {
      measure: (/** @type {number} */ query) => {
        text.textContent = `Measuring query ${query} …`;
        bar.value = 0;
        busy(true);
        model.send({ kind: "measure", query });
      },
    };
    const redraw = () => {
      const before = view;
      const focused = root.contains(document.activeElement);
      before?.stop();
      view = mount(root, model.get("data"), live);
      if (before) view.resume(before);
      if (focused) view.focus();
    };
    const told = (/** @type {{kind: string, share?: number, text?: string}} */ message) => {
      if (message.kind === "progress") {
        bar.value = message.share ?? 0;
        return;
      }
      text.textContent = message.text ?? "";
      busy(false);
    };
    busy(false);
    el.append(state, root);
    redraw();
    model.on("change:data", redraw);
    model.on("msg:custom", told);
    return () => {
      view?.stop();
      model.off("change:data", redraw);
      model.off("msg:custom", told);
    };
  },
};

if (typeof document !== "undefined") {
  for (const root of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".sl-map"))) {
    const data = root.querySelector('script[type="application/json"]');
    if (data) {
      mount(root, JSON.parse(data.textContent ?? ""));
      data.remove();
    }
  }
}

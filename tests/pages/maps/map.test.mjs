// The parts of the map's program that need no page. `tests/pages/maps/test_program.py` runs this file with Node.
import assert from "node:assert/strict";
import test from "node:test";

const { Data, colour, cut, grouped, hasNearlyAll, ink, scale, shown, ticks, visible } = await import(
  process.env.MAP_PROGRAM
);

/** A payload with one quantity by layer and one by token, of two of three queries. */
function small() {
  const numbers = new Float32Array([1, 2, 3, 4, 5, 6, 7, 8, NaN, 10, 11, 12, 13]);
  return {
    tokens: ["a", "b", "c"],
    layers: [0, 3],
    queries: [1, 2],
    quantities: [
      { name: "bound", by_layer: true, starts: [0, 4] },
      { name: "effect", by_layer: false, starts: [-1, 10] },
    ],
    traces: null,
    blob: Buffer.from(numbers.buffer).toString("base64"),
  };
}

test("numbers are found where they are, and nowhere else", () => {
  const data = new Data(small());
  assert.deepEqual(
    [0, 1].map((row) => [0, 1].map((at) => data.value("bound", 1, row, at))),
    [
      [1, 2],
      [3, 4],
    ],
  );
  assert.equal(data.value("bound", 2, 1, 0), 8);
  assert.equal(data.value("bound", 2, 1, 1), null, "NaN was not measured");
  assert.equal(data.value("bound", 1, 0, 2), null, "after the query");
  assert.equal(data.value("bound", 0, 0, 0), null, "a query that is not there");
  assert.equal(data.value("effect", 2, 0, 2), 13);
  assert.equal(data.value("effect", 2, 1, 2), 13, "effects are of tokens, whatever the layer");
  assert.equal(data.value("effect", 1, 0, 0), null);
  assert.equal(data.has("effect", 1), false);
  assert.deepEqual(data.ways(2, 0, 0), []);
});

test("a ratio to a null of 0 is undefined, which is not the same as not measured", () => {
  const numbers = new Float32Array([NaN, 2, 0, 1]);
  const payload = {
    tokens: ["a", "b"],
    layers: [0],
    queries: [1],
    quantities: [
      { name: "bound_over_null", by_layer: true, starts: [0] },
      { name: "null", by_layer: true, starts: [2] },
    ],
    traces: null,
    blob: Buffer.from(numbers.buffer).toString("base64"),
  };
  const data = new Data(payload);
  assert.equal(data.text("bound_over_null", 1, 0, 0), "undefined (null 0)");
  assert.equal(data.text("bound_over_null", 1, 0, 1), "2");
  assert.equal(data.text("bound_over_null", 0, 0, 0), "not measured");
});

test("numbers have four digits, and what was not measured is said", () => {
  const texts = { 0: "0", 1: "1", 0.1: "0.1", 1234.56: "1235", 123456: "1.235e5", 0.00012345: "1.234e-4", 100: "100" };
  for (const [value, text] of Object.entries(texts)) assert.equal(shown(Number(value)), text);
  for (const value of [null, undefined, NaN]) assert.equal(shown(value), "not measured");
  assert.equal(shown(Infinity), "Infinity");
  for (let k = 0; k < 500; k++) {
    const value = (Math.random() - 0.5) * 10 ** (40 * Math.random() - 20);
    assert.equal(Number(shown(value)), Number(value.toPrecision(4)));
  }
});

test("hidden characters are written out", () => {
  assert.equal(visible("a\n\t\0\u202e\u2028\ud800é😀"), "a\\n\\t\\u{0}\\u{202e}\\u{2028}\\u{d800}é😀");
  assert.equal(cut("😀😀😀", 2), "😀😀…");
  assert.equal(cut("abc", 3), "abc");
});

test("groups cover the prompt once, in order", () => {
  const starts = (tokens, unit, ...more) => grouped(tokens, unit, ...more).map((one) => one.start);
  assert.deepEqual(starts(["The", " qu", "ick", ",", " fox", "\\n", "ran"], "word"), [0, 1, 3, 4, 5, 6]);
  assert.deepEqual(starts(["a", "b\\n", "c", "\n", "d"], "line"), [0, 2, 4]);
  assert.deepEqual(starts(["1", "1", "0"], "word"), [0, 1, 2], "tokens without spaces are words");
  assert.deepEqual(starts(["a", " \n \t", "b", "\n.", "c"], "line"), [0, 2]);
  assert.deepEqual(starts(["a", "b", "c", "d", "e", "f"], "span", [-1, -1, 0, 0, 1, 0]), [0, 1, 2, 4, 5]);
  for (const unit of ["token", "word", "line", "span"]) {
    const tokens = Array.from({ length: 100 }, (_, k) => (k % 3 ? " x" : "y\\n"));
    let at = 0;
    const spans = tokens.map((_, k) => Math.floor(k / 7) - 1);
    for (const { start, end } of grouped(tokens, unit, spans)) {
      assert.equal(start, at);
      assert.ok(end > start);
      at = end;
    }
    assert.equal(at, 100);
  }
});

test("scales are logarithmic, that of a ratio centred at 1; that of changes is linear", () => {
  const one = scale([1, 100, null, 0], false);
  assert.deepEqual([one.low, one.high], [1, 100]);
  assert.ok(Math.abs(one.at(10) - 0.5) < 1e-12);
  assert.equal(one.at(0), 0);
  const ratio = scale([0.5, 8], true);
  assert.ok(Math.abs(ratio.at(1) - 0.5) < 1e-12);
  assert.deepEqual([ratio.low, ratio.high], [1 / 8, 8]);
  const changes = scale([-4, 1, null], true, true);
  assert.deepEqual([changes.low, changes.high, changes.at(0), changes.at(-4)], [-4, 4, 0.5, 0]);
  assert.equal(scale([null, 0], false).any, false);
});

test("text on every colour has a contrast of at least 4.5", () => {
  const light = (one) => (one / 255 <= 0.04045 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = (rgb) => rgb.reduce((sum, one, k) => sum + [0.2126, 0.7152, 0.0722][k] * light(one), 0);
  for (const diverging of [false, true])
    for (let k = 0; k <= 1000; k++) {
      const back = luminance(colour(k / 1000, diverging));
      const front = ink(colour(k / 1000, diverging)) === "#000" ? 0 : 1;
      const contrast = (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
      assert.ok(contrast >= 4.5, `${k} ${contrast}`);
    }
});

test("the sequential scale gets lighter all the way, so that it can be read without colour", () => {
  const grey = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
  for (let k = 1; k <= 100; k++) assert.ok(grey(colour(k / 100, false)) > grey(colour((k - 1) / 100, false)) - 0.5);
});

test("a first token with nearly all is beyond the scale", () => {
  assert.equal(hasNearlyAll([98, 1, 1]), true);
  for (const values of [
    [50, 25, 25],
    [98, 1],
    [1, 0, 0],
    [null, 1, 1],
    [98, 1, null],
    [0, 0, 0],
  ])
    assert.equal(hasNearlyAll(values), false);
});

test("ticks are round, inside the ends, and few", () => {
  assert.deepEqual(ticks(0, 18, false), [0, 5, 10, 15]);
  assert.deepEqual(ticks(0, 6, false), [0, 1, 2, 3, 4, 5, 6]);
  assert.deepEqual(ticks(1, 44, true), [1, 2, 5, 10, 20]);
  assert.deepEqual(ticks(1.8e6, 2.9e9, true), [1e7, 1e8, 1e9]);
  assert.deepEqual(ticks(3, 3, true), [3]);
  for (let k = 0; k < 500; k++) {
    const low = 10 ** (20 * Math.random() - 10);
    const high = low * 10 ** (12 * Math.random());
    for (const logarithmic of [true, false]) {
      const values = ticks(low, high, logarithmic);
      assert.ok(values.length >= 2 && values.length <= 7, `${low} ${high} ${values}`);
      assert.ok(values.every((one) => one >= low * (1 - 1e-9) && one <= high * (1 + 1e-9)));
    }
  }
});

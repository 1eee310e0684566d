// Draw the page's figures when they come near the visible part, light or dark as the page is.
const isDark = () => {
  const theme = document.body.dataset.theme;
  return theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
};
const small = matchMedia("(max-width: 600px)");
const draw = (box) => {
  const looks = JSON.parse(box.querySelector("script").textContent); // wide: light, dark; on a small screen: light, dark
  const { data, layout } = looks[(small.matches ? 2 : 0) + (isDark() ? 1 : 0)] || looks[0];
  const div = box.querySelector("div");
  box.style.background = layout.paper_bgcolor;
  div.style.height = `${layout.height}px`;
  Plotly.react(div, data, layout, { responsive: true, displaylogo: false });
};
const drawn = new Set();
const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (isIntersecting && !drawn.has(target)) {
      drawn.add(target);
      draw(target);
    }
  }
}, { rootMargin: "800px" });
document.querySelectorAll(".sl-figure").forEach((box) => near.observe(box));
const again = () => drawn.forEach(draw);
new MutationObserver(again).observe(document.body, { attributeFilter: ["data-theme"] });
small.addEventListener("change", again);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);

// Draw the page's figures when they come near the visible part, light or dark as the page is.
const isDark = () => {
  const theme = document.body.dataset.theme;
  return theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
};
const draw = (box) => {
  const themes = JSON.parse(box.querySelector("script").textContent);
  const { data, layout } = themes[isDark() ? themes.length - 1 : 0];
  box.style.background = layout.paper_bgcolor;
  Plotly.react(box.querySelector("div"), data, layout, { responsive: true, displaylogo: false });
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
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);

// Draw the page's figures. Those on hidden tabs or far below are drawn when they come near the visible part.
const draw = (box) => {
  const { data, layout } = JSON.parse(box.querySelector("script").textContent);
  Plotly.newPlot(box.querySelector("div"), data, layout, { responsive: true, displaylogo: false });
};
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }
}, { rootMargin: "800px" });
document.querySelectorAll(".sl-figure").forEach((box) => near.observe(box));

// Code, outputs and tables scroll sideways on narrow screens: let the keyboard reach those that do.
const wide = () => {
  for (const box of document.querySelectorAll("pre:not([aria-hidden]), div.output, div.table-wrapper")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
};
wide();
window.addEventListener("resize", wide);

// Sphinx's captions are headings for readers of the page's structure, who need their level.
for (const head of document.querySelectorAll('[role="heading"]:not([aria-level])')) head.ariaLevel = "2";

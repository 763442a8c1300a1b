"use strict";
// The viewer: one trajectory at a time, and a switch between reading text and looking at tokens.
(() => {
  const root = document.querySelector("[data-viewer]");
  if (!root) return;
  const panels = [...root.querySelectorAll("[data-trajectory]")];
  const buttons = [...root.querySelectorAll("[data-show]")];
  const toggle = root.querySelector("[data-tokens]");
  const show = (name) => {
    panels.forEach((panel) => { panel.hidden = panel.dataset.trajectory !== name; });
    buttons.forEach((button) => {
      if (button.dataset.show === name) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    });
  };
  buttons.forEach((button) => button.addEventListener("click", () => show(button.dataset.show)));
  toggle.addEventListener("change", () => root.classList.toggle("tokens-on", toggle.checked));
  root.classList.toggle("tokens-on", toggle.checked);
  root.classList.add("live");
  if (buttons.length) show(buttons[0].dataset.show);
})();

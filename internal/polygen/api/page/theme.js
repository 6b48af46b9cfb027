// Sets the theme before anything is drawn. It is no module, so that nothing is drawn
// in the wrong one first.
"use strict";
(() => {
  const root = document.documentElement;
  const read = () => {
    try {
      return localStorage.getItem("sluice.theme") || "auto";
    } catch {
      return "auto"; // storage is forbidden
    }
  };
  root.dataset.theme = read();
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = root.dataset.theme;
    choice.addEventListener("change", () => {
      root.dataset.theme = choice.value;
      try {
        localStorage.setItem("sluice.theme", choice.value);
      } catch {
        // it holds until the page is left
      }
      document.dispatchEvent(new Event("sluice:theme"));
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("sluice:theme")));
})();

// lunr reads a "-" before a word as "pages without this word": a search for --nproc-per-node would find nothing.
document.addEventListener(
  "input",
  (event) => {
    const field = event.target;
    if (!(field instanceof HTMLInputElement) || !field.classList.contains("md-search__input")) return;
    const words = field.value.replace(/(^|\s)-+(?=\S)/g, "$1");
    if (words !== field.value) field.value = words;
  },
  true,
);

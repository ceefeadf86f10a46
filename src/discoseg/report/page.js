// The page's only script: the slider over epochs, tables that sort by a click on a heading, and settings on paper.
document.documentElement.classList.add("scripted");
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));

const slider = document.querySelector(".slider input");
if (slider) {
  const epochs = slider.dataset.epochs.split(" ").map(Number);
  const show = () => {
    const epoch = epochs[slider.value];
    slider.nextElementSibling.value = `epoch ${epoch}`;
    for (const series of document.querySelectorAll(".steps")) {
      const steps = [...series.children];
      const now = steps.filter((step) => Number(step.dataset.epoch) <= epoch).pop() ?? steps[0];
      for (const step of steps) step.classList.toggle("now", step === now);
    }
  };
  slider.addEventListener("input", show);
  let playing = 0;
  document.querySelector(".slider button").addEventListener("click", (event) => {
    clearInterval(playing);
    playing = playing ? 0 : setInterval(() => {
      slider.value = (Number(slider.value) + 1) % epochs.length;
      show();
    }, 900);
    event.target.textContent = playing ? "❚❚" : "▶";
  });
  show();
}

for (const heading of document.querySelectorAll(".cases thead th")) {
  heading.addEventListener("click", () => {
    const before = heading.getAttribute("aria-sort");
    const up = before ? before === "descending" : heading.cellIndex === 0;  // names from A, the best Dice first
    for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = heading.closest("table").tBodies[0];
    const cell = (row) => row.cells[heading.cellIndex];
    const order = (a, b) => heading.cellIndex
      ? cell(a).dataset.value - cell(b).dataset.value
      : cell(a).textContent.localeCompare(cell(b).textContent, undefined, { numeric: true });
    body.append(...[...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a))));
  });
}

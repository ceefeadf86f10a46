// The panel of trainings: start one on what is annotated, watch it, stop it.
import * as api from "./api.js";
import { drawChart } from "./chart.js";

const CHARTS = [
  {
    title: "Dice",
    low: 0,
    high: 1,
    lines: [
      ["train_dice", "training"],
      ["val_dice", "validation"],
    ],
  },
  {
    title: "Size, ratio to the true",
    low: 0,
    high: 1,
    lines: [
      ["train_size_ratio", "training"],
      ["val_size_ratio", "validation"],
    ],
  },
  {
    title: "Primal residuals",
    log: true,
    lines: [
      ["primal_crf", "boundary"],
      ["primal_size", "size"],
    ],
  },
  { title: "Loss", log: true, lines: [["loss", "loss"]] },
];
const active = (state) => state === "running" || state === "stopping";

export class TrainingPanel {
  /** onEpoch(training): whenever one has come further. onNotice(message): what went wrong. */
  constructor({ form, start, stop, status, bar, charts }, { onEpoch, onNotice }) {
    this.elements = { form, start, stop, status, bar, charts };
    this.onEpoch = onEpoch;
    const attempt = async (action) => {
      try {
        this.show(await action());
      } catch (error) {
        onNotice(error.message);
      }
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const given = [...new FormData(form)].filter(([, value]) => value.trim() !== "");
      const settings = Object.fromEntries(
        given.map(([key, value]) => [key, key === "epochs" ? Number(value) : value.trim()]),
      );
      attempt(async () => {
        const training = await api.startTraining(settings);
        form.elements.name.value = ""; // another one needs another name
        return training;
      });
    });
    stop.addEventListener("click", () => attempt(api.stopTraining));
    form.addEventListener("input", () => this.nameStart());
  }

  /** Say on the button whether it starts a training, or goes on with the one that was stopped. */
  nameStart() {
    const { form, start } = this.elements;
    const again = this.training?.state === "idle" && this.training.name === form.elements.name.value.trim();
    start.textContent = again ? "Go on" : "Train";
  }

  show(training) {
    if (!training) return;
    const { form, start, stop, status, bar, charts } = this.elements;
    const { state, epoch, epochs, name, message, seconds } = training;
    const stopped = state === "idle" && name && message;
    if (stopped && active(this.training?.state)) form.elements.name.value = name; // by its name it can go on
    this.training = training;
    this.nameStart();
    form.classList.toggle("active", active(state));
    start.disabled = active(state);
    stop.disabled = !active(state);
    stop.textContent = state === "stopping" ? "Stop now" : "Stop";
    bar.hidden = !name;
    bar.max = epochs || 1;
    bar.value = epoch || 0;
    const passed = seconds ? `, ${Math.round(seconds)} s` : "";
    const sentences = {
      idle: stopped ? message : "Trains on the cases that are begun or done.",
      running: epoch ? `${name}: epoch ${epoch} of ${epochs}${passed}` : `${name}: preparing…`,
      stopping: `${name}: stops after this epoch…`,
      finished: `${name}: finished, ${epoch} of ${epochs} epochs${passed}`,
      failed: `${name} failed: ${message}`,
    };
    status.textContent = sentences[state];
    status.className = state;
    charts.replaceChildren();
    for (const { title, lines, ...options } of CHARTS) {
      const drawn = lines
        .map(([column, text]) => ({ name: text, values: valuesOf(training.rows ?? [], column) }))
        .filter((line) => line.values.length);
      if (drawn.length) drawChart(charts, title, drawn, { ...options, epochs });
    }
    this.onEpoch(training);
  }
}

/** Return [[epoch, value], …] of a column of metrics.csv, without empty and broken cells. */
function valuesOf(rows, column) {
  const number = (cell) => (cell === "" || cell === null || cell === undefined ? NaN : Number(cell));
  return rows.map((row) => [number(row.epoch), number(row[column])]).filter(([, value]) => Number.isFinite(value));
}
